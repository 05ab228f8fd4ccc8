"""Writes an imported configuration as a plan that leaves choices to `planc search`."""

from __future__ import annotations

import re
from dataclasses import replace

from planc.interop.plan_text import axis_names, sentences
from planc.interop.setup import TrainingSetup
from planc.ir.plan import Recompute

FREE = ("mesh", "schedule", "recompute", "microbatch")
"""Choices that `planc search --free` can leave open in another system's file."""


def freed_text(setup: TrainingSetup, free: tuple[str, ...]) -> str:
    """Returns the plan of `setup` with `?` in place of what `free` names. With `mesh`, pipeline, data and tensor
    parallelism have any size, also those that the file does not use; other axes too, if it uses them."""
    from planc.syntax.fmt import format_text

    if "mesh" in free:
        routed = setup.graph is not None and "experts" in setup.graph.sizes
        setup = replace(
            setup,
            pp=max(setup.pp, 2),
            shard=max(setup.shard, 2),
            tp=max(setup.tp, 2),
            sp=setup.sp or setup.tp == 1,
            ep=max(setup.ep, 2) if routed else 1,
            chunks=1,
            stages=(),
            schedule="1f1b",
        )
    if "recompute" in free:
        setup = replace(setup, recompute=Recompute(ops=("whole_blocks",)))
    lines = [_freed(sentence.text, setup, free) for sentence in sentences(setup)]
    return format_text("\n".join([f"plan {setup.name}", *lines]))


def _freed(sentence: str, setup: TrainingSetup, free: tuple[str, ...]) -> str:
    if "mesh" in free and sentence.startswith("mesh"):
        return f"mesh {' > '.join(f'{name} ?' for name in axis_names(setup).values())}"
    if "mesh" in free and sentence.startswith("view"):
        return f"view edp ? > ep ?{' > etp ?' * (setup.etp > 1)} of {sentence.partition(' of ')[2]}"
    if "schedule" in free and sentence.startswith("split"):
        return re.sub(r" as .*", " as ?", sentence)
    if "recompute" in free and sentence.startswith("recompute"):
        return "recompute ?"
    if "microbatch" in free and sentence.startswith("batch"):
        return re.sub(r"microbatch \d+", "microbatch ?", sentence)
    return sentence
