"""Counts the tensors that eager torch saves for the backward of one microbatch, per block and outside the blocks.

`planc.sharding.recompute` says which activations every program must save. This module adds what only eager torch saves:
intermediate tensors of an op, a tensor for each op of the loss, and keys and values repeated for every query head.
"""

from __future__ import annotations

from functools import cached_property

from planc.backends.cuda.analysis.block_backward import by_ring, products_inside
from planc.backends.cuda.analysis.own_code import inside_bytes, is_seen, named_bytes, ops_by_code
from planc.backends.cuda.analysis.replays import named_again, replay
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.costing.compute.attention import repeated_bytes
from planc.costing.compute.flops import local_dim
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Op, Section
from planc.ir.sharding import Layout, OpSharding, Sharded
from planc.sharding.local import local_elements, param_elements, tensor_bytes
from planc.sharding.recompute import close
from planc.sharding.redistribute import restrict

FP32 = DTYPE_BYTES["fp32"]
LOSS_COPIES = 2
"""Number of fp32 tensors of the logits' size besides the saved log-probabilities: the gradients of the
log-probabilities and of the logits."""


class SavedTensors:
    """Computes the bytes that one microbatch saves on a device for its backward."""

    def __init__(self, sharded: Sharded, roles: AxisRoles) -> None:
        self.sharded, self.plan, self.roles = sharded, sharded.plan, roles
        self.computed = DTYPE_BYTES[self.plan.precision.compute]
        self.away = self.plan.offloaded

    @cached_property
    def hidden_states(self) -> float:
        """Returns the bytes of the hidden states of a microbatch that one stage sends to the next."""
        last = self.sharded.ops[self.sharded.model.blocks[-1]][-1].op.output
        dims = self.sharded.model.tensor[last].dims
        return local_elements(self.plan, dims, self.sharded.declared(last)) * self.computed

    def of_section(self, section: Section) -> float:
        """Returns the bytes that a microbatch saves in one block of kind `section`, or in the modules before ("first")
        or after ("last") the blocks; "last" includes the loss."""
        if section not in self.sharded.model.blocks:
            ops = ops_by_code(self.plan, section)
            names = dict.fromkeys(t for op in ops for t in op.saves if t != "logits")
            inside = sum(inside_bytes(self.sharded, o) for o in self._by_code(section) if o.op.kind != "loss")
            ends = self.of_loss_and_logits if section == "last" else 0.0
            return self._named(tuple(names), section) + inside + ends
        return self._block(section)

    @cached_on(lambda self, kind: (self.sharded.cache, kind))
    def _block(self, section: Section) -> float:
        """Returns the bytes that a microbatch saves in one block: if the plan recomputes every Nth block, the mean of N
        blocks."""
        every = self.plan.recompute.every
        some = self.of_replayed_block(section)
        return some if every == 1 else (some + (every - 1) * self.of_block_without_recompute(section)) / every

    @cached_on(lambda self, kind: (self.sharded.cache, (kind, "replayed")))
    def of_replayed_block(self, section: Section) -> float:
        """Returns the bytes that a microbatch saves in a block of kind `section` that the plan recomputes."""
        again = replay(self.sharded, section)
        here = tuple(name for name in again.saved if name not in self.away)
        named = {op.name for op in self.sharded.model.ops[section] if named_again(self.sharded, op)}
        return self._named(here, section) + self._inside_ops(section, frozenset({*again.ops, *named}))

    @cached_on(lambda self, kind: (self.sharded.cache, (kind, "kept")))
    def of_block_without_recompute(self, section: Section) -> float:
        """Returns the bytes that a microbatch saves in a block of kind `section` that is not recomputed."""
        ops = ops_by_code(self.plan, section)
        return self._named(close(self.sharded.model, ops, set()).saved, section) + self._inside_ops(
            section, frozenset()
        )

    def _named(self, names: tuple[str, ...], section: Section) -> float:
        return sum(named_bytes(self.sharded, name, section) for name in names)

    def _by_code(self, section: Section) -> list[OpSharding]:
        """Returns the ops of a kind of block (`section`) whose code was traced: their saved tensors are known."""
        return [o for o in self.sharded.ops[section] if is_seen(self.plan, o.op)]

    def _inside_ops(self, section: Section, again: frozenset[str]) -> float:
        """Returns the bytes of intermediate tensors that ops save, without the ops named in `again`."""
        kept = [o for o in self.sharded.ops[section] if o.op.name not in again]
        return sum(
            inside_bytes(self.sharded, o)
            if is_seen(self.plan, o.op)
            else self._of_op(o.op, o.layout) + self._repeated_keys(o)
            for o in kept
        )

    def _repeated_keys(self, o: OpSharding) -> float:
        """Returns the bytes that attention saves for keys and values repeated to the query heads, less those before the
        repeat, which `_named` counts."""
        if o.op.kind != "attention" or not (both := repeated_bytes(self.sharded, o)):
            return 0.0
        heads, groups = (local_dim(self.sharded, o, dim) for dim in ("heads", "kv_heads"))
        return both * (heads - groups) / (heads + groups)

    def _of_op(self, op: Op, layout: Layout) -> float:
        dims = self.sharded.model.tensor[op.output].dims
        if op.kind == "elementwise":
            return products_inside(op, dims) * local_elements(self.plan, dims, restrict(layout, dims)) * self.computed
        if op.kind == "rope":  # a cosine and a sine for each position and pair, in fp32
            angles = ("sequence", *op.whole)
            return local_elements(self.plan, angles, restrict(layout, angles)) * FP32
        if op.kind in ("norm", "attention"):  # one number per row, and the mask of a sliding window
            rows = tuple(d for d in dims if d not in op.whole)
            # A ring's output is head-major: the projection after it saves a row-major copy.
            again = op.kind == "attention" and by_ring(self.plan)
            masked = op.window and not again
            mask = self.plan.batch.sequence_tokens**2 * self.computed if masked else 0.0
            copied = local_elements(self.plan, dims, restrict(layout, dims)) * self.computed if again else 0.0
            return local_elements(self.plan, rows, restrict(layout, rows)) * FP32 + mask + copied
        return 0.0

    @cached_property
    def of_loss_and_logits(self) -> float:
        """Returns the bytes that the loss saves; in a pipeline, plus the last stage's output, which torch's schedule
        holds: the logits, or the head's input if the loss is in chunks."""
        if not self.roles.pipeline:
            return self.of_loss
        return self.of_loss + (self._logits() if self.plan.loss_chunks == 1 else self._head_input())

    @cached_property
    def of_loss(self) -> float:
        """Returns the bytes that the loss saves, and the tensors that the model's own code saves after the head.

        It saves the fp32 log-probabilities, or the logits if it is compiled; over a sharded vocab the logits' gradient;
        in chunks the head's gradient in fp32, and that of the head's input, which counts as the saved input.
        """
        behind = sum(inside_bytes(self.sharded, o) for o in self._by_code("last") if o.op.kind == "loss")
        if self.plan.loss_chunks > 1:
            return behind + self._head_gradient() * FP32
        return behind + (self._logits() if self.plan.compiled("loss") or self._divided else self._fp32_logits(1))

    def of_loss_backward(self) -> float:
        """Returns the most bytes that the loss allocates besides what it saves: a gradient per op of the loss in its
        backward, or only that of the logits if it is compiled.

        Over a sharded vocab and in chunks this is in the forward: the logits in the compute dtype and in fp32, of one
        chunk and with the head's input; or in the backward, where gradients are scaled.
        """
        given = 0.0 if self.roles.pipeline else 1.0
        if self.plan.loss_chunks > 1:
            chunk = (self._logits() + self._fp32_logits(1)) / self.plan.loss_chunks
            scaled = self._head_gradient() * self.computed + self._head_input()
            return max(given * self._head_input() + chunk, scaled)
        if self.plan.compiled("loss"):
            return self._logits()
        if self._divided:
            return self._fp32_logits(1) + given * self._logits()
        return self._fp32_logits(LOSS_COPIES)

    @property
    def _divided(self) -> bool:
        return Styler(self.sharded, self.roles).divides_loss

    def _head_gradient(self) -> float:
        """Returns the number of elements of the head's gradient on a device; 0 if the head is frozen."""
        head = self.sharded.param[self.roles.head.params[0]]
        return 0.0 if head.param.frozen else param_elements(self.plan, head)

    def _head_input(self) -> float:
        """Returns the bytes of the head's input in the layout in which the head reads it."""
        (o,) = (o for o in self.sharded.ops["last"] if o.op is self.roles.head)
        name = o.op.inputs[0]
        return tensor_bytes(self.plan, name, o.needs(name, self.sharded.model.tensor[name].dims))

    def _logits(self) -> float:
        return self._fp32_logits(1) / FP32 * self.computed

    def _fp32_logits(self, copies: int) -> float:
        loss = self.sharded.ops["last"][-1]
        dims = self.sharded.model.tensor[loss.op.inputs[0]].dims
        return copies * local_elements(self.plan, dims, restrict(loss.layout, dims)) * FP32
