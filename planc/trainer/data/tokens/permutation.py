"""Shuffles in constant memory: the new position of any index is computed from a key.

A Feistel network (Luby and Rackoff 1988) permutes integers with an even number of bits; a result outside the range is
permuted again until it is inside (cycle walking, Black and Rogaway 2002). Therefore any rank can compute any position
of the order, at any data-parallel degree and after a restart.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.uint64]

ROUNDS = 6


@dataclass(frozen=True)
class Permutation:
    """A pseudo-random permutation of the integers below `count`, determined by `key`."""

    count: int
    key: str

    def __call__(self, indices: Indices) -> Indices:
        """Return the permuted `indices`. Each index must be below `count`."""
        half_bits = max(1, (max(self.count - 1, 1).bit_length() + 1) // 2)
        keys = [_round_key(self.key, number) for number in range(ROUNDS)]
        found = _feistel(indices.astype(np.uint64), half_bits, keys)
        while (astray := found >= self.count).any():
            found[astray] = _feistel(found[astray], half_bits, keys)
        return found


def _feistel(values: Indices, half_bits: int, keys: list[int]) -> Indices:
    """Return the permuted `values`, which are integers in [0, 2^(2 half_bits))."""
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right, key) & mask)
    return (left << bits) | right


def _mixed(values: Indices, key: int) -> Indices:
    """Hash the values with a key: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = values ^ np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Indices = x ^ (x >> np.uint64(31))
    return mixed


def _round_key(key: str, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{key} {number}".encode()).digest()[:8], "little")
