"""`make shares`: plans that cuda takes and xla refuses (the field, presets, a hundred random ones), by reason."""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from planc.diag.errors import PlanError  # noqa: E402
from planc.driver import lower  # noqa: E402
from planc.ir.target import Target  # noqa: E402
from tests.random_plans.promises import write  # noqa: E402
from tests.random_plans.run import drawn_of  # noqa: E402

SEEDS = range(100)
FOLDERS = {"field": ("field",), "presets": (".", "presets")}
"""By the name of a group: folders of its plans, below plans/."""


def groups(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Each group's name and the files of its plans; random ones are written to `folder`."""
    for name, folders in FOLDERS.items():
        yield name, sorted(path for f in folders for path in (ROOT / "plans" / f).glob("*.plan"))
    yield "random", [write(drawn_of(seed), folder / str(seed)) for seed in SEEDS]


def reasons(path: Path, target: Target) -> list[str]:
    """Every reason why a plan is not lowered for `target`, as `CODE reason`, without numbers and names; [] if it is."""
    try:
        lower(path, target)
    except PlanError as error:
        found = (d for d in error.diagnostics if d.severity == "error")
        return list(dict.fromkeys(f"{d.code} {_plain(d.message)}" for d in found))
    return []


def _plain(message: str) -> str:
    """`the xla target cannot do `offload ops to host`: why` -> `offload: why`."""
    found = re.fullmatch(r"the \w+ target cannot do `(\w+)[^`]*`: (.*)", message, re.DOTALL)
    return re.sub(r"\d+", "N", f"{found[1]}: {found[2]}" if found else message)


def main() -> int:
    """Print the share of each group, and the reasons of all of them: plans that have it, and those with no other."""
    having, alone = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name, paths in groups(Path(folder)):
            taken = [path for path in paths if not reasons(path, "cuda")]
            refused = {path: found for path in taken if (found := reasons(path, "xla"))}
            print(f"{name}: cuda takes {len(taken)} of {len(paths)}, xla refuses {len(refused)} of these")
            for found in refused.values():
                having.update(found)
                alone.update(found if len(found) == 1 else [])
    print("\nplans  with no other reason  reason")
    for reason, count in having.most_common():
        print(f"{count:5}  {alone[reason]:20}  {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
