"""The emitted text of the torch_xla runtime: what it says, that it stands alone, and what is refused."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import planc
from planc.backends.torch_xla.emit.program import emit, outputs
from planc.checks import check_plan
from planc.diag import PlanError
from planc.driver import load
from planc.ir.sharding import Sharded
from planc.lowering import lower_plan
from tests.plans import propagated
from tests.torch_xla.cases import layout
from tests.xla.cases import FSDP_TP, plan_of

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS: dict[str, tuple[str, ...]] = {
    "fsdp_tp": FSDP_TP,
    "dp": ("dp 4", "use ddp over dp"),
    "zero1": ("dp 4", "use zero1 over dp"),
    "bf16": (*FSDP_TP, "compute bf16 reduce fp32"),
}
BEYOND = ("recompute_every", "fsdp_cp", "mixtral_ep", "mixtral_capacity")
"""Layouts of the launches whose files have functions of their own."""


def sharded(name: str) -> Sharded:
    return propagated(layout(name) if name in BEYOND else plan_of(name, *LAYOUTS[name]))


@pytest.fixture(params=[*LAYOUTS, *BEYOND])
def text(request: pytest.FixtureRequest) -> str:
    return emit(sharded(request.param))


def test_it_imports_no_planc(text: str) -> None:
    tree = ast.parse(text)
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= {
        "__future__",
        "copy",
        "math",
        "re",
        "collections",
        "typing",
        "warnings",
        "numpy",
        "torch",
        "torch_xla",
    }


def test_it_is_well_written(text: str, tmp_path: Path) -> None:
    path = tmp_path / "emitted.py"
    path.write_text(text)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "E,F,I,UP,B,SIM,RUF,N,PIE,RET,C4"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *command, "--isolated", "--line-length", "110", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_golden(golden: Callable[[Path, str], None]) -> None:
    golden(ROOT / "plans" / "goldens" / "tiny.torch_xla.py", emit(propagated(load(ROOT / "plans" / "tiny.plan"))))


def test_what_modules_return_rests_where_the_plan_says() -> None:
    """Heads lie side by side in what a linear module returns; a block returns its last sum."""
    found = outputs(sharded("fsdp_tp"))
    assert found["layers.*.attention.wq"] == (("fsdp",), (), ("tp",))
    assert found["layers.*.attention.core"] == (("fsdp",), (), ("tp",), ())
    assert found["layers.*"] == found["tok_embeddings"]
    assert set(outputs(sharded("dp")).values()) == {(("dp",), (), ()), (("dp",), (), (), ())}


@pytest.mark.parametrize(
    ("sentences", "why"),
    [
        (("pp 2 > fsdp 2", "use pp over pp as gpipe", "use fsdp over fsdp"), "it has no pipeline"),
        (("fsdp 4", "use fsdp over fsdp", "recompute attention.core"), "it runs whole blocks again, or nothing"),
        (("cp 4", "use cp over cp"), "it holds sequences in order: write all_gather(balance = none)"),
        (("cp 4", "use cp over cp as ring"), "it has torch's attention alone"),
    ],
)
def test_what_it_cannot_do_is_refused(sentences: tuple[str, ...], why: str) -> None:
    with pytest.raises(PlanError) as refused:
        lower_plan(check_plan(plan_of("refused", *sentences)), "xla", "torch_xla")
    assert [d.code for d in refused.value.diagnostics] == ["E0901"]
    assert why in refused.value.diagnostics[0].message


def test_a_runtime_of_the_target_is_lowered_for() -> None:
    assert "import torch_xla" in planc.lower(ROOT / "plans" / "tiny.plan", "xla", runtime="torch_xla").text
    assert "import torch_xla" not in planc.lower(ROOT / "plans" / "tiny.plan", "xla").text
    with pytest.raises(ValueError, match="'torch_xla' is not one of torch"):
        planc.lower(ROOT / "plans" / "tiny.plan", "cuda", runtime="torch_xla")
