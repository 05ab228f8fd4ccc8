"""`make audit-stages`: trace the layouts of `stage_cases`, and write docs/measured/audit-stages.md.

`run_stages.py NAME...` prints the peaks of these layouts alone; nothing is written. Traces are kept by content: a run
that was stopped goes on where it ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from planc.backends.cuda.audit.run import audit  # noqa: E402
from planc.ir.audit import Audit, AuditOptions, PeakMemory, differences  # noqa: E402
from tests.audit.stage_cases import STAGE_CASES, stage_plan  # noqa: E402

PAGE = ROOT / "docs" / "measured" / "audit-stages.md"
FIRST = Path(__file__).with_name("first_peaks.json")
GIB = 2.0**30
NEAR, TOO_LOW = 0.05, -0.03


def main(names: list[str]) -> int:
    found: dict[str, Audit] = {}
    for name in names or STAGE_CASES:
        found[name] = audit(stage_plan(name), AuditOptions())
        print(f"{name}: {_gib(found[name])} ({_off(found[name].memory)})", flush=True)
        for text in (*differences(found[name].rows), *found[name].unparsed):
            print(f"  {text}", flush=True)
    if not names:
        PAGE.write_text(page(found))
    return 0 if all(a.ok for a in found.values()) else 1


HEAD = """# Peaks by stage, cuda

Written by `make audit-stages`. Thirty layouts, pipelines most of all, were committed with what was predicted of them
before any was traced (`tests/audit/stage_cases.py`, `tests/audit/first_peaks.json`). Each program was run for one
optimizer step on fake tensors, one rank of each pipeline stage. Peaks are those of tensors, in GiB by stage, without
the runtime and the communicators; what is predicted is that of `planc check --target cuda`. Python's collector runs
after each action of a schedule; between its own runs, schedules with a backward in two parts may hold more.

| layout | model | mesh | seen | off | off as first predicted | differences in collectives |
|---|---|---|--:|--:|--:|--:|
"""


def page(found: dict[str, Audit]) -> str:
    """The page for these audits."""
    first: dict[str, list[float]] = json.loads(FIRST.read_text())
    rows = [_row(name, a, first[name]) for name, a in found.items()]
    near = sum(is_near(a.memory) for a in found.values())
    low = sum(m.relative < TOO_LOW for a in found.values() for m in a.memory)
    stages = sum(len(a.memory) for a in found.values())
    said = (
        f"\nOf {near} of {len(found)} layouts every stage is predicted within {NEAR:.0%}; of {stages} stages {low} are "
    )
    return HEAD + "".join(rows) + said + f"predicted more than {-TOO_LOW:.0%} too low.\n"


def is_near(memory: tuple[PeakMemory, ...]) -> bool:
    """True if the peak of every stage is predicted within NEAR."""
    return all(abs(m.relative) <= NEAR for m in memory)


def _row(name: str, a: Audit, first: list[float]) -> str:
    case = STAGE_CASES[name]
    was = " ".join(f"{bytes_ / m.observed_bytes - 1:+.1%}" for bytes_, m in zip(first, a.memory, strict=True))
    different = sum(not row.agrees for row in a.rows)
    return f"| {name} | {case.model} | {case.mesh} | {_gib(a)} | {_off(a.memory)} | {was} | {different} |\n"


def _gib(a: Audit) -> str:
    return " ".join(f"{m.observed_bytes / GIB:.2f}" for m in a.memory)


def _off(memory: tuple[PeakMemory, ...]) -> str:
    return " ".join(f"{m.relative:+.1%}" for m in memory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
