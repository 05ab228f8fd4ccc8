"""`make docs`: one page per code from the rules themselves, and fresh output under every shown command."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import filled
from ledger import LEDGER, ledger, ledger_page
from schemas import schema_files as schema_files
from snippets import ROOT, Snippet, commands, pages, run, snippets, workspace
from systems import systems_pages as systems_pages

from planc.checks import rules
from planc.cli.man_page import man_page
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import FOUND, Rule
from planc.diag.span import Source

if TYPE_CHECKING:
    from tests.language.mistakes import Rated

FOLDER = ROOT / "docs" / "reference" / "diagnostics"
SCHEMAS = ROOT / "planc" / "cli" / "schemas"


def diagnostics_pages() -> dict[str, str]:
    """File name to text, for every code and the index."""
    found = rules()
    return {"index.md": _index(found), **{f"{code}.md": _page(rule) for code, rule in found.items()}}


def _index(rules: dict[str, Rule]) -> str:
    rows = "\n".join(f"| [{r.code}]({r.code}.md) | {r.page.title} | {FOUND[r.page.reads]} |" for r in rules.values())
    return f"""# Diagnostics

Every finding has a code, a place, the arithmetic behind it and, where one exists, an edit that works.
`planc explain CODE` prints these pages. The letter tells the severity: E is an error (exit status 1),
W a warning, N a note. A code is never reused.

| code | what it says | found |
|---|---|---|
{rows}
"""


def _page(rule: Rule) -> str:
    return f"""# {rule.code}: {rule.page.title}

{rule.page.why}

Found {FOUND[rule.page.reads]}.
{_examples(rule)}
[All codes](index.md)
"""


def _examples(rule: Rule) -> str:
    """The bad and the good file, as the tests check them; nothing for a mistake that no text shows."""
    if not rule.page.bad:
        return ""
    fence = "plan" if rule.severity == "note" or rule.page.reads == "target" else f"plan bad {rule.code}"
    return f"""
A file with this finding:

```{fence}
{rule.page.bad.strip()}
```
{_said(rule)}
The same file mended:

```plan
{rule.page.good.strip()}
```
{_fix(rule)}"""


def _said(rule: Rule) -> str:
    """Output of checking the bad file, for the reader and as a snapshot."""
    from planc.diag.text import render

    folder, found, sources = _found(rule)
    text = render(found, sources, width=90).replace(f"{folder}/", "")
    return f"\nWhat planc says:\n\n```text\n{text}\n```\n" if found else ""


def _fix(rule: Rule) -> str:
    """A sentence on `check --fix` and the finding's edit; empty where it offers none."""
    fixes = [d.fix for d in _found(rule)[1] if d.fix is not None]
    if not fixes:
        return ""
    if fixes[0].safe:
        return f"\n`planc check --fix` applies the edit: {fixes[0].title}.\n"
    return f"\n`planc check --unsafe-fixes` applies an edit, which changes the plan: {fixes[0].title}.\n"


def _found(rule: Rule) -> tuple[str, list[Diagnostic], dict[str, Source]]:
    """The folder that the bad file was in, its findings with this code, and the texts read."""
    from planc.driver import examine

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "example.plan")
        path.write_text(rule.page.bad)
        checked = examine(path)
    return folder, [d for d in checked.report.diagnostics if d.code == rule.code], checked.sources


