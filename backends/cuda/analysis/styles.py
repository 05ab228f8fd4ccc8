"""Derives torch's tensor-parallel styles (`ParallelStyle`) of modules from the op graph under a plan.

No model or strategy is special-cased. An op with a weight sharded on its output dim is column parallel, on its input
dim row parallel; a norm over a sharded sequence is sequence parallel; a module without sharded weights gets
`PrepareModuleInput` or `PrepareModuleOutput`. Other placements use the emitted file's own `DTensorParallel`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from planc.backends.common.source_writer import tuple_of
from planc.backends.cuda.analysis.expert_mesh import routed
from planc.backends.cuda.analysis.module_placements import Boundary, relative
from planc.backends.cuda.analysis.placements import WHOLE
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.diag.quoting import python_string
from planc.ir.base import Cause
from planc.ir.cache import cached_on
from planc.ir.model import Section
from planc.ir.sharding import Move, Sharded

DIVIDED, SHARED, SHARED_KEYS = "DTensorParallel", "ReplicatedInput", "ReplicatedKV"
UPDATED, OWN_PART, LEFT_TO_LOSS = "LoRAParallel", "PerHeadParamParallel", "HeadOfLoss"
OWN_ROWS = "VocabParallelEmbedding"
OWN_STYLES = frozenset({DIVIDED, SHARED, SHARED_KEYS, UPDATED, OWN_PART, LEFT_TO_LOSS, OWN_ROWS})
"""ParallelStyle classes that the emitted file defines (`program/styles.py`); the others are torch's."""


@dataclass(frozen=True)
class Style:
    """Gives the module at `path` (relative to the model or block) the parallel style `name(**arguments)`.

    `collective` describes the module's redistribution, for a comment. `cause` is the plan's sentence that requires the
    style.
    """

    path: str
    name: str
    arguments: tuple[tuple[str, str], ...] = ()
    collective: str = ""
    cause: Cause | None = None
    axes: tuple[str, ...] = ()
    """The tensor axes that the style applies to."""


