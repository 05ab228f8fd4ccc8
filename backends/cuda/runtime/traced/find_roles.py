"""Finds which parts of a recorded decoder are its embedding, blocks, norms and head, from the flow of its tensors.

Only data flow and parameter shapes are used, never the name of a module or class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from planc.backends.cuda.runtime.traced.find_halves import blocks_of, found_block
from planc.backends.cuda.runtime.traced.flow import Flow, reached
from planc.backends.cuda.runtime.traced.record import ForwardRecord, ModuleRun, RecordedCall
from planc.backends.cuda.runtime.traced.roles import DecoderRoles, Shape, UnknownError


def roles_of(record: ForwardRecord, params: Mapping[str, Shape], batch: int) -> DecoderRoles:
    """Returns the roles of a decoder's parts (embedding, blocks, head), from the `record` of its forward on `batch`
    sequences. `params` are the shapes of its parameters by name. Raises UnknownError."""
    layers = _layer_runs(record)
    holder = layers[0].module.rpartition(".")[0]
    whole = ModuleRun("", -1, record.result, 0, len(record.calls))
    flow = Flow(record, whole, params, "", batch)
    blocks = blocks_of([found_block(record, run, params, batch) for run in layers])
    table = next((c for c in record.calls if _is_lookup(c, record, params)), None)
    if table is None:
        raise UnknownError("no embedding of tokens was found")
    vocab, embed = params[table.params[0]]
    if embed != (width := record.shapes[layers[0].taken][-1]):
        raise UnknownError(f"{table.line}: the embedding has width {embed}, but the blocks take width {width}")
    before = [c for c in record.calls[: layers[0].begin] if c is not table and c.params]
    positions = next((p for c in before for p in c.params if _is_of_positions(params[p], embed)), "")
    heads = [n for n in flow.nodes if n.linear and n.linear.made == vocab]
    if not heads:
        raise UnknownError("no linear layer computes logits of the vocabulary size")
    head = heads[-1]
    assert head.linear is not None
    norms, _ = flow.back(head.inputs[0], ("norm", "linear"))
    norm = norms[0].norm if norms and norms[0].kind == "norm" else None
    tied = head.linear.weight == table.params[0]
    used = {table.params[0], positions, head.linear.weight, head.linear.bias}
    used |= {n for n, _ in norm.params} if norm else set()
    inside = re.compile(re.escape(holder) + r"\.\d+\.")
    rest = [n for n in params if n not in used and not inside.match(n)]
    first = next((n.norm for n in flow.nodes if n.norm and n.outputs[0] in reached(flow, layers[0].taken)), None)
    used |= {n for n, _ in first.params} if first else set()
    rest = [n for n in rest if n not in used]
    shape = params[positions][-2:] if positions else ()
    return DecoderRoles(
        embedding=table.params[0],
        positions=positions,
        layers=holder,
        blocks=blocks,
        norm=norm,
        head=head.linear,
        tied=tied,
        vocab=vocab,
        embed=embed,
        rest=tuple((n, next((c.line for c in record.calls if n in c.params), "")) for n in rest),
        positions_shape=shape,
        returns=layers[0].returns,
        in_place=any(c.function == "write" for r in layers for c in record.calls[r.begin : r.end]),
        embedding_norm=first,
        raw_table=table.function == "__getitem__",
    )


def _without_blocks(record: ForwardRecord) -> str:
    """Returns a message for the user that explains why no blocks were found."""
    ran = {run.module for run in record.runs}
    apart = [r for r in record.runs if r.module.count(".") > 1 and r.module.rpartition(".")[0] not in ran]
    if not apart:
        return "no blocks that follow each other were found: a list of modules, each called on the last"
    group = apart[0].module.rpartition(".")[0]
    holder = group.rpartition(".")[0]
    line = next((c.line for c in record.calls[apart[0].end :] if c.module in ("", holder)), record.calls[0].line)
    return (
        f"{line}: the parts of {group} are called one by one, and in no loop that could be cut into blocks; a block is "
        "divided that is a module with a forward of its own, in a list"
    )


def _is_lookup(call: RecordedCall, record: ForwardRecord, params: Mapping[str, Shape]) -> bool:
    if call.function != "__getitem__" or len(call.inputs) != 1 or len(call.direct) != 1:
        return call.function == "embedding"
    numbers, found = record.shapes[call.inputs[0]], record.shapes[call.outputs[0]]
    return len(params[call.direct[0]]) == 2 and found == (*numbers, params[call.direct[0]][1])


def _is_of_positions(shape: Shape, embed: int) -> bool:
    """True for the shape of a table of learned positions: [L, D], or [1, L, D]."""
    return shape[-1:] == (embed,) and (len(shape) == 2 or (len(shape) == 3 and shape[0] == 1))


def _layer_runs(record: ForwardRecord) -> list[ModuleRun]:
    """Returns the runs of the blocks. Candidates are lists of numbered modules, each of which takes the output of the
    one before; the list with the most calls inside is chosen."""
    groups: dict[str, list[ModuleRun]] = {}
    for run in record.runs:
        prefix, _, last = run.module.rpartition(".")
        if last.isdigit():
            groups.setdefault(prefix, []).append(run)
    chains = [runs for runs in groups.values() if _is_chain(record, runs)]
    if not chains:
        raise UnknownError(_without_blocks(record))
    return max(chains, key=lambda runs: sum(r.end - r.begin for r in runs))


def _is_chain(record: ForwardRecord, runs: list[ModuleRun]) -> bool:
    numbers = [int(r.module.rpartition(".")[2]) for r in runs]
    if numbers != list(range(len(runs))) or any(r.end == r.begin for r in runs):
        return False
    maker = {o: c for c in record.calls for o in c.outputs}

    def plain(value: int) -> int:
        while (call := maker.get(value)) and call.function in ("view", "to", "contiguous", "detach", "clone"):
            value = call.inputs[0]
        return value

    return all(plain(b.taken) == plain(a.given) for a, b in pairwise(runs))
