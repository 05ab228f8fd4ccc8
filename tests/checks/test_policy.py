"""`planc.toml`: what a repository expects of every plan in it."""

from pathlib import Path

import pytest

from planc.driver import examine

PLAN = """plan p
model llama_tiny
batch 8 x 64 tokens microbatch 1
cluster 1 x h100_node
mesh dp 8
use ddp over dp
compute bf16 reduce fp32
"""


def found(tmp_path: Path, policy: str, *, root: str = ".git", plan: str = PLAN) -> list[tuple[str, str, int]]:
    folder = tmp_path / "team" / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / root).mkdir(exist_ok=True)
    (tmp_path / "planc.toml").write_text(policy)
    (folder / "p.plan").write_text(plan)
    report = examine(folder / "p.plan").report
    return [(d.code, d.span.file, d.span.line) for d in report.diagnostics if d.code.startswith("E08")]


def test_an_expectation_of_the_repository_is_broken_at_its_line(tmp_path: Path) -> None:
    policy = 'expect = [\n  "memory <= 1 MiB",  # none\n  "mfu >= 0 %",\n  "no W0508",\n]\n'
    assert found(tmp_path, policy) == [("E0801", str(tmp_path / "planc.toml"), 2)]
    assert found(tmp_path, "expect = []\n") == []
    assert found(tmp_path, policy, plan=PLAN.replace("mesh dp 8", "mesh dp 8 >")) == [], "the plan itself is wrong"


@pytest.mark.parametrize(
    "policy", ['expect = ["memory"]', 'expect = ["no E9"]', "expect = 3", 'expects = ["mfu >= 3 %"]', "expect = ["]
)
def test_a_policy_that_is_none_is_refused(policy: str, tmp_path: Path) -> None:
    assert [code for code, *_ in found(tmp_path, policy)] == ["E0808"]


def test_a_file_above_the_repository_is_no_policy(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    assert found(tmp_path, 'expect = ["memory <= 1 MiB"]', root="team/.git") == []
