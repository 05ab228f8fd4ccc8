"""Checks that a program gives each rank the tokens and shards of the rank's coordinates in the plan's mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from types import ModuleType
from typing import Any

from planc.backends.common.sequence_order import held_order
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.fake_ranks import fake_rank
from planc.backends.cuda.audit.observe import MADE, made_meshes, ranks_of
from planc.ir.plan import Plan
from planc.ir.program_text import ProgramText

MOST = 64
"""Maximum number of ranks that an audit checks."""


def sampled_ranks(devices: int) -> list[int]:
    """Returns the ranks of `devices` that an audit checks: all, or at most `MOST` evenly spaced ones with the first and
    the last."""
    count = min(devices, MOST)
    return sorted({i * (devices - 1) // max(1, count - 1) for i in range(count)})


def misplaced(program: ProgramText, ranks: Sequence[int]) -> list[tuple[str, int]]:
    """Returns (what, rank) for everything that a rank in `ranks` gets in the program and that does not fit its
    coordinates: `what` names a shard or the tokens. No process group may be initialised."""
    emitted, expected = program.load(), _Expected(program)
    found: list[tuple[str, int]] = []
    for rank in ranks:
        with fake_rank(program.plan.mesh.devices, rank):
            seen = dict(_seen(emitted, expected))
        found += [(what, rank) for what, value in seen.items() if value != expected.of(what, rank)]
        for name in MADE:  # they cache a mesh under equal meshes, those of other ranks too
            kept: Any = getattr(emitted, name, None)
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()
    return found


def _seen(emitted: ModuleType, expected: _Expected) -> Iterator[tuple[str, Any]]:
    """Yields the sequences, tokens and process groups that the program gives to this process, each with a name."""
    mesh = emitted.build_mesh("cpu")
    yield "sequences", emitted.data_rank(mesh)
    if hasattr(emitted, "sequence_rows"):
        yield expected.tokens, emitted.sequence_rows(mesh).tolist()
    for made in made_meshes(emitted, mesh):
        coordinate = made.get_coordinate()
        for name, place in zip(made.mesh_dim_names, coordinate, strict=True):
            if name != expected.ends:  # two ranks with the same shard
                yield f"shard over {name}", (place, ranks_of(made.get_group(name)))


class _Expected:
    """The tokens and process groups that a rank should have, from its coordinates in the plan's mesh."""

    tokens = "tokens of sequences"

    def __init__(self, program: ProgramText) -> None:
        roles = AxisRoles(program.sharded)
        self.plan: Plan = program.plan
        self.context, self.ends = roles.context, roles.ends_name if roles.pipeline else ""
        self.dimensions = {f.name: f.axes for f in (*roles.experts.factors, *roles.joined, *roles.factors)}
        self.dimensions.setdefault(roles.context_name, roles.context)
        self.order = held_order(self.plan)

    def of(self, what: str, rank: int) -> Any:
        plan, mesh = self.plan, self.plan.mesh
        if what == "sequences":
            return mesh.place_of(rank, plan.data_axes), mesh.size(*plan.data_axes)
        if what == self.tokens:
            length = plan.batch.sequence_tokens // mesh.size(*self.context)
            first = mesh.place_of(rank, self.context) * length
            return self.order[first : first + length]
        axes = self.dimensions[what.removeprefix("shard over ")]
        return mesh.place_of(rank, axes), self._along(rank, axes)

    def _along(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the ranks that differ from `rank` only in their coordinates over `axes`, in order."""
        along = [self.plan.mesh.axis(name) for name in axes]
        first = rank - sum(a.place_of(rank) * a.stride for a in along)
        steps = product(*(range(0, a.size * a.stride, a.stride) for a in along))
        return tuple(first + sum(step) for step in steps)
