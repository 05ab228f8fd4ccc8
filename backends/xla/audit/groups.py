"""Device groups of a collective, and the mesh axes that they span.

Ids are partition numbers: row-major positions in the logical mesh, independent of the physical device.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planc.backends.xla.audit.hlo import HloError

Ids = NDArray[np.int64]
"""[groups, members]: partition numbers."""

_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, *device_ids=\((\[[\d,]+\](?:T\([\d,]+\))?)\))? *\{([^}]*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_AXIS = re.compile(r"'?(\w+)'?=(\d+)")
_PART = re.compile(r"'?(\w+)'?(?::\((\d+)\)(\d+))?")


def groups(attributes: str, devices: int) -> Ids:
    """Return the device groups, [groups, members], of a collective on `devices` devices, from the HLO `attributes` of
    the collective; for a permute, the pairs of sender and receiver.

    Raises HloError for an unknown form.
    """
    for form, read in ((_MESH, _of_mesh), (_IOTA, _of_iota), (_LISTED, _of_list), (_PAIRS, _of_pairs)):
        found = form.search(attributes)
        if found is not None:
            ids = read(found, devices)
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < devices:
                raise HloError(f"partition numbers beyond {devices}: {found[0][:120]}")
            return ids
    raise HloError(f"no groups of a known form: {attributes[:200]}")


def axes_of(ids: Ids, mesh: dict[str, int]) -> tuple[tuple[str, ...], bool]:
    """Return the axes of `mesh` along which the members of a group differ, outermost first; and True if a group has all
    ranks along these axes, False if it has only some.

    `ids` are device numbers, [groups, members].
    """
    places = np.stack(np.unravel_index(ids, tuple(mesh.values())))  # [axes, groups, members]
    differ = (places != places[:, :, :1]).any(axis=(1, 2))
    axes = tuple(name for name, varied in zip(mesh, differ, strict=True) if varied)
    return axes, ids.shape[1] == prod(mesh[a] for a in axes)


def _of_mesh(found: re.Match[str], _: int) -> Ids:
    """Read `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}`: the collective's own mesh, and the axes of a group."""
    axes = [(name, int(size)) for name, size in _AXIS.findall(found[1])]
    sizes, names = [size for _, size in axes], [name for name, _ in axes]
    if len(axes) != found[1].count("="):
        raise HloError(f"a mesh of an unknown form: {found[0][:120]}")
    ids = _transposed(found[2], prod(sizes)).reshape(sizes)
    joined = []
    for name, before, size in _PART.findall(found[3]):
        if name not in names:
            raise HloError(f"axis {name} is not in {found[0][:120]}")
        if not size:
            joined.append(name)
            continue
        place = names.index(name)
        split = (int(before), int(size), sizes[place] // int(before) // int(size))
        if prod(split) != sizes[place]:
            raise HloError(f"a part of an axis that does not divide it: {found[0][:120]}")
        sizes[place : place + 1] = split
        names[place : place + 1] = [f"{name}:before", f"{name}:{before}x{size}", f"{name}:after"]
        ids = ids.reshape(sizes)
        joined.append(f"{name}:{before}x{size}")
    inner = [names.index(name) for name in joined]
    outer = [place for place in range(len(names)) if place not in inner]
    return ids.transpose(outer + inner).reshape(-1, prod(sizes[place] for place in inner))


def _transposed(text: str | None, count: int) -> Ids:
    """Read `[4,2]T(1,0)`: the numbers from 0 on in shape [4, 2], with the dims then transposed."""
    if text is None:
        return np.arange(count)
    shape, _, order = text.partition("T")
    ids = np.arange(count).reshape(_numbers(shape))
    return (ids.transpose(_numbers(order)) if order else ids).reshape(-1)


def _of_iota(found: re.Match[str], _: int) -> Ids:
    """Read `[4,16]<=[16,4]T(1,0)`: the numbers from 0 in shape [16, 4], transposed, then in 4 groups of 16."""
    given = _numbers(found[2])
    ids = np.arange(prod(given)).reshape(given)
    return (ids.transpose(_numbers(found[3])) if found[3] else ids).reshape(_numbers(found[1]))


def _of_list(found: re.Match[str], devices: int) -> Ids:
    """Read `{{0,1},{2,3}}`; an empty list is one group of all devices."""
    listed = [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", found[1])]
    if len({len(group) for group in listed}) > 1:
        raise HloError(f"groups of different sizes: {found[0][:120]}")
    return np.array(listed or [list(range(devices))], dtype=np.int64)


def _of_pairs(found: re.Match[str], _: int) -> Ids:
    """Read `{{0,1},{1,2}}`, without pairs of a device with itself."""
    pairs: Any = [_numbers(pair) for pair in re.findall(r"\{(\d+,\d+)\}", found[1])]
    return np.array([p for p in pairs if p[0] != p[1]] or pairs, dtype=np.int64).reshape(-1, 2)


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]
