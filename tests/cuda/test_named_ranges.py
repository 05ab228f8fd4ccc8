"""A profiled step of a program, one rank of it on a fake process group: its ranges have the predicted trace's names."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from planc.checks import check_plan
from planc.cli import main
from planc.ir.program import Program
from planc.ir.session import Settings
from planc.language.build import build_file
from planc.lowering import lower_plan
from planc.trainer.run.initial_weights import initial
from tests.plans import ROOT

dist = pytest.importorskip("torch.distributed")

from planc.backends.cuda.audit.predict import predicted  # noqa: E402
from planc.backends.cuda.audit.trace import _fake_group, _static_stages  # noqa: E402
from planc.backends.cuda.runtime.start_up import start  # noqa: E402

PIPED = """plan piped
model     llama_tiny
batch     8 x 128 tokens microbatch 2
cluster   4 x cpu_local
mesh      pp 2 > fsdp 2
use       fsdp over fsdp
split     layers over pp as 1f1b
recompute blocks
optimizer adamw
compute   fp32 reduce fp32
"""
ACTION = re.compile(r"\d+[FBIW]\d+ ")
OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv")


@contextmanager
def as_one_rank(program: Program) -> Iterator[None]:
    """A fake group in which this process is the first rank: collectives move nothing."""
    with _fake_group(program.sharded, 0), _static_stages(program.load(), program.sharded):
        yield


def ranges(path: Path, folder: Path) -> tuple[Program, Counter[str]]:
    """Ranges of a step of the plan at `path` by name, as its profiler's file in `folder` has them."""
    plan = build_file(path, target="cuda").plan
    assert plan is not None
    program = lower_plan(check_plan(plan), "cuda", version="installed")
    batch, vocab = program.plan.batch, program.plan.model.sizes["vocab"]
    tokens = np.random.default_rng(0).integers(0, vocab, (batch.sequences, batch.sequence_tokens)).astype(np.int32)
    folder.mkdir()
    with as_one_rank(program):
        session = start(program, Settings(), initial(program.plan.model, 0))
        session.step(tokens, tokens, 1e-3)
        with session.profile(str(folder)):
            session.step(tokens, tokens, 1e-3)
        before = dist.ProcessGroup.allreduce
    assert "call" not in before.__name__  # torch's functions are its own again
    events = json.loads((folder / "rank-00000.json").read_text())["traceEvents"]
    return program, Counter(e["name"] for e in events if e.get("cat") == "user_annotation")


def foretold(path: Path, out: Path) -> set[str]:
    """Names in the predicted trace of the plan at `path`: of spans, and of the collectives in their arguments."""
    assert main(["report", str(path), "--target", "cuda", "--trace", "-o", str(out)]) == 0
    spans = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    return {e["name"] for e in spans} | {name for e in spans for name in e["args"].get("transfers", ())}


def calls(program: Program, found: Counter[str]) -> dict[tuple[str, str], int]:
    """Collectives among the ranges `found` by operation and axis."""
    counted: Counter[tuple[str, str]] = Counter()
    for name, times in found.items():
        if name.startswith(OPS):
            head = name.partition(":")[0]
            counted[head.split(" ")[0], head.partition(" over ")[2].partition(",")[0]] += times
    return counted


def test_every_collective_is_named_by_its_sentence(tmp_path: Path) -> None:
    path = ROOT / "plans/tiny.plan"
    program, found = ranges(path, tmp_path / "trace")
    said = foretold(path, tmp_path / "predicted.json")
    exact = [name for name in found if name.startswith(OPS) and "," in name.partition(":")[0]]
    assert "all_gather of params over fsdp, backward: tiny.plan:6  use fsdp over fsdp" in exact
    assert "reduce_scatter of activations over tp, forward: tiny.plan:8  use sp over tp" in exact
    assert set(exact) <= said
    assert not [name for name in found if "not predicted" in name]
    expected: Counter[tuple[str, str]] = Counter()
    for (op, axis, _), total in predicted(program.sharded, 0).items():
        expected[op, axis] += total.count
    assert calls(program, found) == expected


def test_actions_replays_and_the_update_have_the_names_of_the_prediction(tmp_path: Path) -> None:
    path = tmp_path / "piped.plan"
    path.write_text(PIPED)
    _, found = ranges(path, tmp_path / "trace")
    said = foretold(path, tmp_path / "predicted.json")
    actions = {name for name in found if ACTION.match(name)}
    assert actions == {name for name in said if ACTION.match(name) and not name.endswith("transfers")}
    assert found["0F1 forward"] == found["0B1 backward"] == 1
    assert found["0B1 recompute: piped.plan:8  recompute blocks"] == 2  # the blocks of this stage
    assert found["send_recv of activations over pp: piped.plan:7  split layers over pp as 1f1b"] == 4
