"""Pipelines of stages without a plan around them."""

from planc.diag.span import Span
from planc.ir.base import Cause
from planc.ir.plan import Split
from planc.pipeline.schedules import schedules
from planc.pipeline.split import stages_of

CAUSE = Cause(span=Span("x", 1, 1, 1, 2), sentence="split")
NAMES = [name for name in schedules() if name != "csv"]


def split_of(name: str, ranks: int, chunks: int = 0, order: tuple[str, ...] = ()) -> Split:
    """A split of one layer a stage; the schedule's own number of chunks unless given."""
    chunks = chunks or schedules()[name].chunks
    stages = tuple((s, s + 1) for s in range(ranks * chunks))
    return Split(axis="pp", schedule=name, chunks=chunks, stages=stages, order=order, cause=CAUSE)


def stages_by_rank(split: Split, ranks: int) -> list[tuple[int, ...]]:
    """The virtual stages of each rank."""
    return [stages_of(split, ranks, rank) for rank in range(ranks)]
