"""Activation memory of a GPT block as published, tensor by tensor: a yardstick for `planc.costing.memory`.

The model of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"
(arXiv 2205.05198): 16-bit activations, dropout with stored masks, GeLU, and attention whose scores are
stored. planc's own models store no scores and no masks, so their memory is derived from their ops instead.
"""

from __future__ import annotations

from typing import Literal

from planc.diag.fast_dataclass import dataclass

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Saved:
    """One tensor kept for the backward. `width` in units of the hidden size per token, or of the scores."""

    name: str
    element_bytes: int
    width: int = 1
    divided: bool = False
    """Tensor parallelism divides it; sequence parallelism divides the others."""
    scores: bool = False
    """One element for each head and pair of tokens; selective recomputation drops it."""


BLOCK = (
    Saved("input of the first norm", 2),
    Saved("input of query, key and value", 2),
    Saved("query and key", 2, 2, divided=True),
    Saved("softmax", 2, divided=True, scores=True),
    Saved("mask of the attention's dropout", 1, divided=True, scores=True),
    Saved("scores after dropout", 2, divided=True, scores=True),
    Saved("value", 2, divided=True),
    Saved("input of the attention's projection", 2, divided=True),
    Saved("mask of the first dropout", 1),
    Saved("input of the second norm", 2),
    Saved("input of the feed-forward", 2),
    Saved("input of GeLU", 2, 4, divided=True),
    Saved("output of GeLU", 2, 4, divided=True),
    Saved("mask of the second dropout", 1),
)


@dataclass(frozen=True, slots=True)
class GptShape:
    """Sizes and layout: tokens of one microbatch, layers of the whole model."""

    layers: int
    d_model: int
    heads: int
    seq: int
    micro_batch: int
    tp: int = 1
    pp: int = 1
    interleave: int = 1

    @property
    def tokens(self) -> int:
        return self.seq * self.micro_batch

    @property
    def block_parameters(self) -> int:
        """12 h^2 a layer: four of attention, eight of the feed-forward; embeddings left out."""
        return 12 * self.layers * self.d_model**2


def block_activation_bytes(shape: GptShape, recompute: Recompute = "none", *, sequence_parallel: bool = False) -> float:
    """Bytes that one block saves of one microbatch on one device.

    `recompute` is none, selective (without attention's scores) or full (the block's input alone).
    """
    if recompute == "full":
        return BLOCK[0].element_bytes * shape.tokens * shape.d_model
    kept = [s for s in BLOCK if not (s.scores and recompute == "selective")]
    return sum(_bytes(s, shape, sequence_parallel) for s in kept)


def first_stage_activation_bytes(
    shape: GptShape, recompute: Recompute = "none", *, sequence_parallel: bool = False
) -> float:
    """Bytes on the first pipeline stage at its fullest: as many microbatches in flight as there are stages.

    Interleaving adds (p - 1) / (p x chunks) of that. `recompute` is as for `block_activation_bytes`.
    """
    more = (shape.pp - 1) / (shape.pp * shape.interleave) if shape.interleave > 1 else 0.0
    return shape.layers * block_activation_bytes(shape, recompute, sequence_parallel=sequence_parallel) * (1 + more)


def state_bytes(shape: GptShape, bytes_per_parameter: float) -> float:
    """Weights, gradients and optimizer state of one device, blocks only, divided over tensor and pipeline ways.

    `bytes_per_parameter` counts all three: 16 for mixed precision with Adam.
    """
    return shape.block_parameters * bytes_per_parameter / (shape.tp * shape.pp)


def percent_of_baseline(shape: GptShape, recompute: Recompute = "none", *, sequence_parallel: bool = False) -> float:
    """A block's bytes in percent of those with tensor parallelism alone; `recompute` is as for
    `block_activation_bytes`."""
    kept = block_activation_bytes(shape, recompute, sequence_parallel=sequence_parallel)
    return 100 * kept / block_activation_bytes(shape)


def _bytes(saved: Saved, shape: GptShape, sequence_parallel: bool) -> float:
    per_token = shape.heads * shape.seq if saved.scores else saved.width * shape.d_model
    ways = shape.tp if saved.divided or sequence_parallel else 1
    return saved.element_bytes * shape.tokens * per_token / ways
