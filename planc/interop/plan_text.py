"""Writes a TrainingSetup as the text of a plan, and records which settings each sentence comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import prod

from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import python_comment
from planc.frameworks import OWN
from planc.interop.setup import Role, TrainingSetup
from planc.ir.plan import NOUNS, Noun, Recompute, Route


@dataclass(frozen=True)
class PlanSentence:
    """A sentence of a plan, and the `settings` (fields of TrainingSetup) that it comes from."""

    text: str
    settings: tuple[str, ...]


def axis_names(setup: TrainingSetup) -> dict[Role, str]:
    """Returns the mesh axis of each kind of parallelism (role) that has more than one rank in `setup`.

    The axis of sharded data parallelism is called fsdp if it shards parameters, gradients and optimizer state, else dp.
    """
    data = "fsdp" if setup.zero == 3 else "dp"
    names: dict[Role, str] = {"pp": "pp", "replica": "replica", "shard": data, "cp": "cp", "tp": "tp"}
    if setup.shard == 1 and setup.replica > 1:
        names["replica"] = "dp"
    return {role: names[role] for role in setup.order if setup.degree(role) > 1}


def sentences(setup: TrainingSetup) -> tuple[PlanSentence, ...]:
    """Returns the sentences of the plan of `setup`, in order, without the first line (`plan NAME`)."""
    return tuple(_sentences(setup, axis_names(setup)))


def plan_text(setup: TrainingSetup, comments: Sequence[str] = (), head: Sequence[str] = ()) -> str:
    """Returns the plan of `setup` as text, formatted as by `planc fmt`.

    `comments` is empty, or has one comment for each sentence. `head` are comment lines below the `plan` line.
    """
    from planc.syntax.fmt import format_text

    lines = [f"plan {setup.name}", *(f"# {python_comment(line)}" for line in head)]
    for sentence, comment in zip_longest(sentences(setup), comments, fillvalue=""):
        assert isinstance(sentence, PlanSentence)
        lines.append(f"{sentence.text}  # {python_comment(comment)}" if comment else sentence.text)
    return format_text("\n".join(lines))


def _sentences(setup: TrainingSetup, axes: dict[Role, str]) -> Iterator[PlanSentence]:
    yield PlanSentence(f"model {setup.model}", ("model", "shape"))
    batch = f"batch {setup.sequences} x {setup.sequence_tokens} tokens microbatch {setup.microbatch}"
    yield PlanSentence(batch, ("sequences", "sequence_tokens", "microbatch"))
    yield PlanSentence(f"cluster {setup.cluster}", ("cluster", "devices"))
    mesh = " > ".join(f"{name} {setup.degree(role)}" for role, name in axes.items())
    yield PlanSentence(f"mesh {mesh or 'dp 1'}", ("order", "pp", "replica", "shard", "cp", "tp"))
    yield from _data_parallel(setup, axes)
    yield from _tensor_parallel(setup, axes)
    yield from _context_parallel(setup, axes)
    yield from _experts(setup, axes)
    yield from _pipeline(setup, axes)
    yield from _step(setup, axes)


def _data_parallel(setup: TrainingSetup, axes: dict[Role, str]) -> Iterator[PlanSentence]:
    replica, shard, cp = axes.get("replica"), axes.get("shard"), axes.get("cp")
    over = ", ".join(name for name in (replica, shard) if name)
    state = ", ".join(name for name in (shard, cp if setup.zero_over_cp else None) if name)
    settings = ("zero", "zero_over_cp", "whole_grads", "replica", "shard")
    if over:
        yield PlanSentence(f"shard batch over {over}", ("replica", "shard"))
    dtypes = dict(setup.stored)
    divided = _divided(setup) if state else ()
    for dtype in dict.fromkeys(dtypes.get(noun, "") for noun in divided):
        nouns = ", ".join(noun for noun in divided if dtypes.get(noun, "") == dtype)
        narrow = f" as {dtype}" if dtype else ""
        yield PlanSentence(f"store {nouns}{narrow} over {state}", (*settings, "stored") if dtype else settings)
    for noun, dtype in setup.stored:
        if noun not in divided:
            yield PlanSentence(f"store {noun} as {dtype}", ("stored",))
    if setup.gather is not None and setup.zero == 3 and state:
        yield PlanSentence(f"gather params per {setup.gather}", ("gather",))


def _divided(setup: TrainingSetup) -> tuple[Noun, ...]:
    """Returns the kinds of state (parameters, gradients, optimizer) that ZeRO shards."""
    if setup.zero == 3 and setup.whole_grads:
        return ("params", "optimizer")
    return NOUNS[len(NOUNS) - setup.zero :]


def _tensor_parallel(setup: TrainingSetup, axes: dict[Role, str]) -> Iterator[PlanSentence]:
    if "tp" not in axes:
        return
    dense = setup.graph is None or "ffn" in setup.graph.sizes
    chosen = {"heads": setup.heads_over_tp, "ffn": dense, "vocab": setup.vocab_over_tp}
    dims = ", ".join(dim for dim, is_divided in chosen.items() if is_divided)
    if dims:
        yield PlanSentence(f"shard {dims} over tp", ("tp", "heads_over_tp", "vocab_over_tp"))
    if setup.sp:
        yield PlanSentence("use sp over tp", ("sp",))


def _context_parallel(setup: TrainingSetup, axes: dict[Role, str]) -> Iterator[PlanSentence]:
    if "cp" not in axes:
        return
    settings = ("cp", "cp_method", "cp_balance")
    if setup.cp_method == "ulysses":
        yield PlanSentence("use ulysses over cp", settings)
    else:
        yield PlanSentence("shard sequence over cp", settings)
        balance = f"(balance = {setup.cp_balance})" if setup.cp_balance != "headtail" else ""
        yield PlanSentence(f"attention.core as {setup.cp_method}{balance}", settings)


def _experts(setup: TrainingSetup, axes: dict[Role, str]) -> Iterator[PlanSentence]:
    if setup.route != Route():
        yield PlanSentence(f"route experts as {_route_words(setup.route)}", ("route",))
    if setup.ep * setup.etp == 1:
        return
    covered = [axes[role] for role in setup.experts_over if role in axes]
    ranks = prod(setup.degree(role) for role in setup.experts_over)
    rest = ranks // (setup.ep * setup.etp)
    inner = [("edp", rest), ("ep", setup.ep), ("etp", setup.etp)]
    factors = " > ".join(f"{name} {size}" for name, size in inner if size > 1)
    yield PlanSentence(f"view {factors} of {', '.join(covered)} for experts", ("ep", "etp", "experts_over"))
    if setup.ep > 1:
        yield PlanSentence("use ep over ep", ("ep",))
    if setup.etp > 1:
        yield PlanSentence("use etp over etp", ("etp",))
    nouns = ", ".join(_divided(setup))
    if nouns and rest > 1:
        yield PlanSentence(f"store {nouns} over edp for experts", ("zero", "ep", "etp"))


def _route_words(route: Route) -> str:
    inside = [f"factor = {route.factor:g}"] if route.method == "capacity" else []
    inside += [f"node_limit = {route.node_limit}"] if route.node_limit else []
    inside += [f"copies = {route.copies}"] if route.copies != "choice" else []
    return f"{route.method}({', '.join(inside)})" if inside else route.method


def _pipeline(setup: TrainingSetup, axes: dict[Role, str]) -> Iterator[PlanSentence]:
    if "pp" not in axes:
        return
    chunks = f"(chunks = {setup.chunks})" if setup.chunks > 1 and setup.schedule not in ("zbv", "dualpipev") else ""
    stages = f" stages [{', '.join(_stage_words(setup.stages))}]" if setup.stages else ""
    yield PlanSentence(
        f"split layers over pp as {setup.schedule}{chunks}{stages}", ("pp", "schedule", "chunks", "stages")
    )


def _stage_words(stages: tuple[int, ...]) -> Iterator[str]:
    """Yields the words of each stage in a `split` sentence: `embed + 3`, `2 x 4 layers` (two stages), `3 + head`."""
    yield f"embed + {stages[0]}" if stages[0] else "embed"
    index = 1
    while index < len(stages) - 1:
        count = 1
        while index + count < len(stages) - 1 and stages[index + count] == stages[index]:
            count += 1
        yield str(stages[index]) if count == 1 else f"{count} x {stages[index]} layers"
        index += count
    if len(stages) > 1:
        yield f"{stages[-1]} + head" if stages[-1] else "head"


def _step(setup: TrainingSetup, axes: dict[Role, str]) -> Iterator[PlanSentence]:
    yield PlanSentence(f"optimizer {setup.optimizer}", ("optimizer",))
    yield PlanSentence(f"compute {setup.precision.multiplied} reduce {setup.precision.reduce}", ("precision",))
    for quantized in setup.quantized:
        layers = ", ".join(str(a) if b == a + 1 else f"{a}..{b - 1}" for a, b in quantized.wide_layers)
        spared = f" except layers {layers}" if layers else ""
        yield PlanSentence(f"quantize {', '.join(quantized.which)} as {quantized.method}{spared}", ("quantized",))
    if setup.kernel and "cp" not in axes:
        yield PlanSentence(f"attention.core as {setup.kernel}", ("kernel",))
    if setup.recompute != Recompute():
        yield PlanSentence(f"recompute {_recompute_words(setup.recompute)}", ("recompute",))
    if setup.compiled:
        yield PlanSentence(f"compile {', '.join(setup.compiled)}", ("compiled",))
    if setup.loss_chunks > 1:
        yield PlanSentence(f"loss in {setup.loss_chunks} chunks", ("loss_chunks",))
    if setup.offloaded:
        yield PlanSentence(f"offload {', '.join(setup.offloaded)} to host", ("offloaded",))
    named: dict[str, str] = {str(role): name for role, name in axes.items()}
    if setup.ep > 1:
        named["ep"] = "ep"
    for role, method in setup.overlaps:
        if role in named:
            yield PlanSentence(f"overlap {named[role]} as {method}", ("overlaps",))
    if setup.framework != OWN:
        yield PlanSentence(f"realise as {setup.framework}", ("framework",))


def _recompute_words(recompute: Recompute) -> str:
    kept = f" except {', '.join(recompute.kept)}" if recompute.kept else ""
    every = f" every {recompute.every} layers" if recompute.every > 1 else ""
    return f"{', '.join(recompute.ops) or 'none'}{kept}{every}"
