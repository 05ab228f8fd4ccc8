"""Changes that users see: a well formed file each below changes/; the newest release is read in two minutes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
NAME = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(TOWNCRIER['fragment'])})\.md")
COLUMNS, WORDS, WORDS_OF_NOTES = 120, 100, 450


def mistakes(name: str, text: str) -> list[str]:
    """Mistakes of a file of changes/, which changes/README.md describes."""
    found = [] if NAME.fullmatch(name) else ["the name is not <what>.<kind>.md"]
    found += [] if re.match(r"[A-Z`*]", text) and text.endswith((".\n", ".`\n")) else ["no whole sentences"]
    found += ["a heading or a list"] if re.search(r"^(#|- |\* |\d+\. )|\n\n", text, re.MULTILINE) else []
    found += [f"a line of more than {COLUMNS} characters"] if max(map(len, text.split("\n"))) > COLUMNS else []
    return found + ([f"more than {WORDS} words"] if len(text.split()) > WORDS else [])


def test_every_change_is_well_formed() -> None:
    files = [p for p in (ROOT / "changes").iterdir() if p.name not in TOWNCRIER["ignore"]]
    assert {p.name: m for p in files if (m := mistakes(p.name, p.read_text()))} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("splash.fix.md", "It works."),
        ("Splash.fixed.md", "It works."),
        ("splash.md", "It works."),
        ("splash.fixed.md", "it works."),
        ("splash.fixed.md", "It works"),
        ("splash.fixed.md", "It works.\n\nAnd this."),
        ("splash.fixed.md", "It works:\n- well."),
        ("splash.fixed.md", "It " + "works " * 30 + "."),
        ("splash.fixed.md", "It\n" + "works\n" * 100 + "well."),
    ],
)
def test_another_form_is_refused(name: str, text: str) -> None:
    assert len(mistakes(name, f"{text}\n")) == 1
    assert mistakes("splash-block.fixed.md", "`planc check` works\nas it should.\n") == []


def test_the_readme_tells_every_kind() -> None:
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "changes" / "README.md").read_text(), re.MULTILINE)
    assert told == list(TOWNCRIER["fragment"])


def test_the_newest_release_begins_with_notes_that_take_two_minutes() -> None:
    log = (ROOT / TOWNCRIER["filename"]).read_text()
    newest = log.split(TOWNCRIER["start_string"])[1].split("\n## ")[1]
    notes, *details = newest.split("\n### ")
    assert 100 < len(notes.split()) <= WORDS_OF_NOTES and len(notes.splitlines()) <= 60
    headings = [line.partition(" than ")[0].rstrip(":") for line in notes.splitlines() if line.endswith(":")]
    assert headings == ["What is new", "Other answers", "What to do"]
    names = [d.partition("\n")[0] for d in details]
    assert len(names) == len(set(names)), "a heading twice"
