"""Whatever a file holds, checking it ends in a report: no traceback, the same one every time."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planc.driver import check
from tests.plans import BODY, HEAD

ODD = {"?", "(", ")", "[", "]", '"', ",", "/ 0", "-1", "1e400", "999999999999", "as", "in", "\n"}
WORDS = sorted(set((HEAD + BODY).split()) | ODD | {"split layers over fsdp as 1f1b"})
LINES = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), max_size=9).map("\n".join)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "x.plan"


def twice(path: Path) -> None:
    first, second = check(path).to_json(), check(path).to_json()
    assert first == second
    assert first["step"] is not None or first["diagnostics"]


SETTINGS = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.binary(max_size=200))
@SETTINGS
def test_any_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    twice(path)


@given(st.one_of(LINES, st.text(max_size=200)))
@SETTINGS
def test_any_text(path: Path, text: str) -> None:
    path.write_text("plan x\n" + text, errors="replace")
    twice(path)


@given(st.data())
@SETTINGS
def test_a_good_plan_with_words_changed(path: Path, data: st.DataObject) -> None:
    lines = (HEAD + BODY).splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(1, len(lines) - 1))
        words = lines[row].split() or ["x"]
        words[data.draw(st.integers(0, len(words) - 1))] = data.draw(st.sampled_from(WORDS))
        lines[row] = " ".join(words) or "x"
    path.write_text("\n".join(lines))
    twice(path)
