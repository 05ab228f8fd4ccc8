"""The emitted sync on ranks: every tensor of the generator equals its slice of the whole model, and what moves is what
planc says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planc.backends.cuda.emit.sync import emit_sync
from tests.launches import Row, case, tier
from tests.plans import propagated
from tests.rows import rows_of
from tests.sync_cases import PAIRS, QUICK, serve_of

ROOT = Path(__file__).resolve().parents[2]
IN_CI = tuple(PAIRS)[::4]


@pytest.mark.parametrize("name", [case("sync-torch", n, *tier(n, IN_CI, QUICK)) for n in PAIRS])
def test_the_generator_has_its_slices_and_what_moves_is_predicted(name: str, row: Row) -> None:
    assert row["wrong"] == [] and row["tensors"] > 0
    assert row["sent"] == row["predicted"] and sum(row["sent"]) == row["bytes"]
    assert row["pieces"] == row["predicted_pieces"]


@pytest.mark.parametrize("name", [case("sync-torch", n, *tier(n, IN_CI, QUICK)) for n in PAIRS])
def test_a_checkpoint_of_the_trainer_loads_as_the_generators_slices(name: str, row: Row) -> None:
    assert row["load_wrong"] == [] and sum(row["read"]) > 0
    assert row["read"] == row["needed"], "each rank reads its own parts, once"
    assert sum(row["read"]) == row["predicted_read"]


@pytest.mark.launch
@pytest.mark.slow
def test_a_rank_that_dies_leaves_the_old_weights_or_the_new() -> None:
    """At 24 drawn moments; those that live agree."""
    argv = [sys.executable, str(ROOT / "tests" / "cuda" / "sync_worker.py"), "--kills", "24", "1"]
    rows = rows_of(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600).stdout)
    assert len(rows) == 24 and all(row["died"] for row in rows)
    for row in rows:
        assert {*row["ranks"]} - {"none"} in ({"old"}, {"new"}), row
    assert {word for row in rows for word in row["ranks"]} >= {"old", "new"}, "both ends are met"


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize("stack", ["cuda", "xla"])
def test_two_hundred_drawn_pairs(stack: str) -> None:
    """Dense models and models with experts, on two to eight ranks; each stack takes the pairs that it can."""
    argv = [sys.executable, str(ROOT / "tests" / stack / "sync_worker.py"), "--drawn", "200", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0 and len(rows_of(done.stdout)) == 200, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("name", QUICK)
def test_the_text_is_deterministic_and_as_ruff_would_have_it(name: str, tmp_path: Path) -> None:
    serve = serve_of(name)
    trainer, generator = propagated(serve.trainer), propagated(serve.layout)
    text, again = (
        emit_sync(trainer, generator, colocated=serve.colocated, dtype=serve.dtype, block=serve.block) for _ in "ab"
    )
    assert text == again
    file = tmp_path / "sync.py"
    file.write_text(text)
    for command in (["format", "--check"], ["check"]):
        argv = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
