"""Names the buffers of a compiled program after the plan's parameters, gradients and activations, with their sentences.

The compiled text names operations, not tensors, so a buffer is matched by dtype and per-device sizes: dims of size 1
are ignored, adjacent dims may be merged, and layers may be stacked. All tensors of these sizes are listed; a buffer
without a match gets no name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from math import ceil, prod

from planc.backends.xla.analysis.attention import runs_splash
from planc.backends.xla.analysis.layouts import param_spec
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.backends.xla.analysis.saved_by_blocks import layers_that_save
from planc.backends.xla.audit.inventory import DTYPES
from planc.backends.xla.audit.live_buffers import Buffer
from planc.ir.audit import LiveBuffer
from planc.ir.base import Cause
from planc.ir.plan import Noun
from planc.ir.sharding import Layout, OpSharding, ParamSharding, Sharded
from planc.sharding.local import local_length

SHOWN = 10
"""Number of buffers that an audit lists."""
_STATE = re.compile(r"state\['(params|optimizer)'\].*?(?:\.(\w+))?\['([^']+)'\]$")
_NAMES = 3
"""Number of tensors of the same sizes that are named; the others are counted."""

Sizes = tuple[int, ...]


class BufferNames:
    """Maps dtypes and per-device sizes to the tensors of a plan."""

    def __init__(self, sharded: Sharded) -> None:
        self.sharded, self.plan, self.model = sharded, sharded.plan, sharded.model
        self._axes = {a.name: a.size for a in atoms(sharded.plan)}
        self._known: dict[tuple[str, Sizes], dict[str, str]] = {}
        """Tensor names with their sentence, by (dtype, sizes)."""
        for p in sharded.params:
            self._add_param(p)
        for t in self.model.tensors:
            if t.dtype != "int" and t.dims:
                self._add_activation(t.name, t.dims)
        for o in () if runs_splash(sharded) else sharded.attentions:
            self._add_scores(o)

    def named(self, buffer: Buffer) -> LiveBuffer:
        """Return `buffer` with the names of tensors that it may hold, and the sentences that lay these tensors out."""
        dtype = DTYPES.get(buffer.shape.dtype, buffer.shape.dtype)
        found = self._of_state(buffer.source) if buffer.argument else {}
        found = found or self._known.get((dtype, _sizes(buffer.shape.dims)), {})
        names = list(found)
        more = f" or {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        return LiveBuffer(
            bytes=buffer.bytes,
            dtype=dtype,
            shape=buffer.shape.dims,
            tensor=" or ".join(names[:_NAMES]) + more,
            sentence="; ".join(dict.fromkeys(s for s in list(found.values())[:_NAMES] if s)),
            operation=buffer.source,
        )

    def _of_state(self, source: str) -> dict[str, str]:
        """Return the name of the parameter or optimizer moment in an argument of the step, with the sentence that
        stores it; {} if the argument is no state. `source` is the argument's `op_name`."""
        state = _STATE.search(source)
        if state is None:
            return {}
        noun: Noun = "params" if state[1] == "params" else "optimizer"
        what = state[3] if noun == "params" else f"{state[2] or 'moment'} of {state[3]}"
        return {what: self._stored_by(noun)}

    def _add_param(self, p: ParamSharding) -> None:
        compute, name = self.plan.precision.compute, p.param.name
        layers = self.model.copies(p.param)
        used = self._of_spec(p, param_spec(self.plan, p, "used"))
        self._add(compute, used, f"{name} as it is used", self._stored_by("params"))
        self._add(self.plan.precision.reduce, used, f"the whole gradient of {name}", self._stored_by("grads"))
        nouns: tuple[Noun, ...] = ("params", "grads")
        for noun in nouns:
            stored = self._of_spec(p, param_spec(self.plan, p, noun))
            what = f"{'a copy' if noun == 'params' else 'the gradient'} of {name}"
            for sizes in (stored, (layers, *stored)):
                self._add(self.plan.store_dtype(noun), sizes, what, self._stored_by(noun))
                self._add(compute, sizes, f"a part of {name}, rounded", self._stored_by("params"))

    def _add_activation(self, name: str, dims: tuple[str, ...]) -> None:
        readers = [o for o in self.sharded.op.values() if name in o.op.inputs]
        layouts: list[Layout] = [self.sharded.declared(name), *(o.needs(name, dims) for o in readers)]
        for number, layout in enumerate(layouts):
            sizes = tuple(ceil(local_length(self.plan, d, layout.get(d, ()))) for d in dims)
            what = f"{name}, gathered" if number and layout != layouts[0] else name
            for dtype in dict.fromkeys((self.plan.precision.compute, "fp32")):
                self._add(dtype, sizes, what, self._divided_by(dims))
            for kind in self.model.blocks:
                if layers_that_save(self.sharded, kind, name):
                    of_all = (self.model.layers_of(kind), *sizes)
                    self._add(self.plan.precision.compute, of_all, f"{name} of all layers", self._saved_by())

    def _add_scores(self, o: OpSharding) -> None:
        """Add the scores of attention without a kernel, [B, key heads, queries per key head, rows, keys]."""
        rows = {d: ceil(local_length(self.plan, d, o.layout.get(d, ()))) for d in ("batch", "sequence", "heads")}
        heads = self.model.sizes["heads"]
        keys = ceil(local_length(self.plan, "sequence", o.layout.get("sequence", ()) if o.ring else ()))
        shared = min(rows["heads"], max(1, heads // self.model.sizes.get("kv_heads", heads)))
        sizes = (rows["batch"], rows["heads"] // shared, shared, rows["sequence"], keys)
        for dtype in dict.fromkeys((self.plan.precision.compute, "fp32")):
            self._add(dtype, sizes, f"scores of {o.op.name}", self._divided_by(("batch", "heads")))

    def _of_spec(self, p: ParamSharding, spec: tuple[tuple[str, ...], ...]) -> Sizes:
        shape = self.model.shape(p.param)
        return tuple(ceil(n / prod(self._axes[a] for a in axes)) for n, axes in zip(shape, spec, strict=True))

    def _add(self, dtype: str, sizes: Sizes, name: str, sentence: str) -> None:
        for joined in _joined(sizes):
            self._known.setdefault((dtype, _sizes(joined)), {}).setdefault(name, sentence)

    def _stored_by(self, noun: Noun) -> str:
        return next((_sentence(s.cause) for s in self.plan.stores if s.noun == noun), "")

    def _saved_by(self) -> str:
        cause = self.plan.recompute.cause
        return _sentence(cause) if cause else ""

    def _divided_by(self, dims: tuple[str, ...]) -> str:
        """Return the text of the plan's `shard` sentences on `dims`; if there are none, of its `batch` sentence."""
        found = [_sentence(s.cause) for s in self.plan.shards if s.dim in dims]
        return "; ".join(dict.fromkeys(found)) or _sentence(self.plan.batch.cause)


def largest(sharded: Sharded, buffers: tuple[Buffer, ...]) -> tuple[LiveBuffer, ...]:
    """Return the ten largest of `buffers` in the program of `sharded`, with the names of tensors that they may hold."""
    names = BufferNames(sharded)
    return tuple(names.named(b) for b in sorted(buffers, key=lambda b: -b.bytes)[:SHOWN])


def _sentence(cause: Cause) -> str:
    return cause.via or cause.sentence


def _sizes(dims: Sizes) -> Sizes:
    return tuple(sorted(n for n in dims if n != 1))


def _joined(sizes: Sizes) -> Iterator[Sizes]:
    """Yield `sizes`, and all ways to merge adjacent dims of `sizes` into at least two."""
    inner = range(1, len(sizes))
    for count in range(1, len(sizes)):
        for cuts in combinations(inner, count):
            ends = (0, *cuts, len(sizes))
            yield tuple(prod(sizes[a:b]) for a, b in pairwise(ends))
    if len(sizes) < 2:
        yield sizes
