"""`measured OP [over MEMBERS] of NAME [in DTYPE] (SIZE at RATE, ...)`: measured rates of an op, by size.

NAME is a chip for matmul, attention, attention_backward and stream, and a link or network level for a collective.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import TypeVar

from planc.diag.diagnostic import Related
from planc.ir.field_types import MAX_COUNT, OF_WHOLE
from planc.ir.hardware import RATES, Chip, Level, Link
from planc.ir.op_tables import BY_DTYPE, COLLECTIVES, MOST_POINTS, SIZES, OpTable, TableOp
from planc.language.draft import Draft
from planc.language.verbs.hardware import Declared
from planc.syntax.tree import Node, Sentence, Word

ABOVE = 1e-9
"""Relative tolerance by which a rate may exceed a peak: both are decimal numbers times a unit."""


def with_chip_tables(chip: Chip, declared: Declared, draft: Draft) -> Chip:
    """Return `chip` with the measured rates that the hardware file `declared` has for it. Mistakes are reported."""
    return replace(chip, tables=_tables(chip.name, declared, chip, draft))


L = TypeVar("L", Link, Level)


def with_link_tables(link: L, declared: Declared, draft: Draft) -> L:
    """Return the link or network level `link` with the measured rates that the file `declared` has for it. Mistakes are
    reported."""
    return replace(link, tables=_tables(link.name, declared, link, draft))


def check_owners(declared: Declared, draft: Draft, *, routed: bool = False) -> None:
    """Report `measured` sentences about a chip, link or network level that the hardware file `declared` does not
    declare.

    If `routed`, the file describes a graph of links; measured collectives are not legal there, because collectives are
    routed over single links.
    """
    networks = [s for s in declared.sentences if s.verb == "network"]
    levels = [level.words()[0].text for network in networks for level in network.node.nodes("level")]
    chips, links = declared.names("chip"), [] if routed else [*declared.names("link"), *levels]
    for sentence in declared.sentences:
        if sentence.verb == "measured":
            op, owner = sentence.node.words("NAME")[:2]
            if op.text in SIZES:
                of_links = op.text in COLLECTIVES
                what = "a link or level of this file" if of_links else "a chip of this file"
                draft.one_of(owner, tuple(links if of_links else chips), what)
            else:
                draft.unknown(op, tuple(SIZES), "an op with a table")


def _tables(name: str, declared: Declared, owner: Chip | Link | Level, draft: Draft) -> tuple[OpTable, ...]:
    found: dict[tuple[str, str, int], tuple[OpTable, Sentence]] = {}
    for sentence in declared.sentences:
        if sentence.verb == "measured" and sentence.node.words("NAME")[1].text == name:
            op = sentence.node.words("NAME")[0].text
            if op not in SIZES or (op in COLLECTIVES) == isinstance(owner, Chip):
                continue  # `check_owners` reports it
            table = _table(sentence, owner, draft)
            if table is None:
                continue
            key = (table.op, table.dtype, table.members)
            first = found.setdefault(key, (table, sentence))[1]
            if first is not sentence:
                what = f"{op} of `{name}` has two tables"
                draft.report("E0107", sentence.span, what, related=(Related(first.span, "first here"),))
    return tuple(table for table, _ in found.values())


def _table(sentence: Sentence, owner: Chip | Link | Level, draft: Draft) -> OpTable | None:
    op: TableOp = next(op for op in SIZES if op == sentence.node.words("NAME")[0].text)
    dtype, members = _dtype(sentence, op, owner, draft), _members(sentence, op, draft)
    if dtype is None or members is None:
        return None
    kind = "compute" if op in BY_DTYPE else "bandwidth"
    points: dict[tuple[int, ...], float] = {}
    for point in sentence.node.nodes("point"):
        size, rate = _size(point, op, draft), draft.quantity(point.parts[-1], kind)
        if size is None or rate is None:
            return None
        if size in points:
            draft.report("E0103", point.span, "this size is there twice")
            return None
        share = rate / _scale(op, dtype, owner)
        most = 1 + ABOVE if isinstance(owner, Chip) else OF_WHOLE.most
        if not OF_WHOLE.minimum <= share <= most:
            what = f"above the {dtype or 'memory'} rate of `{owner.name}`" if share > most else "not above 0"
            draft.report("E0103", point.parts[-1].span, f"this rate is {what}")
            return None
        points[size] = min(share, 1.0) if isinstance(owner, Chip) else share
    if len(points) > MOST_POINTS:
        draft.report("E0103", sentence.span, f"{len(points)} sizes", help=f"a table has at most {MOST_POINTS}")
        return None
    return _grid(sentence, op, dtype, members, points, draft)


def _grid(
    sentence: Sentence, op: TableOp, dtype: str, members: int, points: dict[tuple[int, ...], float], draft: Draft
) -> OpTable | None:
    """Return the table of these measured `points`. None (reported) unless they form a grid: all combinations of the
    lengths of each dimension."""
    lengths = [sorted({*along}) for along in zip(*points, strict=True)]
    if prod(map(len, lengths)) != len(points):
        missing = next(size for size in product(*lengths) if size not in points)
        what = f"the sizes of {op} are no grid: {'x'.join(map(str, missing))} is missing"
        draft.report("E0103", sentence.span, what, help="give each length with all lengths of the other dimensions")
        return None
    sizes = (*sorted(points),)
    return OpTable(op=op, dtype=dtype, members=members, sizes=sizes, shares=tuple(points[size] for size in sizes))


def _dtype(sentence: Sentence, op: TableOp, owner: Chip | Link | Level, draft: Draft) -> str | None:
    """Return the dtype of a table; "" for an op whose rate does not depend on it, None (reported) for a mistake."""
    words = sentence.node.words("NAME")[2:]
    if op not in BY_DTYPE:
        if words:
            draft.report("E0103", words[0].span, f"a rate of {op} is in bytes, whatever the dtype")
            return None
        return ""
    assert isinstance(owner, Chip)
    if not words:
        draft.report(
            "E0103", sentence.span, f"{op} has no dtype", help=f"such as: measured {op} of {owner.name} in bf16"
        )
        return None
    return draft.one_of(words[0], [r for r in RATES if r in owner.flops_per_s], f"a dtype of `{owner.name}`")


def _members(sentence: Sentence, op: TableOp, draft: Draft) -> int | None:
    """Return the group size of a measured collective; 0 for other ops, None (reported) for a mistake."""
    among = sentence.node.node("among")
    if (among is not None) != (op in COLLECTIVES):
        what = f"{op} is measured over a group" if among is None else f"{op} is of one device"
        draft.report("E0103", sentence.span, what, help="write `over 8` after a collective, and after no other op")
        return None
    return draft.integer(among.parts[0], minimum=2) if among is not None else 0


def _size(point: Node, op: TableOp, draft: Draft) -> tuple[int, ...] | None:
    """Return the size at one point of a table: the dims of a matmul or of attention, or bytes. None (reported) for a
    mistake."""
    names, first = SIZES[op], point.parts[0]
    if isinstance(first, Word) and first.kind == "SHAPE":
        lengths = tuple(int(n) if len(n) < 16 else 0 for n in first.text.split("x"))
        if len(lengths) == len(names) and all(0 < n <= MAX_COUNT for n in lengths):
            return lengths
    elif len(names) == 1:
        size = draft.quantity(Node("quantity", point.parts[:2], point.span), "memory")
        if size is None or (size == int(size) and 1 <= size <= MAX_COUNT):
            return None if size is None else (int(size),)
    draft.report("E0103", first.span, f"a size of {op} is {_words(names)}")
    return None


def _words(names: tuple[str, ...]) -> str:
    return "a number of bytes, such as 1 MiB" if len(names) == 1 else " x ".join(names)


def _scale(op: TableOp, dtype: str, owner: Chip | Link | Level) -> float:
    """Return the data-sheet rate (FLOP/s or bytes/s). A table stores measured rates as fractions of it."""
    if isinstance(owner, Chip):
        whole = owner.flops_per_s[dtype] if op in BY_DTYPE else owner.memory_bandwidth_bytes_per_s
        return whole / owner.devices
    return owner.bandwidth_bytes_per_s
