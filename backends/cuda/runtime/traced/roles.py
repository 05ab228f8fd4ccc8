"""Defines the roles of a model's parts: the linear layer that computes queries, the norm before a layer, and so on."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

Shape = tuple[int, ...]
LINEAR = ("linear", "addmm", "matmul", "mm", "__matmul__", "baddbmm", "bmm", "einsum", "conv1d")
CORES = ("attention", "scaled_dot_product_attention")


REARRANGING = (
    *("view", "reshape", "split", "chunk", "__getitem__", "transpose", "permute", "flatten", "unflatten", "unsqueeze"),
    *("squeeze", "expand", "contiguous", "broadcast_to", "expand_as", "unbind", "tensor_split", "narrow", "select"),
    *("movedim", "swapaxes", "repeat_interleave"),
)
"""Functions that change the layout of a tensor, and no value."""


class UnknownError(ValueError):
    """Raised for a part that an op graph cannot represent. The message is for the user, with the source line."""


@dataclass(frozen=True)
class ModuleLoop:
    """A loop over blocks in the forward of the module at `path`, with its index `place` among the loops there. `parts`
    has, for each block, pairs (path of a submodule, its name in the block)."""

    path: str
    place: int
    parts: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class ByHeads:
    """An argument of a block with one value per head, such as an ALiBi bias, in the dim `dim`."""

    name: str | int
    """Name of the argument, or its index among the arguments after the hidden state."""
    dim: int
    of_batch: bool
    """True if the dim merges sequences and heads, sequence-major."""


@dataclass(frozen=True)
class Norm:
    """A norm: the path of its module, and the names and shapes of its parameters."""

    path: str
    params: tuple[tuple[str, Shape], ...]

    def over_all(self, heads: int, head_dim: int) -> bool:
        """True for one norm over all `heads` heads together, of `head_dim` elements each."""
        return heads > 1 and any(shape == (heads * head_dim,) for _, shape in self.params)


@dataclass(frozen=True)
class Linear:
    """A linear layer: names of its weight and bias ("": none), output width `made` and input width `taken`."""

    weight: str
    bias: str
    made: int
    taken: int
    transposed: bool = False
    """True for a weight stored as [in, out]."""
    alone: bool = True
    """True if the layer's module does nothing else."""

    @property
    def path(self) -> str:
        """Path of the module that contains the weight."""
        return self.weight.rpartition(".")[0]

    @property
    def place(self) -> str:
        """Path of the layer's module, or of its weight if the module does more than this matmul."""
        return self.path if self.alone else self.weight


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: down-projection, norm and up-projection, and a rotary key of width `rope_dim`.

    Queries have a latent too if `q_up` is set. DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
    """

    kv_down: Linear
    kv_norm: Norm
    kv_up: Linear
    rope_dim: int
    down_rows: tuple[tuple[int, ...], ...]
    """The rows of `kv_down` that produce the latent, and those that produce the rotary key."""
    up_rows: tuple[tuple[int, ...], ...]
    """The rows of `kv_up` that produce keys, and those that produce values."""
    q_norm: Norm | None = None
    q_up: Linear | None = None


@dataclass(frozen=True)
class AttentionLayers:
    """The layers of attention: queries, keys and values (`q` only if one layer computes all), and the output."""

    heads: int
    kv_heads: int
    head_dim: int
    q: Linear
    k: Linear | None
    v: Linear | None
    out: Linear
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rotary: bool = False
    rows: tuple[tuple[int, ...], ...] = ()
    """For a fused layer, the rows of its weight that produce queries, keys and values."""
    window: int = 0
    sinks: str = ""
    value_dim: int = 0
    """Head dim of values, if it differs from that of keys."""
    latent: Latent | None = None
    """None without latent attention. With it, `q` is the down-projection of queries, or produces them directly."""
    before: Norm | None = None
    after: Norm | None = None
    whole: tuple[str, ...] = ()
    """Attributes of the code that equal a number of heads by coincidence: they stay the same for local heads."""
    by_heads: tuple[ByHeads, ...] = ()
    """Arguments of the attention's block with one number per head."""
    keys_whole: bool = False
    """True if keys and values are replicated on ranks that have a shard of the query heads."""
    rows_here: tuple[tuple[int, ...], ...] = ()
    """The `rows` of local heads, if the code wants another order than that of all heads."""


@dataclass(frozen=True)
class FeedForwardLayers:
    """The layers of an MLP; `ups` are the gate and up layers, or if `fused`, one layer that computes both."""

    ups: tuple[Linear, ...]
    down: Linear
    fused: bool = False
    before: Norm | None = None
    after: Norm | None = None
    rows: tuple[tuple[int, ...], ...] = ()
    """For a fused layer, the rows of its weight for gate and up."""
    parallel: bool = False
    """True if the layer runs in parallel to its block's attention."""


