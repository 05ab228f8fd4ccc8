"""The shard map: the slice of each parameter that each device stores between steps."""

from __future__ import annotations

from math import prod

from planc.ir.collective import DTYPE_BYTES
from planc.ir.mesh import Axis
from planc.ir.sharding import ParamSharding, Sharded
from planc.lowering import state_layout
from planc.picture.marks import Mark, Picture, Rect, StraightLine, Text, clipped
from planc.picture.units import count, size
from planc.report.data import Data, PageSubject
from planc.sharding.shard_intervals import Runs, StoredLayout, stored_layout

MOST_CARDS = 6
"""Number of tensors that the picture draws: those with the most elements, one of each layout."""
EXAMPLES = 16
"""Number of devices whose slices are listed."""
MOST_RUNS = 4
"""Number of index ranges that are written out."""
MOST_LINES = 64
"""Number of cuts of a side that are drawn."""


class Cut(Data):
    """The sharding of one named dim inside an array dim, by axes in turn."""

    dim: str
    length: int
    inside: int
    axes: tuple[str, ...]


class AxisPlace(Data):
    """A device's coordinate along an axis: device // stride % size."""

    size: int
    stride: int


class ShardedTensors(Data):
    """Parameters with one layout and shape; the model has `copies` of each."""

    names: tuple[str, ...]
    copies: int
    shape: tuple[int, ...]
    cuts: tuple[tuple[Cut, ...], ...]
    """Sharding in use (tensor parallelism), for each array dim."""
    stored_over: tuple[str, ...]
    """Axes over which the device's shard is further sharded between uses."""
    stored_on: int | None
    """The array dim that they shard."""
    dtype: str
    per_device_bytes: float
    """Bytes of device 0's slice of one copy."""
    grads_over: tuple[str, ...]
    optimizer_over: tuple[str, ...]
    layout: str
    slices: tuple[str, ...]
    """Slices of the first devices."""


class Shards(Data):
    """Shard map of the parameters between steps."""

    devices: int
    axes: dict[str, AxisPlace]
    tensors: tuple[ShardedTensors, ...]
    summary: str


def shards(subject: PageSubject) -> Shards:
    """Return the parameters of the plan in `subject`, grouped by layout, the group with the most elements first."""
    costed = subject.costed
    sharded, plan = costed.sharded, costed.sharded.plan
    at_rest = state_layout(sharded, costed.target)
    groups: dict[tuple[object, ...], list[tuple[ParamSharding, StoredLayout]]] = {}
    for p in sharded.params:
        found = stored_layout(sharded, p, "params", at_rest)
        others = [tuple(a.name for a in stored_layout(sharded, p, n, at_rest).stored) for n in ("grads", "optimizer")]
        key = (sharded.model.shape(p.param), found.used, found.stored, found.on_dim, *others)
        groups.setdefault(key, []).append((p, found))
    tensors = [_tensor(sharded, [p for p, _ in of], of[0][1], key[-2:]) for key, of in groups.items()]
    tensors.sort(key=lambda t: -prod(t.shape) * t.copies * len(t.names))
    first = tensors[0]
    used = {name for t in tensors for c in t.cuts for cut in c for name in cut.axes}
    used |= {name for t in tensors for name in t.stored_over}
    return Shards(
        devices=plan.mesh.devices,
        axes={name: AxisPlace(size=a.size, stride=a.stride) for name, a in plan.mesh.every.items() if name in used},
        tensors=tuple(tensors),
        summary=f"{len(sharded.params)} parameters lie in {len(tensors)} ways. Most elements lie as {first.names[0]}:"
        f" {first.layout}; a device keeps {size(first.per_device_bytes)} of each between steps.",
    )


def _tensor(
    sharded: Sharded, params: list[ParamSharding], layout: StoredLayout, others: tuple[object, ...]
) -> ShardedTensors:
    plan, first = sharded.plan, params[0]
    shape = sharded.model.shape(first.param)
    dims = first.param.shape_dims
    cuts = tuple(
        tuple(
            Cut(dim=dim, length=length, inside=inside, axes=tuple(a.name for a in axes))
            for dim, (length, inside, axes) in zip(names, of, strict=True)
        )
        for names, of in zip(dims, layout.used, strict=True)
    )
    dtype = plan.store_dtype("params", first.param.region)
    grads, optimizer = ((*map(str, names),) if isinstance(names, tuple) else () for names in others)
    return ShardedTensors(
        names=tuple(p.param.name for p in params),
        copies=sharded.model.copies(first.param),
        shape=shape,
        cuts=cuts,
        stored_over=tuple(a.name for a in layout.stored),
        stored_on=layout.on_dim,
        dtype=dtype,
        per_device_bytes=prod(_length(runs) for runs in layout.piece(0)) * DTYPE_BYTES[dtype],
        grads_over=grads,
        optimizer_over=optimizer,
        layout=_layout_text(cuts, layout),
        slices=tuple(slice_text(layout.piece(d)) for d in range(min(EXAMPLES, plan.mesh.devices))),
    )


def _length(runs: Runs) -> int:
    return sum(last - first for first, last in runs)


def slice_text(piece: tuple[Runs, ...]) -> str:
    """Return a device's slice of a tensor as text. `piece` has the half-open index ranges of each array dim.

    >>> slice_text((((0, 224),), ((0, 4), (8, 12))))
    '[0:224, 0:4 + 8:12]'
    """
    return f"[{', '.join(map(_runs_text, piece))}]"


