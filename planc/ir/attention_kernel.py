"""The attention kernel of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.diag.fast_dataclass import dataclass

if TYPE_CHECKING:
    from planc.ir.model import Op


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """The attention kernel of a program, for the time that its scores take.

    `forward_bytes` and `backward_bytes` are read and written in device memory for each score, by the products too;
    0: a fused kernel, which stores no score. `replay_bytes` is what the backward reads and writes besides to make
    the probabilities again where the forward's are gone.
    """

    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    replay_bytes: float = 0.0
    windows_by_mask: bool = False
    """A window of tokens is a mask over scores that are all computed, and no shorter loop."""
    repeats_keys: bool = False
    """Grouped keys and values are written out once for each query head before the kernel reads them."""
    pads_values: bool = False
    """Values that are narrower than keys are padded with zeros to their width, and multiplied so."""
    repeats_windowed_keys: bool = False
    """The same where attention has a window."""

    def repeats(self, op: Op) -> bool:
        """True if keys and values of the attention `op` are written out for each query head, if they are grouped."""
        return self.repeats_keys or (self.repeats_windowed_keys and op.window > 0)

    @property
    def stores_scores(self) -> bool:
        """True unless the kernel is fused."""
        return self.forward_bytes > 0
