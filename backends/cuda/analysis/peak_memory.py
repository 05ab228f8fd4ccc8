"""Predicts the peak bytes of tensors that eager torch holds in a step, for each pipeline rank.

`planc.costing.memory` counts what any correct program must store. This module counts what eager torch stores; it was
compared, tensor by tensor, with traces of emitted programs (`planc audit`). Four moments compete for the peak: the
backward of the loss, of the last block, and of the embedding, and the optimizer update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

from planc.backends.cuda.analysis.block_backward import most_bytes, waiting_bytes
from planc.backends.cuda.analysis.fsdp_shard_dim import stored_dim, stored_over
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.saved_tensors import SavedTensors
from planc.backends.cuda.rules.pad_dim0 import padded_elements
from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import Computed
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import EXPERTS, Section
from planc.ir.plan import Plan, Split
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.tensor_bytes import InFlight, TensorBytes, during
from planc.ir.updates import moments_of
from planc.pipeline.in_flight import Begins, before_backwards
from planc.pipeline.split import repeats_of_rank
from planc.sharding.local import local_elements, param_elements
from planc.sharding.redistribute import restrict
from planc.sharding.stage_assignment import copies_on, sections_of, sections_on, virtual_stages

FP32 = DTYPE_BYTES["fp32"]
GATHERED_AHEAD = 1
"""Block groups that FSDP prefetches beyond the one in use, unless the plan sets another number."""
UPDATE = "optimizer update"


def peak_memory(sharded: Sharded, in_flight: InFlight) -> tuple[TensorBytes, ...]:
    """Returns the peak bytes of tensors of each pipeline rank, by part (parameters, gradients, optimizer state,
    activations, buffers).

    `in_flight` gives each rank's microbatches in flight, by virtual stage. Only tensors that torch modules hold count,
    not communication buffers. Equivalent ranks share one result.
    """
    plan, found, peaks = sharded.plan, [], dict[Hashable, TensorBytes]()
    for rank in range(plan.pipeline):
        flying = dict(in_flight[rank])
        held = tuple((tuple(sections_of(plan, stage).items()), n) for stage, n in flying.items())
        begins = _begins(plan, rank)
        key = tuple(sections_on(plan, rank).items()), held, _neighbours(plan, rank), _by_place(begins)
        if key not in peaks:
            peaks[key] = PipelineRank(sharded, rank, flying, begins).peak()
        found.append(peaks[key])
    return tuple(found)


def exceeds(sharded: Sharded, in_flight: InFlight, room_bytes: float) -> bool:
    """True if the first or the last pipeline rank holds more than `room_bytes` at some moment: a part of what
    `peak_memory` finds, which ends at the first such moment."""
    plan = sharded.plan
    ranks = (PipelineRank(sharded, r, dict(in_flight[r]), _begins(plan, r)) for r in {0, plan.pipeline - 1})
    return any(rank.resting + moment.total > room_bytes for rank in ranks for moment in rank.moments())


def _begins(plan: Plan, rank: int) -> tuple[Begins, ...]:
    """Returns the state of pipeline rank `rank` before each backward, dgrad or wgrad; () if it has one virtual
    stage."""
    split = plan.split
    if split is None or len(virtual_stages(plan, rank)) == 1:
        return ()
    return _begins_of(split, plan.pipeline, plan.microbatches, rank)


@lru_cache(maxsize=64)  # a search costs many plans with the same pipeline
def _begins_of(split: Split, ranks: int, microbatches: int, rank: int) -> tuple[Begins, ...]:
    return tuple(before_backwards(repeats_of_rank(split, ranks, microbatches, rank)))


def _by_place(begins: Iterable[Begins]) -> Hashable:
    """Returns a cache key of `begins`, equal for ranks whose virtual stages run the same actions in the same order."""
    stages = sorted({stage for b in begins for stage in b.held})
    place = {stage: at for at, stage in enumerate(stages)}
    return tuple(
        (
            b.kind,
            place[b.stage],
            *(counts.get(s, 0) for counts in (b.held, b.awaiting, b.run, b.inputs_alone) for s in stages),
            *(frozenset(place[s] for s in some if s in place) for some in (b.begun, b.ended, b.apart, b.only_apart)),
            None if b.forward is None else place[b.forward],
        )
        for b in begins
    )


def _neighbours(plan: Plan, rank: int) -> int:
    """Returns how many hidden states and gradients a pipeline rank's virtual stages receive per microbatch."""
    end = len(plan.stages) - 1
    return sum((stage > 0) + (stage < end) for stage in virtual_stages(plan, rank))


@dataclass(frozen=True, kw_only=True)
class LiveBytes:
    """Bytes that are live at one moment of the step, besides the persistent state. Negative: resident tensors that have
    been freed by then."""

    name: str
    grads: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0
    copies: float = 0.0
    """Gathered parameters that are not resident for the step (bytes); negative if resident ones have been freed."""
    passed_on: float = 0.0
    """Hidden states that stages receive and send, and their gradients (bytes)."""

    @property
    def total(self) -> float:
        """Sum of all parts (bytes)."""
        return self.grads + self.activations + self.buffers + self.copies + self.passed_on


