"""Memory of a module's own code for its backward, in place of what an op needs to save: found by a run of the code."""

from __future__ import annotations

from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.field_types import Count, Line, Name, NotNegative


@dataclass(frozen=True, kw_only=True)
class Elements(Value):
    """Tensors over named dims, all of one dtype.

    `copies` is how many there are; a length without a name, as the half of a head that is rotated, counts as copies.
    The sequence stands twice where there is a number for each pair of tokens. A buffer, whose lengths do not depend on
    the batch, has no dims.
    """

    dims: tuple[Name, ...]
    dtype: Literal["compute", "fp32", "int", "byte"] = "compute"
    copies: NotNegative = 1.0


@dataclass(frozen=True, kw_only=True)
class Moment(Value):
    """A moment of an op's backward: tensors that it has made by then, less those that it has let go."""

    made: tuple[Elements, ...] = ()
    freed: tuple[Elements, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SavedByCode(Value):
    """Tensors that the code of an op keeps, for sequences of at most `up_to` tokens (0: any longer ones).

    `saves` names tensors of the op graph, its own inputs or output most often; `inside` are others. `moments` are those
    of its backward at which it may hold the most, for some length of a sequence; none where its backward makes nothing.
    """

    up_to: Count = 0

    saves: tuple[Name, ...] = ()
    inside: tuple[Elements, ...] = ()
    moments: tuple[Moment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Unseen(Value):
    """Lengths of a sequence with which the code could not be run: longer than `above`, at most `up_to` (0: any longer).

    >>> Unseen(above=128, up_to=0, why="a.py:3: no more").range_in_words
    'of sequences of more than 128 tokens'
    """

    above: Count = 0
    up_to: Count = 0
    why: Line

    @property
    def range_in_words(self) -> str:
        """The lengths, as `of ...`."""
        if not self.above:
            return f"of sequences of at most {self.up_to:,} tokens" if self.up_to else "of any sequence"
        return f"of sequences of more than {self.above:,}{f' and at most {self.up_to:,}' if self.up_to else ''} tokens"


def elements_of(code: SavedByCode) -> tuple[Elements, ...]:
    """All elements that `code` speaks of: those inside, and those of its moments.

    >>> rows = Elements(dims=("batch", "sequence"), dtype="fp32")
    >>> len(elements_of(SavedByCode(inside=(rows,), moments=(Moment(made=(rows,)),))))
    2
    """
    return (*code.inside, *(e for m in code.moments for e in (*m.made, *m.freed)))
