"""Low-precision matmuls: inputs are gathered in the low dtype, gradients are summed per reader, scales are all-reduced.

A matmul in float8 or int8 casts its sharded inputs, and XLA gathers the result: one byte per element. The TPU compiler
gathers an input of several matmuls once in the forward, once in a recompute and once for the weight gradients, and the
gradient of a sharded output twice, as its rows and its columns have different scales. Gradients of an input of several
matmuls are each multiplied by a scale before they are added, so each is summed (reduce_per_reader says the same of all
matmuls on virtual CPU devices). Read from four layers of Llama 8B on v5p (fsdp 2 > tp 2, sequence over tp, rowwise): 80
gathers of 335,544,320 bytes over tp instead of 604 MB in bf16, and 66 sums instead of 42 in bf16.

Maxima are all-reduced over the ranks that shard the reduced dim, in the dtype of the tensor: for rows and weights over
the axes of the contracted dim, for columns over all axes of the tokens. Scales along the dim on which a gradient is
sharded are computed in shards and gathered. Scales sent along with their tensor, one number per token, are less than a
thousandth of it and ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.analysis.narrow_products import products, recipe
from planc.backends.xla.rules import gather_per_reader, reduce_per_reader, regather_saved_activations
from planc.backends.xla.rules.rule import Rows, changed, of_tokens, platform
from planc.ir.collective import DTYPE_BYTES, Collective, Phase
from planc.ir.plan import Quantize
from planc.ir.sharding import Layout, OpSharding, Sharded
from planc.sharding.local import local_elements
from planc.sharding.recompute import replay
from planc.sharding.stage_assignment import microbatches_each, sections_on, virtual_stages

NAME = "multiply_narrow"
REGATHERED = {gather_per_reader.NAME, regather_saved_activations.NAME}
TOKENS = ("batch", "sequence")


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if not sharded.plan.quantize:
        return rows
    found = rows
    if platform(sharded) == "tpu":
        found = tuple(new for row in rows for new in _travelling(sharded, row))
    return (*found, *(new for stage in range(sharded.plan.pipeline) for new in _maxima(sharded, stage)))


def _travelling(sharded: Sharded, row: Collective) -> Iterator[Collective]:
    """Yield the collectives that replace `row`, which sends an activation that low-precision matmuls read or write: in
    the low dtype for quantized layers, unchanged for the other layers."""
    readers = [(o, q) for o, section, q in products(sharded) if section == row.section and row.tensor in o.op.inputs]
    makers = [q for o, section, q in products(sharded) if section == row.section and row.tensor == o.op.output]
    sentence = readers[0][1] if readers else makers[0] if makers else None
    if sentence is None or row.carries != "activation" or of_tokens(sharded, row):
        yield row
        return
    narrow = round(row.count * _share(sharded, row.section, sentence))
    if narrow < row.count:
        yield replace(row, count=row.count - narrow)
    own = replace(row, count=narrow)
    again = bool(REGATHERED & {*row.realised_by})
    if row.op == "all_gather" and readers and not again and row.phase != "backward":
        yield _narrowed(own, sentence)
        replayed = bool(replay(sharded.plan, row.section).ops) if row.section in sharded.model.blocks else False
        if row.phase == "recompute" or not replayed:
            yield replace(_narrowed(own, sentence), phase="backward")
    elif row.op == "all_gather" and row.phase == "backward" and not again and makers:
        by_row = recipe(sentence) != "float8_tensorwise"
        yield _narrowed(replace(own, count=own.count * (1 + by_row)), sentence)
    elif row.op in ("reduce_scatter", "all_reduce") and row.phase == "backward" and readers:
        sums = sum(reduce_per_reader.sums(sharded, o, row) for o, _ in readers)
        yield changed(own, NAME, count=own.count * max(sums, 1))
    elif not (row.op == "all_gather" and again and readers):
        yield own


def _narrowed(row: Collective, sentence: Quantize) -> Collective:
    factor = DTYPE_BYTES[sentence.dtype] / DTYPE_BYTES[row.dtype]
    return changed(row, NAME, dtype=sentence.dtype, buffer_bytes=row.buffer_bytes * factor)


def _share(sharded: Sharded, section: str, sentence: Quantize) -> float:
    """Return the fraction of the layers in a `section` (kind of block) that `sentence` quantizes; 1 elsewhere."""
    plan = sharded.plan
    if section not in plan.model.blocks:
        return 1.0
    layers = sum(_layers(sharded, stage, section, sentence) for stage in range(plan.pipeline))
    return layers / plan.model.layers_of(section)


def _layers(sharded: Sharded, stage: int, section: str, sentence: Quantize) -> int:
    """Return how many layers of a `section` (kind of block) `sentence` quantizes on the pipeline rank `stage`."""
    plan = sharded.plan
    if section not in plan.model.blocks:
        return 1
    wide = {n for begin, end in sentence.kept_layers for n in range(begin, end)}
    layers = (n for v in virtual_stages(plan, stage) for n in range(*plan.stages[v]) if n not in wide)
    return sum(plan.model.layers_of(section, n, n + 1) for n in layers)


Maxima = tuple[Phase, tuple[str, ...], float]
"""The phase of an all-reduce, its axes, and the number of maxima (or scales) in it."""


def _maxima(sharded: Sharded, stage: int) -> Iterator[Collective]:
    plan = sharded.plan
    shared: set[tuple[str, str]] = set()
    for o, section, sentence in products(sharded):
        if section not in sections_on(plan, stage):
            continue
        if recipe(sentence) == "float8_tensorwise":
            continue
        first = platform(sharded) == "host" or (section, o.op.inputs[0]) not in shared
        shared.add((section, o.op.inputs[0]))
        found = _of_rows(sharded, o, first)
        one = Collective(
            op="all_reduce",
            axes=(),
            group_size=1,
            stage=stage,
            phase="backward",
            carries="activation",
            tensor=f"{o.op.name} maxima",
            section=section,
            dtype=plan.precision.compute,
            per="microbatch",
            count=_layers(sharded, stage, section, sentence) * microbatches_each(plan),
            buffer_bytes=DTYPE_BYTES[plan.precision.compute],
            realised_by=(NAME,),
            cause=sentence.cause,
        )
        for phase, axes, numbers in (*found, *_replayed(sharded, o, section, tuple(found))):
            if axes:
                size = plan.mesh.size(*axes)
                yield replace(one, axes=axes, group_size=size, phase=phase, buffer_bytes=one.buffer_bytes * numbers)
        for phase, axes, numbers in _of_gradients(sharded, o, first):
            size, made = plan.mesh.size(*axes), f"{o.op.name} scales"
            scales = replace(one, dtype="fp32", buffer_bytes=numbers * DTYPE_BYTES["fp32"], tensor=made)
            yield replace(scales, op="all_gather", axes=axes, group_size=size, phase=phase)


def _replayed(sharded: Sharded, o: OpSharding, section: str, found: tuple[Maxima, ...]) -> Iterator[Maxima]:
    if section in sharded.model.blocks and o.op.name in replay(sharded.plan, section).ops:
        yield from (("recompute", axes, numbers) for phase, axes, numbers in found if phase == "forward")


def _of_rows(sharded: Sharded, o: OpSharding, first: bool) -> list[Maxima]:
    """Return the all-reduces of maxima of the rowwise matmul `o`. The maxima over the columns of the input are shared
    by all matmuls that read this input, and counted for the `first` of them."""
    plan = sharded.plan
    outputs, inputs = (plan.mesh.in_order(axes) for axes in sharded.param[o.op.params[0]].compute)
    over_out, over_in = sharded.model.param[o.op.params[0]].shape_dims
    tokens = local_elements(plan, TOKENS, _tokens(o.layout))
    made, used = (_local(sharded, dims, axes) for dims, axes in ((over_out, outputs), (over_in, inputs)))
    found: list[Maxima] = [("forward", inputs, tokens), ("forward", inputs, made)]
    found += [("backward", outputs, tokens), ("backward", outputs, used)]
    found.append(("backward", _at_rest(sharded, o.op.output), made))
    return [*found, ("backward", _at_rest(sharded, o.op.inputs[0]), used)] if first else found


def _of_gradients(sharded: Sharded, o: OpSharding, first: bool) -> Iterator[Maxima]:
    """Yield the gather of scales along the dim on which the gradient of the weight of `o` is sharded. Scales of the
    input's columns are shared by all matmuls that read this input, and counted for the `first` of them."""
    param = sharded.param[o.op.params[0]]
    index, axes = cut(sharded.plan, param, "grads"), sharded.plan.mesh.in_order(param.stored["grads"])
    shared = index == 1 and not first
    if index is not None and axes and not shared:
        dims, parts = param.param.shape_dims[index], sharded.plan.mesh.in_order(param.compute[index])
        yield "backward", axes, _local(sharded, dims, parts)


def _local(sharded: Sharded, dims: tuple[str, ...], axes: tuple[str, ...]) -> float:
    return local_elements(sharded.plan, dims, {}) / sharded.plan.mesh.size(*axes)


def _tokens(layout: Layout) -> Layout:
    return {dim: axes for dim, axes in layout.items() if dim in TOKENS}


def _at_rest(sharded: Sharded, tensor: str) -> tuple[str, ...]:
    """Return the axes that shard the tokens of `tensor` between ops."""
    layout = sharded.declared(tensor)
    return sharded.plan.mesh.in_order({axis for dim in TOKENS for axis in layout.get(dim, ())})
