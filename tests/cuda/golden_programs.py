"""Run by the torch of one environment: loads every committed program, traces the named.

Prints one line of JSON for each: the warnings of loading it, and what the audit found otherwise than predicted. A
program whose text is another on this torch (`planc lower --torch`) is traced in that text. A small pipeline, whose
microbatches are counted once they were seen to be alike, is traced after them.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc import load
from planc.backends.cuda.versions import TORCH, sums_of_gradients
from planc.ir.audit import AuditOptions, AuditRow
from planc.ir.plan import Plan
from planc.lowering import load_backend
from tests.cuda.cases import FSDP, PP, STEP, plan_of

ROOT = Path(__file__).resolve().parents[2]
DEVICES = 16
"""Ranks that the large programs are traced with: fewer data-parallel ranks, the same calls."""


def said_when_loaded(program: Path) -> list[str]:
    """Warnings of a program while it is imported."""
    spec = spec_from_file_location(program.stem.replace(".", "_"), program)
    assert spec is not None and spec.loader is not None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        spec.loader.exec_module(module_from_spec(spec))
    return [str(w.message) for w in said]


def unlike_predicted(plan: Plan) -> list[str]:
    """Collectives of a plan's program that are not as predicted, on each stage."""
    found = load_backend("cuda").audit(plan, AuditOptions(world_scale=DEVICES))
    assert found.rows, "nothing was traced"
    unlike = [row for row in found.rows if not row.agrees]
    if sums_of_gradients.DIFFERENCE.is_in(TORCH.nearest_installed()) and unlike and in_fp32(unlike):
        unlike = []
    return [str(row) for row in unlike] + list(found.unparsed)


def in_fp32(rows: list[AuditRow]) -> bool:
    """True if `rows` are sums over one axis of one stage, as many calls as predicted, all of them in fp32."""
    same = {(row.op, row.axis, row.stage) for row in rows}
    width = {"bf16": 2, "fp32": 1}
    predicted = sum(row.predicted.bytes * width[row.dtype] for row in rows)
    calls = sum(row.predicted.count for row in rows)
    return len(same) == 1 and [(row.observed.count, row.observed.bytes) for row in rows if row.dtype == "fp32"] == [
        (calls, predicted)
    ]


if __name__ == "__main__":
    for golden in sorted((ROOT / "plans" / "goldens").glob("*.cuda.py")):
        name = golden.name.partition(".")[0]
        traced = name in sys.argv[1:]
        unlike = unlike_predicted(load(ROOT / "plans" / f"{name}.plan")) if traced else []
        print("ROW", json.dumps({"name": name, "said": said_when_loaded(golden), "traced": traced, "unlike": unlike}))
    pipeline = plan_of("equal", "pp 2 > fsdp 2", PP.format("1f1b"), FSDP, STEP, batch="16 x 24 tokens microbatch 1")
    print("ROW", json.dumps({"name": "1f1b", "said": [], "traced": True, "unlike": unlike_predicted(pipeline)}))
