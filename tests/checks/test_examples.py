"""Every rule's bad plan yields exactly its code, every good plan nothing, every offered edit works."""

from pathlib import Path

import pytest

from planc.checks import rules
from planc.diag.edits import apply_edits
from planc.diag.registry import Rule
from planc.driver import check

WITH_BAD = [r for r in rules().values() if r.bad]
WITH_GOOD = [r for r in rules().values() if r.good]


def codes(path: Path) -> list[str]:
    return [d.code for d in check(path).diagnostics]


def written(folder: Path, text: str) -> Path:
    path = folder / "example.plan"
    path.write_text(text)
    return path


@pytest.mark.parametrize("rule", WITH_BAD, ids=lambda r: r.code)
def test_bad_plan_yields_exactly_its_code(rule: Rule, tmp_path: Path) -> None:
    assert set(codes(written(tmp_path, rule.bad))) == {rule.code}


@pytest.mark.parametrize("rule", WITH_GOOD, ids=lambda r: r.code)
def test_good_plan_yields_nothing(rule: Rule, tmp_path: Path) -> None:
    assert codes(written(tmp_path, rule.good)) == []


@pytest.mark.parametrize("rule", WITH_BAD, ids=lambda r: r.code)
def test_the_offered_edit_works(rule: Rule, tmp_path: Path) -> None:
    path = written(tmp_path, rule.bad)
    found = check(path).diagnostics
    fixes = [d.fix for d in found if d.fix is not None]
    if not fixes:
        pytest.skip(f"{rule.code} offers no mechanical edit")
    path.write_text(apply_edits(rule.bad, fixes[0].edits))
    assert rule.code not in codes(path), path.read_text()


def test_every_raised_code_has_a_manual_page() -> None:
    import re

    root = Path(__file__).parents[2]
    raised = set()
    for file in [*(root / "planc").rglob("*.py"), *(root / "backends").rglob("*.py")]:
        if "__pycache__" not in file.parts:
            raised |= set(re.findall(r'"([EWN]\d{4})"', file.read_text()))
    assert raised <= set(rules()), sorted(raised - set(rules()))
