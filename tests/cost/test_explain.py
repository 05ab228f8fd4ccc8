"""The exposed seconds of a step follow from the numbers that `planc cost --explain` prints beside them."""

import re
from pathlib import Path

import pytest

from planc.cli import main
from planc.picture.units import seconds
from tests.plans import ROOT, written

LINE = re.compile(r"^(?P<name>\S+ of .+?): (?P<time>[\d.]+ \w+) = (?P<sum>[^;\n]+)(?P<reasons>;.*)?$", re.MULTILINE)
TERM = re.compile(
    r"(?:(?P<share>[\d.]+)% of )?(?P<calls>[\d.e+-]+) x (?:\((?:(?P<mb>[\d.e+-]+) MB / (?P<rate>[\d.e+-]+) GB/s \+ )?"
    r"(?P<us>[\d.e+-]+) us\)|(?P<launch>[\d.e+-]+) us of launch)"
)
SHARED = re.compile(
    r"of (?P<all>[\d.]+) ms of transfers beside (?P<cover>[\d.]+) ms of compute,"
    r" (?P<bare>[\d.]+) ms are (?P<why>[a-z ]+), and each of the rest slows the compute by (?P<slow>[\d.]+) of its time"
)
OVERLAPPED = """plan overlapped
model     llama3_8b
batch     64 x 4096 tokens microbatch 1
cluster   2 x h100_node
mesh      fsdp 4 > tp 4
use       fsdp over fsdp
use       tp over tp
overlap   tp as async_matmul
gather    params per pass
compute   bf16 reduce fp32
recompute blocks
"""


def _worth(term: re.Match[str]) -> float:
    number = {name: float(text) for name, text in term.groupdict().items() if text}
    calls = number["calls"]
    if "launch" in number:
        return calls * number["launch"] * 1e-6
    moved = number["mb"] * 1e6 / (number["rate"] * 1e9) if "mb" in number else 0.0
    return number.get("share", 100.0) / 100 * calls * (moved + number["us"] * 1e-6)


@pytest.mark.parametrize("plan", ["plans/llama3_70b_h100.plan", "plans/llama3_70b_v5p.plan", OVERLAPPED])
def test_every_exposed_second_is_derived_from_the_text(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / plan if plan.endswith(".plan") else written(tmp_path, plan)
    assert main(["cost", str(path), "--explain"]) == 0
    text = capsys.readouterr().out
    (total,) = re.findall(r"^exposed communication ([\d.]+ \w+)$", text, re.MULTILINE)
    found = [*LINE.finditer(text)]
    sums = [sum(_worth(term) for term in TERM.finditer(line["sum"])) for line in found]
    assert [seconds(s) for s in sums] == [line["time"] for line in found]
    assert seconds(sum(sums)) == total


def test_the_share_that_is_exposed_follows_from_what_is_printed_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", str(ROOT / "plans/llama3_70b_h100.plan"), "--explain"]) == 0
    lines = [line for line in LINE.finditer(capsys.readouterr().out) if line["reasons"]]
    assert len(lines) == 3  # gathers of parameters, and two reductions of gradients
    for line in lines:
        (said,) = SHARED.finditer(line["reasons"])
        every, cover, bare, slow = (float(said[name]) for name in ("all", "cover", "bare", "slow"))
        assert bare == pytest.approx(every - cover, rel=1e-4) or said["why"] == "at the ends"
        share = bare / every + slow * (1 - bare / every)
        for term in TERM.finditer(line["sum"]):
            assert 100 * share == pytest.approx(float(term["share"]), rel=1e-5)
