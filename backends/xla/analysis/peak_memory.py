"""What a compiled XLA program holds of a device at its fullest moment, without running it.

`planc.cost.memory` says what any correct program must keep. This adds what XLA makes of plain attention and of
the loop over microbatches, from programs whose `peak_memory_in_bytes` is known: the scores of all local
heads twice in fp32 (probabilities and their gradient), the head's gathered copy where it left the loop, gradients of
tables that are summed whole, experts' weights cast before the loop over the layers.
"""

from __future__ import annotations

from functools import cached_property

from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.rules import realise, sum_thin_parts
from planc.cost import cost_plan
from planc.ir.backend import Peak
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.model import EXPERTS, Section
from planc.ir.plan import Noun
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.updates import moments_of
from planc.sharding import semantic_collectives
from planc.sharding.local import local_elements, local_length, param_elements, tensor_bytes
from planc.sharding.recompute import replay
from planc.sharding.redistribute import restrict

FP32 = DTYPE_BYTES["fp32"]
SCORES = 2
"""fp32 tensors of the scores' size at once in the backward of attention."""
LOGITS = 2
"""Tensors like the logits in the compute dtype: what the loss is made of, and its gradient. The fp32 of the loss is
never kept whole; the head's whole gradient comes with them."""


def peak_memory(sharded: Sharded) -> tuple[Peak, ...]:
    """The fullest moment of each pipeline rank; of a pipeline, what any correct program keeps on it."""
    if sharded.plan.pipeline == 1:
        moments = Moments(sharded).all()
        name = max(moments, key=lambda n: moments[n])
        return (Peak(bytes=moments[name], moment=name),)
    stages = cost_plan(sharded, realise(sharded, semantic_collectives(sharded))).memory.stages
    parts = [(stage.per_device_gib, stage.peak_at) for stage in stages]
    return tuple(Peak(bytes=(gib.total - gib.reserve) * 2**30, moment=moment) for gib, moment in parts)


class Moments:
    def __init__(self, sharded: Sharded) -> None:
        self.sharded, self.plan, self.model = sharded, sharded.plan, sharded.model
        self.computed = DTYPE_BYTES[self.plan.precision.compute]

    def all(self) -> dict[str, float]:
        always = self._state() + self._hoisted() + self._narrow_experts()
        blocks = {f"backward of {kind}": self._saved() + self._backward(kind) for kind in self.model.blocks}
        moments = {**blocks, "loss": self._saved() + self._loss(), "sums": self._whole_sums(), "update": 0.0}
        return {name: always + held for name, held in moments.items()}

    def _state(self) -> float:
        """Parameters and moments where they rest, and the gradients that add up."""
        kept = self._resting("params") + self._resting("optimizer", moments=True) + self._resting("grads")
        return kept * FP32

    def _resting(self, noun: Noun, *, moments: bool = False) -> float:
        """Elements on one device, each as often as it has moments if asked. XLA stores whole what it cannot divide."""
        times = {p.param.name: moments_of(self.plan, p.param.name) if moments else 1 for p in self.sharded.params}
        return sum(times[p.param.name] * self.model.copies(p.param) * self._kept(p, noun) for p in self.sharded.params)

    def _kept(self, p: ParamSharding, noun: Noun) -> float:
        whole = param_elements(self.plan, p)
        divided = cut(self.plan, p, noun) is not None
        return whole / self.plan.mesh.size(*p.stored[noun]) if divided else whole

    def _hoisted(self) -> float:
        """The head's weight, gathered once for all microbatches."""
        if self.plan.microbatches == 1:
            return 0.0
        return sum(param_elements(self.plan, p) * self.computed for p in self.sharded.params if self._of_head(p))

    def _narrow_experts(self) -> float:
        """The parts of the experts' weights that a device stores, cast before the loops over the layers."""
        if self.computed == FP32:
            return 0.0
        experts = (p for p in self.sharded.params if p.param.region == EXPERTS)
        return sum(self.model.copies(p.param) * self._kept(p, "params") for p in experts) * self.computed

    def _of_head(self, p: ParamSharding) -> bool:
        return bool(p.stored["params"]) and "last" in p.param.sections and len(self.model.shape(p.param)) > 1

    def _saved(self) -> float:
        """What one microbatch leaves for its backward: of each block what its replay starts from."""
        each = {
            kind: sum(tensor_bytes(self.plan, n, self.sharded.declared(n)) for n in replay(self.plan, kind).kept)
            for kind in self.model.blocks
        }
        return sum(self.model.layers_of(kind) * held for kind, held in each.items())

    def _backward(self, kind: Section) -> float:
        """A block's weights as they are multiplied, and the scores of its attention."""
        weights = sum(param_elements(self.plan, p) for p in self.sharded.params if kind in p.param.sections)
        return weights * self.computed + self._scores(kind) + self._head_waits()

    def _scores(self, kind: Section) -> float:
        total = 0.0
        for o in self.sharded.ops[kind]:
            if o.op.kind == "attention":
                rows = local_elements(self.plan, _ROWS, restrict(o.layout, _ROWS))
                keys = local_length(self.plan, "sequence", ())
                total = max(total, SCORES * rows * keys * FP32)
        return total

    def _logits(self) -> float:
        """Bytes of one tensor like the logits, in the compute dtype."""
        loss = self.sharded.ops["last"][-1]
        dims = self.model.tensor[loss.op.inputs[0]].dims
        return local_elements(self.plan, dims, restrict(loss.layout, dims)) * self.computed

    def _loss(self) -> float:
        head = sum(param_elements(self.plan, p) * self.computed for p in self.sharded.params if self._of_head(p))
        once = 0.0 if self.plan.microbatches > 1 else head
        return LOGITS * self._logits() + once + head / self.computed * FP32

    def _head_waits(self) -> float:
        """A head's gradient of thin parts is summed after the loop over the layers: until then it is there, or the
        logits' gradient that it is made of where that is smaller."""
        thin = {r.tensor for r in self._sums if sum_thin_parts.NAME in r.realised_by}
        waiting = [g for p, g in self._summed_whole if "last" in p.param.sections and p.param.name in thin]
        return min(sum(waiting), self._logits())

    def _whole_sums(self) -> float:
        """Gradients that are summed whole, each beside its sum while that is made."""
        sums = [gradient for _, gradient in self._summed_whole]
        return sum(sums) + max(sums, default=0.0)

    @cached_property
    def _sums(self) -> tuple[Collective, ...]:
        """The sums of gradients that XLA makes."""
        rows = realise(self.sharded, semantic_collectives(self.sharded))
        return tuple(r for r in rows if r.carries == "grad")

    @cached_property
    def _summed_whole(self) -> tuple[tuple[ParamSharding, float], ...]:
        """Tables outside the blocks whose gradient XLA sums whole, though it rests divided; its bytes in fp32."""
        scattered = {r.tensor for r in self._sums if r.op == "reduce_scatter"}
        whole = {r.tensor for r in self._sums if r.op == "all_reduce"} - scattered
        return tuple(
            (p, param_elements(self.plan, p) * FP32)
            for p in self.sharded.params
            if p.param.name in whole and p.stored["grads"] and not {*p.param.sections} & {*self.model.blocks}
        )


_ROWS = ("batch", "sequence", "heads")