@dataclass(frozen=True)
class Styler:
    """Derives the parallel styles of one plan's modules."""

    sharded: Sharded
    roles: AxisRoles

    def top(self) -> tuple[Style, ...]:
        """Returns the styles of the modules outside the blocks."""
        return (*self._section("first"), *self._section("last"))

    @cached_on(lambda self, kind: (self.sharded.cache, (kind, self.roles.torch)))
    def block(self, kind: Section) -> tuple[Style, ...]:
        """Returns the styles of one `kind` of block, with paths relative to the block."""
        return tuple(self._section(kind))

    def blocks(self) -> tuple[Style, ...]:
        """Returns the styles of all kinds of block, one for each module path. Where several kinds have a module of the
        same path, the style is that of the first kind."""
        found: dict[str, Style] = {}
        for kind in self.sharded.model.blocks:
            for style in self.block(kind):
                found.setdefault(style.path, style)
        return tuple(found.values())

    @property
    def loss_parallel(self) -> bool:
        """True if the loss is computed over a sharded vocab."""
        return any(b.o.op.kind == "loss" and b.divides("vocab") for b in self.section("last"))

    @property
    def divides_loss(self) -> bool:
        """True if the program has its own function for the loss over a sharded vocab, as it is not compiled."""
        return self.loss_parallel and self.roles.plan.compiled("loss") is None

    @cached_on(lambda self, section: (self.sharded.cache, (section, self.roles.torch)))
    def section(self, section: Section) -> tuple[Boundary, ...]:
        """Returns the ops of `section` (a kind of block, "first" or "last"), with the placements of their tensors."""
        return tuple(Boundary(o, section, self.sharded, self.roles) for o in self.sharded.ops[section])

    @cached_on(lambda self, *key, backward: (self.sharded.cache, (*key, backward)))
    def repeats(self, section: Section, tensor: str, kind: str, *, backward: bool) -> int:
        """Returns the number of times that torch issues the collective `kind` to redistribute `tensor` for the ops that
        read it (with `backward`, to redistribute the gradient); at least 1.

        Ops that need the same layout share one redistribution only if one module issues it for all of them.
        """
        movers: set[tuple[str, str]] = set()
        for b in self.section(section):
            for index, name in enumerate(() if routed(b.o.op) else b.o.op.inputs):
                if name == tensor and kind in (b.backward_kinds(index) if backward else b.forward_kinds(index)):
                    movers.add((self.shared_parent(b) or b.o.op.module, str(b.needed(index))))
        return max(Counter(layout for _, layout in movers).values(), default=1)

    def _section(self, section: Section) -> Iterator[Style]:
        prepared: set[str] = set()
        for b in self.section(section):
            if b.o.op.kind == "loss" or routed(b.o.op):
                continue
            parent = self.shared_parent(b)
            if parent and parent not in prepared:
                prepared.add(parent)
                yield self._parent_style(b, parent)
            if b.scored:
                yield Style(relative(b.scored), OWN_PART, cause=self._weight_cause(b), axes=b.axes)
            style = self._style(b, prepared_by_parent=bool(parent))
            if style is not None:
                yield style

    def _style(self, b: Boundary, *, prepared_by_parent: bool) -> Style | None:
        if self.roles.plan.loss_chunks > 1 and b.o.op is self.roles.head and b.weight != WHOLE:
            said = self._comment(b, b.move(), b.summed_back())
            return self._style_of(b, b.path, LEFT_TO_LOSS, [("input_layouts", str(b.resting()))], [said])
        if b.shared_input is not None:
            return self._shared(b, b.shared_input)
        if b.shares_keys:
            said = f"all-reduce of the gradients over {' + '.join(b.axes)} in the backward"
            return Style(b.path, SHARED_KEYS, collective=said, cause=self._weight_cause(b), axes=b.axes)
        if not b.o.op.params or b.o.op.kind in ("attention", "code"):
            return self._undivided(b, prepared_by_parent)
        if b.given_weight:
            return self._given_weight(b)
        if b.o.op.update and b.weight != WHOLE:
            return self._updated(b, prepared_by_parent)
        if b.rows:
            return self._sequence(b) if _keeps_its_rows(b) else self._divided(b, prepared_by_parent)
        if b.weight == WHOLE:
            return self._undivided(b, prepared_by_parent)
        if b.weight.inner:
            return self._divided(b, prepared_by_parent)
        if b.weight.dim == (1 if b.o.op.kind == "embedding" else 0):
            return self._colwise(b, prepared_by_parent)
        return self._rowwise(b, prepared_by_parent)

    def _sequence(self, b: Boundary) -> Style:
        """Returns the style SequenceParallel for a norm: each rank normalizes its shard of the sequence."""
        dim = b.needed().dim
        arguments = [("sequence_dim", str(dim))] if dim != 1 else []
        if not all(r.linear for kind in self._kinds_with(b) for r in self._readers(kind, b)):
            arguments.append(("use_local_output", "True"))
        return Style(b.path, "SequenceParallel", tuple(arguments), cause=self._cause(b.rows[0], b), axes=b.axes)

    def _readers(self, section: Section, b: Boundary) -> list[Boundary]:
        return [r for r in self.section(section) if b.o.op.output in r.o.op.inputs]

    def _kinds_with(self, b: Boundary) -> list[Section]:
        """Returns the kinds of block that have the module of `b`, which all get the same style; for a module outside
        the blocks, its own section ("first" or "last")."""
        blocks = self.sharded.model.blocks
        others = [k for k in blocks if any(o.op.module == b.o.op.module for o in self.sharded.ops[k])]
        return others if b.section in blocks else [b.section]

    def _colwise(self, b: Boundary, prepared_by_parent: bool) -> Style:
        arguments, collectives = [], []
        if not prepared_by_parent:
            arguments.append(("input_layouts", str(b.resting())))
            collectives.append(self._comment(b, b.move(), b.summed_back()))
        if self._feeds_loss(b):
            arguments += [("output_layouts", "Shard(-1)"), ("use_local_output", "False")]
        elif b.settle is not None:
            arguments.append(("output_layouts", str(b.left)))
            collectives.append(self._comment(b, b.settle))
        return self._style_of(b, b.path, "ColwiseParallel", arguments, collectives)

    def _rowwise(self, b: Boundary, prepared_by_parent: bool) -> Style:
        arguments = [("output_layouts", str(b.left))]
        collectives = [self._comment(b, b.settle)]
        if b.o.op.kind == "embedding":
            return self._style_of(b, b.path, OWN_ROWS, arguments, collectives)
        if b.move() is not None and not prepared_by_parent:
            arguments.insert(0, ("input_layouts", str(b.resting())))
            collectives.insert(0, self._comment(b, b.move()))
        return self._style_of(b, b.path, "RowwiseParallel", arguments, collectives)

    def _divided(self, b: Boundary, prepared_by_parent: bool) -> Style:
        """Returns the style DTensorParallel, with the placements of weights, input and output as arguments."""
        weights = ", ".join(f"{python_string(name)}: {at}" for name, at in b.weights.items())
        arguments, collectives = [("weights", f"{{{weights}}}")], []
        if not prepared_by_parent:
            arguments.append(("input_layouts", str(b.resting())))
            collectives.append(self._comment(b, b.move(), b.summed_back()))
        arguments += [("desired_input_layouts", str(b.needed())), ("output_layouts", str(b.left))]
        return self._style_of(b, b.path, DIVIDED, arguments, [*collectives, self._comment(b, b.settle)])

    def _updated(self, b: Boundary, prepared_by_parent: bool) -> Style:
        """Returns the style of a linear layer with LoRA. Each rank multiplies by its shards of the weight, A and B; the
        sum is placed like the output of the weight. The gradient of an unsharded A or B is a partial sum."""
        weights = ", ".join(f"{python_string(name)}: {at}" for name, at in b.weights.items())
        arguments, collectives = [("weights", f"{{{weights}}}")], []
        if not prepared_by_parent:
            arguments.append(("input_layouts", str(b.resting())))
            collectives.append(self._comment(b, b.move(), b.summed_back()))
        made = "Partial()" if set(b.o.partial) & set(b.axes) else str(b.made)
        arguments += [("desired_input_layouts", str(b.needed())), ("made", made), ("output_layouts", str(b.left))]
        whole = next(name for name, at in b.weights.items() if at == WHOLE)
        reduced = f"all-reduce of {whole}'s gradient over {' + '.join(b.axes)} in the backward"
        return self._style_of(b, b.path, UPDATED, arguments, [*collectives, self._comment(b, b.settle), reduced])

    def _shared(self, b: Boundary, index: int) -> Style:
        """Returns the style that replicates input number `index`, which all local heads read, and sums its gradient
        over ranks."""
        resting = tuple_of([str(b.resting(i)) if i == index else "None" for i in range(len(b.o.op.inputs))])
        said = [self._comment(b, b.move(index), summed_back=True)]
        return self._style_of(b, b.path, SHARED, [("input_layouts", resting)], said)

    def _undivided(self, b: Boundary, prepared_by_parent: bool) -> Style | None:
        """Returns the style of a module without sharded weights, which redistributes inputs and outputs; None if it
        redistributes nothing."""
        redistributions = () if prepared_by_parent else b.redistributions
        before, after = any(redistributions), b.settle is not None
        arguments = []
        if before:
            arguments += [
                (
                    "input_layouts",
                    tuple_of([str(b.resting(i)) if m else "None" for i, m in enumerate(redistributions)]),
                ),
                (
                    "desired_input_layouts",
                    tuple_of([str(b.needed(i)) if m else "None" for i, m in enumerate(redistributions)]),
                ),
                ("use_local_input" if after else "use_local_output", "True"),
            ]
        if after and self._feeds_loss(b):
            arguments += [("output_layouts", str(b.made)), ("desired_output_layouts", "Shard(-1)")]
            arguments.append(("use_local_output", "False"))
        elif after:
            arguments += [("output_layouts", str(b.made)), ("desired_output_layouts", str(b.left))]
        if not arguments:
            return None
        name = "PrepareModule" + ("Input" if before else "") + ("Output" if after else "")
        said = list(dict.fromkeys(self._comment(b, m) for m in redistributions))
        return self._style_of(b, b.path, name, arguments, [*said, self._comment(b, b.settle)])

    def _given_weight(self, b: Boundary) -> Style | None:
        """Returns the style of a module that is called with a weight of another module, as a tied head is. The weight
        may be a DTensor. None if nothing is redistributed."""
        whole = b.weight == WHOLE
        arguments: list[tuple[str, str]] = []
        if b.move() is not None or not whole:
            arguments += [
                ("input_layouts", f"({b.resting()}, None)"),
                ("desired_input_layouts", f"({b.needed()}, None)"),
            ]
        if whole and arguments:
            arguments.append(("use_local_input" if b.settle is not None else "use_local_output", "True"))
        if not whole:
            made = "Partial()" if set(b.o.partial) & set(b.axes) else str(b.made)
            feeds = self._feeds_loss(b)
            left = "Shard(-1)" if feeds else str(b.left)
            arguments += [("output_layouts", left if feeds else made), ("desired_output_layouts", left)]
            arguments += [("use_local_output", "False")] if feeds else []
        elif b.settle is not None:
            arguments += [("output_layouts", str(b.made)), ("desired_output_layouts", str(b.left))]
        if not arguments:
            return None
        both = "input_layouts" in dict(arguments), "output_layouts" in dict(arguments)
        name = "PrepareModule" + "Input" * both[0] + "Output" * both[1]
        said = [self._comment(b, b.move(), b.summed_back()), self._comment(b, b.settle)]
        return self._style_of(b, b.path, name, arguments, said)

    def _parent_style(self, b: Boundary, parent: str) -> Style:
        """Returns the style that redistributes the input of the module `parent` once, for all child modules that read
        it. Children without sharded weights get a local tensor instead of a DTensor."""
        arguments = [
            ("input_layouts", tuple_of([str(b.resting())])),
            ("desired_input_layouts", tuple_of([str(b.needed())])),
        ]
        if b.weight == WHOLE:
            arguments.append(("use_local_output", "True"))
        return self._style_of(
            b, relative(parent), "PrepareModuleInput", arguments, [self._comment(b, b.move(), b.summed_back())]
        )

    def _style_of(
        self, b: Boundary, path: str, name: str, arguments: list[tuple[str, str]], collectives: list[str]
    ) -> Style:
        said = "; ".join(c for c in collectives if c)
        redistributions = [m for m in (*b.redistributions, b.settle) if m is not None and m.cause is not None]
        cause = redistributions[0].cause if redistributions and said else self._weight_cause(b)
        return Style(path, name, tuple(arguments), said, cause, b.axes)

    def shared_parent(self, b: Boundary) -> str:
        """Returns the path of the module around the op of `b` if it can redistribute one input for all its children:
        all of them read this input in the same layout. "" if not, or if the input needs no redistribution."""
        if not b.linear or not b.parent or not (b.move() is not None or b.summed_back()):
            return ""
        source = b.o.op.inputs[0]
        inside = [p for p in self.section(b.section) if _belongs_to_module(p, b.parent)]
        if {t for p in inside for t in p.o.op.inputs} - {p.o.op.output for p in inside} != {source}:
            return ""
        readers = [p for p in inside if source in p.o.op.inputs]
        wants = {(p.linear and not p.rows, p.needed(), p.weight == WHOLE) for p in readers}
        return b.parent if wants == {(True, b.needed(), b.weight == WHOLE)} else ""

    def _feeds_loss(self, b: Boundary) -> bool:
        return self.loss_parallel and any(p.o.op.kind == "loss" for p in self._readers(b.section, b))

    def _comment(self, b: Boundary, move: Move | None, summed_back: bool = False) -> str:
        """Returns a text that names the collectives of `move`. Without a redistribution (None), this is the all-reduce
        of the gradient if `summed_back`, else ""."""
        names = " + ".join(b.axes)
        if move is None:
            return f"all-reduce of the gradient over {names} in the backward" if summed_back else ""
        steps = [s for s in move.steps if set(s.axes) & set(self.roles.tensor)]
        words = [f"{s.kind.replace('_', '-')}{f' of {s.dim}' if s.dim else ''} over {names}" for s in steps]
        return ", ".join(words)

    def _cause(self, dim: str, b: Boundary) -> Cause | None:
        return self.sharded.plan.cause_of_shard(dim, b.axes[0], b.o.op.region)

    def _weight_cause(self, b: Boundary) -> Cause | None:
        return self._cause(b.divided[0], b) if b.divided else None


def boundaries(sharded: Sharded) -> Iterator[Boundary]:
    """Yields every op of the model in `sharded` with the placements of its inputs and outputs; nothing without tensor
    parallelism."""
    roles = AxisRoles(sharded)
    styler = Styler(sharded, roles)
    for section in sharded.ops if roles.tensor else ():
        yield from styler.section(section)


def _keeps_its_rows(b: Boundary) -> bool:
    return b.o.op.kind == "norm" and b.move() is None and b.settle is None


def _belongs_to_module(b: Boundary, module: str) -> bool:
    return b.o.op.module == module or b.o.op.module.startswith(f"{module}.")
