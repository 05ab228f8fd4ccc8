"""Digits of a rank that can change places on a machine: its graph looks the same from every value of such a digit.

A regular part numbers its chips digit by digit: the chip in its node, the node on its leaf, the leaf. To add a number
to one digit of every rank, modulo its size, then maps the graph on itself. A vertex has an address: a value for each
digit that it moves with, -1 for one that leaves it where it is. Chips that differ in such digits alone send alike.
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
    """The digits of a machine's ranks, the fastest-changing digit first, and the digits of every vertex (its address).
    Changing some digits of all ranks together leaves the machine's graph the same."""

    digits: tuple[Digit, ...]
    addresses: list[Address]
