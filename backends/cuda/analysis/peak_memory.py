"""What torch holds at the fullest moment of a step: tensors of the program, without the runtime.

`planc.cost.memory` says what any correct program must keep. Here is what eager torch keeps: compared, tensor
by tensor, with traces of emitted programs (`planc audit`). Three moments compete: the backward of the loss,
that of the last block, and the update.
"""

from __future__ import annotations

from planc.backends.cuda.analysis.roles import Keeping, Roles
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.rules import realise
from planc.backends.cuda.rules.pad_dim0 import padded_elements
from planc.cost import cost_plan
from planc.cost.step.offload import kept_bytes
from planc.ir.backend import Peak
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Op, Section
from planc.ir.sharding import Layout, ParamSharding, Sharded
from planc.ir.updates import moments_of
from planc.sharding import semantic_collectives
from planc.sharding.local import local_elements, param_elements
from planc.sharding.recompute import close, replay
from planc.sharding.redistribute import restrict
from planc.sharding.stage_assignment import copies_on, sections_of, sections_on, virtual_stages

FP32 = DTYPE_BYTES["fp32"]
LOSS_COPIES = 2
"""fp32 tensors like the logits beside the saved log-probabilities: their gradient, and that of the logits."""
DIVIDED_LOSS_COPIES = 3
"""The same under loss_parallel, whose backward is several ops."""
BLOCKS_GATHERED = 2
"""The block in use and the next one."""


def peak_memory(sharded: Sharded) -> tuple[Peak, ...]:
    """The fullest moment of each pipeline rank."""
    timeline = cost_plan(sharded, realise(sharded, semantic_collectives(sharded))).timed.timeline
    return tuple(Rank(sharded, rank, timeline.in_flight[rank]).peak() for rank in range(sharded.plan.pipeline))