@dataclass(frozen=True)
class ExpertLayers:
    """The router, the experts (each weight has an expert dim), and the optional shared expert of an MoE layer."""

    router: Linear
    experts: int
    params: tuple[tuple[str, Shape], ...]
    top_k: int
    shared: FeedForwardLayers | None = None
    shared_gate: Linear | None = None
    correction: str = ""
    before: Norm | None = None
    after: Norm | None = None
    parallel: bool = False

    def by_role(self) -> dict[str, str]:
        """Returns parameter names by role: `up` (gate and up in one), `down`, and `up_bias`, `down_bias` if any."""
        # The larger weight holds both gate and up.
        large = sorted((n for n, s in self.params if len(s) == 3), key=lambda n: -prod(dict(self.params)[n]))
        found = dict(zip(("up", "down"), large, strict=False))
        width = prod(dict(self.params)[large[-1]]) // (self.experts * self.router.taken) if large else 0
        biases = {n: s[1] for n, s in self.params if len(s) == 2}
        ups = [n for n, made in biases.items() if made == 2 * width]
        ups = [n for n in ups if n.startswith(large[0])] if len(ups) > 1 else ups
        found |= {"up_bias" if n in ups else "down_bias": n for n in biases}
        return found


@dataclass(frozen=True)
class Code:
    """Half a block, or a full one (`path` is ""), that planc does not recognize: opaque code, which runs unchanged."""

    path: str
    params: tuple[tuple[str, Shape], ...]
    before: Norm | None = None
    after: Norm | None = None
    parallel: bool = False
    returns: int = 0
    """Length of the tuple that the module returns, hidden state first; 0 for a tensor."""
    line: str = field(default="", compare=False)
    """`FILE:LINE` of the module's source."""
    why: str = field(default="", compare=False)
    """The reason why the module has no known role, for the user."""


@dataclass(frozen=True)
class BlockLayers:
    """The two halves of a block: attention, and MLP or experts. Paths are relative to the block. If the full block is
    opaque code, it is in `attention`."""

    attention: AttentionLayers | Code | None
    second: FeedForwardLayers | ExpertLayers | Code | None

    @property
    def is_whole(self) -> bool:
        """True if the full block is opaque code."""
        return isinstance(self.attention, Code) and not self.attention.path

    @property
    def heads(self) -> AttentionLayers | None:
        """The attention layers of the block; None if it has none or they are opaque code."""
        return self.attention if isinstance(self.attention, AttentionLayers) else None

    @property
    def code(self) -> tuple[Code, ...]:
        """The halves of the block that are opaque code."""
        return tuple(half for half in (self.attention, self.second) if isinstance(half, Code))


@dataclass(frozen=True)
class DecoderRoles:
    """The roles of all parts of a decoder. Paths outside the blocks are relative to the model."""

    embedding: str
    positions: str
    layers: str
    """Path of the module that holds the blocks."""
    blocks: tuple[BlockLayers, ...]
    """The roles of each layer."""
    norm: Norm | None
    head: Linear
    tied: bool
    vocab: int
    embed: int
    rest: tuple[tuple[str, str], ...] = ()
    """Parameters outside the blocks without a role, and the source lines that first use them."""
    positions_shape: Shape = ()
    returns: int = 0
    """Length of the tuple that a block returns; 0 for a tensor."""
    in_place: bool = False
    """True if the code of a block changes tensors in place."""
    embedding_norm: Norm | None = None
    loop: ModuleLoop | None = None
    """The loop whose iterations are the blocks, if the blocks are not modules; None if they are. Paths of a block are
    then relative to the module with the loop."""
    raw_table: bool = False
    """True if code indexes the embedding parameter directly, without a module."""

    @property
    def whole_numbers(self) -> int:
        """Number of elements of the parameters in opaque code."""
        return sum(prod(shape) for block in self.blocks for code in block.code for _, shape in code.params)


def expert_width(experts: ExpertLayers, embed: int) -> int:
    """Returns the hidden width of one expert (elements) in a model of width `embed`. Raises UnknownError if not
    gated."""
    large = sorted(prod(shape) for _, shape in experts.params if len(shape) == 3)
    if len(large) != 2 or large[1] != 2 * large[0]:
        raise UnknownError("its experts are not gated layers: two weights, one twice as large as the other")
    return large[0] // (experts.experts * embed)


def heads_of(roles: DecoderRoles) -> AttentionLayers | None:
    """Returns the attention layers of the first block that has any; all attentions of a model have equal widths."""
    return next((block.heads for block in roles.blocks if block.heads is not None), None)


def params_of(part: object) -> set[str]:
    """Returns the names of all parameters in `part`, a layer or a group of layers."""
    if isinstance(part, Linear):
        return {part.weight, part.bias}
    if isinstance(part, Norm):
        return {n for n, _ in part.params}
    if isinstance(part, tuple):
        return {name for p in part for name in params_of(p)}
    if isinstance(part, str):
        return {part}
    return {name for value in vars(part).values() for name in params_of(value)} if hasattr(part, "__dict__") else set()
