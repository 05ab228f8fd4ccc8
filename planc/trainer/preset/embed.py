"""`planc embed`: write a compiled plan into a preset, with the sums that show when it is stale."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.files import write_atomically
from planc.ir.plan import Plan
from planc.trainer.preset.load import COMPILED, read_text, read_toml

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import InlineTable, String

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
    """Write `plan`, which was loaded from the file `source`, into `preset`; whether that changed it.

    Comments, order and the other tables stay as they are. A preset that does not exist is made.
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
    """The keys of `[plan]`. Sums are taken of the files themselves, by path from the preset."""
    compiled = plan.canonical()
    files = {_relative(source.parent / name, folder): digest for name, digest in sorted(plan.sources.items())}
    sums = {**files, COMPILED: hashlib.sha256(compiled.encode()).hexdigest()}
    return {
        "source": _relative(source, folder),
        "sha256": _inline(sums),
        "set": _inline(dict(sorted(plan.set.items()))),
        "compiled": _string(compiled),
    }


def _inline(values: dict[str, Any]) -> InlineTable:
    import tomlkit

    table = tomlkit.inline_table()
    table.update(values)
    return table


def _string(text: str) -> String:
    """JSON in single quotes needs no escapes; the rare text with a quote in it is escaped."""
    import tomlkit

    return tomlkit.string(text, literal="'" not in text)


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
