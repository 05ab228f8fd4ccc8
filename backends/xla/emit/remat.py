"""Emits the functions and tables of rematerialization: what a block saves, and what its backward recomputes."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.source_writer import INDENT, WIDTH, causes, comment, fill, lines_of_tuple, tuple_of
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.narrow_products import segments
from planc.backends.xla.analysis.offload import saved_on_host
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.analysis.saved_by_blocks import every, saved_activations, saved_without_replay
from planc.backends.xla.program.facts import JaxFacts
from planc.diag.quoting import python_string
from planc.ir.sharding import Sharded

REMAT = '''
def remat(block: Callable[..., Any]<alone>) -> Callable[..., Any]:
    """The block of a scan over layers; <said>."""
    policy = jax.checkpoint_policies.<policy>
    return jax.checkpoint(block, policy=policy, prevent_cse=<cse>)  # not needed inside a scan
'''

OFFLOADING = '''
def remat(block: Callable[..., Any]<alone>) -> Callable[..., Any]:
    """The block of a scan over layers; <said>."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=<saved>,
        names_which_can_be_offloaded=OFFLOADED,
        offload_src="device",
        offload_dst="pinned_host",
    )
    return jax.checkpoint(block, policy=policy, prevent_cse=<cse>)  # not needed inside a scan
'''

LayerGroups = tuple[int, int, int, str]
"""Index in its stack of the first layer, number of groups, layers per group, and what the first layer of each saves."""


def saved_tables(sharded: Sharded) -> list[str]:
    """Return the lines of the tables of saved activations: `KEPT` and `OFFLOADED` if recomputed blocks save or offload
    any, `SAVED_BETWEEN` and `GROUPS` if only some blocks are recomputed."""
    cause = sharded.plan.recompute.cause
    names, between = saved_activations(sharded), saved_without_replay(sharded)
    out: list[str] = []
    if names:
        out += comment("Activations of a block that are saved in addition to its input; the rest is recomputed.")
        out += [*causes([cause]), *_tuple("KEPT", names)]
    if away := saved_on_host(sharded):
        out += comment("Activations of a block that are offloaded to the host.")
        out += [*causes(o.cause for o in sharded.plan.offloads), *_tuple("OFFLOADED", away)]
    if between:
        out += [*comment("Activations that the other blocks save."), *_tuple("SAVED_BETWEEN", between)]
        out += comment(
            "Groups of layers: first index in its stack, number of groups, layers of each, what each first layer saves."
        )
        out += [*causes([cause]), *_groups_table(sharded)]
    return out


def _tuple(name: str, names: tuple[str, ...]) -> list[str]:
    return lines_of_tuple(f"{name} = ", [python_string(n) for n in names])


def _groups_table(sharded: Sharded) -> list[str]:
    found = {name: _groups_text(sharded, *run) for name, run in stacks(sharded).items()}
    if len(found) == 1:
        return [f"GROUPS = {text}" for text in found.values()]
    return ["GROUPS = {", *(f"{INDENT}{python_string(name)}: {text}," for name, text in found.items()), "}"]


def _groups_text(sharded: Sharded, first: int, layers: int) -> str:
    again = "KEPT" if saved_activations(sharded) else "()"
    return tuple_of(
        [f"({b}, {n}, {size}, {names or again})" for b, n, size, names in groups_of(sharded, first, layers)]
    )


def groups_of(sharded: Sharded, first: int, layers: int) -> Iterator[LayerGroups]:
    """Yield the groups of a stack of `layers` layers that starts at layer `first` of the model in `sharded`. In a group
    at most the first layer is recomputed."""
    interval = every(sharded)
    begin = min(-first % interval, layers)
    groups, rest = divmod(layers - begin, interval)
    if begin:
        yield 0, 1, begin, "SAVED_BETWEEN"
    if groups:
        yield begin, groups, interval, ""
    if rest:
        yield begin + groups * interval, 1, rest, ""


def stacks(sharded: Sharded) -> dict[str, tuple[int, int]]:
    """Return the first layer and the number of layers of each stack (a loop over layers of one kind). The key is the
    name of a parameter that only this kind has, or "" if there is none."""
    plan, model = sharded.plan, sharded.model
    blocks, found, begin = {*model.blocks}, {}, 0
    if not model.runs:
        return {next(p.name for p in model.params if {*p.sections} & blocks): plan.stages[0]}
    for run in model.runs:
        own = (p.name for p in model.params if {*p.sections} & blocks == {run.section})
        found[next(own, "")] = (begin, run.layers)
        begin += run.layers
    return found


def remat_function(sharded: Sharded) -> str:
    """Return the source of `remat`, which wraps a block to be recomputed."""
    saved = saved_activations(sharded)
    single = bool(segments(sharded.plan)) and not pipelined(sharded.plan)
    barrier = {"alone": ", alone: bool = False" if single else "", "cse": "alone" if single else "False"}
    if saved_on_host(sharded):
        kept = "KEPT and OFFLOADED" if saved else "OFFLOADED"
        said = f"saves {kept}, and recomputes the rest"
        return fill(OFFLOADING, said=said, saved="KEPT" if saved else "()", **barrier)
    if saved:
        said, policy = "saves KEPT and recomputes the rest", "save_only_these_names(*KEPT)"
    else:
        said, policy = "saves only its input and recomputes the block", "nothing_saveable"
    return fill(REMAT, said=said, policy=policy, **barrier)


def layers_functions(sharded: Sharded, entry: str) -> list[str]:
    """Return the source of `entry`: `layers` without a pipeline, or `_in_groups`, which recomputes only some layers."""
    hidden = sharded.model.block_output
    facts = JaxFacts(
        recomputes_groups=every(sharded) > 1,
        several_stacks=len(stacks(sharded)) > 1,
        hidden=hidden,
        offloads_input=hidden in saved_on_host(sharded),
    )
    return specialise("planc.backends.xla.program", "remat", facts, [entry], WIDTH)
