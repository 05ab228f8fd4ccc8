"""Pages of other systems' fields, from the tables that the readers and writers use."""

from __future__ import annotations

from collections.abc import Iterable

from planc.frameworks.runs import ROWS
from planc.interop.system import System
from planc.interop.systems import systems
from planc.interop.table import FieldRow, rows

ROW_CHARACTERS = 120
"""Names of noted fields in one row of a table, so that a change of one is one short line in a diff."""

DONE = ("read", "noted", "refused")


def systems_pages() -> dict[str, str]:
    """File name to text: a page for each system, and the index with their counts."""
    return {"index.md": _index(), **{f"{name}.md": _page(system) for name, system in systems().items()}}


def _index() -> str:
    lines = []
    for name, system in systems().items():
        found = rows(system)
        counts = " | ".join(str(len([r for r in found if r.treatment == done])) for done in DONE)
        version = f"[{system.title}]({name}.md) | {system.version} | {', '.join(system.formats)}"
        lines.append(f"| {version} | {counts} | {len([r for r in found if r.written])} |")
    return f"""# Other systems' files

`planc import FILE` reads the configuration of another system as a plan, `planc check FILE` judges it where it
lies, and `planc export PLAN --to SYSTEM` writes it. A field is **read** (it becomes a sentence), **noted** (it changes
neither layout, memory nor time as planc counts them; each is known by its name), or **refused**
([E1304](../diagnostics/E1304.md)) unless it has its default. A field that is none of these is unknown
([E1303](../diagnostics/E1303.md)). The last column counts the fields that an export sets.

| system | version | files | read | noted | refused | written |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""


def _page(system: System) -> str:
    found = rows(system)
    parts = [
        f"# {system.title}\n",
        f"Names and defaults are those of version {system.version}. A default that a file leaves to the system stands "
        "in the imported plan with a comment.",
    ]
    titles = {
        "read": ("Read", "| field | default | becomes | written |\n|---|---|---|---|"),
        "refused": ("Refused unless it has its default", "| field | default | why |\n|---|---|---|"),
        "noted": ("Noted", "| fields | what they are for |\n|---|---|"),
    }
    for done, (title, head) in titles.items():
        chosen = [r for r in found if r.treatment == done]
        if chosen:
            parts.append(f"\n## {title}\n\n{head}\n" + "\n".join(_lines(chosen, done)))
    if system.cannot:
        parts.append("\n## What its files cannot say\n\n| sentence | what there is |\n|---|---|")
        parts[-1] += "".join(f"\n| `{verb}` | {_cell(why)} |" for verb, why in system.cannot.items())
    if runs := [row for row in ROWS if system.name in row.frameworks]:
        parts.append("\n## What it can run\n\nOf these decisions nothing else: `planc check` warns of it (W0907).\n")
        parts[-1] += "\n| sentence | what there is | where it says so |\n|---|---|---|"
        parts[-1] += "".join(f"\n| `{row.what}` | {_cell(row.why)} | {_cell(row.source)} |" for row in runs)
    return "\n".join(parts) + "\n\n[All systems](index.md)\n"


def _lines(found: list[FieldRow], done: str) -> list[str]:
    if done == "noted":
        reasons = dict.fromkeys(r.becomes for r in found)
        return [
            f"| {', '.join(row)} | {why} |"
            for why in reasons
            for row in _rows_of(f"`{r.name}`" for r in found if r.becomes == why)
        ]
    if done == "refused":
        return [f"| `{r.name}` | {_default(r)} | {_cell(r.becomes)} |" for r in found]
    return [f"| `{r.name}` | {_default(r)} | {r.becomes} | {'yes' if r.written else ''} |" for r in found]


def _rows_of(names: Iterable[str]) -> list[list[str]]:
    """`names` in their order, as many in a row as ROW_CHARACTERS hold."""
    rows_of_names: list[list[str]] = []
    for name in names:
        if not rows_of_names or len(", ".join([*rows_of_names[-1], name])) > ROW_CHARACTERS:
            rows_of_names.append([])
        rows_of_names[-1].append(name)
    return rows_of_names


def _default(row: FieldRow) -> str:
    if row.default is None:
        return "none"
    value = row.default if not isinstance(row.default, tuple) else ", ".join(map(str, row.default))
    return f"`{value}`" if value != "" else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
