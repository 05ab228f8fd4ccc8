"""Every rule's bad plan yields exactly its code, every good plan nothing, every offered edit works."""

from pathlib import Path

import pytest

from planc.checks import rules
from planc.diag import registry
from planc.diag.diagnostic import Fix
from planc.diag.edits import apply_edits
from planc.diag.registry import Rule
from planc.driver import check
from tests.plans import ROOT, written


def found(path: Path) -> tuple[set[str], list[Fix]]:
    """The codes that checking a plan gives, and the edits that it offers."""
    said = check(path).diagnostics
    return {d.code for d in said}, [d.fix for d in said if d.fix is not None]


WITH_BAD = [r for r in rules().values() if r.page.bad]
WITH_GOOD = [r for r in rules().values() if r.page.good]


@pytest.mark.parametrize("rule", WITH_BAD, ids=lambda r: r.code)
def test_bad_plan_yields_exactly_its_code_and_the_offered_edit_works(rule: Rule, tmp_path: Path) -> None:
    codes, fixes = found(written(tmp_path, rule.page.bad))
    assert codes == {rule.code}
    if fixes:
        edited = apply_edits(rule.page.bad, fixes[0].edits)
        assert rule.code not in found(written(tmp_path, edited))[0], edited


@pytest.mark.parametrize("rule", WITH_GOOD, ids=lambda r: r.code)
def test_good_plan_yields_nothing(rule: Rule, tmp_path: Path) -> None:
    assert found(written(tmp_path, rule.page.good)) == (set(), [])


def test_most_rules_offer_an_edit(tmp_path: Path) -> None:
    offered = [r for r in WITH_BAD if found(written(tmp_path, r.page.bad))[1]]
    assert len(offered) >= len(WITH_BAD) / 2


def test_a_page_is_of_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was copied and kept the other's heading, or has lost a part, is no page."""
    text = (ROOT / "docs" / "reference" / "diagnostics" / "E0203.md").read_text()
    (tmp_path / "pages").mkdir()
    monkeypatch.setattr(registry, "files", lambda _package: tmp_path)
    for code, written_text in (("E0204", text), ("E0203", text.replace("\nFound ", "\nSeen "))):
        (tmp_path / "pages" / f"{code}.md").write_text(written_text)
        with pytest.raises(AssertionError, match=f"the page of {code}"):
            registry.page.__wrapped__(code)


def test_every_raised_code_has_a_manual_page() -> None:
    import re

    root = Path(__file__).parents[2]
    raised = set()
    for file in [*(root / "planc").rglob("*.py"), *(root / "backends").rglob("*.py")]:
        if "__pycache__" not in file.parts:
            raised |= set(re.findall(r'"([EWN]\d{4})"', file.read_text()))
    assert raised <= set(rules()), sorted(raised - set(rules()))
