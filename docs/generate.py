"""`make docs`: one page per code from the rules themselves, and fresh output under every shown command."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import filled
from schemas import schema_files as schema_files
from snippets import ROOT, Snippet, commands, pages, run, snippets, workspace
from systems import systems_pages as systems_pages

from planc.checks import rules
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.diag.span import Source

FOLDER = ROOT / "docs" / "reference" / "diagnostics"
SCHEMAS = ROOT / "planc" / "cli" / "schemas"
SEEN_BY = {
    "text": "while the file is read",
    "plan": "on the plan, before anything is costed",
    "cost": "on the costed plan",
    "target": "while lowering for a target",
    "preset": "in presets, training and receipts",
    "module": "by `planc audit --portability`, in a torch module",
    "foreign": "in other systems' files, by `planc import` and `planc export`",
}


def diagnostics_pages() -> dict[str, str]:
    """File name to text, for every code and the index."""
    found = rules()
    return {"index.md": _index(found), **{f"{code}.md": _page(rule) for code, rule in found.items()}}


def _index(rules: dict[str, Rule]) -> str:
    rows = "\n".join(f"| [{r.code}]({r.code}.md) | {r.title} | {SEEN_BY[r.reads]} |" for r in rules.values())
    return f"""# Diagnostics

Every finding has a code, a place, the arithmetic behind it and, where one exists, an edit that works.
`planc explain CODE` prints these pages. The letter tells the severity: E is an error (exit status 1),
W a warning, N a note. A code is never reused.

| code | what it says | found |
|---|---|---|
{rows}
"""


def _page(rule: Rule) -> str:
    return f"""# {rule.code}: {rule.title}

{rule.why.strip()}

Found {SEEN_BY[rule.reads]}.
{_examples(rule)}
[All codes](index.md)
"""


def _examples(rule: Rule) -> str:
    """The bad and the good file, as the tests check them; nothing for a mistake that no text shows."""
    if not rule.bad:
        return ""
    fence = "plan" if rule.severity == "note" or rule.reads == "target" else f"plan bad {rule.code}"
    return f"""
A file with this finding:

```{fence}
{rule.bad.strip()}
```
{_said(rule)}
The same file mended:

```plan
{rule.good.strip()}
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
        path.write_text(rule.bad)
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


def accuracy_page() -> str:
    """Published runs beside predictions: half a minute."""
    from planc.calibration.accuracy import accuracy
    from planc.cli.bench.accuracy import page

    return page(accuracy())


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
    (ROOT / "docs" / "reference" / "field-notes.md").write_text(field_notes())
    (ROOT / "docs" / "measured" / "accuracy.md").write_text(accuracy_page())
    for page in pages():
        with tempfile.TemporaryDirectory() as folder:
            text = refreshed(page, workspace(page, Path(folder)))
        if text != page.read_text():
            page.write_text(text)
            print(f"refreshed {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