class Rank:
    """One pipeline rank. `flying` maps its virtual stages to the microbatches held at the fullest moment."""

    def __init__(self, sharded: Sharded, rank: int, flying: dict[int, int]) -> None:
        self.sharded, self.plan, self.rank, self.flying = sharded, sharded.plan, rank, flying
        self.roles = Roles(sharded)
        self.sections = sections_on(self.plan, rank)
        held = [(p, copies_on(self.plan, p.param, self.sections)) for p in sharded.params]
        self.held = [(p, n) for p, n in held if n]
        self.computed = DTYPE_BYTES[self.plan.precision.compute]
        self.reduced = DTYPE_BYTES[self.plan.precision.reduce]

    def peak(self) -> Peak:
        state = self._resting() + self._moments() + self._passed_on()
        always = state + self._saved()
        moments = {
            "backward of the last block": always + self._of_blocks() - self._of_loss(1) + self._grads(),
            "update": state + 2 * self._resting() + self._copies_kept(),
        }
        if "first" in self.sections:
            moments["backward of the embedding"] = (
                state + self._saved(done=1) + self._of_embedding() + self._resting_or_whole()
            )
        if "last" in self.sections:
            copies = DIVIDED_LOSS_COPIES if Styler(self.sharded, self.roles).loss_parallel else LOSS_COPIES
            first = self.flying.get(len(self.plan.stages) - 1, 0) == self.plan.microbatches  # and no backward before
            grads = 0.0 if first else self._grads(begun=False)
            moments["backward of the loss"] = always + self._of_loss(copies) + self._gathered("last") + grads
        moment = max(moments, key=lambda name: moments[name])
        return Peak(bytes=moments[moment], moment=moment)

    # State.

    def _resting(self) -> float:
        """One noun of state where it rests, in fp32; masters, gradients and moments rest alike."""
        return sum(n * self._share(p) * FP32 for p, n in self.held)

    def _moments(self) -> float:
        """The optimizer's moments, in fp32."""
        return sum(n * moments_of(self.plan, p.param.name) * self._share(p) * FP32 for p, n in self.held)

    def _share(self, p: ParamSharding) -> float:
        if not self.roles.uses_fsdp:
            return param_elements(self.plan, p)
        return padded_elements(self.roles, p.param.name) / self.plan.mesh.size(*self.roles.shard)

    def _whole(self, p: ParamSharding) -> float:
        return padded_elements(self.roles, p.param.name) if self.roles.uses_fsdp else param_elements(self.plan, p)

    @property
    def _keeps_copies(self) -> bool:
        """Whether gathered parameters stay: a pipeline's schedule does not let go after a backward."""
        return self.roles.uses_fsdp and (bool(self.roles.pipeline) or Keeping.of(self.plan).gather_per != "pass")

    @property
    def _adds_up(self) -> bool:
        """Whether whole gradients of several microbatches add up before they are reduced."""
        if not self.roles.uses_fsdp:
            return False
        kept = bool(self.roles.pipeline) or not Keeping.of(self.plan).scatter_each_microbatch
        return kept and (self.plan.microbatches > 1 or bool(self.roles.pipeline))

    def _copies_kept(self) -> float:
        return sum(n * self._whole(p) for p, n in self.held) * self.computed if self._keeps_copies else 0.0

    def _gathered(self, section: Section) -> float:
        """Compute copies that are there while a section is used."""
        if self._keeps_copies or not self.roles.uses_fsdp:
            return self._copies_kept()
        return self._group(section) * self.computed

    def _grads(self, *, begun: bool = True) -> float:
        """Gradients; `begun`: the backward of this microbatch has come past the head."""
        earlier = self.plan.microbatches > 1
        if self._adds_up:
            whole = sum(n * self._whole(p) for p, n in self.held) * self.reduced
            return whole if earlier else 0.0
        if earlier:
            return self._resting()
        return sum(self._share(p) * FP32 for p, _ in self.held if begun and "last" in p.param.sections)

    def _resting_or_whole(self) -> float:
        """Gradients when a backward is about to end."""
        return self._grads() if self._adds_up else self._resting()

    def _of_embedding(self) -> float:
        """Its copy, its gradient as computed, and the larger of what is reduced just then.

        DTensor makes the gradient of every row of a table whose rows are divided, and cuts its own out after.
        """
        tables = [p for p, _ in self.held if "first" in p.param.sections]
        share = sum(param_elements(self.plan, p) for p in tables)
        rows = sum(self.sharded.model.elements(p.param) for p in tables)
        made = share if rows == share else rows + share
        blocks = [self._group(kind) for kind in self.sharded.model.blocks if kind in self.sections]
        reducing = 0.0 if self._adds_up or not self.roles.uses_fsdp else max([self._group("first"), *blocks])
        return self._gathered("first") + made * self.computed + reducing * self.reduced

    # Activations.

    def _saved(self, done: int = 0) -> float:
        """What every microbatch in flight keeps for its backward; `done`: but for so many that are through."""
        return sum(
            max(0, microbatches - done) * sum(n * self._of_section(s) for s, n in sections_of(self.plan, stage).items())
            for stage, microbatches in self.flying.items()
        )

    def _of_section(self, section: Section) -> float:
        ops = self.sharded.model.ops[section]
        if section not in self.sharded.model.blocks:
            names = dict.fromkeys(t for op in ops for t in op.saves if t != "logits")
            return self._kept(tuple(names), section) + (self._outcome() if section == "last" else 0.0)
        again = replay(self.plan, section)
        some = self._kept(again.kept, section) + self._inside(section, frozenset(again.ops))
        every = self.plan.recompute.every
        return some if every == 1 else (some + (every - 1) * self._everything(section)) / every

    def _everything(self, section: Section) -> float:
        """What a block keeps when nothing is run again."""
        ops = self.sharded.model.ops[section]
        return self._kept(close(self.sharded.model, ops, set()).kept, section) + self._inside(section, frozenset())

    def _kept(self, names: tuple[str, ...], section: Section) -> float:
        return sum(kept_bytes(self.sharded, name, section) for name in names)

    def _inside(self, section: Section, again: frozenset[str]) -> float:
        """What ops make on the way to their output and keep, unless they run again."""
        found = [self._of_op(o.op, o.layout) for o in self.sharded.ops[section] if o.op.name not in again]
        return sum(found)

    def _of_op(self, op: Op, layout: Layout) -> float:
        dims = self.sharded.model.tensor[op.output].dims
        if op.kind == "elementwise" and len(op.inputs) > 1:  # silu(gate) is made before it is multiplied
            return local_elements(self.plan, dims, restrict(layout, dims)) * self.computed
        if op.kind == "rope":  # a cosine and a sine for each position and pair, in fp32
            angles = ("sequence", *op.whole)
            return local_elements(self.plan, angles, restrict(layout, angles)) * FP32
        if op.kind in ("norm", "attention"):  # one number a row; and who sees whom, where only a window is seen
            rows = tuple(d for d in dims if d not in op.whole)
            mask = self.plan.batch.sequence_tokens**2 * self.computed if op.window else 0.0
            return local_elements(self.plan, rows, restrict(layout, rows)) * FP32 + mask
        return 0.0

    def _outcome(self) -> float:
        """The saved log-probabilities, and the logits too where a schedule holds on to what a stage gave."""
        saved = self._of_loss(1)
        return saved + (saved / FP32 * self.computed if self.roles.pipeline else 0.0)

    def _of_loss(self, copies: int) -> float:
        """So many fp32 tensors of one microbatch like this rank's logits."""
        if "last" not in self.sections:
            return 0.0
        loss = self.sharded.ops["last"][-1]
        dims = self.sharded.model.tensor[loss.op.inputs[0]].dims
        return copies * local_elements(self.plan, dims, restrict(loss.layout, dims)) * FP32

    def _of_blocks(self) -> float:
        """While a block's backward runs: gathered blocks, what its replay brings back, and gradients on their way."""
        blocks = [kind for kind in self.sharded.model.blocks if kind in self.sections]
        gathered = max((self._gathered(kind) for kind in blocks), default=0.0)
        if not self._keeps_copies:
            gathered *= BLOCKS_GATHERED
        back = max((self._everything(kind) - self._of_section(kind) for kind in blocks), default=0.0)
        return gathered + back + self._reducing()

    def _reducing(self) -> float:
        """The largest group's gradients: as computed, and as they are reduced."""
        if self._adds_up or not self.roles.uses_fsdp:
            return 0.0
        return max(self._group(section) for section in self.sections if section != "step") * self.reduced

    def _group(self, section: Section) -> float:
        """Elements of what is gathered and reduced together, after tensor parallelism."""
        return sum(self._whole(p) for p, _ in self.held if section in p.param.sections)

    def _passed_on(self) -> float:
        """A pipeline's buffers for what each microbatch receives, there for the whole step."""
        split = self.plan.split
        if split is None or not self.roles.pipeline:
            return 0.0
        last = self.sharded.ops[self.sharded.model.blocks[-1]][-1].op.output
        layout = self.sharded.declared(last)
        one = local_elements(self.plan, self.sharded.model.tensor[last].dims, layout) * self.computed
        stages, end = virtual_stages(self.plan, self.rank), len(self.plan.stages) - 1
        buffers = sum((stage > 0) + (stage < end) for stage in stages)
        return buffers * self.plan.microbatches * one
