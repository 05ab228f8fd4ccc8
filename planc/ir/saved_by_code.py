"""Memory that a module's own code saves for its backward, measured by running the code. For an op without a
measurement, the least that it needs is assumed."""

from __future__ import annotations

from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.field_types import Count, Line, Name, NotNegative


@dataclass(frozen=True, kw_only=True)
class Elements(Value):
    """Tensors over named dims, all of one dtype.

    `copies` is their number; an unnamed length, such as half of a head in RoPE, counts as copies. The sequence dim
    appears twice for one element per pair of tokens. A buffer whose size does not depend on the batch has no dims.
    """

    dims: tuple[Name, ...]
    dtype: Literal["compute", "fp32", "int", "byte"] = "compute"
    copies: NotNegative = 1.0


@dataclass(frozen=True, kw_only=True)
class Moment(Value):
    """A moment of an op's backward: tensors allocated so far, minus tensors freed so far."""

    made: tuple[Elements, ...] = ()
    freed: tuple[Elements, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SavedByCode(Value):
    """Tensors that the code of an op saves, for sequences of at most `up_to` tokens (0: no limit).

    `saves` names tensors of the op graph, usually its own inputs or output; `inside` are others. `moments` are the
    candidates for the peak of its backward at some sequence length; none if its backward allocates nothing.
    """

    up_to: Count = 0

    saves: tuple[Name, ...] = ()
    inside: tuple[Elements, ...] = ()
    moments: tuple[Moment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Unseen(Value):
    """Sequence lengths for which the code could not be run: longer than `above`, at most `up_to` (0: no limit).

    >>> Unseen(above=128, up_to=0, why="a.py:3: no more").range_in_words
    'of sequences of more than 128 tokens'
    """

    above: Count = 0
    up_to: Count = 0
    why: Line

    @property
    def range_in_words(self) -> str:
        """The range of sequence lengths as a phrase, such as `of sequences of at most 512 tokens`."""
        if not self.above:
            return f"of sequences of at most {self.up_to:,} tokens" if self.up_to else "of any sequence"
        return f"of sequences of more than {self.above:,}{f' and at most {self.up_to:,}' if self.up_to else ''} tokens"


def elements_of(code: SavedByCode) -> tuple[Elements, ...]:
    """Return all groups of tensors in `code`: those saved inside the op, and those allocated or freed in its backward.

    >>> rows = Elements(dims=("batch", "sequence"), dtype="fp32")
    >>> len(elements_of(SavedByCode(inside=(rows,), moments=(Moment(made=(rows,)),))))
    2
    """
    return (*code.inside, *(e for m in code.moments for e in (*m.made, *m.freed)))
