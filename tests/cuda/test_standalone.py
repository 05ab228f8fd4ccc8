"""An emitted file by itself, under torchrun, with a user's own module and loop: no planc in the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planc.backends.cuda.emit.program import emit
from planc.language.build import build_file
from tests.plans import propagated

HERE = Path(__file__).parent
BUDGET = 1e-5


@pytest.mark.launch
@pytest.mark.long
def test_an_emitted_file_trains_a_users_own_module(tmp_path: Path) -> None:
    plan = build_file(HERE.parents[1] / "plans" / "tiny.plan", target="cuda").plan
    assert plan is not None
    path = tmp_path / "emitted.py"
    path.write_text(emit(propagated(plan)))
    argv = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    argv += [str(HERE / "own_driver.py"), str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *argv], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found["planc"] is False
    assert found["loss"] <= BUDGET
    assert found["gradient"] <= BUDGET
