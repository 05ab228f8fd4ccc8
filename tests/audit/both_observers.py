"""The collectives of one step by our observer and by torch's CommDebugMode: `both_observers.py NAME` prints both."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed.tensor.debug import CommDebugMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.audit.observe import OPS, Observer, meshes_of
from tests.audit.stepping import stepping


def counts(name: str) -> dict[str, dict[str, int]]:
    """Calls by operation, of ours and of theirs, each in a step of its own."""
    with stepping(name) as (step, _, emitted, mesh):
        observer, theirs = Observer(*meshes_of(emitted, mesh)), _theirs()
        with observer:
            step()
        with theirs:
            step()
    ours: Counter[str] = Counter()
    for (op, *_), calls in observer.calls.items():
        ours[op] += calls
    return {"ours": dict(ours), "torch": _named(theirs)}


def _theirs() -> CommDebugMode:
    """Without its hooks of modules, which lose their way where fully_shard has hooks of its own."""
    mode = CommDebugMode()
    tracker: Any = SimpleNamespace(
        name="",
        is_bw=False,
        activation_checkpointing=False,
        module_parents_dict={"": ()},
        __enter__=lambda: None,
        __exit__=lambda: None,
    )
    mode.advanced_module_tracker = tracker  # not of the type that torch declares
    return mode


def _named(mode: CommDebugMode) -> dict[str, int]:
    """CommDebugMode's counts under our names of operations."""
    found: Counter[str] = Counter()
    for func, calls in mode.get_comm_counts().items():
        name = str(func).split(".")[-1] if "." in str(func) else str(func)
        found[OPS.get(name, name)] += calls
    return dict(found)


if __name__ == "__main__":
    print(json.dumps(counts(sys.argv[1])))
