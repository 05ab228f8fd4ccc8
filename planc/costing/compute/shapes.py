"""Shapes of the matmuls that a device runs."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matmul on one device: [m, k] x [k, n], repeated for each of `groups` (experts)."""

    m: float
    n: float
    k: float
    groups: float = 1.0

    @property
    def flops(self) -> float:
        """FLOPs of the forward: two per multiply-add.

        >>> Gemm(2, 3, 4).flops
        48.0
        """
        return 2.0 * self.m * self.n * self.k * self.groups

    @property
    def elements(self) -> float:
        """Number of elements of the two inputs and the output.

        >>> Gemm(2, 3, 4).elements  # 8 + 12 + 6
        26.0
        """
        return self.groups * (self.m * self.k + self.k * self.n + self.m * self.n)
