"""A run that goes on with fewer devices: the axis shrinks, the batch stays, and so do the losses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import planc
from planc.diag import PlanError
from planc.trainer.preset.embed import embed
from planc.trainer.preset.load import Preset, load_preset
from planc.trainer.run.elastic import fitted
from planc.trainer.run.train import prepare, train

ROOT = Path(__file__).resolve().parents[2]
PLAN = """plan shrinking
model     llama_tiny
batch     4 x 16 tokens microbatch 1
cluster   2 x cpu_local
mesh      fsdp 2
use       fsdp over fsdp
compute   fp32
"""
PRESET = """[train]
steps = 4
lr = 1e-3
eval_batches = 0
[data]
max_bytes = 65536
[checkpoint]
{elastic}
"""


def preset(folder: Path, elastic: str = 'elastic = "fsdp"', plan: str = PLAN) -> Preset:
    (folder / "p.plan").write_text(plan)
    path = folder / "run.toml"
    path.write_text(PRESET.format(elastic=elastic))
    embed(planc.load(folder / "p.plan"), folder / "p.plan", path)
    return load_preset(path)


def test_the_axis_shrinks_and_the_batch_stays(tmp_path: Path) -> None:
    wide = PLAN.replace("2 x cpu", "8 x cpu").replace("fsdp 2", "fsdp 4 > tp 2").replace("4 x 16", "16 x 16")
    given = preset(tmp_path, plan=wide + "use       tp over tp\n")
    found = fitted(given, 4).plan
    assert found.mesh.sizes == {"fsdp": 2, "tp": 2}
    assert [a.stride for a in found.mesh.axes] == [2, 1]
    assert found.batch == given.plan.batch
    assert fitted(given, 8) is given
    assert fitted(given, None) is given


@pytest.mark.parametrize(
    ("elastic", "devices", "said"),
    [
        ("", 1, "does not allow fewer"),
        ('elastic = "tp"', 1, "no data-parallel axis"),
        ('elastic = "fsdp"', 3, "cannot shrink"),
    ],
)
def test_devices_that_the_plan_cannot_be_put_on(tmp_path: Path, elastic: str, devices: int, said: str) -> None:
    preset(tmp_path, elastic)
    with pytest.raises(PlanError) as error:
        prepare(tmp_path / "run.toml", "cuda", devices=devices)
    (found,) = error.value.diagnostics
    assert found.code == "E1033"
    assert said in found.message


@pytest.mark.launch
@pytest.mark.long
def test_a_run_goes_on_with_half_of_its_devices(tmp_path: Path) -> None:
    """Two ranks, then torchrun with one, then JAX on one device: the losses are those of a run on two."""
    path = preset(tmp_path).path
    whole = train(path, "cuda", timeout_s=300)
    kept = tmp_path / "kept"
    train(path, "cuda", steps=2, checkpoint=kept, timeout_s=300)
    receipt = tmp_path / "r.json"
    worker = ["-m", "planc.trainer.run.worker", "--preset", str(path), "--target", "cuda", "--receipt", str(receipt)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    words = [*torchrun, *worker, "--checkpoint", str(kept), "--resume", "--steps", "3"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(receipt.read_text())
    assert said["mesh"] == {"fsdp": 1}
    assert "elastic.fsdp.2-1" in said["features"]
    assert said["losses"] == pytest.approx(whole.losses[:3], rel=1e-6)
    last = train(path, "xla", checkpoint=kept, resume=-1, devices=1, timeout_s=300)
    assert last.mesh == {"fsdp": 1}
    assert last.losses == pytest.approx(whole.losses, rel=1e-6)