class PipelineRank:
    """Computes the peak memory of one pipeline rank.

    `flying` is the number of microbatches in flight at the peak, by virtual stage. `begins` are the rank's states
    before each backward; () for a rank with one virtual stage.
    """

    def __init__(self, sharded: Sharded, rank: int, flying: dict[int, int], begins: tuple[Begins, ...] = ()) -> None:
        self.begins = begins
        self.sharded, self.plan, self.rank, self.flying = sharded, sharded.plan, rank, flying
        self.roles = AxisRoles(sharded)
        self.saved = SavedTensors(sharded, self.roles)
        self.sections = sections_on(self.plan, rank)
        held = [(p, self._copies(p)) for p in sharded.params]
        self.held = [(p, n) for p, n in held if n]
        self.trained = [(p, n) for p, n in self.held if not p.param.frozen]
        self.computed = DTYPE_BYTES[self.plan.precision.compute]
        self.reduced = DTYPE_BYTES[self.plan.precision.reduce]
        self.stored = DTYPE_BYTES[self.roles.state_dtype]
        self.on_host = self.plan.state_on_host
        # Cached by virtual stage: a rank has up to hundreds of moments that use the same few sums.
        self._shares_of = Computed[int, float](lambda stage: self._sum_of(stage, self._share))
        self._unsharded_of = Computed[int, float](lambda stage: self._sum_of(stage, self._unsharded_elements))
        self._saved_of = Computed[int, float](self._saved_of_microbatch)
        self._copies_in_backward = Computed[bool, float](self._copies_at_last_block)
        self._for_weights_of = Computed[int, float](self._held_for_weights)

    def _copies(self, p: ParamSharding) -> int:
        """Returns how often this rank stores a parameter: once per block that has the parameter, and once for a
        parameter outside the blocks. In a pipeline, a tied weight is stored twice if the rank has both the first and
        the last stage."""
        twice = self.roles.pipeline and p in self.sharded.tied and {"first", "last"} <= self.sections.keys()
        return 2 if twice else copies_on(self.plan, p.param, self.sections)

    @property
    def _ends_together(self) -> bool:
        """True if embedding and head share one FSDP group, which stays gathered to the end of the backward."""
        return bool(self.sharded.tied) and not self.roles.pipeline

    def peak(self) -> TensorBytes:
        """Returns the bytes of each part at the peak: persistent state plus the largest transient."""
        fullest = max(self.moments(), key=lambda m: m.total)
        return TensorBytes(
            params=self._state_bytes() + self._resident_copies() + fullest.copies,
            grads=fullest.grads,
            optimizer=self._optimizer(),
            activations=fullest.activations,
            buffers=fullest.passed_on + fullest.buffers,
            moment=fullest.name if fullest.name == UPDATE else during(fullest.name, sum(self.flying.values())),
        )

    @property
    def resting(self) -> float:
        """Returns the bytes that are live at every moment; a moment says what it has freed of them."""
        return self._state_bytes() + self._resident_copies() + self._optimizer()

    def moments(self) -> Iterator[LiveBytes]:
        """Yields the moments of the step that can be the peak."""
        yield from self._moments_of_blocks()
        yield LiveBytes(
            name=UPDATE,
            grads=self._trained_bytes(),
            buffers=self._trained_bytes(),
            copies=-self._resident_copies(),  # freed by the last backward
            passed_on=self._passed_on(),
        )
        if self.sharded.model.has_frozen and not self.roles.pipeline:
            yield from self._moments_of_gathers()
        if "first" in self.sections and any(o.op.has_backward for o in self.sharded.ops["first"]):
            yield from self._moments_of_embedding()
        if "last" in self.sections:
            yield from self._moments_of_loss()
            if self.roles.uses_fsdp and not self.roles.pipeline and not self._ends_together:
                yield from self._as_the_head_is_reduced()

    def _moments_of_gathers(self) -> Iterator[LiveBytes]:
        """Yields the gathers of the last block's parameters and of the head's in the forward: the peak if a backward
        has few gradients and activations. fully_shard copies parameters out of the buffer that it gathers into, and
        frees the previous group's buffer after that."""
        *_, before, last = ("first", *self.sharded.model.kinds)
        saved = self._saved() - self.saved.of_section("last")
        for name, old, new, live in (
            ("last block", before, last, saved - self.saved.of_section(last)),
            ("head", last, "last", saved),
        ):
            yield LiveBytes(
                name=f"forward: gather of the {name}",
                grads=self._grads() if self.plan.microbatches > 1 else 0.0,
                activations=live,
                buffers=self._gathered(old) + 2 * self._gathered(new),
            )

    def _moments_of_embedding(self) -> list[LiveBytes]:
        """Returns the moments in the backward of the embedding that can be the peak. The blocks have freed their
        activations by then."""
        moment = LiveBytes(
            name="backward of the embedding",
            grads=self._grads_after_backward(),
            activations=self._saved(done=1),
            buffers=self._of_embedding(),
            copies=self._all_copies() if self._copies_come_and_go else 0.0,
            passed_on=self._passed_on(),
        )
        if not self.begins:
            alone = self.roles.uses_fsdp and not self.roles.pipeline
            return self._as_the_embedding_is_reduced(moment) if alone else [moment]
        return [
            replace(
                moment,
                grads=self._grads_before(b._replace(begun=b.begun | {0})),
                activations=self._saved_before(b._replace(held={**b.held, 0: b.held[0] - 1})),
                copies=moment.copies - self._copies_let_go(b),
                passed_on=self._passed_before(b),
            )
            for b in self.begins
            if b.stage == 0 and self._is_whole(b)
        ]

    @property
    def _copies_go_as_they_reduce(self) -> bool:
        """True if the step's first backward frees the gathered parameters of an FSDP group before it reduces the
        group's gradients (`FSDPParamGroup.post_backward`): without a pipeline, if parameters are gathered once per
        microbatch or the step has one microbatch."""
        each = self.plan.microbatches == 1 or self.plan.gather_per == "microbatch"
        return self.roles.uses_fsdp and not self.roles.pipeline and each

    def _ends(self, *, reduces: bool = True) -> list[tuple[bool, bool]]:
        """Returns the microbatches whose end can be the peak, without a pipeline: True if an earlier one has stored
        gradients, and True if gathered parameters are freed as they reduce.

        The last microbatch frees them. Earlier ones keep those that are gathered once a step. With `reduces`, only
        microbatches that reduce gradients: the last one if unsharded gradients accumulate.
        """
        times = self.plan.microbatches
        kept = times > 1 and not self._copies_go_as_they_reduce and not (reduces and self._accumulates_whole)
        return [(times > 1, True), *([(times > 2, False)] if kept else [])]

    def _as_the_embedding_is_reduced(self, moment: LiveBytes) -> list[LiveBytes]:
        """Returns the moments at the end of the backward of the embedding, without a pipeline.

        In the first, the gradients of the last block group to be reduced are still in reduction; a tied weight holds
        the gradients of the embedding and of the head, and their sum. In the second, the embedding's gradients are
        reduced, unless unsharded gradients accumulate: then more is live in the reduction of the head or in the sum.
        """
        tables = [p for p, _ in self.trained if "first" in p.param.sections]
        # With state on the host its gradients are there too.
        share, made = (not self.on_host) * sum(map(self._share, tables)) * self.stored, self._of_embedding()
        kinds = [kind for kind in self.sharded.model.blocks if kind in self.sections and not self._accumulates_whole]
        blocks = max((self._group(kind, trained=True) for kind in kinds), default=0.0)
        summing = made + self._head_gradient() + blocks * self.reduced
        reducing = self._while_reduced("first", made - self._gathered("first") - self._head_gradient())
        found = []
        for earlier, freed in self._ends(reduces=False):
            grads = moment.grads if earlier or self._accumulates_whole else moment.grads - share
            copies = self._copies_behind_blocks() if freed else 0.0
            found.append(replace(moment, grads=grads, buffers=summing, copies=copies))
            if not self._accumulates_whole:
                copies = -self._resident_copies() if freed else 0.0
                found.append(replace(moment, grads=grads, buffers=reducing, copies=copies))
        return found

    def _as_the_head_is_reduced(self) -> list[LiveBytes]:
        """Returns the moments when the gradients of the head, in an FSDP group of its own, are reduced after its
        backward. The blocks' activations are live, and a block is gathered."""
        kinds = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        own = self._group("last") * self.computed
        made = 0.0 if self._accumulates_whole else self._group("last", trained=True) * self.computed
        return [
            LiveBytes(
                name="backward of the head",
                grads=self._grads(begun=False) if earlier else 0.0,
                activations=self._saved() - self._saved_by_loss(),
                buffers=self._while_reduced("last", made) + max(map(self._gathered, kinds), default=0.0),
                copies=-own * self._has_resident_copies if freed else 0.0,
            )
            for earlier, freed in self._ends()
        ]

    def _copies_behind_blocks(self) -> float:
        """Returns the change in bytes when resident gathered parameters outside the embedding are freed; at most 0."""
        return self._group("first") * self.computed * self._has_resident_copies - self._resident_copies()

    def _while_reduced(self, section: Section, made: float) -> float:
        """Returns the bytes live in the gradient reduction of a `section`'s FSDP group: its input and output buffers,
        the output in the dtype of the state, and `made` (bytes), the gradients from which the input is copied.

        fully_shard drops these gradients before it allocates the output, but for the group's last one, to which a loop
        variable still refers. There is no output if gradients are only all-reduced over replicas. If replicas
        all-reduce after a reduce-scatter in another dtype than the state's, fully_shard holds the outputs of all groups
        to the end of the backward.
        """
        taken = self._group(section, trained=True) * self.reduced
        if not self.roles.shard:
            return taken + made
        mine = [p for p, _ in self.trained if section in p.param.sections]
        cast = self.reduced != self.stored
        out = sum(self._share(p) for p, _ in self.trained if (cast and self.roles.replicate) or p in mine)
        stored = cast * sum(map(self._share, mine)) * self.stored
        alone = not self._ends_together or section in self.sharded.model.blocks
        left = min(made, self._unsharded_elements(mine[-1]) * self.computed) if mine and alone else 0.0
        return taken + max(made, left + out * self.reduced + stored)

    def _as_the_block_is_reduced(self, moment: LiveBytes) -> list[LiveBytes]:
        """Returns `moment` changed to the end of the backward of the rank's only group of blocks: the group's gradient
        in the compute dtype, and the buffers of its reduction."""
        kinds = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        kind = max(kinds, key=lambda kind: self._group(kind, trained=True))
        made = self._group(kind, trained=True) * self.computed
        return [
            replace(
                moment,
                grads=self._grads() if earlier and not self._accumulates_whole else self._grads_of_head(),
                activations=self._saved(done=1),
                buffers=self._gathered("first") + self._head_gradient() + self._while_reduced(kind, made),
                copies=self._copies_behind_blocks() if freed else 0.0,
            )
            for earlier, freed in self._ends()
        ]

    def _moments_of_blocks(self) -> Iterable[LiveBytes]:
        """Returns the candidates for the peak in the backward of the last block: with all microbatches in flight, and
        in the next microbatch's backward, with one fewer.

        If all forwards run before the first backward, only the head has gradients at the first moment.
        """
        if self.begins:
            return (m for b in self.begins for m in (*self._moments_in_blocks(b), *self._moments_in_experts(b)))
        moment = LiveBytes(
            name="backward of the last block",
            grads=self._grads_of_head() if self._all_forwards_first else self._grads(),
            activations=self._saved() - self._saved_by_loss(),
            buffers=self._of_blocks,
            copies=self._copies_in_backward[False],
            passed_on=self._passed_on(),
        )
        if not self.roles.pipeline:
            moment = replace(moment, activations=self._saved() - self.saved.of_section("last"))
            alone = self.roles.uses_fsdp and not self._has_several_groups
            return [moment, *(self._as_the_block_is_reduced(moment) if alone else self._before_first_blocks(moment))]
        found = [moment]
        if self._copies_come_and_go:
            inside = self._of_blocks - self._inside_blocks()
            found.append(replace(moment, buffers=inside, copies=self._copies_in_backward[True]))
        if sum(self.flying.values()) > 1:
            copies = self._all_copies() if self._copies_come_and_go else 0.0
            activations = self._saved(done=1) - self._saved_by_loss()
            if self._copies_come_and_go and not self._all_forwards_first:
                # The previous forward freed them; all are gathered again when a backward reaches the first block.
                activations += self._saved_in_first_block()
            found.append(replace(moment, grads=self._grads(), activations=activations, copies=copies))
        return found

    def _before_first_blocks(self, moment: LiveBytes) -> list[LiveBytes]:
        """Returns `moment` changed to the backward of the last block that prefetches another, and of those that
        prefetch the embedding, without a pipeline and in a step that begins without gradients. The blocks after them
        have gradients, and no activations."""
        kinds = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        ahead = self.plan.buckets_ahead(GATHERED_AHEAD)
        if (
            len(kinds) > 1
            or not self.roles.uses_fsdp
            or self.on_host
            or self.plan.microbatches * self.plan.bucket_layers > 1
        ):
            return []
        (kind,) = kinds
        shares = sum(self._share(p) for p, _ in self.trained if kind in p.param.sections) * self.stored
        reduced = self._group(kind, trained=True) - self._experts_apart
        made = self._inside_block(kind) + reduced * self.reduced
        buffers = self._brought_back(kind) + self._head_gradient() + made
        found = []
        for left in range(ahead + 1):
            through = max(self.sections[kind] - 1 - left, 1)
            ends = self._gathered("first") if self._ends_together or left < ahead else 0.0
            found.append(
                replace(
                    moment,
                    grads=moment.grads + through * shares,
                    activations=moment.activations - through * self.saved.of_section(kind),
                    buffers=buffers + self._gathered(kind) + left * self._prefetched(self._gathered(kind)) + ends,
                )
            )
        return found

    def _saved_in_first_block(self) -> float:
        """Returns the bytes of activations that a microbatch still holds when its backward reaches the first block, on
        a rank with one virtual stage."""
        ((stage, _),) = self.flying.items()
        sections = sections_of(self.plan, stage)
        kinds = [kind for kind in self.sharded.model.blocks if kind in sections]
        first = self.saved.of_section(kinds[0]) if kinds else 0.0
        return first + self._at_ends(stage, sections)

    def _moments_in_blocks(self, b: Begins) -> list[LiveBytes]:
        """Returns the candidates for the peak in the backward `b`: in the last block of the virtual stage, and in a
        dgrad, which frees nothing on its way, also in the first block. Virtual stages without a backward so far have no
        gradients."""
        ends, whole = b.stage == len(self.plan.stages) - 1, self._is_whole(b)
        head = self._grads_of_head() if ends and whole and b.stage not in b.begun else 0.0
        moment = LiveBytes(
            name="backward of the last block",
            grads=self._grads_before(b) + head,
            activations=self._saved_before(b) - (self._saved_by_loss() if ends and whole else 0.0),
            copies=self._copies_in_backward[False] - self._copies_let_go(b),
            passed_on=self._passed_before(b),
        )
        if whole:
            return [replace(moment, buffers=self._of_blocks)]
        if b.kind == "backward_weight" or b.stage == 0:
            return [moment]
        waiting = waiting_bytes(self.sharded, "last") if ends else 0.0
        last = replace(moment, buffers=self._of_blocks + waiting)
        before = self._before_first_block(b.stage)
        first = replace(
            last,
            grads=last.grads + sum(n * self._change_when_added(b, kind) for kind, n in before.items()),
            buffers=last.buffers + sum(n * waiting_bytes(self.sharded, kind) for kind, n in before.items()),
        )
        return [last, first]

    def _moments_in_experts(self, b: Begins) -> list[LiveBytes]:
        """Returns one moment: the end of the last expert layer in the forward just before the backward `b`; [] without
        one. Four buffers of expert outputs are live: as computed, zeros, in the sender's order, and sent back."""
        if b.forward is None or not (rows := self._rows_sent_back(b.forward)):
            return []
        return [
            LiveBytes(
                name="forward of the experts",
                grads=self._grads_before(b),
                activations=self._saved_before(b),
                buffers=4 * rows,
                copies=self._copies_in_backward[False] - self._copies_let_go(b),
                passed_on=self._passed_before(b),
            )
        ]

    def _rows_sent_back(self, stage: int) -> float:
        """Returns the bytes of a microbatch's expert outputs on the virtual stage `stage`, if dropless routing sends
        them back by an all-to-all; else 0."""
        plan, experts = self.plan, self.roles.experts
        sections = sections_of(plan, stage)
        made = [o for s in sections for o in self.sharded.ops[s] if o.op.region == EXPERTS and o.op.kind == "matmul"]
        if not made or not experts.exchange or plan.route.method != "dropless":
            return 0.0
        dims = self.sharded.model.tensor[made[-1].op.output].dims
        return local_elements(plan, dims, restrict(made[-1].layout, dims)) * self.computed

    def _is_whole(self, b: Begins) -> bool:
        """True if the backward `b` computes both dgrad and wgrad, as the wgrad of the first stage does."""
        return b.kind == "backward" or (b.kind == "backward_weight" and b.stage == 0)

    def _before_first_block(self, stage: int) -> Counter[Section]:
        """Returns the blocks of a virtual stage without its first, counted by kind: their backwards run before its."""
        sections = sections_of(self.plan, stage)
        blocks = Counter({kind: sections[kind] for kind in self.sharded.model.blocks if kind in sections})
        return blocks - Counter([*blocks][:1])

    def _change_when_added(self, b: Begins, kind: Section) -> float:
        """Returns the change of the gradient bytes of one block of this `kind` in the dgrad `b`, if an earlier wgrad
        left gradients in the compute dtype: they are added to those in the reduce dtype, or converted; else 0."""
        if b.stage not in b.apart or self.reduced == self.computed:
            return 0.0
        grow = (self.reduced if b.stage in b.only_apart else 0) - self.computed
        return grow * self._group(kind)

    @cached_property
    def _all_forwards_first(self) -> bool:
        """True if every microbatch of a pipeline is in flight at the peak: no backward has run before."""
        return bool(self.roles.pipeline) and all(n == self.plan.microbatches for n in self.flying.values())

    def _moments_of_loss(self) -> list[LiveBytes]:
        first = self.flying.get(len(self.plan.stages) - 1, 0) == self.plan.microbatches  # and no backward before
        moment = LiveBytes(
            name="backward of the loss",
            grads=0.0 if first else self._grads(begun=False),
            activations=self._saved(),
            buffers=self.saved.of_loss_backward() + self._gathered("last"),
            copies=self._copies_in_loss(),
            passed_on=self._passed_on(),
        )
        if self.begins:
            end = len(self.plan.stages) - 1
            return [
                replace(
                    moment,
                    grads=self._grads_before(b),
                    activations=self._saved_before(b),
                    passed_on=self._passed_before(b),
                )
                for b in self.begins
                if b.stage == end and b.kind != "backward_weight"
            ]
        if not first or self.plan.microbatches == 1:
            return [moment]
        later = replace(moment, grads=self._grads(begun=False), activations=self._saved(done=1))
        return [moment, replace(later, copies=self._all_copies() if self._copies_come_and_go else 0.0)]

    # State.

    def _state_bytes(self) -> float:
        """Returns the bytes of the local shards of all parameters, in the dtype of the state; 0 if CPUOffloadPolicy
        stores the state on the host. Gradients and each optimizer moment have the same sharding and dtype."""
        return 0.0 if self.on_host else sum(n * self._share(p) * self.stored for p, n in self.held)

    def _trained_bytes(self) -> float:
        """Returns the bytes of the local gradient shards of all trainable parameters; 0 if they are on the host."""
        return 0.0 if self.on_host else sum(n * self._share(p) * self.stored for p, n in self.trained)

    def _optimizer(self) -> float:
        """Returns the bytes of the local shards of the optimizer's moments; 0 if they are stored on the host."""
        if self.on_host:
            return 0.0
        return sum(n * moments_of(self.plan, p.param.name) * self._share(p) * self.stored for p, n in self.held)

    def _share(self, p: ParamSharding) -> float:
        if not self.roles.uses_fsdp:
            return param_elements(self.plan, p)
        return padded_elements(self.roles, p.param.name) / self.plan.mesh.size(*stored_over(self.roles, p))

    def _unsharded_elements(self, p: ParamSharding) -> float:
        return padded_elements(self.roles, p.param.name) if self.roles.uses_fsdp else param_elements(self.plan, p)

    @cached_property
    def _has_resident_copies(self) -> bool:
        """True if gathered parameters stay from the first forward on (`reshard_after_forward=False`)."""
        return self.roles.uses_fsdp and not self.plan.gathers_each_pass()

    @cached_property
    def _copies_come_and_go(self) -> bool:
        """True if forwards free gathered parameters and backwards do not, as in torch's pipeline schedules."""
        return self.roles.uses_fsdp and bool(self.roles.pipeline) and not self._has_resident_copies

    def _put_in_order(self, section: Section) -> float:
        """Returns the number of elements of `section` that FSDP shards on a dim other than 0: a second copy puts their
        all-gather output, which is in rank order, in order."""
        if section not in self.sections:
            return 0.0
        mine = [p for p, _ in self.held if section in p.param.sections and stored_dim(self.roles, p)]
        return sum(self._unsharded_elements(p) for p in mine)

    def _all_copies(self) -> float:
        """Returns the bytes of the gathered parameters of all sections of this rank, in the compute dtype."""
        return sum(n * self._unsharded_elements(p) for p, n in self.held) * self.computed

    def _copies_at_last_block(self, landing: bool) -> float:
        """Returns the bytes of gathered parameters when the first backward of the last block starts: the block's own,
        the prefetched group's, and the head's, which no forward frees. With `landing`, slightly earlier: the output of
        the block's own all-gather in place of the prefetched group.

        A rank of several virtual stages has the parameters of all of them, and one more buffer.
        """
        if not self._copies_come_and_go:
            return 0.0
        groups = {section: self._group(section) * self.computed for section in self.sections if section != "step"}
        blocks = [groups[kind] for kind in self.sharded.model.blocks if kind in groups]
        block = max(blocks, default=0.0)
        if len(self.flying) > 1:
            return self._all_copies() + block
        before = block if self._has_several_groups else groups.get("first", 0.0)
        if landing:
            before = max(block, 2 * max(map(self._put_in_order, self.sharded.model.blocks)) * self.computed)
        return block + before + groups.get("last", 0.0)

    @property
    def _has_several_groups(self) -> bool:
        """True if the rank has several FSDP groups of blocks: then one is prefetched during another's backward."""
        return sum(self.sections.get(kind, 0) for kind in self.sharded.model.blocks) > self.plan.bucket_layers

    def _copies_in_loss(self) -> float:
        """Returns the bytes of gathered parameters in the backward of the loss. The forward has freed those of the
        blocks, so the head's are left. A rank of several virtual stages also has those of its other stages
        (`_copies_in_backward`)."""
        if not self._copies_come_and_go:
            return 0.0
        return self._copies_in_backward[False] if len(self.flying) > 1 else self._group("last") * self.computed

    @cached_property
    def _accumulates_whole(self) -> bool:
        """True if unsharded gradients accumulate over microbatches before they are reduced."""
        if not self.roles.uses_fsdp:
            return False
        accumulates = bool(self.roles.pipeline) or not self.plan.store("grads")
        return accumulates and (self.plan.microbatches > 1 or bool(self.roles.pipeline))

    def _resident_copies(self) -> float:
        return self._all_copies() if self._has_resident_copies else 0.0

    def _gathered(self, section: Section) -> float:
        """Returns the bytes of the gathered parameters of `section` if its backward frees them; else 0, as they are
        counted elsewhere (`_resident_copies`, `_copies_in_backward`)."""
        if self._has_resident_copies or self._copies_come_and_go or not self.roles.uses_fsdp:
            return 0.0
        return self._group(section) * self.computed

    def _prefetched(self, group: float) -> float:
        """Returns the bytes of a gathered block's `group` that the backward of a block prefetches: without its experts,
        if these are an FSDP group of their own, which comes before that of their block in the backward."""
        explicit = self.plan.gather is not None and self.plan.gather.prefetch
        return max(0.0, group - (0.0 if explicit else self._experts_apart * self.computed))

    @cached_property
    def _experts_apart(self) -> float:
        """Returns the number of elements of a block's experts that are trained and an FSDP group of their own; else 0.
        Frozen ones are not told apart: less of them was seen to be freed."""
        apart = self.roles.experts.params if self.roles.experts.apart else ()
        return sum(self._unsharded_elements(p) for p in apart if not p.param.frozen)

    def _grads(self, *, begun: bool = True) -> float:
        """Returns the bytes of gradients in a microbatch's backward; with `begun`, the head's backward has run."""
        earlier = self.plan.microbatches > 1
        if self._accumulates_whole:
            whole = sum(n * self._unsharded_elements(p) for p, n in self.trained) * self.reduced
            return whole + self._unconverted(virtual_stages(self.plan, self.rank)) if earlier else 0.0
        if earlier or self.on_host:
            return self._trained_bytes()
        ended = begun and not self._ends_together
        return sum(self._share(p) * self.stored for p, _ in self.trained if ended and "last" in p.param.sections)

    def _saved_before(self, b: Begins) -> float:
        """Returns the bytes of saved activations before the backward `b`. A microbatch between its dgrad and its wgrad
        no longer has what the loss saved, since the dgrad ends at the last matmul."""
        waiting = b.awaiting.get(len(self.plan.stages) - 1, 0)
        saved = self._saved(held=b.held) - waiting * self.saved.of_loss_and_logits
        return saved + sum(n * self._for_weights_of[stage] for stage, n in b.awaiting.items())

    def _held_for_weights(self, stage: int) -> float:
        """Returns the bytes of output gradients that a microbatch of a virtual stage holds between its dgrad and its
        wgrad; 0 for the first stage, which has no dgrad."""
        if stage == 0:
            return 0.0
        sections = sections_of(self.plan, stage)
        return sum(n * waiting_bytes(self.sharded, section) for section, n in sections.items())

    def _grads_before(self, b: Begins) -> float:
        """Returns the bytes of gradients before the backward `b`. If unsharded gradients accumulate over microbatches,
        a virtual stage holds them until its last backward has reduced them to a shard."""
        shares = sum(self._shares_of[stage] for stage in (*b.begun, *b.ended)) * FP32
        if not self._accumulates_whole:
            return shares
        reduced = sum(self._shares_of[stage] for stage in b.ended) * FP32
        added = b.begun - (b.only_apart - {0})
        whole = sum(self._unsharded_of[stage] for stage in added) * self.reduced
        return reduced + whole + self._unconverted(b.begun & b.apart)

    def _copies_let_go(self, b: Begins) -> float:
        """Returns the bytes of resident gathered parameters of virtual stages whose last backward has freed them."""
        if not self._has_resident_copies:
            return 0.0
        return sum(self._unsharded_of[stage] for stage in b.ended) * self.computed

    def _sum_of(self, stage: int, elements: Callable[[ParamSharding], float]) -> float:
        """Returns the sum over the parameters of a virtual `stage` of `elements` times the number of copies."""
        sections = sections_of(self.plan, stage)
        return sum(copies_on(self.plan, p.param, sections) * elements(p) for p, _ in self.held)

    def _grads_of_head(self) -> float:
        """Returns the bytes of gradients of the modules after the blocks, once they had a backward in the step."""
        head = [(p, n) for p, n in self.trained if "last" in p.param.sections]
        if self._accumulates_whole:
            return sum(n * self._unsharded_elements(p) for p, n in head) * self.reduced
        return sum(n * self._share(p) for p, n in head) * self.stored

    def _unconverted(self, stages: Collection[int]) -> float:
        """Returns the bytes of gradients in the compute dtype of the virtual `stages`: a separate wgrad left them, and
        the next backward adds them in the reduce dtype. The first stage has none, as it does not split its backward
        (`torch.distributed.pipelining.stage`, `backward_one_chunk`)."""
        if not self.plan.splits_backward or self.reduced == self.computed:
            return 0.0
        return sum(self._unsharded_of[stage] for stage in stages if stage) * self.computed

    def _grads_after_backward(self) -> float:
        """Returns the bytes of gradients just before a backward ends."""
        return self._grads() if self._accumulates_whole else self._trained_bytes()

    def _of_embedding(self) -> float:
        """Returns the bytes of the gathered embedding, its gradient in the compute dtype, and the head's part of that
        gradient if the weight is tied."""
        made = sum(param_elements(self.plan, p) for p, _ in self.trained if "first" in p.param.sections)
        return self._gathered("first") + made * self.computed + self._head_gradient()

    def _head_gradient(self) -> float:
        """Returns the bytes of the head's part of a tied weight's gradient. It is held until the embedding lookup's
        part is computed."""
        if not self._ends_together:
            return 0.0
        return sum(self._unsharded_elements(p) for p in self.sharded.tied) * self.computed

    # Activations.

    def _saved_by_loss(self) -> float:
        return self.saved.of_loss if "last" in self.sections else 0.0

    def _saved(self, done: int = 0, held: Mapping[int, int] | None = None) -> float:
        """Returns the bytes of saved activations of the microbatches in flight. `held` is their number by virtual stage
        (None: at the peak). Of each stage, `done` microbatches have finished their backward and are left out."""
        counts = self.flying if held is None else held
        return sum(max(0, microbatches - done) * self._saved_of[stage] for stage, microbatches in counts.items())

    def _saved_of_microbatch(self, stage: int) -> float:
        """Returns the bytes of activations that one microbatch in flight holds on the virtual stage `stage`."""
        sections = sections_of(self.plan, stage)
        return sum(n * self.saved.of_section(s) for s, n in sections.items()) + self._at_ends(stage, sections)

    def _at_ends(self, stage: int, sections: dict[Section, int]) -> float:
        """Returns the bytes of a microbatch's hidden states that a virtual stage saves beyond those of its blocks; may
        be negative.

        Blocks save the stage's input, not its output. A later stage has its input in a receive buffer (`_passed_on`),
        so its output takes the input's place. The first stage has no receive buffer, the last outputs no hidden states,
        and an output to a stage on this rank counts as that stage's input.
        """
        if not self.roles.pipeline:
            return 0.0
        stays = stage + 1 in virtual_stages(self.plan, self.rank)
        return (("first" in sections) - ("last" in sections) - stays) * self.saved.hidden_states

    @cached_property
    def _of_blocks(self) -> float:
        """Returns the bytes of buffers in the backward of a block: gathered blocks, recomputed activations, and
        gradients in transit."""
        blocks = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        groups = max((self._gathered(kind) for kind in blocks), default=0.0)
        back = max(map(self._brought_back, blocks), default=0.0)
        ends = self._gathered("first") if self._ends_together else 0.0
        return back + ends + self._head_gradient() + self._groups_and_gradients(groups)

    def _brought_back(self, kind: Section) -> float:
        """Returns the bytes that the recompute of a block adds, less those that later blocks without recompute have
        freed by then; at least 0: if they freed more, the peak is before their backward."""
        kept = self.saved.of_block_without_recompute(kind)
        back, every = kept - self.saved.of_replayed_block(kind), self.plan.recompute.every
        ends = [end - 1 for begin, end in (self.plan.stages[s] for s in self.flying) if end > begin]
        after = min((last % every for last in ends), default=0)
        return max(0.0, back - after * kept)

    def _groups_and_gradients(self, group: float) -> float:
        """Returns the bytes of gathered block groups (`group` each) and of gradients in transit, in a block's backward.

        The reduction buffer of a group is freed after the backward of the next group. So the head's buffer is live in
        the last block's backward. A block's buffer is live in the backward of the block before it, when the later block
        has freed its activations. In a bucket of several layers, gradients wait in the compute dtype for the bucket's
        last backward, which also frees the reduction buffer of the bucket that was reduced before.
        """
        ahead, layers = self.plan.buckets_ahead(GATHERED_AHEAD), self.plan.bucket_layers
        inside, reducing = self._inside_blocks(), self._reducing()
        kinds = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        saved = max((self.saved.of_section(kind) for kind in kinds), default=0.0)
        if not self._has_several_groups:
            before = 0.0 if self._ends_together else min(ahead, 1) * self._gathered("first")
            others = max(0.0, self._waiting_gradients() - (layers - 1) * saved)
            return group + before + inside + others + min(self._head_reducing(), reducing)
        if layers == 1:
            pairs = [(one, later) for one in kinds for later in kinds if one != later or self.sections[one] > 1]
            reduced = max(self._group(kind, trained=True) for kind in kinds) * self.reduced if reducing else 0.0
            # Experts that are a group of their own are reduced before their block, whose reduction frees their buffer.
            experts = min(self._experts_apart * self.reduced, reduced)
            before = max(self._inside_block(one) - self.saved.of_section(later) for one, later in pairs)
            head = min(self._head_reducing(), reducing)
            gathered = group + ahead * self._prefetched(group)
            return gathered + max(max(inside, experts) + head, before + reduced - experts)
        left = sum(self.sections[kind] for kind in kinds) // layers - 1  # buckets after the one in use
        first = (1 + min(ahead, left)) * group
        second = (1 + min(ahead, max(left - 1, 0))) * group + self._waiting_gradients() - (2 * layers - 1) * saved
        return max(first + inside, first + reducing - (layers - 1) * saved, second + reducing + inside)

    def _inside_blocks(self) -> float:
        """Returns the peak bytes of gradients inside the backward of a block of any kind."""
        blocks = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        return max(map(self._inside_block, blocks), default=0.0)

    def _inside_block(self, kind: Section) -> float:
        """Returns the peak bytes of gradients inside the backward of a block of this `kind`, less the saved tensors
        that it has freed by then."""
        return most_bytes(self.sharded, kind, self.plan.splits_backward)

    def _reducing(self) -> float:
        """Returns the bytes of this rank's largest gradient reduction; 0 if unsharded gradients accumulate."""
        if self._accumulates_whole or not self.roles.uses_fsdp:
            return 0.0
        return max(self._group(section, trained=True) for section in self.sections if section != "step") * self.reduced

    def _head_reducing(self) -> float:
        """Returns the bytes of the head's gradient reduction in the last block's backward; 0 if the head is in the
        embedding's FSDP group."""
        if self._ends_together or "last" not in self.sections:
            return 0.0
        return self._group("last", trained=True) * self.reduced

    def _waiting_gradients(self) -> float:
        """Returns the bytes of gradients in the compute dtype that wait in a bucket of several layers for those of its
        last block."""
        layers = self.plan.bucket_layers
        if layers == 1 or self._accumulates_whole or not self.roles.uses_fsdp:
            return 0.0
        groups = [self._group(kind, trained=True) for kind in self.sharded.model.blocks if kind in self.sections]
        return max(groups, default=0.0) * (layers - 1) / layers * self.computed

    def _group(self, section: Section, *, trained: bool = False) -> float:
        """Returns the number of parameter elements in one FSDP group of `section` (blocks, or the modules before or
        after them), on a tensor-parallel rank. With `trained`, only trainable ones, whose gradients are reduced."""
        sections = {"first", "last"} if self._ends_together and section in ("first", "last") else {section}
        together = self.plan.bucket_layers if section in self.sharded.model.blocks else 1
        held = self.trained if trained else self.held
        return together * sum(self._unsharded_elements(p) for p, _ in held if sections & set(p.param.sections))

    def _passed_on(self) -> float:
        """Returns the bytes of a pipeline rank's receive buffers, allocated for the whole step: per microbatch, one for
        each hidden state and each gradient that the rank receives."""
        if not self.roles.pipeline:
            return 0.0
        return _neighbours(self.plan, self.rank) * self.plan.microbatches * self.saved.hidden_states

    def _passed_before(self, b: Begins) -> float:
        """Returns the bytes of tensors passed between stages that are live before the backward `b`: receive buffers,
        hidden states sent to a stage of the same rank, and the input gradients of dgrads."""
        stages = virtual_stages(self.plan, self.rank)
        inside = [stage for stage in stages if stage + 1 in stages]
        buffers = (_neighbours(self.plan, self.rank) - 2 * len(inside)) * self.plan.microbatches
        sent = sum(b.run.get(stage, 0) for stage in inside)
        return (buffers + sent + sum(n for stage, n in b.inputs_alone.items() if stage)) * self.saved.hidden_states
