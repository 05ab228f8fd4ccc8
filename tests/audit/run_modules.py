"""`make audit-modules`: trace classes of transformers under plans, and write docs/measured/audit-modules.md.

`run_modules.py FAMILY:LAYOUT...` audits these alone and prints what it finds; nothing is written.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from planc.backends.cuda.audit.run import audit  # noqa: E402
from planc.ir.audit import Audit, AuditOptions, Total, differences  # noqa: E402
from tests.audit.module_cases import CASES, LAYOUTS, TOKENS, plan_of  # noqa: E402

PAGE = ROOT / "docs" / "measured" / "audit-modules.md"
GIB = 2.0**30


def main(cases: list[str]) -> int:
    found: dict[str, Audit] = {}
    for case in cases or CASES:
        began = time.monotonic()
        plan, source = plan_of(case)
        found[case] = audit(plan, AuditOptions(source=source))
        (peak,) = found[case].memory
        lines = [*differences(found[case].rows), *found[case].unparsed]
        took = time.monotonic() - began
        print(f"{case}: {len(lines)} differences, peak {peak.relative:+.1%} ({took:.0f} s)", *lines, sep="\n  ")
    if not cases:
        PAGE.write_text(page(found))
    return 0 if all(a.ok for a in found.values()) else 1


HEAD = """# Audited classes of transformers

Written by `make audit-modules`, with torch {torch} and transformers {transformers}. Each class below was built with
four layers of a hidden width of 1024, divided by `program.parallelize` over 64 fake devices, and run for one optimizer
step of {tokens} tokens a sequence in bf16 on fake tensors: its own code, between the blocks too. Every collective was
counted, by operation, mesh dimension and dtype, beside what its plan predicts from the op graph that was read from the
code. Peaks are without the runtime and the communicators.

| family | layout | mesh | calls | GiB moved | differences | predicted peak | seen | off |
|---|---|---|--:|--:|--:|--:|--:|--:|
"""


def page(found: dict[str, Audit]) -> str:
    """The page of all audits."""
    said = HEAD.format(torch=version("torch"), transformers=version("transformers"), tokens=TOKENS)
    exact = sum(a.ok for a in found.values())
    texts = [f"- {case}: {text}\n" for case, a in found.items() for text in (*differences(a.rows), *a.unparsed)]
    rest = "\nWhat differs:\n\n" + "".join(texts) if texts else ""
    return f"{said}{''.join(_row(case, a) for case, a in found.items())}\n{exact} of {len(found)} are exact.\n{rest}"


def _row(case: str, a: Audit) -> str:
    family, layout = case.split(":")
    seen = [row.observed for row in a.rows]
    total = Total(sum(t.count for t in seen), sum(t.bytes for t in seen))
    different = sum(not row.agrees for row in a.rows)
    (peak,) = a.memory
    cells = (
        family,
        layout,
        LAYOUTS[layout][0].removeprefix("mesh "),
        str(total.count),
        f"{total.bytes / GIB:.2f}",
        str(different),
        f"{peak.predicted_bytes / GIB:.2f} GiB",
        f"{peak.observed_bytes / GIB:.2f} GiB",
        f"{peak.relative:+.1%}",
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
