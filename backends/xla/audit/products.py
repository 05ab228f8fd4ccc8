"""FLOPs of a matrix product in HLO text: a `dot`, or the `convolution` as which the TPU compiler writes one."""

from __future__ import annotations

import re
from math import prod

from planc.backends.xla.audit.hlo import Computation, HloError, Instruction

PRODUCTS = ("dot", "convolution")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")
"""A kernel's `i` is already that of one feature group; groups of the batch share the input's."""


def product_flops(computation: Computation, i: Instruction) -> int:
    """Return the FLOPs of one call of instruction `i` of `computation`, two per multiply-add.

    A convolution's window reaches into its padding and between dilated elements: as in XLA's own cost analysis
    (`HloCostAnalysis::HandleConvolution`), what is multiplied there does not count.
    """
    left, right = (computation[name].shapes[0].dims for name in i.operands[:2])
    (made,) = i.shapes
    if i.opcode == "dot":
        return 2 * prod(made.dims) * prod(left[d] for d in _numbers(i, "lhs_contracting_dims"))
    labels = _LABELS.search(i.attributes)
    if labels is None:
        raise HloError(f"%{i.name}: no dim_labels in `{i.opcode}`")
    lhs, rhs, out = labels.groups()
    spatial = [c for c in rhs if c.isdigit()]
    window = _window(i, len(spatial))
    pairs = prod(
        _pairs(left[lhs.index(c)], right[rhs.index(c)], made.dims[out.index(c)], **window[n])
        for n, c in enumerate(sorted(spatial))
    )
    groups = _GROUPS.search(i.attributes)
    columns = right[rhs.index("i")] * made.dims[out.index("f")]
    return 2 * columns * left[lhs.index("b")] * pairs // (int(groups[1]) if groups else 1)


def _numbers(i: Instruction, attribute: str) -> tuple[int, ...]:
    found = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", i.attributes)
    return tuple(int(n) for n in found[1].split(",") if n) if found else ()


def _window(i: Instruction, dims: int) -> list[dict[str, int]]:
    """Return stride, dilations and low padding of a convolution's spatial dims: `window={size=4x2 pad=0_0x1_1}`."""
    found = _WINDOW.search(i.attributes)
    given = dict(part.split("=") for part in found[1].split()) if found else {}

    def each(name: str, default: str) -> list[str]:
        values = given[name].split("x") if name in given else [default] * dims
        if len(values) != dims:
            raise HloError(f"%{i.name}: {name} of {len(values)} dims in a window of {dims}")
        return values

    rows = zip(each("stride", "1"), each("lhs_dilate", "1"), each("rhs_dilate", "1"), each("pad", "0_0"), strict=True)
    return [
        {"stride": int(s), "lhs_dilate": int(a), "rhs_dilate": int(b), "pad_low": int(p.split("_")[0])}
        for s, a, b, p in rows
    ]


def _pairs(size: int, kernel: int, made: int, *, stride: int, lhs_dilate: int, rhs_dilate: int, pad_low: int) -> int:
    """Return how many pairs of a place of the result and one of the kernel meet an element of the input, in one dim.

    The three places solve `place * stride + tap * rhs_dilate = element * lhs_dilate + pad_low`: any two give the third.
    """
    (first, a), (second, b), (third, c) = sorted(((made, stride), (kernel, rhs_dilate), (size, -lhs_dilate)))
    rests = (pad_low - x * a - y * b for x in range(first) for y in range(second))
    return sum(rest % c == 0 and 0 <= rest // c < third for rest in rests)
