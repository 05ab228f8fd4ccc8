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
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
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
    """Return the peak of each pipeline rank (bytes, by kind of tensor), given the collectives that XLA issues.

    The ranks of a pipeline run one program, so each holds as much as the first, whose backwards come last.
    """
    return (Moments(sharded, collectives).peak(),) * sharded.plan.pipeline


@dataclass(frozen=True, kw_only=True)
class LiveBytes:
    """Bytes at one moment that are not state: saved activations, and all other buffers."""

    name: str
    activations: float = 0.0
    buffers: float = 0.0
    without_grads: tuple[str, ...] = ()
    """Sections whose parameters have no gradient yet."""


class Moments:
    """The moments of a step that can be the peak."""

    def __init__(self, sharded: Sharded, collectives: tuple[Collective, ...]) -> None:
        self.sharded, self.plan, self.model = sharded, sharded.plan, sharded.model
        self._sums = tuple(r for r in collectives if r.carries == "grad")
        self.computed = DTYPE_BYTES[self.plan.precision.compute]
        self._splash = runs_splash(sharded)
        self._experts = XlaExpertAxes(sharded)
        self._stacks = stacks_of(sharded.plan)

    def peak(self) -> TensorBytes:
        """Return the bytes at the peak, with the persistent state."""
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
        """The moments of a program whose attention materializes no scores.

        From the live ranges of programs of two layers for v5p. The logits' gradient stays live until the end of the
        loop over layers, since the head's gradient is computed after it.
        """
        saved, waits, head = self._saved(), self._logits() + self._head_input(), self._head()
        # With 16-bit parameters the token table is gathered once, and the head in each microbatch.
        in_loop = number_bytes(self.plan, "params") < FP32
        head_once = 0.0 if self._hoisted() and not in_loop else head * self.computed
        apart = self._logits() * (LOGITS - 1) if self.plan.cluster.chip.name in LOSS_APART else 0.0
        blocks = [
            LiveBytes(
                name=f"backward of {kind}", activations=saved, buffers=waits + self._block(kind) + self._new_gradients()
            )
            for kind in self.model.blocks
        ]
        loss = LiveBytes(name="loss", activations=saved, buffers=waits + apart + head_once)
        head_grad = LiveBytes(name="gradient of the head", buffers=waits + head * FP32 + self._summed_before_head())
        return [*blocks, loss, head_grad, LiveBytes(name="sums", buffers=self._whole_sums()), LiveBytes(name="update")]

    def _moments_of_pipeline(self) -> list[LiveBytes]:
        """The moments of a pipeline, which looks up all tokens and then runs one forward and one backward per tick.

        From the live ranges of programs for v5p (pp 4 > fsdp 2 > tp 2, 32 and 128 microbatches).
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
        """Bytes of the gradients that are live at `moment`."""
        return self._state_bytes("grads", without=moment.without_grads)

    # State.

    def _state_bytes(self, noun: Noun, *, moments: bool = False, without: tuple[str, ...] = ()) -> float:
        """Bytes of `noun` that one device stores between uses; with `moments`, once per optimizer moment.

        Parameters of the sections `without` are left out. XLA replicates what no dim divides. Offloaded state of the
        layers is on the device one layer at a time and not counted here.
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
        """Number of a rank's layers that have the parameter, padding of short stages included; the parameters of both
        ends of the model are on every rank of a pipeline."""
        if not pipelined(self.plan) or p.param.name not in self._stacks:
            return self.model.copies(p.param)
        return len(self._stacks[p.param.name].layers) / self.plan.pipeline

    def _stored_elements(self, p: ParamSharding, noun: Noun) -> float:
        whole = param_elements(self.plan, p)
        divided = cut(self.plan, p, noun) is not None
        return whole / self.plan.mesh.size(*p.stored[noun]) if divided else whole

    def _copies(self) -> float:
        """Bytes of compute copies that outlive a pass: parameters gathered once a step, experts, or offloaded
        parameters."""
        if self.plan.store("params") and not self.plan.gathers_each_pass():
            return sum(self._copies_of(p) * param_elements(self.plan, p) for p in self.sharded.params) * self.computed
        if "params" in self.plan.offloaded:
            held = (self._copies_of(p) * self._stored_elements(p, "params") for p in self.sharded.params)
            return sum(held) * self.computed
        return self._narrow_experts()

    def _narrow_experts(self) -> float:
        """Bytes of the stored shards of experts' weights, cast before the loop over layers."""
        if self.computed == FP32:
            return 0.0
        experts = (p for p in self.sharded.params if p.param.region == EXPERTS)
        return sum(self._copies_of(p) * self._stored_elements(p, "params") for p in experts) * self.computed

    def _hoisted(self) -> float:
        """Bytes of the head's weight, gathered once for all microbatches, and of the embedding if it is a copy of an
        offloaded one."""
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
        """Bytes of one microbatch's layer gradients in addition to the accumulated ones: the loop over layers writes
        all of them before they are added."""
        if self.plan.microbatches == 1 or pipelined(self.plan):
            return 0.0
        layers = (p for p in self.sharded.params if {*p.param.sections} & {*self.model.blocks})
        return FP32 * sum(self._copies_of(p) * self._stored_elements(p, "grads") for p in layers)

    # Activations.

    def _saved(self) -> float:
        """Saved activations of one microbatch (bytes): each block's input, and what else its backward saves."""
        return sum(self.model.layers_of(kind) * held for kind, held in self._saved_by_layers().items())

    def _saved_by_a_stage(self) -> float:
        """Saved activations of one pipeline stage (bytes), counted as layers of the kind that saves most."""
        return layers_of_a_stage(self.plan) * max(self._saved_by_layers().values())

    def _saved_by_layers(self) -> dict[Section, float]:
        """Saved activations of one layer of each kind (bytes)."""
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
        """Bytes of the hidden state between blocks."""
        name = self.model.block_output
        return tensor_bytes(self.plan, name, self.sharded.declared(name))

    def _looked_up(self) -> float:
        """Elements of the embeddings of all microbatches that a pipeline rank looks up, before their reduce-scatter."""
        o = next(o for o in self.sharded.ops["first"] if o.op.kind == "embedding")
        dims = self.model.tensor[o.op.output].dims
        layout = o.settle.before if o.settle is not None else restrict(o.layout, dims)
        return local_elements(self.plan, dims, layout) * self.plan.microbatches / self.plan.pipeline

    def _table(self) -> float:
        """Elements of the embedding table as a rank holds it during the lookup."""
        return sum(param_elements(self.plan, p) for p in self.sharded.params if "first" in p.param.sections)

    def _backward(self, kind: Section) -> float:
        """Transient bytes of a block's backward with scores in memory: its weights, the scores, and pending
        gradients."""
        weights = sum(param_elements(self.plan, p) for p in self.sharded.params if kind in p.param.sections)
        return weights * self.computed + self._scores(kind) + self._head_waits() + self._new_gradients()

    def _block(self, kind: Section) -> float:
        """Transient bytes of a block's backward with the kernel: its weights, the tensors that the backward reads,
        those of the kernel, and the unreduced gradient of its largest matrix."""
        params = [param_elements(self.plan, p) for p in self.sharded.params if kind in p.param.sections]
        return sum(params) * self.computed + self._read_by_backward(kind) + self._of_kernel(kind) + max(params) * FP32

    def _read_by_backward(self, kind: Section) -> float:
        """Bytes of the tensors that a block's backward reads, gathered where an op gathers them. Norms are
        recomputed."""
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
        """Factor on the rows of `tensor` over balanced routing: dropless experts need buffers for the most rows
        possible."""
        routed = self._experts.ops and not self._experts.capacity and SLOTS in self.model.tensor[tensor].dims
        return self._experts.most_rows_ratio if routed else 1.0

    def _of_kernel(self, kind: Section) -> float:
        """Bytes of the kernel's output [B, heads, S, D], its log-sum-exp (padded to a vector of `LANES`), and gathered
        keys and values."""
        total = 0.0
        for o in self.sharded.ops[kind]:
            if o.op.kind == "attention":
                total += sum(self._gathered(o, name) for name in o.op.whole_of)
                rows = local_elements(self.plan, _ROWS, restrict(o.layout, _ROWS))
                total += rows * LANES * FP32
                total += tensor_bytes(self.plan, o.op.output, self.sharded.declared(o.op.output))
        return total

    def _gathered(self, o: OpSharding, name: str) -> float:
        """Bytes of the tensor `name` if the op `o` all-gathers it; 0 if the op reads it in its own layout."""
        rests, read = self.sharded.declared(name), o.needs(name, self.model.tensor[name].dims)
        return tensor_bytes(self.plan, name, read) if read != rests else 0.0

    def _head_input(self) -> float:
        """Bytes of the input of the head's matmul, in the layout that it reads."""
        head = next(o for o in reversed(self.sharded.ops["last"]) if o.op.kind == "matmul")
        name = head.op.inputs[0]
        return tensor_bytes(self.plan, name, head.needs(name, self.model.tensor[name].dims))

    def _head(self) -> float:
        """Elements of the head's weight as it is multiplied."""
        return sum(param_elements(self.plan, p) for p in self.sharded.params if self._of_head(p))

    def _scores(self, kind: Section) -> float:
        """Bytes of the scores of a block; a ring computes them against the keys of one rank at a time."""
        total = 0.0
        for o in self.sharded.ops[kind]:
            if o.op.kind == "attention" and not self._splash:
                rows = local_elements(self.plan, _ROWS, restrict(o.layout, _ROWS))
                keys = local_length(self.plan, "sequence", o.layout.get("sequence", ()) if o.ring else ())
                total = max(total, SCORES * rows * keys * FP32)
        return total

    def _logits(self) -> float:
        """Bytes of one tensor of the logits' size in the compute dtype: of a microbatch, or of a pipeline rank's share
        of one."""
        loss = self.sharded.ops["last"][-1]
        dims = self.model.tensor[loss.op.inputs[0]].dims
        share = 1 / self.plan.pipeline if pipelined(self.plan) else 1
        return share * local_elements(self.plan, dims, restrict(loss.layout, dims)) * self.computed

    def _loss(self) -> float:
        head = sum(param_elements(self.plan, p) * self.computed for p in self.sharded.params if self._of_head(p))
        once = 0.0 if self._hoisted() else head
        return LOGITS * self._logits() + once + head / self.computed * FP32

    def _head_waits(self) -> float:
        """Bytes kept for the head's gradient during the layers' backward: if its shards are thin, it is reduced after
        the loop, and until then it or the (smaller) logits' gradient stays live."""
        thin = {r.tensor for r in self._sums if all_reduce_thin_shards.NAME in r.realised_by}
        waiting = [g for p, g in self._summed_whole if "last" in p.param.sections and p.param.name in thin]
        return min(sum(waiting), self._logits())

    def _summed_before_head(self) -> float:
        """Bytes of whole embedding gradients that are live with the head's. With one microbatch on a torus of three
        dims they are ready before the head's gradient; with more, the head's is computed while they wait."""
        if self._waits_for_tokens or self.plan.microbatches > 1 or pipelined(self.plan):
            return 0.0
        return sum(whole for p, whole in self._summed_whole if "last" not in p.param.sections)

    @property
    def _waits_for_tokens(self) -> bool:
        """True if the head's gradient is computed before that of the embedding and waits for it: on 2D tori, where the
        logits' gradient that it needs is not smaller."""
        head = sum(whole for p, whole in self._summed_whole if "last" in p.param.sections)
        early = self.plan.cluster.chip.name in HEAD_FIRST or self._logits() >= head
        return early and len(self.plan.cluster.shape) == 2

    def _whole_sums(self) -> float:
        """Bytes of the largest all-reduced gradient and its sum (they run one after another), and of the head's that
        waits."""
        named = {p.param.name for p, _ in self._summed_whole}
        waits = 0.0
        if self._waits_for_tokens and self.plan.microbatches == 1 and len(named) > 1:
            waits = sum(whole for p, whole in self._summed_whole if "last" in p.param.sections)
        sums = (r.buffer_bytes for r in self._sums if r.tensor in named and r.op == "all_reduce")
        return waits + 2 * max(sums, default=0.0)

    @cached_property
    def _summed_whole(self) -> tuple[tuple[ParamSharding, float], ...]:
        """Parameters outside the blocks whose gradient XLA all-reduces whole although it is stored sharded, with its
        bytes in fp32."""
        scattered = {r.tensor for r in self._sums if r.op == "reduce_scatter"}
        whole = {r.tensor for r in self._sums if r.op == "all_reduce"} - scattered
        return tuple(
            (p, param_elements(self.plan, p) * FP32)
            for p in self.sharded.params
            if p.param.name in whole and p.stored["grads"] and not {*p.param.sections} & {*self.model.blocks}
        )


_ROWS = ("batch", "sequence", "heads")
