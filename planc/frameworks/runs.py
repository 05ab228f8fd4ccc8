"""The limits of each framework: the schedules, dtypes, kernels and so on that it supports, and the source of each
limit.

A check of a plan with `realise as` reports a sentence outside the limits, a search skips such layouts, and an export to
the framework's own files refuses them. Sentences of other kinds have no limit that planc knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planc.diag.fast_dataclass import dataclass
from planc.files import package_table
from planc.frameworks.megatron import MODULES, RUN_AGAIN
from planc.ir.axes_of_one import without_axes_of_one
from planc.ir.base import Cause, sentence_of
from planc.ir.model import Model
from planc.ir.plan import PASSES_KEYS, Plan


@dataclass(frozen=True)
class Decision:
    """The words that some frameworks support in one kind of sentence, such as schedules or dtypes."""

    frameworks: tuple[str, ...]
    what: str
    """The verb of the sentence, or `kernel` for a kernel of attention."""
    has: tuple[str, ...]
    why: str
    """The same in words for the user."""
    source: str
    """The file of its source, or the page of its manual, that says so."""


ROWS = tuple(
    Decision(tuple(row["frameworks"]), row["what"], tuple(row["has"]), row["why"], row["source"])
    for row in package_table("planc.frameworks", "runs.toml")["decisions"]
)
"""The table."""


@dataclass(frozen=True)
class Lack:
    """A sentence of a plan that the plan's framework cannot run."""

    row: Decision
    word: str
    cause: Cause

    @property
    def why(self) -> str:
        """A clause for a message: it names the sentence, and says what the framework supports instead."""
        what = f"the schedule {self.word}" if self.row.what == "split" else f"`{sentence_of(self.cause)}`"
        return f"cannot run {what}: {self.row.why}"


def lacks(plan: Plan, framework: str) -> Iterator[Lack]:
    """Yield a Lack for each sentence of `plan` with a word (a schedule, a dtype, ...) that `framework` cannot run. Two
    kinds of sentences are skipped: those over axes of one rank, and those that `realise as` adds."""
    plan = without_axes_of_one(plan)
    own = plan.realise.cause if plan.realise else None
    for row in ROWS:
        if framework in row.frameworks:
            for word, cause in WORDS[row.what](plan):
                if cause is not None and cause != own and word not in row.has:
                    yield Lack(row, word, cause)


Words = Iterator[tuple[str, Cause | None]]


def _schedule(plan: Plan) -> Words:
    if (split := plan.pipelined) is not None:
        yield split.schedule, split.cause


def _narrow(plan: Plan) -> Words:
    for q in plan.quantize:
        inside = q.recipe or (f"tile = {q.tile}" if q.tile else "")
        yield (f"{q.dtype}({inside})" if inside and q.dtype != "int8" else q.dtype), q.cause


def _recompute(plan: Plan) -> Words:
    again = plan.recompute
    every = " every" if again.every > 1 else ""
    if again.blocks:
        yield f"blocks{' except' if again.kept else ''}{every}", again.cause
    elif not again.ops:
        yield "none", again.cause
    else:
        yield f"{'modules' if _are_modules(plan) and not again.kept else 'ops'}{every}", again.cause


def _are_modules(plan: Plan) -> bool:
    """True if the recomputed ops are exactly the ops of some modules of Megatron-Core (`recompute_modules`)."""
    chosen = _named(plan.model, plan.recompute.ops)
    return any(
        chosen == set().union(*(ops for words in modules.values() if (ops := _named(plan.model, words)) <= chosen))
        for modules in (MODULES, RUN_AGAIN)
    )


def _named(model: Model, words: tuple[str, ...]) -> set[str]:
    names = {op.name for kind in model.blocks for op in model.ops[kind]}
    return {n for n in names for word in words if n == word or n.startswith(f"{word}.")}


def _overlap(plan: Plan) -> Words:
    tensor = {a for s in plan.shards if s.dim in ("heads", "ffn") and not s.region for a in s.axes}
    for overlap in plan.overlaps:
        if overlap.method != "none" or overlap.axis not in tensor:
            yield overlap.method, overlap.cause


def _offload(plan: Plan) -> Words:
    """Yield the offloaded state (`params`, `optimizer`). The table has no rows for offloaded activations."""
    state = [(what, o.cause) for o in plan.offloads for what in o.what if what in ("params", "optimizer")]
    if state:
        yield ", ".join(n for n in ("params", "optimizer") if n in dict(state)), state[0][1]


def _meeting(plan: Plan) -> Words:
    """Yield the method of context parallelism in attention: `ulysses`, `ring` or `all_gather`."""
    kernel = plan.attention
    sequence = plan.axes_of("sequence")
    if set(sequence) & set(plan.axes_of("heads", "attention")):
        yield "ulysses", plan.cause_of_shard("sequence", sequence[0])
    elif axes := plan.axes_of("sequence", "attention"):
        said = kernel is not None and kernel.method in PASSES_KEYS
        cause = plan.cause_of_shard("sequence", axes[0], "attention")
        yield (kernel.method, kernel.cause) if kernel is not None and said else ("all_gather", cause)


def _kernel(plan: Plan) -> Words:
    if plan.attention is not None and plan.attention.runs:
        yield plan.attention.runs, (plan.attention.kernel or plan.attention).cause


WORDS: dict[str, Callable[[Plan], Words]] = {
    "split": _schedule,
    "quantize": _narrow,
    "recompute": _recompute,
    "overlap": _overlap,
    "offload": _offload,
    "optimizer": lambda plan: iter([(plan.optimizer.name, plan.optimizer.cause)]),
    "route": lambda plan: iter([(plan.route.method, plan.route.cause)] if plan.model.top_k else []),
    "attention.core": _meeting,
    "kernel": _kernel,
    "compile": lambda plan: ((c.what, c.cause) for c in plan.compiles),
}
"""The words of a plan that a row is about, each with its sentence."""
