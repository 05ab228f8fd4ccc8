"""The parts of a model: which linear layer makes the queries, which norm stands before which layer, and so on."""

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
"""Functions that put numbers elsewhere and change none."""


class UnknownError(ValueError):
    """A part of the model that has no place in an op graph; in words for the user, with the line of the source."""


@dataclass(frozen=True)
class ModuleLoop:
    """A loop in the forward of the module at `path`, the `place`th of that forward, with the parts of each block: the
    path of each from that module, and its name in the block."""

    path: str
    place: int
    parts: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class ByHeads:
    """An argument of a block that has a number for each head, of each sequence or of all: `dim` is that dimension."""

    name: str | int
    """Its name, or its place among the arguments after the hidden state."""
    dim: int
    of_batch: bool
    """True where the dimension is that of sequences and heads, one behind the other."""


@dataclass(frozen=True)
class Norm:
    """A norm by its module's path and the shapes of its parameters."""

    path: str
    params: tuple[tuple[str, Shape], ...]

    def over_all(self, heads: int, head_dim: int) -> bool:
        """True for a norm over `heads` heads together, of `head_dim` numbers each."""
        return heads > 1 and any(shape == (heads * head_dim,) for _, shape in self.params)


@dataclass(frozen=True)
class Linear:
    """A linear layer: the parameter that is its weight, that of its bias ("": none), and its widths."""

    weight: str
    bias: str
    made: int
    taken: int
    transposed: bool = False
    """True for a weight stored as [in, out]."""
    alone: bool = True
    """True where its module does nothing else."""

    @property
    def path(self) -> str:
        """The module that holds the weight."""
        return self.weight.rpartition(".")[0]

    @property
    def place(self) -> str:
        """The path of what is a layer: its module, or the weight alone in a module that does more."""
        return self.path if self.alone else self.weight


@dataclass(frozen=True)
class Latent:
    """The narrow way to keys and values: down, norm, up, and a rotated part of `rope_dim` that all heads share.

    Queries have one too where `q_up` is there. DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
    """

    kv_down: Linear
    kv_norm: Norm
    kv_up: Linear
    rope_dim: int
    down_rows: tuple[tuple[int, ...], ...]
    """The rows of `kv_down` that make the latent, and those that make the rotated part."""
    up_rows: tuple[tuple[int, ...], ...]
    """The rows of `kv_up` that make keys, and those that make values."""
    q_norm: Norm | None = None
    q_up: Linear | None = None


@dataclass(frozen=True)
class AttentionLayers:
    """Queries, keys and values (one layer for all three where `k` is None), the core, and the way back."""

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
    """Where one layer makes all three: the rows of its weight that make queries, keys and values."""
    window: int = 0
    sinks: str = ""
    value_dim: int = 0
    """Width of a head's values where it is not that of its keys."""
    latent: Latent | None = None
    """Where it is there, `q` goes down to the latent, or makes the queries itself."""
    before: Norm | None = None
    after: Norm | None = None
    whole: tuple[str, ...] = ()
    """Attributes of its code that have a number of heads' value by chance, and stay as they are on a share of them."""
    by_heads: tuple[ByHeads, ...] = ()
    """Arguments of its block that have a number for each head."""
    keys_whole: bool = False
    """True where a rank that has a share of the heads has all keys and values."""
    rows_here: tuple[tuple[int, ...], ...] = ()
    """The `rows` of a share of the heads, where its code wants them in another order than the whole has them."""


@dataclass(frozen=True)
class FeedForwardLayers:
    """`ups` are gate and up, or one layer: `fused` where it makes both."""

    ups: tuple[Linear, ...]
    down: Linear
    fused: bool = False
    before: Norm | None = None
    after: Norm | None = None
    rows: tuple[tuple[int, ...], ...] = ()
    """Where one layer makes both: the rows of its weight for each."""
    parallel: bool = False
    """True where it does not see what the attention of its block adds."""


@dataclass(frozen=True)
class ExpertLayers:
    """A router and experts whose weights have a dimension of experts, with a dense part beside them."""

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
        """The names of its parameters: the weight `up` makes gates and what they are multiplied with, `down` leads
        back; `up_bias` and `down_bias` where they are there."""
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
    """Half a block, or a whole one (`path` is empty), that no other part is: it is run whole, as its code has it."""

    path: str
    params: tuple[tuple[str, Shape], ...]
    before: Norm | None = None
    after: Norm | None = None
    parallel: bool = False
    returns: int = 0
    """Length of the tuple that its module returns, whose first is the hidden state; 0 for that alone."""
    line: str = field(default="", compare=False)
    """`FILE:LINE` of its source."""
    why: str = field(default="", compare=False)
    """The reason that it is no other part, in words."""


@dataclass(frozen=True)
class BlockLayers:
    """One kind of block; paths begin at the block. One that is whole is the first half alone."""

    attention: AttentionLayers | Code | None
    second: FeedForwardLayers | ExpertLayers | Code | None

    @property
    def is_whole(self) -> bool:
        """True for a block of which planc knows no half."""
        return isinstance(self.attention, Code) and not self.attention.path

    @property
    def heads(self) -> AttentionLayers | None:
        """The attention over heads, where it has one."""
        return self.attention if isinstance(self.attention, AttentionLayers) else None

    @property
    def code(self) -> tuple[Code, ...]:
        """Its halves that stay whole."""
        return tuple(half for half in (self.attention, self.second) if isinstance(half, Code))


@dataclass(frozen=True)
class DecoderRoles:
    """A whole decoder. Paths outside the blocks begin at the model."""

    embedding: str
    positions: str
    layers: str
    """Path of the module that holds the blocks."""
    blocks: tuple[BlockLayers, ...]
    """Each layer's."""
    norm: Norm | None
    head: Linear
    tied: bool
    vocab: int
    embed: int
    rest: tuple[tuple[str, str], ...] = ()
    """Parameters outside the blocks that no other part has, and the lines that use them first."""
    positions_shape: Shape = ()
    returns: int = 0
    """Length of the tuple that a block returns; 0 for a tensor."""
    in_place: bool = False
    """True where the code of a block changes tensors in place."""
    embedding_norm: Norm | None = None
    loop: ModuleLoop | None = None
    """The loop whose turns are the blocks, where these are no modules; paths are those of the module with blocks."""
    raw_table: bool = False
    """True where rows of the embedding are taken by number, and no module finds them."""

    @property
    def whole_numbers(self) -> int:
        """Numbers in the parameters of code that stays whole."""
        return sum(prod(shape) for block in self.blocks for code in block.code for _, shape in code.params)


def expert_width(experts: ExpertLayers, embed: int) -> int:
    """Width inside one expert. Raises UnknownError for experts that are not gated."""
    large = sorted(prod(shape) for _, shape in experts.params if len(shape) == 3)
    if len(large) != 2 or large[1] != 2 * large[0]:
        raise UnknownError("its experts are no gated layers: two weights, one twice as large as the other")
    return large[0] // (experts.experts * embed)


def heads_of(roles: DecoderRoles) -> AttentionLayers | None:
    """The attention over heads that a plan speaks of: all that a model has are alike."""
    return next((block.heads for block in roles.blocks if block.heads is not None), None)


def params_of(part: object) -> set[str]:
    """Every parameter's path in a part."""
    if isinstance(part, Linear):
        return {part.weight, part.bias}
    if isinstance(part, Norm):
        return {n for n, _ in part.params}
    if isinstance(part, tuple):
        return {name for p in part for name in params_of(p)}
    if isinstance(part, str):
        return {part}
    return {name for value in vars(part).values() for name in params_of(value)} if hasattr(part, "__dict__") else set()
