"""Counts the tensors that eager torch saves for the backward of one microbatch, per block and outside the blocks.

`planc.sharding.recompute` says which activations every program must save. This module adds what only eager torch saves:
intermediate tensors of an op, a tensor for each op of the loss, and keys and values repeated for every query head.
"""

from __future__ import annotations

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
from planc.sharding.local import local_elements
from planc.sharding.recompute import close
from planc.sharding.redistribute import restrict

FP32 = DTYPE_BYTES["fp32"]
LOSS_COPIES = 2
"""Number of fp32 tensors of the logits' size besides the saved log-probabilities: the gradients of the
log-probabilities and of the logits."""
DIVIDED_LOSS_COPIES = 3
"""The same number for loss_parallel, whose backward is several ops."""


class SavedTensors:
    """Computes the bytes that one microbatch saves on a device for its backward."""

    def __init__(self, sharded: Sharded, roles: AxisRoles) -> None:
        self.sharded, self.plan, self.roles = sharded, sharded.plan, roles
        self.computed = DTYPE_BYTES[self.plan.precision.compute]
        self.away = self.plan.offloaded

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
            ends = self.of_loss_and_logits() if section == "last" else 0.0
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

    def of_loss_and_logits(self) -> float:
        """Returns the bytes that the loss saves; in a pipeline, plus the logits, which torch's schedule holds."""
        return self.of_loss() + (self._logits() if self.roles.pipeline else 0.0)

    def of_loss(self) -> float:
        """Returns the bytes that the loss saves: the fp32 log-probabilities, or the logits if the loss is compiled, and
        the tensors that the model's own code saves after the head."""
        behind = sum(inside_bytes(self.sharded, o) for o in self._by_code("last") if o.op.kind == "loss")
        return behind + (self._logits() if self.plan.compiled("loss") else self._fp32_logits(1))

    def of_loss_backward(self) -> float:
        """Returns the bytes that the backward of the loss allocates: a gradient per op of the loss, or only that of the
        logits if the loss is compiled."""
        if self.plan.compiled("loss"):
            return self._logits()
        return self._fp32_logits(DIVIDED_LOSS_COPIES if Styler(self.sharded, self.roles).loss_parallel else LOSS_COPIES)

    def _logits(self) -> float:
        return self._fp32_logits(1) / FP32 * self.computed

    def _fp32_logits(self, copies: int) -> float:
        loss = self.sharded.ops["last"][-1]
        dims = self.sharded.model.tensor[loss.op.inputs[0]].dims
        return copies * local_elements(self.plan, dims, restrict(loss.layout, dims)) * FP32