def field_notes() -> str:
    """The page of public threads, from tests/field/threads.toml."""
    sys.path.insert(0, str(ROOT))
    from tests.field.threads import Thread, themes, threads

    def answer(t: Thread) -> str:
        plan = f"[plan](../../tests/field/plans/{t.plan}.plan)"
        if t.code:
            return f"[{t.code}](diagnostics/{t.code}.md), {plan}"
        if t.row is not None:
            return f"cannot be written: the report counts what `{t.row[0]}` moves over {t.row[1]}, {plan}"
        if t.receipts:
            return f"`planc crosscheck` compares no runs that differ in {', '.join(t.receipts)}"
        return f"not stopped: {t.reason}"

    found = threads()
    parts = [
        FIELD_NOTES.format(
            all=len(found), stopped=len([t for t in found if not t.reason]), coded=len([t for t in found if t.code])
        )
    ]
    for name, title in themes().items():
        rows = [f"| [{t.name}]({t.url}) | {t.what} | {answer(t)} |" for t in found if t.theme == name]
        parts.append(f"## {title}\n\n| thread | what went wrong | what planc says |\n|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


FIELD_NOTES = """# Field notes

Public threads of people whose layout went wrong, and what planc does about each: {stopped} of {all} are
stopped before launch, {coded} of them by a finding at the sentence that is wrong. The plans repeat the
mistakes and are run by the tests. A code that refuses (E0901) stops a thread because planc drops no
sentence that a target cannot do."""


def mistakes_page() -> str:
    """The page of mistakes of the first hour, from tests/language/mistakes.toml: seconds."""
    sys.path.insert(0, str(ROOT))
    from tests.language.mistakes import POINTS, all_rated

    def answer(r: Rated) -> str:
        d = r.finding
        said = d and (d.help or (d.fix.title if d.fix else d.message))
        code = f"[{d.code}](../reference/diagnostics/{d.code}.md): " if d else ""
        return code + (" ".join(said.split()) if said else "read as it is meant").replace("|", "\\|")

    def points(r: Rated) -> str:
        without = ", ".join(p for p in POINTS if p not in r.points)
        return f"{len(r.points)}{f', without: {without}' if without else ''}"

    found = all_rated()
    mean = sum(len(r.points) for r in found) / len(found)
    parts = [MISTAKES.format(count=len(found), mean=mean, least=min(len(r.points) for r in found))]
    for group in dict.fromkeys(r.mistake.group for r in found):
        rows = [
            f"| `{r.mistake.wrong or f'(no {r.mistake.at})'}` | {answer(r)} | {points(r)} |"
            for r in found
            if r.mistake.group == group
        ]
        head = f"## {group[0].upper()}{group[1:]}\n\n| written | help of the answer | points |\n|---|---|--:|\n"
        parts.append(head + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


MISTAKES = """# Mistakes of the first hour

{count} lines that people write in their first hour, in words of other systems or by mistake, and what `planc check`
says. The answers that would help were written down before planc's were looked at. An answer has a point each for: it
stands at the line (where), it names what is wrong (word), it says what helps (helps), and its edit leaves a plan
without an error (mends). {mean:.2f} points of 4 in the mean, {least} at the least. A program counts the points;
nobody but the authors of planc chose the lines."""


def versions_page() -> str:
    """The page of versions, from the tables of differences."""
    from planc.backends.cuda.versions import TORCH
    from planc.backends.torch_xla.versions import TORCH_XLA
    from planc.backends.xla.versions import JAX
    from planc.ir.version import dotted

    rows = [
        f"| {dotted(d.since)} | {d.what} ([source]({d.reference.split(', ')[0]})) | {d.handled} |"
        if d.reference.startswith("https://")
        else f"| {dotted(d.since)} | {d.what} ({d.reference}) | {d.handled} |"
        for d in sorted(TORCH.differences, key=lambda d: d.since)
    ]
    frameworks = [
        f"| {f.name} | {dotted(f.pinned)} | {', '.join(map(dotted, f.versions))} | {', '.join(map(dotted, f.tried))} |"
        for f in (TORCH, JAX, TORCH_XLA)
    ]
    return VERSIONS.format(frameworks="\n".join(frameworks), differences="\n".join(rows))


VERSIONS = """# Versions of torch and JAX

A program is written for one version of its framework, and says which in its first lines. `planc lower --torch 2.11`
and `--jax 0.11` write for another; so does `planc.lower(plan, target, version="2.11")`. What planc itself trains,
measures or audits is written for the version that is installed.

| framework | written for, unless asked | can be written for | tests run it on |
|---|---|---|---|
{frameworks}

A program runs on all versions in the last column without a word, warns on others, and stops where something that it
uses is known to fail, with the reason. torch before 2.11 stops every program: on 2.9 two data-parallel layouts train
as one process, but gradients of tensor parallelism are wrong and a 1F1B pipeline ends in gloo.

## What differs in torch

Each row is a file of `backends/cuda/versions/`. Programs that need none of them are the same for every version.

| since | what changed | what planc does |
|---|---|---|
{differences}

## What was tried

CI runs every test on the pinned versions. On the oldest and the newest torch it trains one layout of each mechanism
that torch has changed beside one process, checks the collectives of every step, and runs the committed programs on a
fake process group. `make versions` does so for every version in the table, in environments of their own
(`.venv-versions`, 7.5 GB: a torch each, CUDA's libraries once, all else from `.venv`); `make other-torches`
trains every layout of the tests on them.

JAX 0.11 needs Python 3.12. Its wheels are read without it: every name that planc and its programs use is there and
none is deprecated, and mypy finds their calls right. Nothing was run on it, so a program warns there.
"""


def accuracy_files() -> dict[Path, str]:
    """Published runs beside predictions, as a page and as the figures that reports repeat: half a minute."""
    from tests.lab.bench.accuracy import intervals, page, residuals, summary
    from tests.lab.published.accuracy import accuracy

    found = accuracy()
    return {
        ROOT / "docs" / "measured" / "accuracy.md": page(found),
        ROOT / "planc" / "calibration" / "data" / "accuracy.json": summary(found),
        ROOT / "planc" / "calibration" / "data" / "intervals.json": intervals(found),
        ROOT / "tests" / "lab" / "published" / "data" / "residuals.json": residuals(found),
    }


def tidy(output: str) -> str:
    """Output as a page holds it: no blanks at the ends of lines, one newline at the end."""
    return "\n".join(line.rstrip() for line in output.strip("\n").splitlines()) + "\n" if output else ""


def refreshed(page: Path, folder: Path) -> str:
    """The page with the files it quotes, the output that its commands print today, and figures as measured."""
    text = page.read_text()
    for snippet in snippets(page):
        if source := snippet.option("from"):
            text = text.replace(snippet.text, (ROOT / source).read_text())
        if snippet.language == "console" and not snippet.launches:
            text = text.replace(snippet.text, _rerun(snippet, folder))
    return filled(text)


def _rerun(snippet: Snippet, folder: Path) -> str:
    """The block with today's output. A command that does not end as the block says stops everything."""
    parts = []
    for command in commands(snippet):
        output = ""
        if command.shown:
            done = run(command.line, folder)
            if done.returncode != int(snippet.option("exit") or 0):
                sys.exit(f"{snippet.id}: `{command.line}` exits {done.returncode}\n{done.stdout}")
            output = tidy(done.stdout)
        parts.append(f"$ {command.line}\n{output}")
    return "".join(parts)


def write_all(folder: Path, ending: str, wanted: dict[str, str]) -> None:
    """Write the files of a folder; its other files with this ending go."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob(f"*{ending}"):
        if file.name not in wanted:
            file.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)


def main() -> None:
    write_all(FOLDER, ".md", diagnostics_pages())
    write_all(ROOT / "docs" / "reference" / "systems", ".md", systems_pages())
    write_all(SCHEMAS, ".json", schema_files())
    LEDGER.with_suffix(".md").write_text(ledger_page(ledger()))
    (ROOT / "docs" / "man" / "planc.1").write_text(man_page())
    (ROOT / "docs" / "reference" / "field-notes.md").write_text(field_notes())
    (ROOT / "docs" / "reference" / "versions.md").write_text(versions_page())
    (ROOT / "docs" / "measured" / "mistakes.md").write_text(mistakes_page())
    for path, text in accuracy_files().items():
        path.write_text(text)
    for page in pages():
        with tempfile.TemporaryDirectory() as folder:
            text = refreshed(page, workspace(page, Path(folder)))
        if text != page.read_text():
            page.write_text(text)
            print(f"refreshed {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
