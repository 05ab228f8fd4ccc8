"""Symmetries of a machine's graph: permutations of its ranks that leave the graph the same.

A regular network numbers its chips by digits: the chip in its node, the node on its leaf switch, the leaf. Adding a
constant to one digit of all ranks (modulo its size) leaves the graph the same. The address of a vertex has its value of
each digit, or -1 if the digit does not move it. Chips that differ only in such digits send alike.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from planc.diag.fast_dataclass import dataclass

Address = tuple[str, tuple[int, ...]]
"""The name of what all vertices have in common that differ in digits alone, and the values of the digits."""


Exchange = Literal["any", "round", "within", "line", "none"]


class Digit(NamedTuple):
    """One digit of a rank, such as the chip in its node, or the node on its leaf switch."""

    size: int
    exchange: Exchange = "any"
    """`any`: any two values can change places. `round`: each value is joined with the next, the last with the first,
    and all can move on by as much. `line`: so, but the last is not joined with the first; values can change places as
    long as nothing is sent from one to another. `within`: any two can change places as long as nothing is sent from one
    value of the last digit to another. `none`: every value has surroundings of its own."""


@dataclass(frozen=True)
class Symmetry:
    """The digits of a machine's ranks, the fastest-changing first, and each vertex's address (values of the digits)."""

    digits: tuple[Digit, ...]
    addresses: list[Address]