def _runs_text(runs: Runs) -> str:
    more = " + …" if len(runs) > MOST_RUNS else ""
    return " + ".join(f"{a}:{b}" for a, b in runs[:MOST_RUNS]) + more if runs else "nothing"


def _layout_text(cuts: tuple[tuple[Cut, ...], ...], layout: StoredLayout) -> str:
    used = [
        f"{cut.dim} over {_axes(a)}"
        for c, of in zip(cuts, layout.used, strict=True)
        for cut, (_, _, a) in zip(c, of, strict=True)
        if a
    ]
    if layout.stored and layout.on_dim is not None:
        dims = " x ".join(cut.dim for cut in cuts[layout.on_dim])
        used.append(f"{dims} over {_axes(layout.stored)} while stored")
    return ", ".join(used) or "whole on every device"


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.name} {a.size}" for a in axes)


def picture(data: Shards, width: float) -> Picture:
    """Return a card for each of the largest groups of `data`, `width` pixels wide: the tensor, its shards, and the
    slice of device 0."""
    columns = 3 if width > 500 else 1
    gap = 24.0
    each = (width - gap * (columns - 1)) / columns
    tall = 186.0
    shown = data.tensors[:MOST_CARDS]
    marks: list[Mark] = []
    for at, tensor in enumerate(shown):
        x, y = at % columns * (each + gap), at // columns * tall
        marks += _card(data, tensor, x, y, each)
    height = -(-len(shown) // columns) * tall
    return Picture(width, height, "Shard map: the slice of device 0", data.summary, tuple(marks))


def _card(data: Shards, tensor: ShardedTensors, x: float, y: float, width: float) -> list[Mark]:
    shape = tensor.shape if len(tensor.shape) > 1 else (tensor.shape[0], 1)
    box_w, box_h = (width if len(tensor.shape) > 1 else 60.0), 96.0
    top = y + 38
    more = f" and {len(tensor.names) - 1} more" if len(tensor.names) > 1 else ""
    title = f"{tensor.names[0]}: {tensor.layout}"
    marks: list[Mark] = [
        Text(x, y + 14, clipped(tensor.names[0].removeprefix("layers.*.") + more, width), "strong"),
        Text(x, y + 30, clipped(" x ".join(f"{n:,}" for n in tensor.shape) + f", {tensor.dtype}", width), "small"),
        Rect(x, top, box_w, box_h, "light", title),
    ]
    at_rows, at_columns = _drawn_dims(data, tensor)
    rows, columns = shape[at_rows], shape[at_columns] if at_columns >= 0 else 1
    first = _first_box(tensor)
    low_r, high_r = first.get(at_rows, (0, rows))
    low_c, high_c = first.get(at_columns, (0, columns))
    marks.append(
        Rect(
            x + low_c / columns * box_w,
            top + low_r / rows * box_h,
            max(2.0, (high_c - low_c) / columns * box_w),
            max(2.0, (high_r - low_r) / rows * box_h),
            "accent",
            f"device 0 keeps {tensor.slices[0]}",
        )
    )
    for i in range(1, min(_cuts(data, tensor, at_rows), MOST_LINES)):
        line = top + i / _cuts(data, tensor, at_rows) * box_h
        marks.append(StraightLine(x, line, x + box_w, line, "cut"))
    for i in range(1, min(_cuts(data, tensor, at_columns), MOST_LINES)):
        line = x + i / _cuts(data, tensor, at_columns) * box_w
        marks.append(StraightLine(line, top, line, top + box_h, "cut"))
    marks.append(Rect(x, top, box_w, box_h, "outline"))
    copies = f"one in each of {tensor.copies:,} layers" if tensor.copies > 1 else "one in the model"
    marks += [
        Text(x, top + box_h + 15, clipped(tensor.layout, 1.12 * width), "small"),
        Text(
            x,
            top + box_h + 30,
            clipped(f"{count(prod(shape) * tensor.copies)} elements, {copies}", 1.12 * width),
            "small",
        ),
    ]
    return marks


def _cuts(data: Shards, tensor: ShardedTensors, dim: int) -> int:
    """Return the number of shards of an array dim while ops use the tensor."""
    if dim < 0:
        return 1
    return prod(data.axes[name].size for cut in tensor.cuts[dim] for name in cut.axes)


def _drawn_dims(data: Shards, tensor: ShardedTensors) -> tuple[int, int]:
    """Return the array dims to draw, downwards and across, preferably sharded ones; the second is -1 for a vector."""
    dims = range(len(tensor.shape))
    if len(tensor.shape) == 1:
        return 0, -1
    divided = [d for d in dims if _cuts(data, tensor, d) > 1 or (d == tensor.stored_on and tensor.stored_over)]
    down, across = sorted([*divided, *(d for d in dims if d not in divided)][:2])
    return down, across


def _first_box(tensor: ShardedTensors) -> dict[int, tuple[int, int]]:
    """Return the first index range of device 0's slice, by array dim."""
    runs = [text.partition(" + ")[0].partition(":") for text in tensor.slices[0].strip("[]").split(", ")]
    return {dim: (int(a), int(b)) if b else (0, 0) for dim, (a, _, b) in enumerate(runs)}
