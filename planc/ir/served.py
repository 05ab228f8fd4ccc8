"""Memory of a generator: bytes of its cache, and what fits on a device beside its weights."""

from __future__ import annotations

from math import ceil

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.field_types import Count, NotNegative, Positive


@dataclass(frozen=True, kw_only=True)
class WindowCache(Value):
    """Cache of the layers with one sliding window on one device: the window's `tokens`, and the bytes per token of all
    these layers."""

    tokens: Positive
    token_bytes: NotNegative


@dataclass(frozen=True, kw_only=True)
class CacheSize(Value):
    """Bytes of the cache on one device of a replica, in blocks of `block_tokens` tokens.

    `token_bytes` are those of a token in the layers that keep every token; `windows` are the layers that keep a sliding
    window of each request, and `state_bytes` is the recurrent state of a request, which does not grow.
    """

    block_tokens: Positive
    token_bytes: NotNegative
    windows: tuple[WindowCache, ...] = ()
    state_bytes: NotNegative = 0.0

    @property
    def every_token_bytes(self) -> float:
        """Bytes of a token if layers with a sliding window keep every token too. vLLM's "GPU KV cache size" counts
        tokens of this size."""
        return self.token_bytes + sum(w.token_bytes for w in self.windows)

    def request_bytes(self, tokens: int) -> float:
        """Return the bytes of one request of `tokens` tokens: whole blocks, windows and state."""
        kept = sum(w.token_bytes * self._blocks(min(tokens, w.tokens)) for w in self.windows)
        return self.token_bytes * self._blocks(tokens) + kept + self.state_bytes

    def _blocks(self, tokens: int) -> int:
        return ceil(tokens / self.block_tokens) * self.block_tokens


@dataclass(frozen=True, kw_only=True)
class ServedWeights(Value):
    """Bytes of a generator's weights on one device."""

    embedding: NotNegative
    attention: NotNegative
    feed_forward: NotNegative
    experts: NotNegative
    head: NotNegative
    """The output projection and the last norm."""

    @property
    def total(self) -> float:
        return self.embedding + self.attention + self.feed_forward + self.experts + self.head


@dataclass(frozen=True, kw_only=True)
class ServedMemory(Value):
    """Bytes on the device of a generator whose cache holds the fewest tokens, and what fits there.

    `capacity` is the device's memory, `usable` the engine's share of it. `cache` is what the share leaves for the cache
    beside weights, activations and the engine's other memory; 0 if they do not fit.
    """

    stage: Count
    capacity: NotNegative
    usable: NotNegative
    weights: ServedWeights
    activations: NotNegative
    other: NotNegative
    cache: NotNegative
    size: CacheSize
    tokens: Count
    """Tokens that the cache of a replica holds, in whole blocks, counted as `CacheSize.every_token_bytes`."""
    requests: Count | None = None
    """Requests of the plan's length that fit at once in a replica; None if the plan has no such length."""
    replicas: Positive = 1

    @property
    def fits(self) -> bool:
        """True if the weights leave memory for a block of cache."""
        return self.tokens > 0


@dataclass(frozen=True, kw_only=True)
class SharedPeaks(Value):
    """Peak bytes of a device on which trainer and generator take turns, in each turn by side."""

    capacity: NotNegative
    training: tuple[NotNegative, NotNegative]
    """While training: bytes of the trainer, and of the generator's parts that are awake."""
    serving: tuple[NotNegative, NotNegative]
    """While serving: bytes of the trainer's parts that are awake, and of the generator."""
    host: NotNegative
    """Bytes of the trainer's parts that are in the host's memory while the generator runs."""

    @property
    def fits(self) -> bool:
        """True if both peaks fit the device."""
        return max(sum(self.training), sum(self.serving)) <= self.capacity
