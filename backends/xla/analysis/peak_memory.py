"""Peak memory of a compiled XLA program, by kind of tensor, predicted without running it.

`planc.costing.memory` counts what any correct program must keep. This module adds what XLA allocates for plain
attention and for the loop over microbatches, fitted to programs whose `peak_memory_in_bytes` is known: the scores of
all local heads twice in fp32 (probabilities and their gradient), the gathered head where it is hoisted out of the loop,
embedding gradients that are all-reduced whole, and experts' weights cast before the loop over layers. All ranks of a
pipeline run the same program, so they all hold the same bytes.
"""

from __future__ import annotations

from functools import cached_property

from planc.backends.xla.analysis.attention import LANES, runs_splash
from planc.backends.xla.analysis.compiler_options import scatters_by_sparse_cores
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.analysis.gathered_rows import gathered_rows
from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.analysis.offload import fetched_whole
from planc.backends.xla.analysis.pipeline import layers_of_a_stage, lockstep, pipelined
from planc.backends.xla.analysis.saved_by_blocks import layers_that_save
from planc.backends.xla.analysis.stacked_params import stacks_of
from planc.backends.xla.analysis.state_dtypes import number_bytes
from planc.backends.xla.rules import all_reduce_thin_shards
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.model import EXPERTS, SLOTS, Section
from planc.ir.plan import Noun
from planc.ir.sharding import OpSharding, ParamSharding, Sharded
from planc.ir.tensor_bytes import TensorBytes
from planc.ir.updates import moments_of
from planc.sharding.local import local_elements, local_length, param_elements, tensor_bytes
from planc.sharding.recompute import replay, saved_without_recompute
from planc.sharding.redistribute import restrict

FP32 = DTYPE_BYTES["fp32"]
SCORES = 2
"""Number of fp32 tensors of the scores' size that are live at once in the backward of attention."""
LOGITS = 2
"""Number of tensors of the logits' size in the compute dtype: the logits and their gradient. The fp32 of the loss is
never materialized; the whole gradient of the head is counted with them."""

HEAD_FIRST = ("v5e",)
"""Chips whose compiler computes the head's gradient before that of the embedding, though the logits' gradient that it
needs is smaller. Read from two layers of Llama 8B on tori of 16 x 16, fsdp 64 > tp 4: with sequences of 512 the peak is
1.54 GiB on v5e and 1.09 on v6e, where it is 1.54 too with sequences of 8,192."""

LOSS_APART = ("v4",)
"""Chips whose compiler materializes the logits' gradient next to the logits, before the matmul of the head; others
fuse it into its readers. From two layers of Llama 8B with splash attention, fsdp 64 on v4 and v5p, state in fp32
and bf16."""


def peak_memory(sharded: Sharded, collectives: tuple[Collective, ...]) -> tuple[TensorBytes, ...]:
    """Return the peak memory of each pipeline rank in bytes by kind of tensor, given the `collectives` that XLA issues.

    All ranks of a pipeline run one program, so each needs as much memory as the first rank, whose backwards come last.
    """
    return (Moments(sharded, collectives).peak(),) * sharded.plan.pipeline


@dataclass(frozen=True, kw_only=True)
class LiveBytes:
    """The bytes that are live at one moment of a step, besides parameters, gradients and optimizer state: saved
    activations, and all other buffers."""

    name: str
    activations: float = 0.0
    buffers: float = 0.0
    without_grads: tuple[str, ...] = ()
    """Sections whose parameters have no gradient yet."""


