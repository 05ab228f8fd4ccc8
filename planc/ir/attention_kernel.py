"""Properties of the attention kernel in a program that affect time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.diag.fast_dataclass import dataclass

if TYPE_CHECKING:
    from planc.ir.model import Op


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """Properties of the attention kernel in a program that affect time and memory.

    `forward_bytes` and `backward_bytes` are the device memory traffic (bytes) per element of the score matrix, that of
    the matmuls included; 0 for a fused kernel, which does not store scores. `replay_bytes` is the additional traffic if
    the backward recomputes the probabilities.
    """

    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    replay_bytes: float = 0.0
    windows_by_mask: bool = False
    """True if a sliding window only masks scores that are all computed; False if it shortens the loop."""
    repeats_keys: bool = False
    """True if grouped keys and values are materialized per query head before the kernel reads them."""
    pads_values: bool = False
    """True if values narrower than keys are padded with zeros to their width and multiplied at that width."""
    repeats_windowed_keys: bool = False
    """`repeats_keys`, for attention with a sliding window."""

    def repeats(self, op: Op) -> bool:
        """True if, for the attention `op`, keys and values of a GQA group are copied once per query head."""
        return self.repeats_keys or (self.repeats_windowed_keys and op.window > 0)

    @property
    def stores_scores(self) -> bool:
        """True if the kernel writes the score matrix to memory; a fused kernel does not."""
        return self.forward_bytes > 0
