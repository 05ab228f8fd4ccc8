"""The search space: all layouts that a plan file with `?` or axes in any order describes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from math import comb, factorial, isqrt, prod
from pathlib import Path

from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.ir.cache import Computed
from planc.ir.mesh import Mesh, are_neighbours
from planc.ir.plan import Batch, Plan, Recompute, Split
from planc.ir.target import AnyTarget
from planc.language.build import Built, build_file
from planc.language.framework_rules import settled
from planc.language.imports import Files
from planc.language.op_names import covering
from planc.language.verbs.split import MOST_STAGES, even
from planc.pipeline import csv_schedule
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from planc.searching.holes import Free, covered_by_views, filled, free_in, ordered, sizes_inside_views, written_sizes

DATA_PARALLEL: dict[int, tuple[str, ...]] = {1: ("ddp", "zero1", "zero2", "fsdp"), 2: ("zero1", "fsdp", "hsdp")}
"""Candidates for `use ?`, by its number of axes."""
SCHEDULES = ("1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev")
"""Candidates for `split ... as ?`. GPipe and looped BFS are not among them: with the same stages they are no faster and
keep more microbatches in flight."""
RECOMPUTED = ("none", "{norms}", "attention.core", "attention.core, {norms}", "blocks")
"""Candidates for `recompute ?`: Megatron's selective recomputation, with and without the norms' outputs."""
LOSS_CHUNKS = ("1", "4", "16")
"""Candidates for `loss in ? chunks`, of which those count that divide the tokens of a sequence on a rank."""
MOST_CHUNKS = 16
MOST_MICROBATCH = 16
MOST_VARIANTS = 2_000
"""Maximum number of combinations of `use ?`, `recompute ?` and `loss in ? chunks`. Each is a plan of its own."""
MOST_ORDERS = 5_040
"""Maximum number of axis orders: that of seven axes."""


@dataclass(frozen=True)
class Pipeline:
    """A schedule as written in the plan, and the plan's `split` sentence with this schedule."""

    text: str
    split: Split | None
    """None on one rank, without a pipeline."""


@dataclass(frozen=True)
class Variant:
    """One choice of values for `use ?`, `recompute ?` and `loss in ? chunks`, and the plan with them, in which every
    other `?` is 1."""

    plan: Plan
    values: Mapping[Span, str]
    recompute: str
    """The recomputed ops if they are free."""


@dataclass(frozen=True, slots=True)
class Point:
    """One layout of the space: an index into `Space.variants`, and values for everything else that the plan leaves
    open."""

    variant: int
    sizes: tuple[int, ...]
    """Sizes of the mesh's axes and then of its views', outermost first."""
    sequences: int
    microbatch: int
    pipeline: Pipeline | None
    order: int = 0
    """Index of the axis order in the space's `orders`."""


