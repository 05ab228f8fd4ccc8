"""Tensors that torch holds at the fullest moment of a step, by part, for each pipeline rank.

`planc.cost.memory` counts what any correct program must keep. This module counts what eager torch keeps: it was
compared, tensor by tensor, with traces of emitted programs (`planc audit`). Four moments compete: the backward of
the loss, of the last block and of the embedding, and the optimizer's update.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace

from planc.backends.cuda.analysis.block_backward import by_ring, most_bytes, products_inside
from planc.backends.cuda.analysis.fsdp_shard_dim import stored_dim, stored_over
from planc.backends.cuda.analysis.replays import replay
from planc.backends.cuda.analysis.roles import FsdpPolicy, Roles
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.rules.pad_dim0 import padded_elements
from planc.cost.compute.attention import repeated_bytes
from planc.cost.compute.flops import local_dim
from planc.cost.step.offload import offloaded, saved_tensor_bytes, state_on_host
from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Op, Section
from planc.ir.plan import BACKWARD_IN_TWO_PARTS, Plan
from planc.ir.realised import InFlight, TensorBytes, during
from planc.ir.sharding import Layout, OpSharding, ParamSharding, Sharded
from planc.ir.updates import moments_of
from planc.pipeline.in_flight import Begins, before_backwards
from planc.pipeline.split import repeats_of_rank
from planc.sharding.local import local_elements, param_elements
from planc.sharding.recompute import close
from planc.sharding.redistribute import restrict
from planc.sharding.stage_assignment import copies_on, sections_of, sections_on, virtual_stages

FP32 = DTYPE_BYTES["fp32"]
LOSS_COPIES = 2
"""fp32 tensors like the logits beside the saved log-probabilities: their gradient, and that of the logits."""
DIVIDED_LOSS_COPIES = 3
"""The same under loss_parallel, whose backward is several ops."""
GATHERED_AHEAD = 1
"""Groups of blocks that torch gathers ahead of the one in use, unless the plan says more."""
UPDATE = "optimizer update"


def peak_memory(sharded: Sharded, in_flight: InFlight) -> tuple[TensorBytes, ...]:
    """Bytes of tensors at the fullest moment of each pipeline rank, by part.

    `in_flight` tells the microbatches in flight on each rank. Collectives play no part: torch keeps what its modules
    hold. Ranks that hold and send as much share an answer.
    """
    plan, found, peaks = sharded.plan, [], dict[Hashable, TensorBytes]()
    for rank in range(plan.pipeline):
        flying = dict(in_flight[rank])
        held = tuple((tuple(sections_of(plan, stage).items()), n) for stage, n in flying.items())
        begins = _begins(plan, rank)
        key = tuple(sections_on(plan, rank).items()), held, _neighbours(plan, rank), _by_place(begins)
        if key not in peaks:
            peaks[key] = Rank(sharded, rank, flying, begins).peak()
        found.append(peaks[key])
    return tuple(found)


@cached_on(lambda plan, rank: (plan.cache, rank))
def _begins(plan: Plan, rank: int) -> tuple[Begins, ...]:
    """A rank of several virtual stages before each backward or part of one; empty for others."""
    split = plan.split
    if split is None or len(virtual_stages(plan, rank)) == 1:
        return ()
    return tuple(before_backwards(repeats_of_rank(split, plan.pipeline, plan.microbatches, rank)))


def _by_place(begins: Iterable[Begins]) -> Hashable:
    """The same of two ranks whose virtual stages do the same in the same order."""
    stages = sorted({stage for b in begins for stage in b.held})
    place = {stage: at for at, stage in enumerate(stages)}
    return tuple(
        (
            b.kind,
            place[b.stage],
            *(b.held.get(s, 0) for s in stages),
            *(b.awaiting.get(s, 0) for s in stages),
            len(b.begun),
        )
        for b in begins
    )


def _neighbours(plan: Plan, rank: int) -> int:
    """Number of neighbours that a pipeline rank's virtual stages receive from, in both directions."""
    end = len(plan.stages) - 1
    return sum((stage > 0) + (stage < end) for stage in virtual_stages(plan, rank))


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Bytes of what comes and goes: gradients that are there, activations that are gone, and buffers."""

    name: str
    grads: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0
    copies: float = 0.0
    """Gathered parameters, where they come and go between microbatches."""

    @property
    def total(self) -> float:
        """All of it (bytes)."""
        return self.grads + self.activations + self.buffers + self.copies


class Rank:
    """One pipeline rank. `flying` maps its virtual stages to the microbatches held at the fullest moment; `begins` are
    the moments before its backwards, if it has several stages."""

    def __init__(self, sharded: Sharded, rank: int, flying: dict[int, int], begins: tuple[Begins, ...] = ()) -> None:
        self.begins = begins
        self.sharded, self.plan, self.rank, self.flying = sharded, sharded.plan, rank, flying
        self.roles = Roles(sharded)
        self.sections = sections_on(self.plan, rank)
        held = [(p, self._copies(p)) for p in sharded.params]
        self.held = [(p, n) for p, n in held if n]
        self.computed = DTYPE_BYTES[self.plan.precision.compute]
        self.reduced = DTYPE_BYTES[self.plan.precision.reduce]
        self.stored = DTYPE_BYTES[self.roles.state_dtype]
        self.on_host, self.away = state_on_host(self.plan), offloaded(self.plan)

    def _copies(self, p: ParamSharding) -> int:
        """Copies of a parameter on this rank; two stages of a rank that use a tied weight have one each."""
        twice = self.roles.pipeline and p in self.sharded.tied and {"first", "last"} <= self.sections.keys()
        return 2 if twice else copies_on(self.plan, p.param, self.sections)

    @property
    def _ends_together(self) -> bool:
        """True if both ends are one group, gathered from the lookup to the end of the backward."""
        return bool(self.sharded.tied) and not self.roles.pipeline

    def peak(self) -> TensorBytes:
        """The fullest moment, with the state that is always there."""
        fullest = max(self._moments(), key=lambda m: m.total)
        return TensorBytes(
            params=self._state_bytes() + self._resident_copies() + fullest.copies,
            grads=fullest.grads,
            optimizer=self._optimizer(),
            activations=fullest.activations,
            buffers=self._passed_on() + fullest.buffers,
            moment=fullest.name if fullest.name == UPDATE else during(fullest.name, sum(self.flying.values())),
        )

    def _moments(self) -> list[Moment]:
        found = [
            *self._moments_of_blocks(),
            Moment(
                name=UPDATE,
                grads=self._state_bytes(),
                buffers=self._state_bytes(),
                copies=-self._resident_copies(),  # the last backward has let them go
            ),
        ]
        if "first" in self.sections:
            found.extend(self._moments_of_embedding())
        if "last" in self.sections:
            found.extend(self._moments_of_loss())
        return found

    def _moments_of_embedding(self) -> list[Moment]:
        """The backward of the embedding, when what the blocks after it saved is gone."""
        moment = Moment(
            name="backward of the embedding",
            grads=self._grads_after_backward(),
            activations=self._saved(done=1),
            buffers=self._of_embedding(),
            copies=self._all_copies() if self._copies_come_and_go else 0.0,
        )
        if not self.begins:
            return [moment]
        return [
            replace(
                moment,
                grads=self._grads_before(b._replace(begun=b.begun | {0})),
                activations=self._saved(held={**b.held, 0: b.held[0] - 1}),
                copies=moment.copies - self._copies_let_go(b),
            )
            for b in self.begins
            if b.stage == 0 and b.kind != "backward_weight"
        ]

    def _moments_of_blocks(self) -> list[Moment]:
        """The backward of the last block with all microbatches in flight, and the one after it.

        A schedule with all forwards first has no gradients at the first of them but those of the head.
        """
        if self.begins:
            return [self._moment_in_blocks(b) for b in self.begins]
        moment = Moment(
            name="backward of the last block",
            grads=self._grads_of_head() if self._all_forwards_first else self._grads(),
            activations=self._saved() - self._saved_by_loss(),
            buffers=self._of_blocks(),
            copies=self._copies_in_backward(),
        )
        if not self.roles.pipeline:
            return [moment]
        found = [moment]
        if self._copies_come_and_go:
            inside = self._of_blocks() - self._inside_blocks()
            found.append(replace(moment, buffers=inside, copies=self._copies_in_backward(landing=True)))
        if sum(self.flying.values()) > 1:
            copies = self._all_copies() if self._copies_come_and_go else 0.0
            activations = self._saved(done=1) - self._saved_by_loss()
            found.append(replace(moment, grads=self._grads(), activations=activations, copies=copies))
        return found

    def _moment_in_blocks(self, b: Begins) -> Moment:
        """The backward of the last block of a virtual stage. Of virtual stages whose backwards begin later there are no
        gradients yet."""
        ends = b.stage == len(self.plan.stages) - 1 and b.kind != "backward_weight"
        return Moment(
            name="backward of the last block",
            grads=self._grads_before(b) + (self._grads_of_head() if ends and b.stage not in b.begun else 0.0),
            activations=self._saved_before(b) - (self._saved_by_loss() if ends else 0.0),
            buffers=self._of_blocks() if b.kind != "backward_weight" else 0.0,
            copies=self._copies_in_backward() - self._copies_let_go(b),
        )

    @property
    def _all_forwards_first(self) -> bool:
        """True if every microbatch of a pipeline is in flight at once: no backward has begun then."""
        return bool(self.roles.pipeline) and all(n == self.plan.microbatches for n in self.flying.values())

    def _moments_of_loss(self) -> list[Moment]:
        first = self.flying.get(len(self.plan.stages) - 1, 0) == self.plan.microbatches  # and no backward before
        moment = Moment(
            name="backward of the loss",
            grads=0.0 if first else self._grads(begun=False),
            activations=self._saved(),
            buffers=self._loss_buffers() + self._gathered("last"),
            copies=self._copies_in_loss(),
        )
        if self.begins:
            end = len(self.plan.stages) - 1
            return [
                replace(moment, grads=self._grads_before(b), activations=self._saved_before(b))
                for b in self.begins
                if b.stage == end and b.kind != "backward_weight"
            ]
        if not first or self.plan.microbatches == 1:
            return [moment]
        later = replace(moment, grads=self._grads(begun=False), activations=self._saved(done=1))
        return [moment, replace(later, copies=self._all_copies() if self._copies_come_and_go else 0.0)]

    # State.

    def _state_bytes(self) -> float:
        """Bytes of one noun of state between uses: masters, gradients and moments have one layout and one dtype.

        CPUOffloadPolicy keeps all of them on the host.
        """
        return 0.0 if self.on_host else sum(n * self._share(p) * self.stored for p, n in self.held)

    def _optimizer(self) -> float:
        """Bytes of the optimizer's moments."""
        if self.on_host:
            return 0.0
        return sum(n * moments_of(self.plan, p.param.name) * self._share(p) * self.stored for p, n in self.held)

    def _share(self, p: ParamSharding) -> float:
        if not self.roles.uses_fsdp:
            return param_elements(self.plan, p)
        return padded_elements(self.roles, p.param.name) / self.plan.mesh.size(*stored_over(self.roles, p))

    def _unsharded_elements(self, p: ParamSharding) -> float:
        return padded_elements(self.roles, p.param.name) if self.roles.uses_fsdp else param_elements(self.plan, p)

    @property
    def _has_resident_copies(self) -> bool:
        """True if gathered parameters stay from the first forward on."""
        return self.roles.uses_fsdp and FsdpPolicy.of(self.plan).gather_per != "pass"

    @property
    def _copies_come_and_go(self) -> bool:
        """True if a forward lets gathered parameters go and a backward leaves them: a pipeline's schedule does not
        reshard after a backward."""
        return self.roles.uses_fsdp and bool(self.roles.pipeline) and not self._has_resident_copies

    def _put_in_order(self, section: Section) -> float:
        """Number of elements of what is gathered together and stored divided on another than the first dimension: it
        lands rank by rank, and is copied twice."""
        if section not in self.sections:
            return 0.0
        mine = [p for p, _ in self.held if section in p.param.sections and stored_dim(self.roles, p)]
        return sum(self._unsharded_elements(p) for p in mine)

    def _all_copies(self) -> float:
        """Compute copies of all that this rank holds (bytes)."""
        return sum(n * self._unsharded_elements(p) for p, n in self.held) * self.computed

    def _copies_in_backward(self, *, landing: bool = False) -> float:
        """Bytes of copies, where they come and go, when the first backward of the last block begins: its own, the
        buffer in which that of the group before it lands, and that of the head, which no forward lets go. Just before
        that its own is in its buffer too (`landing`).

        A rank of several virtual stages has those of the others too, and a buffer beside.
        """
        if not self._copies_come_and_go:
            return 0.0
        groups = {section: self._group(section) * self.computed for section in self.sections if section != "step"}
        blocks = [groups[kind] for kind in self.sharded.model.blocks if kind in groups]
        block = max(blocks, default=0.0)
        if len(self.flying) > 1:
            return self._all_copies() + block
        several = sum(self.sections.get(kind, 0) for kind in self.sharded.model.blocks) > 1
        before = block if several else groups.get("first", 0.0)
        if landing:
            before = max(block, 2 * max(map(self._put_in_order, self.sharded.model.blocks)) * self.computed)
        return block + before + groups.get("last", 0.0)

    def _copies_in_loss(self) -> float:
        """Bytes of copies, where they come and go, when the backward of the loss runs: the head's. The forward before
        it has let those of its blocks go, and no backward of a block has begun; a rank of several virtual stages has
        those of the others (`_copies_in_backward`)."""
        if not self._copies_come_and_go:
            return 0.0
        return self._copies_in_backward() if len(self.flying) > 1 else self._group("last") * self.computed

    @property
    def _accumulates_whole(self) -> bool:
        """True if whole gradients of several microbatches accumulate before they are reduced."""
        if not self.roles.uses_fsdp:
            return False
        accumulates = bool(self.roles.pipeline) or not FsdpPolicy.of(self.plan).scatter_each_microbatch
        return accumulates and (self.plan.microbatches > 1 or bool(self.roles.pipeline))

    def _resident_copies(self) -> float:
        return self._all_copies() if self._has_resident_copies else 0.0

    def _gathered(self, section: Section) -> float:
        """Compute copies that come and go with a section; none where they stay (`_resident_copies`)."""
        if self._has_resident_copies or self._copies_come_and_go or not self.roles.uses_fsdp:
            return 0.0
        return self._group(section) * self.computed

    def _grads(self, *, begun: bool = True) -> float:
        """Gradients; `begun`: the backward of this microbatch has come past the head."""
        earlier = self.plan.microbatches > 1
        if self._accumulates_whole:
            whole = sum(n * self._accumulated_elements(p) for p, n in self.held) * self.reduced
            return whole + self._unconverted() if earlier else 0.0
        if earlier or self.on_host:
            return self._state_bytes()
        ended = begun and not self._ends_together
        return sum(self._share(p) * self.stored for p, _ in self.held if ended and "last" in p.param.sections)

    def _saved_before(self, b: Begins) -> float:
        """Saved activations before a backward (bytes). A microbatch that waits for its gradients of weights let go of
        what the loss saved: the backward of the inputs ends the graph behind the stage's last matmul."""
        waiting = b.awaiting.get(len(self.plan.stages) - 1, 0)
        return self._saved(held=b.held) - waiting * self._saved_by_loss_and_logits()

    def _grads_before(self, b: Begins) -> float:
        """Gradients before a backward: whole ones of virtual stages that have more backwards to come, and of those that
        have none the rank's share, which the last one reduces (bytes)."""
        shares = sum(n * self._share(p) for p, n in self._copies_of([*b.begun, *b.ended])) * FP32
        if not self._accumulates_whole:
            return shares
        reduced = sum(n * self._share(p) for p, n in self._copies_of(b.ended)) * FP32
        whole = sum(n * self._accumulated_elements(p) for p, n in self._copies_of(b.begun)) * self.reduced
        return reduced + whole + self._unconverted(b.begun)

    def _copies_let_go(self, b: Begins) -> float:
        """Gathered parameters of virtual stages whose last backward has let them go (bytes)."""
        if not self._has_resident_copies:
            return 0.0
        return sum(n * self._unsharded_elements(p) for p, n in self._copies_of(b.ended)) * self.computed

    def _copies_of(self, stages: Collection[int]) -> list[tuple[ParamSharding, int]]:
        """Parameters of these virtual `stages`, with their copies there."""
        held = [sections_of(self.plan, stage) for stage in stages]
        return [(p, sum(copies_on(self.plan, p.param, sections) for sections in held)) for p, _ in self.held]

    def _grads_of_head(self) -> float:
        """Gradients of what is after the blocks, when the first backward of a step has come past it (bytes)."""
        head = [(p, n) for p, n in self.held if "last" in p.param.sections]
        if self._accumulates_whole:
            return sum(n * self._unsharded_elements(p) for p, n in head) * self.reduced
        return sum(n * self._share(p) for p, n in head) * self.stored

    def _accumulated_elements(self, p: ParamSharding) -> float:
        """Number of elements of the gradient that fully_shard adds up: every row of a table that DTensor divides."""
        if "first" in p.param.sections and self.roles.tensor and p.compute and p.compute[0]:
            return self.sharded.model.elements(p.param)
        return self._unsharded_elements(p)

    def _unconverted(self, begun: Collection[int] | None = None) -> float:
        """Bytes of gradients in the compute dtype, of the stages that have `begun` (None: all): those that come apart
        from a backward wait for the next one to be added in the dtype of the reduction. Those of the first virtual
        stage do not come apart: it has no gradients of inputs to send (`torch.distributed.pipelining.stage`,
        `backward_one_chunk`)."""
        if not self._splits_backward or self.reduced == self.computed:
            return 0.0
        stages = [
            sections_of(self.plan, stage)
            for stage in virtual_stages(self.plan, self.rank)
            if stage and (begun is None or stage in begun)
        ]
        copies = [(p, sum(copies_on(self.plan, p.param, sections) for sections in stages)) for p, _ in self.held]
        return sum(n * self._unsharded_elements(p) for p, n in copies) * self.computed

    @property
    def _splits_backward(self) -> bool:
        """True if gradients of weights may come later than those of inputs."""
        return self.plan.split is not None and self.plan.split.schedule in BACKWARD_IN_TWO_PARTS

    def _grads_after_backward(self) -> float:
        """Gradients when a backward is about to end."""
        return self._grads() if self._accumulates_whole else self._state_bytes()

    def _of_embedding(self) -> float:
        """Its copy, its gradient as computed, and the larger of what is reduced just then.

        DTensor makes the gradient of every row of a table whose rows are divided, and cuts its own out after.
        """
        tables = [p for p, _ in self.held if "first" in p.param.sections]
        share = sum(param_elements(self.plan, p) for p in tables)
        rows = sum(self.sharded.model.elements(p.param) for p in tables)
        made = share if rows == share else rows + (0.0 if self._accumulates_whole else share)
        blocks = [self._group(kind) for kind in self.sharded.model.blocks if kind in self.sections]
        reducing = 0.0 if self._accumulates_whole or not self.roles.uses_fsdp else max([self._group("first"), *blocks])
        return self._gathered("first") + made * self.computed + self._head_gradient() + reducing * self.reduced

    def _head_gradient(self) -> float:
        """The head's part of a tied weight's gradient, which waits for that of the lookup."""
        if self._accumulates_whole or not self._ends_together:
            return 0.0
        return sum(self._unsharded_elements(p) for p in self.sharded.tied) * self.computed

    # Activations.

    def _saved(self, done: int = 0, held: Mapping[int, int] | None = None) -> float:
        """Saved activations of microbatches in flight: those `held` by stage (None: at the fullest moment), less
        `done` of each stage that have finished their backward (bytes)."""
        return sum(
            max(0, microbatches - done)
            * (sum(n * self._of_section(s) for s, n in sections.items()) + self._at_ends(sections))
            for stage, microbatches in (self.flying if held is None else held).items()
            for sections in (sections_of(self.plan, stage),)
        )

    def _at_ends(self, sections: dict[Section, int]) -> float:
        """Bytes of hidden states that a microbatch leaves on a virtual stage beyond those that its blocks save: they
        count what came in, for which there are buffers (`_passed_on`), and not what goes out."""
        if not self.roles.pipeline:
            return 0.0
        return (("first" in sections) - ("last" in sections)) * self._hidden()

    def _hidden(self) -> float:
        """Bytes of one microbatch's hidden states between stages."""
        last = self.sharded.ops[self.sharded.model.blocks[-1]][-1].op.output
        dims = self.sharded.model.tensor[last].dims
        return local_elements(self.plan, dims, self.sharded.declared(last)) * self.computed

    def _of_section(self, section: Section) -> float:
        ops = self.sharded.model.ops[section]
        if section not in self.sharded.model.blocks:
            names = dict.fromkeys(t for op in ops for t in op.saves if t != "logits")
            return self._saved_bytes(tuple(names), section) + (
                self._saved_by_loss_and_logits() if section == "last" else 0.0
            )
        return self._of_block(section)

    @cached_on(lambda self, kind: (self.sharded.cache, kind))
    def _of_block(self, section: Section) -> float:
        """Bytes that a microbatch saves in one block of a kind, the same on every rank."""
        again = replay(self.sharded, section)
        here = tuple(name for name in again.saved if name not in self.away)
        some = self._saved_bytes(here, section) + self._saved_inside_ops(section, frozenset(again.ops))
        every = self.plan.recompute.every
        return some if every == 1 else (some + (every - 1) * self._saved_without_recompute(section)) / every

    def _saved_without_recompute(self, section: Section) -> float:
        """Saved activations of a block without recomputation (bytes)."""
        ops = self.sharded.model.ops[section]
        return self._saved_bytes(close(self.sharded.model, ops, set()).saved, section) + self._saved_inside_ops(
            section, frozenset()
        )

    def _saved_bytes(self, names: tuple[str, ...], section: Section) -> float:
        return sum(saved_tensor_bytes(self.sharded, name, section) for name in names)

    def _saved_inside_ops(self, section: Section, again: frozenset[str]) -> float:
        """Intermediate tensors that ops save on the way to their output, unless they are recomputed (bytes)."""
        kept = [o for o in self.sharded.ops[section] if o.op.name not in again]
        return sum(self._of_op(o.op, o.layout) + self._repeated_keys(o) for o in kept)

    def _repeated_keys(self, o: OpSharding) -> float:
        """Bytes that attention saves of keys and values beside the grouped ones, which are counted by their names."""
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
        if op.kind in ("norm", "attention"):  # one number a row; and who sees whom, where only a window is seen
            rows = tuple(d for d in dims if d not in op.whole)
            # A ring puts its output together head by head: the projection after it saves a copy, row by row.
            again = op.kind == "attention" and by_ring(self.plan)
            masked = op.window and not again
            mask = self.plan.batch.sequence_tokens**2 * self.computed if masked else 0.0
            copied = local_elements(self.plan, dims, restrict(layout, dims)) * self.computed if again else 0.0
            return local_elements(self.plan, rows, restrict(layout, rows)) * FP32 + mask + copied
        return 0.0

    def _saved_by_loss_and_logits(self) -> float:
        """Tensors that the loss saves, and the logits where a schedule holds on to a stage's output (bytes)."""
        return self._saved_by_loss() + (self._logits() if self.roles.pipeline else 0.0)

    def _saved_by_loss(self) -> float:
        """Log-probabilities in fp32; of a loss that is compiled as one region the logits alone."""
        return self._logits() if self.plan.compiled("loss") else self._of_loss(1)

    def _loss_buffers(self) -> float:
        """Bytes that the backward of the loss makes: gradients, op by op unless it is compiled."""
        if self.plan.compiled("loss"):
            return self._logits()
        return self._of_loss(DIVIDED_LOSS_COPIES if Styler(self.sharded, self.roles).loss_parallel else LOSS_COPIES)

    def _logits(self) -> float:
        """Bytes of one microbatch's logits on this rank, in the compute dtype."""
        return self._of_loss(1) / FP32 * self.computed

    def _of_loss(self, copies: int) -> float:
        """Bytes of so many fp32 tensors of one microbatch like this rank's logits."""
        if "last" not in self.sections:
            return 0.0
        loss = self.sharded.ops["last"][-1]
        dims = self.sharded.model.tensor[loss.op.inputs[0]].dims
        return copies * local_elements(self.plan, dims, restrict(loss.layout, dims)) * FP32

    def _of_blocks(self) -> float:
        """While a block's backward runs: gathered blocks, what its replay brings back, and gradients on their way."""
        blocks = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        groups = max((self._gathered(kind) for kind in blocks), default=0.0)
        back = max((self._saved_without_recompute(kind) - self._of_section(kind) for kind in blocks), default=0.0)
        ends = self._gathered("first") if self._ends_together else 0.0
        return back + ends + self._head_gradient() + self._groups_and_gradients(groups)

    def _groups_and_gradients(self, group: float) -> float:
        """Bytes of gathered groups of blocks, `group` each, and of gradients on their way.

        Of a bucket of several layers the other blocks' gradients wait as computed, what the bucket before it reduces
        is let go after its own backward, and what the blocks have saved goes with them.
        """
        ahead, layers = self.plan.buckets_ahead(GATHERED_AHEAD), self.plan.bucket_layers
        inside, reducing = self._inside_blocks(), self._reducing()
        if layers == 1:
            return (1 + ahead) * group + max(inside, reducing)
        kinds = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        saved = max((self._of_section(kind) for kind in kinds), default=0.0)
        left = sum(self.sections[kind] for kind in kinds) // layers - 1  # buckets after the one in use
        first = (1 + min(ahead, left)) * group
        second = (1 + min(ahead, max(left - 1, 0))) * group + self._waiting_gradients() - (2 * layers - 1) * saved
        return max(first + inside, first + reducing - (layers - 1) * saved, second + reducing + inside)

    def _inside_blocks(self) -> float:
        """Gradients on their way through a block (bytes)."""
        blocks = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        return max((most_bytes(self.sharded, kind, self._splits_backward) for kind in blocks), default=0.0)

    def _reducing(self) -> float:
        """The largest group's gradients: as computed, and as they are reduced."""
        if self._accumulates_whole or not self.roles.uses_fsdp:
            return 0.0
        return max(self._group(section) for section in self.sections if section != "step") * self.reduced

    def _waiting_gradients(self) -> float:
        """Bytes of gradients as computed: those of a bucket's other blocks wait for the last one's."""
        layers = self.plan.bucket_layers
        if layers == 1 or self._accumulates_whole or not self.roles.uses_fsdp:
            return 0.0
        groups = [self._group(kind) for kind in self.sharded.model.blocks if kind in self.sections]
        return max(groups, default=0.0) * (layers - 1) / layers * self.computed

    def _group(self, section: Section) -> float:
        """Elements of what is gathered and reduced together, after tensor parallelism."""
        sections = {"first", "last"} if self._ends_together and section in ("first", "last") else {section}
        together = self.plan.bucket_layers if section in self.sharded.model.blocks else 1
        return together * sum(self._unsharded_elements(p) for p, _ in self.held if sections & set(p.param.sections))

    def _passed_on(self) -> float:
        """A pipeline's buffers for what each microbatch receives, there for the whole step."""
        split = self.plan.split
        if split is None or not self.roles.pipeline:
            return 0.0
        left = 0
        if self._splits_backward:  # gradients of what came in stay beside it
            left = sum(self.plan.microbatches - n for stage, n in self.flying.items() if stage)
        return (_neighbours(self.plan, self.rank) * self.plan.microbatches + left) * self._hidden()
