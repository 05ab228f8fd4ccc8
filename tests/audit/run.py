"""`make audit`: trace every audited layout, and write docs/measured/audit-cuda.md.

`run.py NAME...` audits these layouts alone and prints what it finds; nothing is written.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from planc.backends.cuda.audit.run import audit  # noqa: E402
from planc.ir.audit import Audit, AuditOptions, PeakMemory, Total, differences  # noqa: E402
from tests.audit.cases import CASES, plan_of  # noqa: E402

PAGE = ROOT / "docs" / "measured" / "audit-cuda.md"
GIB = 2.0**30
NEAR = 0.05


def main(names: list[str]) -> int:
    found: dict[str, Audit] = {}
    for name in names or CASES:
        began = time.monotonic()
        found[name] = audit(plan_of(name), AuditOptions())
        print(f"{name}: {verdict(found[name])} ({time.monotonic() - began:.0f} s)", flush=True)
        for text in (*differences(found[name].rows), *found[name].unparsed):
            print(f"  {text}", flush=True)
        for m in found[name].memory:
            print(f"  stage {m.stage}: {_gib(m)} ({m.relative:+.1%})", flush=True)
    if not names:
        PAGE.write_text(page(found))
    return 0 if all(a.ok for a in found.values()) else 1


def verdict(found: Audit) -> str:
    """How many rows, and whether they agree."""
    different = sum(not row.agrees for row in found.rows)
    return f"{len(found.rows)} rows, {different or 'none'} differ{'s' if different == 1 else ''}"


def _gib(m: PeakMemory) -> str:
    return f"{m.predicted_bytes / GIB:.2f} predicted, {m.observed_bytes / GIB:.2f} GiB seen"


HEAD = """# Audited layouts, cuda

Written by `make audit`. Each program below was run for one optimizer step on fake tensors over a fake
process group, one rank of each pipeline stage, and every collective it asked for was counted. Calls and
payload bytes are per device and step, summed over the stages and over all operations; the comparison is by
operation, mesh dimension, dtype and stage, and so are the predictions that were committed before the traces
(`tests/audit/predictions.json`). Peak memory is that of the stage where the prediction is furthest off,
without the runtime and the communicators.

| layout | model | mesh | devices | calls | GiB moved | differences | predicted peak | seen | off |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|
"""


def page(found: dict[str, Audit]) -> str:
    rows = "".join(_row(name, a) for name, a in found.items())
    return HEAD + rows + _remaining(found)


def _row(name: str, a: Audit) -> str:
    seen = [row.observed for row in a.rows]
    total = Total(sum(t.count for t in seen), sum(t.bytes for t in seen))
    worst = max(a.memory, key=lambda m: abs(m.relative), default=None)
    different = sum(not row.agrees for row in a.rows)
    cells = (
        name,
        CASES[name].model,
        CASES[name].mesh,
        f"{a.devices:,}",
        f"{total.count:,}",
        f"{total.bytes / GIB:.1f}",
        str(different),
        *_peak(worst),
    )
    return f"| {' | '.join(cells)} |\n"


def _peak(m: PeakMemory | None) -> tuple[str, str, str]:
    if m is None:
        return ("", "", "not traced")
    return (f"{m.predicted_bytes / GIB:.2f} GiB", f"{m.observed_bytes / GIB:.2f} GiB", f"{m.relative:+.1%}")


def _remaining(found: dict[str, Audit]) -> str:
    texts = [f"- {name}: {text}\n" for name, a in found.items() for text in (*differences(a.rows), *a.unparsed)]
    exact = sum(a.ok for a in found.values())
    summary = f"\n{exact} of {len(found)} layouts move exactly what was predicted.\n"
    near = sum(all(abs(m.relative) <= NEAR for m in a.memory) and bool(a.memory) for a in found.values())
    summary += f"Of {near}, every stage's peak is predicted within {NEAR:.0%}.\n"
    return summary + ("\nWhat differs:\n\n" + "".join(texts) if texts else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