class Moments:
    """The moments of a training step at which memory can peak, and the bytes that are live at each moment."""

    def __init__(self, sharded: Sharded, collectives: tuple[Collective, ...]) -> None:
        self.sharded, self.plan, self.model = sharded, sharded.plan, sharded.model
        self._sums = tuple(r for r in collectives if r.carries == "grad")
        self.computed = DTYPE_BYTES[self.plan.precision.compute]
        self._splash = runs_splash(sharded)
        self._experts = XlaExpertAxes(sharded)
        self._stacks = stacks_of(sharded.plan)

    def peak(self) -> TensorBytes:
        """Return the bytes, by kind of tensor, at the moment that needs most memory, with the persistent state."""
        fullest = max(self._moments(), key=lambda m: m.activations + m.buffers + self._grads(m))
        return TensorBytes(
            params=self._state_bytes("params") + self._copies(),
            grads=self._grads(fullest),
            optimizer=self._state_bytes("optimizer", moments=True),
            activations=fullest.activations,
            buffers=self._hoisted() + fullest.buffers,
            moment=fullest.name,
        )

    def _moments(self) -> list[LiveBytes]:
        if pipelined(self.plan):
            return self._moments_of_pipeline()
        if self._splash:
            return self._moments_without_scores()
        saved = self._saved()
        blocks = [
            LiveBytes(name=f"backward of {kind}", activations=saved, buffers=self._backward(kind))
            for kind in self.model.blocks
        ]
        loss = LiveBytes(name="loss", activations=saved, buffers=self._loss())
        return [*blocks, loss, LiveBytes(name="sums", buffers=self._whole_sums()), LiveBytes(name="update")]

    def _moments_without_scores(self) -> list[LiveBytes]:
        """Return the moments of a program whose attention materializes no scores.

        Fitted to the live ranges of programs of two layers for v5p. The logits' gradient stays live until the end of
        the loop over layers, since the head's gradient is computed after the loop.
        """
        saved, waits, head = self._saved(), self._logits() + self._head_input(), self._head()
        of_chunks = 0.0
        if self.plan.loss_chunks > 1:
            # Chunks add to the head's gradient in fp32; of them the layers' backward needs that of their output.
            of_chunks = head * FP32 + LOGITS * self._logits() + self._head_input()
            waits = self._head_input()
        # With 16-bit parameters the token table is gathered once, and the head in each microbatch.
        in_loop = number_bytes(self.plan, "params") < FP32
        head_once = 0.0 if self._hoisted() and not in_loop else head * self.computed
        # Beside asynchronous collectives others do too: seen in llama3_8b over fsdp 64 of v5p, one microbatch.
        beside = scatters_by_sparse_cores(self.sharded) and self.plan.microbatches == 1
        both = self.plan.cluster.chip.name in LOSS_APART or beside
        apart = self._logits() * (LOGITS - 1) if both else 0.0
        blocks = [
            LiveBytes(
                name=f"backward of {kind}",
                activations=saved,
                buffers=waits + self._block(kind) + self._new_gradients() + self._beside_collectives(kind),
            )
            for kind in self.model.blocks
        ]
        loss = LiveBytes(name="loss", activations=saved, buffers=waits + apart + head_once + of_chunks)
        # Beside asynchronous collectives the head's gradient is computed before the backward of the layers.
        early = saved + self._hidden() if scatters_by_sparse_cores(self.sharded) else 0.0
        head_grad = LiveBytes(
            name="gradient of the head", activations=early, buffers=waits + head * FP32 + self._summed_before_head()
        )
        return [*blocks, loss, head_grad, LiveBytes(name="sums", buffers=self._whole_sums()), LiveBytes(name="update")]

    def _moments_of_pipeline(self) -> list[LiveBytes]:
        """Return the moments of a pipeline, which looks up all tokens, then runs a forward and a backward per tick.

        Fitted to the live ranges of programs for v5p (pp 4 > fsdp 2 > tp 2, 32 and 128 microbatches).
        """
        ticks, hidden = lockstep(self.plan), self._hidden()
        kept, early = (ticks.places + 1) * self._saved_by_a_stage(), ("first",)
        # Activations sent in both directions, and a rank's shard of those of all microbatches.
        held = 2 * (1 + ticks.delay) * hidden + self.plan.microbatches * hidden / self.plan.pipeline
        blocks = [
            LiveBytes(
                name=f"backward of {kind}",
                activations=kept,
                buffers=held + (self._block(kind) if self._splash else self._backward(kind)),
                without_grads=early,
            )
            for kind in self.model.blocks
        ]
        shared = self._head_input() / self.plan.pipeline
        loss = LiveBytes(name="loss", activations=kept, buffers=held + shared + self._loss(), without_grads=early)
        rows, table = self._looked_up() * (FP32 + self.computed), self._table() * FP32
        every = ("first", "last", *self.model.blocks)
        lookup = LiveBytes(name="lookup", buffers=rows, without_grads=every)
        of_lookup = LiveBytes(name="gradient of the lookup", buffers=rows + table, without_grads=early)
        sums = LiveBytes(name="sums", buffers=self._whole_sums(), without_grads=early)
        return [*blocks, loss, lookup, of_lookup, sums, LiveBytes(name="update")]

    def _grads(self, moment: LiveBytes) -> float:
        """Return the bytes of the gradients at `moment`; the sections in `moment.without_grads` have none yet."""
        return self._state_bytes("grads", without=moment.without_grads)

    # State.

    def _state_bytes(self, noun: Noun, *, moments: bool = False, without: tuple[str, ...] = ()) -> float:
        """Return the bytes of `noun` (params, grads or optimizer) that one device stores between uses. With `moments`,
        a parameter counts once per optimizer moment.

        Parameters that only the sections `without` use are left out ("first" is before the blocks, "last" after them).
        A parameter without a divisible dim is replicated. Offloaded state of the layers is not counted: the device
        holds it one layer at a time.
        """
        summed_wide = noun == "grads" and pipelined(self.plan)  # rounded when all microbatches are through
        return (FP32 if summed_wide else number_bytes(self.plan, noun)) * sum(
            (moments_of(self.plan, p.param.name) if moments else 1)
            * self._copies_of(p)
            * self._stored_elements(p, noun)
            for p in self.sharded.params
            if not {*p.param.sections} <= {*without}
            and (noun not in self.plan.offloaded or fetched_whole(self.sharded, p))
        )

    def _copies_of(self, p: ParamSharding) -> float:
        """Return how many layers of parameter `p` a rank holds, with the padding layers of short pipeline stages; 1 for
        a parameter outside the layers."""
        if not pipelined(self.plan) or p.param.name not in self._stacks:
            return self.model.copies(p.param)
        return len(self._stacks[p.param.name].layers) / self.plan.pipeline

    def _stored_elements(self, p: ParamSharding, noun: Noun) -> float:
        whole = param_elements(self.plan, p)
        divided = cut(self.plan, p, noun) is not None
        return whole / self.plan.mesh.size(*p.stored[noun]) if divided else whole

    def _copies(self) -> float:
        """Return the bytes of the copies of parameters in the compute dtype that outlive a forward or backward. All
        parameters have one if they are offloaded or gathered less often than once a pass, else only experts."""
        if self.plan.store("params") and not self.plan.gathers_each_pass():
            return sum(self._copies_of(p) * param_elements(self.plan, p) for p in self.sharded.params) * self.computed
        if "params" in self.plan.offloaded:
            held = (self._copies_of(p) * self._stored_elements(p, "params") for p in self.sharded.params)
            return sum(held) * self.computed
        return self._narrow_experts()

    def _narrow_experts(self) -> float:
        """Return the bytes of the experts' stored weight shards in the compute dtype: they are all cast before the loop
        over layers. 0 if the compute dtype is fp32."""
        if self.computed == FP32:
            return 0.0
        experts = (p for p in self.sharded.params if p.param.region == EXPERTS)
        return sum(self._copies_of(p) * self._stored_elements(p, "params") for p in experts) * self.computed

    def _hoisted(self) -> float:
        """Return the bytes of weights that are gathered once for all microbatches: the head's, and with offloaded
        parameters the embedding's. 0 with one microbatch, and in a pipeline."""
        if self.plan.microbatches == 1 or pipelined(self.plan):
            return 0.0
        copied = "params" in self.plan.offloaded
        tables = (p for p in self.sharded.params if self._of_head(p) or (copied and self._of_tokens(p)))
        return sum(param_elements(self.plan, p) for p in tables) * self.computed

    def _of_tokens(self, p: ParamSharding) -> bool:
        return bool(p.stored["params"]) and "first" in p.param.sections and len(self.model.shape(p.param)) > 1

    def _of_head(self, p: ParamSharding) -> bool:
        return bool(p.stored["params"]) and "last" in p.param.sections and len(self.model.shape(p.param)) > 1

    def _new_gradients(self) -> float:
        """Return the bytes of one microbatch's layer gradients: the loop over layers writes all of them before they are
        added to the accumulated gradients. 0 with one microbatch, and in a pipeline."""
        if self.plan.microbatches == 1 or pipelined(self.plan):
            return 0.0
        layers = (p for p in self.sharded.params if {*p.param.sections} & {*self.model.blocks})
        return FP32 * sum(self._copies_of(p) * self._stored_elements(p, "grads") for p in layers)

    # Activations.

    def _saved(self) -> float:
        """Return the bytes that all layers save for the backward of one microbatch, block inputs included."""
        return sum(self.model.layers_of(kind) * held for kind, held in self._saved_by_layers().items())

    def _saved_by_a_stage(self) -> float:
        """Return the bytes that a stage saves for one microbatch, each layer counted as the kind that saves most."""
        return layers_of_a_stage(self.plan) * max(self._saved_by_layers().values())

    def _saved_by_layers(self) -> dict[Section, float]:
        """Return the bytes that one layer saves for the backward of one microbatch, by kind of block."""
        return {
            kind: sum(
                tensor_bytes(self.plan, n, self.sharded.declared(n))
                * self._rows_of_buffer(n)
                * layers_that_save(self.sharded, kind, n)
                for n in dict.fromkeys((*replay(self.plan, kind).saved, *saved_without_recompute(self.model, kind)))
                if n not in self.plan.offloaded
            )
            for kind in self.model.blocks
        }

    def _hidden(self) -> float:
        """Return the bytes of the hidden state of one microbatch between two blocks, on one device."""
        name = self.model.block_output
        return tensor_bytes(self.plan, name, self.sharded.declared(name))

    def _looked_up(self) -> float:
        """Return the elements of a step's embedding outputs on a pipeline rank, before the sum over vocab shards."""
        o = next(o for o in self.sharded.ops["first"] if o.op.kind == "embedding")
        dims = self.model.tensor[o.op.output].dims
        layout = o.settle.before if o.settle is not None else restrict(o.layout, dims)
        return local_elements(self.plan, dims, layout) * self.plan.microbatches / self.plan.pipeline

    def _table(self) -> float:
        """Return the number of elements of the embedding table on one rank, as the lookup uses it."""
        return sum(param_elements(self.plan, p) for p in self.sharded.params if "first" in p.param.sections)

    def _backward(self, kind: Section) -> float:
        """Return the transient bytes of the backward of a block of `kind` without an attention kernel: its weights, the
        scores, and gradients that are not yet summed or added."""
        weights = sum(param_elements(self.plan, p) for p in self.sharded.params if kind in p.param.sections)
        return weights * self.computed + self._scores(kind) + self._head_waits() + self._new_gradients()

    def _block(self, kind: Section) -> float:
        """Return the transient bytes of the backward of a block of `kind` with an attention kernel: the weights, the
        tensors that the backward reads, the kernel's tensors, and the largest matrix's gradient before its sum."""
        params = [param_elements(self.plan, p) for p in self.sharded.params if kind in p.param.sections]
        return sum(params) * self.computed + self._read_by_backward(kind) + self._of_kernel(kind) + max(params) * FP32

    def _beside_collectives(self, kind: Section) -> float:
        """Return the bytes that stay live in the backward of a block of `kind` because its collectives run on the
        SparseCores: the layers' weight shards, cast before the loop over layers, and a result's gradient with all rows.

        Read from llama3_70b over v5p, fsdp 64 > tp 4, four sequences at once: 21.74 GiB.
        """
        if not scatters_by_sparse_cores(self.sharded) or self.computed == FP32:
            return 0.0
        layers = (p for p in self.sharded.params if {*p.param.sections} & {*self.model.blocks})
        cast = sum(self._copies_of(p) * self._stored_elements(p, "params") for p in layers) * self.computed
        _, results = gathered_rows(self.sharded)
        named = [o for o in self.sharded.ops[kind] if o.settle and results.keys() & {*o.op.params}]
        whole = (tensor_bytes(self.plan, o.op.output, o.settle.before) for o in named if o.settle)
        return cast + max(whole, default=0.0)

    def _read_by_backward(self, kind: Section) -> float:
        """Return the bytes of the tensors that the backward of a block of `kind` reads, each in the layout that a
        matmul needs. A norm's output is recomputed: it counts only if a matmul needs another layout than the stored
        one."""
        readers = [(t, o) for o in self.sharded.ops[kind] for t in o.op.inputs]
        norms = {o.op.output: o for o in self.sharded.ops[kind] if o.op.kind == "norm"}
        total = 0.0
        for name in saved_without_recompute(self.model, kind):
            reader = next((o for t, o in readers if t == name and o.op.kind == "matmul"), None)
            rests = self.sharded.declared(name)
            read = reader.needs(name, self.model.tensor[name].dims) if reader else rests
            if name not in norms or read != rests:
                total += tensor_bytes(self.plan, name, read) * self._rows_of_buffer(name)
        return total

    def _rows_of_buffer(self, tensor: str) -> float:
        """Return the size of the buffer of `tensor` over its size under balanced routing: more than 1 only for the rows
        of dropless experts, whose buffers are sized for the worst routing."""
        routed = self._experts.ops and not self._experts.capacity and SLOTS in self.model.tensor[tensor].dims
        return self._experts.most_rows_ratio if routed else 1.0

    def _of_kernel(self, kind: Section) -> float:
        """Return the bytes of the attention kernel's tensors in a block of `kind`: the output [B, heads, S, D], the
        log-sum-exp (padded to a vector of `LANES`), and gathered keys and values."""
        total = 0.0
        for o in self.sharded.ops[kind]:
            if o.op.kind == "attention":
                total += sum(self._gathered(o, name) for name in o.op.whole_of)
                rows = local_elements(self.plan, _ROWS, restrict(o.layout, _ROWS))
                total += rows * LANES * FP32
                total += tensor_bytes(self.plan, o.op.output, self.sharded.declared(o.op.output))
        return total

    def _gathered(self, o: OpSharding, name: str) -> float:
        """Return the bytes of the tensor `name` gathered for the op `o`; 0 if `o` reads the stored layout."""
        rests, read = self.sharded.declared(name), o.needs(name, self.model.tensor[name].dims)
        return tensor_bytes(self.plan, name, read) if read != rests else 0.0

    def _head_input(self) -> float:
        """Return the bytes of the hidden state in the layout in which the head's matmul reads it."""
        head = next(o for o in reversed(self.sharded.ops["last"]) if o.op.kind == "matmul")
        name = head.op.inputs[0]
        return tensor_bytes(self.plan, name, head.needs(name, self.model.tensor[name].dims))

    def _head(self) -> float:
        """Return the number of elements of the head's weight on one rank, as the matmul uses it."""
        return sum(param_elements(self.plan, p) for p in self.sharded.params if self._of_head(p))

    def _scores(self, kind: Section) -> float:
        """Return the bytes of the attention scores of a block of `kind`; 0 with splash attention. In a ring, the scores
        are those against the keys of one rank."""
        total = 0.0
        for o in self.sharded.ops[kind]:
            if o.op.kind == "attention" and not self._splash:
                rows = local_elements(self.plan, _ROWS, restrict(o.layout, _ROWS))
                keys = local_length(self.plan, "sequence", o.layout.get("sequence", ()) if o.ring else ())
                total = max(total, SCORES * rows * keys * FP32)
        return total

    def _logits(self) -> float:
        """Return the bytes of one microbatch's logits in the compute dtype, or of one chunk of them; in a pipeline, of
        one rank's share."""
        loss = self.sharded.ops["last"][-1]
        dims = self.model.tensor[loss.op.inputs[0]].dims
        parts = self.plan.pipeline if pipelined(self.plan) else self.plan.loss_chunks
        return local_elements(self.plan, dims, restrict(loss.layout, dims)) * self.computed / parts

    def _loss(self) -> float:
        head = sum(param_elements(self.plan, p) * self.computed for p in self.sharded.params if self._of_head(p))
        once = 0.0 if self._hoisted() else head
        return LOGITS * self._logits() + once + head / self.computed * FP32

    def _head_waits(self) -> float:
        """Return the bytes that stay live in the layers' backward until the head's gradient is summed: this gradient or
        the logits' gradient, whichever is smaller. 0 if rule `all_reduce_thin_shards` does not apply to the sum."""
        thin = {r.tensor for r in self._sums if all_reduce_thin_shards.NAME in r.realised_by}
        waiting = [g for p, g in self._summed_whole if "last" in p.param.sections and p.param.name in thin]
        return min(sum(waiting), self._logits())

    def _summed_before_head(self) -> float:
        """Return the bytes of the other gradients that are all-reduced whole and live with the head's gradient. 0 with
        several microbatches, in a pipeline, and if the head's gradient is computed first (`_waits_for_tokens`)."""
        if self._waits_for_tokens or self.plan.microbatches > 1 or pipelined(self.plan):
            return 0.0
        return sum(whole for p, whole in self._summed_whole if "last" not in p.param.sections)

    @property
    def _waits_for_tokens(self) -> bool:
        """True if the head's gradient is computed first and stays live until the embedding's gradient is computed: on
        2D tori, if the chip is in `HEAD_FIRST` or the logits' gradient is at least as large as the head's."""
        head = sum(whole for p, whole in self._summed_whole if "last" in p.param.sections)
        early = self.plan.cluster.chip.name in HEAD_FIRST or self._logits() >= head
        return early and len(self.plan.cluster.shape) == 2

    def _whole_sums(self) -> float:
        """Return the bytes of the operand and the result of the largest all-reduce of a whole gradient (one runs at a
        time), plus the head's gradient if it stays live meanwhile (`_waits_for_tokens`)."""
        named = {p.param.name for p, _ in self._summed_whole}
        waits = 0.0
        if self._waits_for_tokens and self.plan.microbatches == 1 and len(named) > 1:
            waits = sum(whole for p, whole in self._summed_whole if "last" in p.param.sections)
        sums = (r.buffer_bytes for r in self._sums if r.tensor in named and r.op == "all_reduce")
        return waits + 2 * max(sums, default=0.0)

    @cached_property
    def _summed_whole(self) -> tuple[tuple[ParamSharding, float], ...]:
        """Return the parameters outside the blocks whose gradient XLA all-reduces whole although the plan stores it
        sharded, each with the bytes of this gradient in fp32."""
        scattered = {r.tensor for r in self._sums if r.op == "reduce_scatter"}
        whole = {r.tensor for r in self._sums if r.op == "all_reduce"} - scattered
        return tuple(
            (p, param_elements(self.plan, p) * FP32)
            for p in self.sharded.params
            if p.param.name in whole and p.stored["grads"] and not {*p.param.sections} & {*self.model.blocks}
        )


_ROWS = ("batch", "sequence", "heads")
