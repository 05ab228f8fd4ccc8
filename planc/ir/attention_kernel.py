"""The attention kernel that a program calls, as far as costs depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.diag.fast_dataclass import dataclass

if TYPE_CHECKING:
    from planc.ir.model import Op


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """The attention kernel of a program, for costing the time and memory of its scores.

    `forward_bytes` and `backward_bytes` are the device memory traffic per score, matmuls included; 0 for a fused
    kernel, which stores no scores. `replay_bytes` is the extra traffic per score when the backward recomputes the
    probabilities because those of the forward were not saved.
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
        """True if grouped keys and values of the attention `op` are materialized per query head."""
        return self.repeats_keys or (self.repeats_windowed_keys and op.window > 0)

    @property
    def stores_scores(self) -> bool:
        """True if the kernel writes scores to memory, which a fused kernel does not."""
        return self.forward_bytes > 0
