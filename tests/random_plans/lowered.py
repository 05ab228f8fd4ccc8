"""Write the programs of all bundled, field and preset plans and of drawn ones, to compare two trees with `diff -r`:

    python tests/random_plans/lowered.py FOLDER [FIRST_SEED COUNT]

A program is written for each runtime and version of its framework that planc knows; a refusal is its codes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from planc.diag.errors import PlanError  # noqa: E402
from planc.driver import lower  # noqa: E402
from planc.lowering import RUNTIMES  # noqa: E402
from tests.random_plans.promises import write  # noqa: E402
from tests.random_plans.run import drawn_of  # noqa: E402

PLANS = [*ROOT.glob("plans/*.plan"), *ROOT.glob("plans/field/*.plan"), *ROOT.glob("plans/presets/*.plan")]


def write_programs(plan: Path, name: str, folder: Path) -> int:
    """Write the programs of a plan to `folder`; returns how many there are."""
    count = 0
    for target, runtimes in RUNTIMES.items():
        for runtime in runtimes:
            try:
                text = lower(plan, target, runtime=runtime).text
                count += 1
            except PlanError as error:
                text = "".join(f"{d.code}\n" for d in error.diagnostics)
            (folder / f"{name}.{runtime}.py").write_text(text)
    return count


def main(folder: Path, first: int, count: int) -> None:
    """Write the programs of the plans of the tree and of `count` seeds from `first`."""
    folder.mkdir(parents=True)
    programs = sum(write_programs(plan, f"{plan.parent.name}_{plan.stem}", folder) for plan in sorted(PLANS))
    with tempfile.TemporaryDirectory() as drawn:
        for seed in range(first, first + count):
            plan = write(drawn_of(seed), Path(drawn) / str(seed))
            programs += write_programs(plan, f"drawn_{seed}", folder)
    print(f"{programs} programs of {len(PLANS)} plans of the tree and {count} drawn ones in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:4] or (0, 0)))
