"""Small inputs from public issue threads are answered as expected: inputs.toml has each with its commands."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planc.cli import main

HERE = Path(__file__).parent
FOLDER = HERE / "inputs"
KEYS = {"run", "rc", "says", "never", "plan", "truth"}
CANNOT_BE_READ = re.compile(r"^error\[(?!E0501)", re.MULTILINE)
"""An error of a plan that is not about its memory."""
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
SECONDS = re.compile(
    r"^step ([\d.]+) (\w+) .*?^80% interval ([\d.]+) (\w+) to ([\d.]+) (\w+)", re.MULTILINE | re.DOTALL
)
PEAK = re.compile(r"^peak allocated ([\d.]+) GiB \(([\d.]+) to ([\d.]+)\), reserved ([\d.]+) to ([\d.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that was said, with the lines of a finding joined."""
        return re.sub(r"\s+", " ", f"{self.out}\n{self.err}")


def rows() -> list[dict[str, Any]]:
    return [dict(row) for row in tomllib.loads((HERE / "inputs.toml").read_text())["input"]]


def asked(words: list[str], capsys: pytest.CaptureFixture[str]) -> Answer:
    code = main(words)
    said = capsys.readouterr()
    return Answer(code, said.out, said.err)


def holds(row: dict[str, Any], answer: Answer) -> None:
    assert answer.code == row.get("rc", 0), answer
    for words in row.get("says", ()):
        assert words in answer.text, answer
    for words in row.get("never", ()):
        assert words not in answer.text, answer


def assert_figures_lie_in_their_intervals(text: str) -> None:
    if found := SECONDS.search(text):
        estimate, low, high = (float(found[i]) * UNITS[found[i + 1]] for i in (1, 3, 5))
        assert low <= estimate <= high, found[0]
        allocated, least, most, reserved, held = map(float, re.findall(PEAK, text)[0])
        assert least <= allocated <= most and least <= reserved and most <= held, text


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["run"].removeprefix("import ").split(" --cluster")[0])
def test_an_input_is_answered_as_expected(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused import writes no plan, `check` opens an imported one, and figures lie in their intervals."""
    monkeypatch.chdir(FOLDER)
    answer = asked(words := shlex.split(row["run"]), capsys)
    holds(row, answer)
    assert_figures_lie_in_their_intervals(answer.out)
    if words[0] != "import":
        return
    assert bool(answer.out) == (answer.code == 0), "findings go to standard error"
    if answer.code == 0:
        (tmp_path / "imported.plan").write_text(answer.out)
        checked = asked(["check", str(tmp_path / "imported.plan")], capsys)
        assert CANNOT_BE_READ.search(checked.out) is None, checked
        assert_figures_lie_in_their_intervals(checked.out)
        for words_of_check in row.get("plan", ()):
            assert words_of_check in checked.text, checked


def test_every_file_has_its_row() -> None:
    """Files that others name (hardware, configs) stand in the file that names them."""
    runs = " ".join(row["run"] for row in rows())
    texts = "".join(path.read_text() for path in FOLDER.glob("*.plan"))
    for path in FOLDER.rglob("*.*"):
        assert path.name in runs or path.name in texts, path
    assert all(row.keys() <= KEYS and row.keys() & {"says", "never", "plan"} for row in rows())
    assert len({row["run"] for row in rows()}) == len(rows())
