"""The ten questions with their answers of today: figures from the library, not from the page.

`python -m tests.report.questions` prints them.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from dataclasses import replace
from typing import Any

from planc.checks.recost import recost
from planc.costing.explain import explain
from planc.driver import examine
from planc.ir.plan import Recompute
from planc.lowering import state_layout as rest
from planc.sharding.shard_intervals import stored_layout
from tests.plans import ROOT

PLAN = ROOT / "plans" / "llama3_70b_h100.plan"
WEIGHT = "layers.*.feed_forward.w1.weight"
NAMES = {"params": "parameters", "grads": "gradients", "optimizer": "optimizer", "activations": "activations"}


def facts() -> dict[str, Any]:
    """Figures by the names that answers use."""
    costed = examine(PLAN).costed
    assert costed is not None
    plan, worst, step = costed.sharded.plan, costed.memory.worst, costed.step
    by_line: dict[tuple[int, str], float] = defaultdict(float)
    for s in explain(costed):
        if s.part == "exposed communication" and s.cause is not None:
            by_line[s.cause.span.line, s.cause.sentence] += s.seconds
    (line, sentence), exposed_s = max(by_line.items(), key=lambda found: found[1])
    largest = max(NAMES, key=lambda name: getattr(worst.per_device_gib, name))
    recomputed = recost(replace(plan, recompute=Recompute(ops=("blocks",))), costed)
    weight = costed.sharded.param[WEIGHT]
    ((rows,), _) = stored_layout(costed.sharded, weight, "params", rest(costed.sharded, costed.target)).piece(9)
    measured = (ROOT / "docs" / "measured" / "accuracy.md").read_text()
    runs = re.search(r"^\| H100 SXM, dense \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|", measured, re.MULTILINE)
    flying = re.search(r"(\d+) microbatch", worst.peak_at)
    assert plan.split is not None and recomputed is not None and runs is not None and flying is not None
    return {
        "fullest": worst.per_device_gib.total,
        "capacity": costed.memory.capacity_gib,
        "spare": costed.memory.capacity_gib - worst.per_device_gib.total,
        "stage": worst.stage,
        "largest": NAMES[largest],
        "largest_gib": getattr(worst.per_device_gib, largest),
        "moment": worst.peak_at,
        "flying": int(flying[1]),
        "step_s": step.time_s,
        "compute_percent": 100 * step.compute_s / step.time_s,
        "exposed_line": line,
        "exposed_sentence": " ".join(sentence.split()),
        "exposed_s": exposed_s,
        "bubble_s": step.bubble_s,
        "bubble_percent": 100 * step.bubble_s / step.time_s,
        "bubble_line": plan.split.cause.span.line,
        "bubble_sentence": " ".join(plan.split.cause.sentence.split()),
        **plan.mesh.sizes,
        "first": rows[0],
        "last": rows[1],
        "recomputed_gib": recomputed.memory.per_device_gib.total,
        "recomputed_s": recomputed.step.time_s,
        "runs": int(runs[1]),
        "median": float(runs[2]),
        "p90": float(runs[3]),
    }


def questions() -> list[tuple[str, str, list[float]]]:
    """Each question, its answer of today, and the numbers of that."""
    known = facts()
    asked = tomllib.loads((ROOT / "tests" / "report" / "questions.toml").read_text())["question"]
    return [(q["ask"], q["answer"].format(**known), [known[name] for name in q["numbers"]]) for q in asked]


if __name__ == "__main__":
    for ask, answer, _ in questions():
        print(f"{ask}\n    {answer}")