class Space:
    """The layouts of a plan file with at least one `?` or open axis order.

    Raises PlanError if the file has errors or leaves nothing open. `most_sequences` is required if the batch size is
    open. `on` is the target whose `on TARGET:` sentences apply, "" for none. `unsaved` holds texts that replace files
    on disk. With `own`, `realise as` is ignored: layouts are costed as programs that planc writes. `build` reads the
    file.
    """

    target: AnyTarget | None
    """The target named by the file's `target` sentence."""
    on_targets: frozenset[str]
    """The targets for which the file has sentences."""

    def __init__(
        self,
        path: Path,
        given: dict[str, int] | None = None,
        most_sequences: int | None = None,
        on: str = "",
        unsaved: Mapping[Path, str] | None = None,
        *,
        own: bool = False,
        build: Callable[[Path, dict[str, int], str, Mapping[Path, str]], Built] = build_file,
    ) -> None:
        self.path, self.given, self.most_sequences, self.on, self._own = path, given or {}, most_sequences, on, own
        self._build, self._unsaved = build, unsaved or {}
        files = Files(root=path.parent, unsaved=unsaved or {})
        read = files.read(path, path.name)
        if isinstance(read, Diagnostic):
            raise PlanError((read,))
        self.text = read.source.text
        self.free = free_in(read)
        self._sizes = written_sizes(read, self.given)
        """Size of each axis of the mesh and its views; None if it is free."""
        self._inside_views = sizes_inside_views(read)
        """Spans of the sizes that depend on each other through a view."""
        self._covered = covered_by_views(read)
        """The axes of the mesh that each view covers."""
        self.orders = self._lawful_orders()
        """Every order of the axes of the mesh and its views, outermost first. The written order comes first, if a view
        allows it."""
        for free in self._holes_of_kind("sequences") if most_sequences is None else ():
            raise PlanError((_no_batch(free),))
        self.variants = tuple(self._variants())
        self._meshes: Computed[tuple[tuple[int, ...], int], Mesh] = Computed(self._mesh)
        self._orders_of: Computed[tuple[bool, ...], tuple[int, ...]] = Computed(self._different_orders)
        self._first: dict[object, Plan] = {}
        """Cached plans, one for each variant, axis order, set of axes in use and vocabulary padding."""

    def _holes_of_kind(self, kind: str) -> list[Free]:
        return [f for f in self.free if f.kind == kind]

    def _lawful_orders(self) -> tuple[tuple[str, ...], ...]:
        """Return the axis orders in which the axes that a view factorizes are adjacent and in the view's order. Raises
        PlanError if there are too many orders."""
        names, groups = tuple(self._sizes), self._holes_of_kind("order")
        if (count := prod(factorial(len(group.axes)) for group in groups)) > MOST_ORDERS:
            raise PlanError((_too_many_orders(groups[-1], count),))
        found = []
        for chosen in itertools.product(*(itertools.permutations(group.axes) for group in groups)):
            after = {group.axes: iter(axes) for group, axes in zip(groups, chosen, strict=True)}
            of = {name: group for group in after for name in group}
            order = tuple(next(after[of[name]]) if name in of else name for name in names)
            if all([name for name in order if name in covered] == [*covered] for covered in self._covered):
                found.append(order)
        return tuple(found) or (names,)

    def _variants(self) -> Iterator[Variant]:
        """Yield the plan for each choice of values for `use ?`, `recompute ?` and `loss in ? chunks`."""
        words = self._of_words()
        choices = prod(len(RECOMPUTED) if f.kind == "recompute" else len(self._choices(f)) for f in words)
        if choices > MOST_VARIANTS:
            raise PlanError((_too_many_variants(words[-1], choices),))
        again = next((i for i, f in enumerate(words) if f.kind == "recompute"), None)
        built: dict[tuple[str, ...], Plan] = {}
        meant: dict[str, Recompute] = {}
        for chosen in itertools.product(*(self._choices(f) for f in words)):
            values = dict(zip((f.span for f in words), chosen, strict=True))
            if again is None:
                yield Variant(self._built(values), values, "")
                continue
            rest = (*chosen[:again], *chosen[again + 1 :])
            if rest not in built:
                built[rest] = self._built(values)
                meant.setdefault(chosen[again], built[rest].recompute)
            if chosen[again] not in meant:
                meant[chosen[again]] = self._built(values).recompute
            plan = replace(built[rest], recompute=meant[chosen[again]])
            yield Variant(plan, values, chosen[again])

    @cached_property
    def _norms(self) -> str:
        """Return the names of the norms of a block, separated by commas."""
        values = {f.span: "none" if f.kind == "recompute" else self._choices(f)[0] for f in self._of_words()}
        model = self._built(values).model
        ops = [op for kind in model.blocks for op in model.ops[kind]]
        return ", ".join(covering((op.name for op in ops if op.kind == "norm"), ops))

    def _of_words(self) -> list[Free]:
        return [f for f in self.free if f.kind in ("layout", "recompute", "loss")]

    def _built(self, values: Mapping[Span, str]) -> Plan:
        """Return the plan with these values. Every other `?` is 1, and so are sizes that depend on it through a
        view."""
        plain = {f.span: "1f1b" if f.kind == "schedule" else "1" for f in self.free if f.kind != "order"}
        tied = dict.fromkeys(self._inside_views, "1")
        text = self._filled({**tied, **plain, **values}, 0)
        built = self._build(self.path, self.given, self.on, {**self._unsaved, self.path.resolve(): text})
        if built.plan is None:
            raise PlanError(built.diagnostics)
        self.target, self.on_targets = built.target, built.on
        return built.plan

    def _choices(self, free: Free) -> tuple[str, ...]:
        if free.kind == "recompute":
            return tuple(word.format(norms=self._norms) for word in RECOMPUTED)
        if free.kind == "loss":
            return LOSS_CHUNKS
        return DATA_PARALLEL.get(len(free.axes), ("fsdp",))

    @cached_property
    def plan(self) -> Plan:
        """The plan with the first candidate for each free layout or recompute, and with 1 for every free size."""
        plan = self.variants[0].plan
        return plan.for_planc if self._own else plan

    # Numbers.

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of the mesh, then of its views. The sizes of a `Point` have this order."""
        return tuple(self.plan.mesh.every)

    def laid(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield every mesh of the space: the sizes of its `axes`, and the index of their order in `orders`."""
        for sizes in self.sizes():
            for order in self.orders_of(sizes):
                yield sizes, order

    def orders_of(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the indices into `orders` of the distinct orders of axes with these `sizes`. Orders that differ only
        in the position of axes of size 1 are not distinct."""
        return self._orders_of[tuple([n > 1 for n in sizes])]

    def _different_orders(self, used: tuple[bool, ...]) -> tuple[int, ...]:
        found: dict[tuple[str, ...], int] = {}
        size_of = {name: 1 + more for name, more in zip(self.axes, used, strict=True)}
        for place, order in enumerate(self.orders):
            mesh = {name: size_of[name] for name in order if name in self.plan.mesh.sizes}
            if all(are_neighbours(mesh, covered) for covered in self._covered):
                found.setdefault(tuple(name for name in order if size_of[name] > 1), place)
        return tuple(found.values())

    def sizes(self) -> Iterator[tuple[int, ...]]:
        """Yield the possible sizes of `axes`. The product of the mesh's sizes is the number of devices; the product of
        a view's sizes is the number of ranks over the axes that it factorizes."""
        mesh = self.plan.mesh
        for chosen in _factored(self.plan.cluster.devices, [self._sizes[a.name] for a in mesh.axes]):
            of = dict(zip((a.name for a in mesh.axes), chosen, strict=True))
            views = (
                _factored(prod(of[name] for name in view.of), [self._sizes[a.name] for a in view.axes])
                for view in mesh.views
            )
            for inside in itertools.product(*views):
                yield chosen + tuple(itertools.chain.from_iterable(inside))

    @cached_property
    def meshes(self) -> int:
        """Number of meshes of the space; an upper bound if a view has free sizes or an order is free."""
        mesh = self.plan.mesh
        count = _factorings(self.plan.cluster.devices, [self._sizes[a.name] for a in mesh.axes]) * len(self.orders)
        for view in mesh.views:
            free = [self._sizes[a.name] for a in view.axes].count(None)
            count *= _factorings(self.plan.cluster.devices, [None] * free) if free > 1 else 1
        return count

    @cached_property
    def most_layouts(self) -> int:
        """Upper bound on the number of layouts: meshes x variants x microbatch sizes x pipeline schedules."""
        batches = MOST_MICROBATCH if self._holes_of_kind("microbatch") else 1
        looping = sum(schedules()[name].free_chunks for name in SCHEDULES) * 2 * MOST_CHUNKS
        pipelines = len(SCHEDULES) + looping if self._holes_of_kind("schedule") else 1
        pipelines = MOST_CHUNKS if self._holes_of_kind("chunks") else pipelines
        return self.meshes * len(self.variants) * batches * pipelines

    def refusal(self, code: str, message: str) -> Diagnostic:
        """Return a diagnostic with this `code` and `message`, located at the plan's mesh."""
        return Diagnostic(code, message, self.plan.mesh.cause.span)

    def forget_meshes(self) -> None:
        """Clear the caches of meshes, which are rebuilt on demand."""
        self._meshes.clear()

    def batches(self, data_parallel: int) -> tuple[tuple[int, int], ...]:
        """Return the (global batch, microbatch) sizes, in sequences, that divide evenly over `data_parallel` ranks."""
        return self._batches[data_parallel]

    @cached_property
    def _batches(self) -> Computed[int, tuple[tuple[int, int], ...]]:
        return Computed(lambda data_parallel: tuple(self._sequence_choices(data_parallel)))

    def _sequence_choices(self, data_parallel: int) -> Iterator[tuple[int, int]]:
        batch = self.plan.batch
        given = self.most_sequences if self._holes_of_kind("sequences") else batch.sequences
        assert given is not None
        if self._holes_of_kind("microbatch"):
            micro = [m for m in range(1, MOST_MICROBATCH + 1) if m * data_parallel <= given]
        else:
            micro = [batch.microbatch_sequences]
        for m in micro:
            most = given // (m * data_parallel) * m * data_parallel if self._holes_of_kind("sequences") else given
            if most and most % (m * data_parallel) == 0:
                yield most, m

    def pipelines(self, ranks: int) -> tuple[Pipeline | None, ...]:
        """Return the schedules that the search tries on `ranks` pipeline ranks; (None,) for a plan without `split`."""
        return self._pipelines[ranks]

    @cached_property
    def _pipelines(self) -> Computed[int, tuple[Pipeline | None, ...]]:
        return Computed(lambda ranks: tuple(self._schedules(ranks)))

    def _schedules(self, ranks: int) -> Iterator[Pipeline | None]:
        split = self.plan.split
        if split is None:
            yield None
        elif ranks == 1:
            yield Pipeline("1f1b" if self._holes_of_kind("schedule") else "1", None)
        elif self._holes_of_kind("chunks"):
            for chunks in _chunks(split.schedule, self.plan.model.layers, ranks):
                if (made := self._staged(split, split.schedule, chunks, ranks)) is not None:
                    yield Pipeline(str(chunks), made)
        elif not self._holes_of_kind("schedule"):
            if ranks == self.plan.pipeline:
                yield Pipeline("", split)
            elif (restaged := self._staged(split, split.schedule, split.chunks, ranks)) is not None:
                yield Pipeline("", restaged)
        else:
            for name in SCHEDULES:
                for chunks in _chunks(name, self.plan.model.layers, ranks):
                    made = self._staged(split, name, chunks, ranks)
                    text = f"{name}(chunks = {chunks})" if schedules()[name].free_chunks else name
                    if made is not None:
                        yield Pipeline(text, made)
                yield from self._ends_apart(split, name, ranks)

    def _ends_apart(self, split: Split, name: str, ranks: int) -> Iterator[Pipeline]:
        """Yield looping schedules whose stages are even if the embedding and the head each count as one layer (as in
        Llama 3 405B), unless the layers alone divide evenly over the stages."""
        layers = self.plan.model.layers
        if not schedules()[name].free_chunks or " stages " in split.cause.sentence:
            return  # the plan states its stages
        for chunks in range(2, MOST_CHUNKS + 1):
            count = ranks * chunks
            each = (layers + 2) // count
            if (layers + 2) % count == 0 and layers % count and count <= MOST_STAGES:
                made = replace(split, schedule=name, chunks=chunks, stages=_stages(each, count))
                embed, head = ("embed", "head") if each == 1 else (f"embed + {each - 1}", f"{each - 1} + head")
                yield Pipeline(f"{name}(chunks = {chunks}) stages [{embed}, {count - 2} x {each} layers, {head}]", made)

    def _staged(self, split: Split, schedule: str, chunks: int, ranks: int) -> Split | None:
        """Return `split` with the layers divided over `ranks` x `chunks` stages. None if there are more stages than
        layers, or if the schedule comes from a file, which fixes the number of ranks."""
        layers = self.plan.model.layers
        if split.order or ranks * chunks > min(layers, MOST_STAGES):
            return None
        return replace(split, schedule=schedule, chunks=chunks, stages=even(layers, ranks * chunks))

    def fits_schedule(self, pipeline: Pipeline, ranks: int, microbatches: int) -> bool:
        """True if the schedule of `pipeline` on `ranks` ranks supports this number of `microbatches`."""
        split = pipeline.split
        if split is None:
            return True
        if split.order:
            return csv_schedule.microbatches(split.order) == microbatches
        schedule = schedules()[split.schedule]
        if schedule.even_ranks and ranks % 2:
            return False
        return schedule.need(ScheduleShape(ranks, split.chunks, microbatches)) is None

    # A point as a plan, and as a file.

    def plan_of(self, point: Point) -> Plan:
        """Return the plan of the layout `point`. It equals the plan in the text `text_of(point)`."""
        base = self.variants[point.variant].plan
        split = point.pipeline.split if point.pipeline else base.split
        mesh, batch = self.mesh(point.sizes, point.order), self._batch(point.sequences, point.microbatch)
        padded = mesh.size(*base.sharding_axes("vocab")) if base.realise else 1
        of = (point.variant, point.order, padded, *(n > 1 for n in point.sizes))
        if of not in self._first:
            first = settled(base.resized(mesh, batch, split))
            self._first[of] = first.for_planc if self._own else first
        plan = self._first[of].resized(mesh, batch, split)
        plan.share(self._first[of])
        return plan

    def mesh(self, sizes: tuple[int, ...], order: int) -> Mesh:
        """Return the mesh with these `sizes`, and with its axes in the order `orders[order]`."""
        return self._meshes[sizes, order]

    def _mesh(self, of: tuple[tuple[int, ...], int]) -> Mesh:
        sizes, order = of
        mesh = self.plan.mesh.resized(sizes)
        return mesh.reordered(self.orders[order]) if order else mesh

    def _batch(self, sequences: int, microbatch: int) -> Batch:
        return replace(self.plan.batch, sequences=sequences, microbatch_sequences=microbatch)

    def text_of(self, point: Point) -> str:
        """Return the plan file's text with all free values and axis orders filled in from the layout `point`."""
        return self._filled({f.span: self._value(f, point) for f in self.free if f.kind != "order"}, point.order)

    def _filled(self, values: Mapping[Span, str], order: int) -> str:
        text = filled(self.text, values)
        return ordered(text, self.orders[order]) if self._holes_of_kind("order") else text

    def values_of(self, point: Point) -> tuple[str, ...]:
        """Return the values in the layout `point` of all that the plan file leaves free, in the order of the file. Axes
        whose order is free are listed with all their sizes."""
        inside = {name for free in self._holes_of_kind("order") for name in free.axes}
        named = (f for f in self.free if f.kind != "size" or f.axes[0] not in inside)
        return tuple(
            self._in_order(f, point) if f.kind == "order" else self._named(f, self._value(f, point)) for f in named
        )

    def _in_order(self, free: Free, point: Point) -> str:
        names = [name for name in self.orders[point.order] if name in free.axes]
        return " > ".join(f"{name} {point.sizes[self.axes.index(name)]}" for name in names)

    def _named(self, free: Free, value: str) -> str:
        if free.kind == "size":
            return f"{free.axes[0]} {value}"
        if free.kind == "layout":
            return value
        own = {"sequences": "batch ", "schedule": "", "chunks": "chunks = ", "loss": "loss in "}
        return own.get(free.kind, f"{free.kind} ") + value

    def _value(self, free: Free, point: Point) -> str:
        """Return the text that replaces the `?` described by `free` in the layout `point`."""
        if free.kind == "size":
            return str(point.sizes[self.axes.index(free.axes[0])])
        if free.kind == "sequences":
            return str(point.sequences)
        if free.kind == "microbatch":
            return str(point.microbatch)
        if free.kind in ("schedule", "chunks"):
            assert point.pipeline is not None
            return point.pipeline.text
        return self.variants[point.variant].values[free.span]


def _no_batch(free: Free) -> Diagnostic:
    what = "the number of sequences is left open, and no largest batch is given"
    return Diagnostic("E0115", what, free.span, help="`planc search FILE --sequences N`; or write the number")


def _too_many_orders(free: Free, count: int) -> Diagnostic:
    what = f"axes with commas between them have {count:,} orders, too many to search"
    return Diagnostic("E0117", what, free.span, help=f"at most {MOST_ORDERS:,}: write `>` between some of them")


def _too_many_variants(free: Free, choices: int) -> Diagnostic:
    what = f"what is left open after `use`, `recompute` and `loss` has {choices:,} choices, too many to search"
    return Diagnostic("E0117", what, free.span, help=f"at most {MOST_VARIANTS:,}: write some of them")


def _stages(each: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return the layer ranges of `count` stages: `each` layers per stage, one less in the first and the last."""
    starts = [0, *(each * i - 1 for i in range(1, count)), each * count - 2]
    return tuple(itertools.pairwise(starts))


def _chunks(schedule: str, layers: int, ranks: int) -> list[int]:
    """Return the candidate numbers of virtual stages per rank; for looping schedules, those that divide the layers
    evenly."""
    kind = schedules()[schedule]
    if not kind.free_chunks:
        return [kind.chunks]
    return [c for c in range(2, MOST_CHUNKS + 1) if layers % (ranks * c) == 0]


def _factored(devices: int, sizes: list[int | None]) -> Iterator[tuple[int, ...]]:
    """Yield every combination of sizes whose product is `devices`; None in `sizes` is a free size."""
    if not sizes:
        if devices == 1:
            yield ()
        return
    first, rest = sizes[0], sizes[1:]
    for n in [first] if first is not None else _divisors(devices):
        if devices % n == 0:
            for more in _factored(devices // n, rest):
                yield (n, *more)


def _factorings(devices: int, sizes: list[int | None]) -> int:
    """Return the number of combinations that `_factored` yields, computed from prime factors without enumerating
    them."""
    given = prod(n for n in sizes if n is not None)
    free = sizes.count(None)
    if devices % given or (not free and devices != given):
        return 0
    rest, count, prime = devices // given, 1, 2
    while rest > 1 and free:
        power = 0
        prime = prime if prime * prime <= rest else rest  # the rest is prime
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        count *= comb(power + free - 1, free - 1)
        prime += 1
    return count


@cache
def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
