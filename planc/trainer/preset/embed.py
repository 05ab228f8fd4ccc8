"""`planc embed`: write a compiled plan into a preset, with checksums that detect when it is stale."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.files import write_atomically
from planc.ir.plan import Plan
from planc.trainer.preset.compiled import checksum, compiled, toml_string
from planc.trainer.preset.load import COMPILED, read_text, read_toml

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import InlineTable, String, Table

NEW = """\
# A run: the plan (written by `planc embed`), the training, the data.

[train]
steps = 100
lr = 3e-4
warmup_steps = 10

[data]
source = "python-stdlib"
"""


def embed(plan: Plan, source: Path | str, preset: Path | str) -> bool:
    """Write `plan`, loaded from the file `source`, into `preset`; return True if that changed it.

    Comments, order and other tables are unchanged. A preset that does not exist is created.
    """
    import tomlkit

    source, preset = Path(source), Path(preset)
    before = read_text(preset) if preset.exists() else ""
    text = before or NEW
    read_toml(preset, text)  # a broken file is refused with its place
    document = tomlkit.parse(text)
    if "plan" not in document:
        document = tomlkit.parse(f"[plan]\n\n{text}") if not before else _with_plan(document)
    table: Any = document["plan"]
    for key, value in _values(plan, source, preset.parent).items():
        if key in ("files", "sha256"):
            table.pop(key, None)  # at the end: an inline table of many files would be one long line
        if value or key != "files":
            table[key] = value
    after = tomlkit.dumps(document)
    if after != before:
        write_atomically(preset, after)
    return after != before


def _with_plan(document: TOMLDocument) -> TOMLDocument:
    import tomlkit

    document["plan"] = tomlkit.table()
    return document


def _values(plan: Plan, source: Path, folder: Path) -> dict[str, Any]:
    """Return the keys and values of the table `[plan]`. File paths are relative to the preset."""
    made = compiled(source, dict(plan.set))
    sums = {_relative(source.parent / name, folder): digest for name, digest in sorted(plan.sources.items())}
    given = dict(sorted(plan.set.items()))
    return {
        "source": _relative(source, folder),
        "set": _inline(given),
        "compiled": _string(made.text),
        "files": _table({name: _string(text) for name, text in made.files.items()}),
        "sha256": _table({**sums, COMPILED: checksum(made, given)}),
    }


def _inline(values: dict[str, Any]) -> InlineTable:
    import tomlkit

    table = tomlkit.inline_table()
    table.update(values)
    return table


def _table(values: dict[str, Any]) -> Table:
    import tomlkit

    table = tomlkit.table()
    table.update(values)
    table.add(tomlkit.nl())
    return table


def _string(text: str) -> String:
    """Return a TOML string, formatted exactly as by `toml_string`."""
    from tomlkit.items import String, StringType, Trivia

    written, literal = toml_string(text)
    quotes = 3 if literal else 1
    return String(StringType.MLL if literal else StringType.SLB, text, written[quotes:-quotes], Trivia())


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
