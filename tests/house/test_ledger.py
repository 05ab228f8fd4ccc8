"""The ledger of figures: each claim is a line that a person reads at a glance, and its command exists."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from ledger import LEDGER, WIDTH, ledger, ledger_page  # noqa: E402


def test_the_page_is_written_from_the_ledger() -> None:
    """`make docs` writes it; no line is too long to read, and each theme is one table."""
    page = LEDGER.with_suffix(".md").read_text()
    assert page == ledger_page(ledger())
    assert [line for line in page.splitlines() if len(line) > WIDTH] == []
    themes = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert len(themes) == len(set(themes))


def test_what_a_claim_s_command_names_is_in_the_tree() -> None:
    """Test files, scripts, pages and targets of make: a claim that nobody can measure again is none."""
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text() + (ROOT / "tests/lab/Makefile").read_text(), re.MULTILINE
    )
    for claim in ledger():
        paths = re.findall(r"\b(?:tests|docs|plans)/[\w./-]+", claim.command)
        assert [path for path in paths if not (ROOT / path).exists()] == [], claim.claim
        assert set(re.findall(r"`make ([a-z-]+)`", claim.command)) <= set(targets), claim.claim


def test_the_roadmap_is_read_at_a_glance() -> None:
    lines = (ROOT / "ROADMAP.md").read_text().splitlines()
    assert len(lines) <= 80 and max(map(len, lines)) <= 160
