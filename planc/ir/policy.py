"""The rules of a framework: how it realises what a plan leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Model

Loss = Literal["ops", "narrow", "fp32_in_place", "gradient", "in_place"]
"""Ways of the loss to keep what its backward needs beside the logits: fp32 tensors, op by op (`ops`), or the same in
the logits' own dtype (`narrow`); one fp32 copy that its backward overwrites; their gradient alone, by one kernel;
nothing, where the gradient takes the logits' place."""
AMPERE = ("a100", "a100_40")
BLACKWELL = ("b200", "gb200", "b300", "gb300")
CUBLAS_BYTES = 32 * 2**20
"""A workspace of cuBLAS as Transformer Engine makes one for each stream of products, from Hopper on."""
CUBLAS_BYTES_BEFORE = 4 * 2**20
"""The same on older chips."""


def core_alone(model: Model, kernel: str) -> tuple[str, ...]:
    """Selective recomputation of Korthikanti et al. 2022: attention's core of `model`, whatever its `kernel`."""
    return ("attention.core",)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A framework's rules. The defaults are those of planc's own programs."""

    name: str
    title: str
    """Its own name."""
    kernel: str = ""
    """The kernel of attention where a plan names none; an empty string is FlashAttention-2."""
    kernel_on: Mapping[str, str] = field(default_factory=dict)
    """The same for some chips."""
    whole_blocks: bool = False
    """True where a recomputed block runs to its end: the framework's checkpoint is a function of its own, and does not
    stop at the last tensor that is needed."""
    whole_blocks_on: tuple[str, ...] = ()
    """Chips whose published runs are older than the release that stops early."""
    selective: Callable[[Model, str], tuple[str, ...]] = core_alone
    """The ops of a model that `recompute selective` runs again, with this kernel of attention."""
    scatters_sends_on: tuple[str, ...] = ()
    """Chips whose published runs are older than sequence parallelism, and send a hidden state that all ranks of tensor
    parallelism hold in parts, one from each, gathered again behind the boundary (Narayanan et al. 2021, section
    4.1)."""
    tp_overlap: str = ""
    """The way in which it hides the transfers of tensor parallelism of dense models on GPUs unless told otherwise."""
    tp_overlap_torus: str = ""
    """The same on TPUs."""
    expert_streams: int = 0
    """Streams on which the products of experts run, each a kernel of its own; 0 where they are one kernel."""
    expert_call_s: float = 0.0
    """Seconds that the host takes to start one expert's product where each is a kernel of its own: it waits for the
    numbers of tokens and is never ahead of them, unless another microbatch runs beside."""
    overlap_streams: int = 0
    """Streams of products that hide the transfers of tensor parallelism, each with a workspace of cuBLAS; those of
    `expert_streams` have one each too."""
    expert_tile_rows: int = 0
    """Rows of a tile of the one kernel that runs the dropless products of experts on TPUs; a tile that two experts
    share is computed for each of them. 0 where experts begin with a tile of their own."""
    expert_bias_in_fp32: bool = False
    """True where the bias of an expert's last product is multiplied by the token's weight and added in fp32, op by op;
    other biases are added by the product itself."""
    update_passes: int = 0
    """Times that AdamW's update and the clipping before it go over the bytes of a stored master; 0 where the update is
    one kernel."""
    fuses_amax: bool = False
    """True where a norm finds the largest value of what it writes for a narrow product, and where chips whose products
    take any layout get one narrow copy."""
    vocab_multiple: int = 1
    """The vocabulary is padded to a multiple of this times the size of tensor parallelism."""

    reduce: str = "fp32"
    """The dtype in which its own configurations reduce gradients."""
    grads_as_reduced: bool = False
    """True where gradients are kept in the dtype that they are reduced in; else they are fp32."""
    updates_in_fp32: bool = False
    """True where the update takes gradients in fp32: a copy of those that are kept narrower, of the part that a rank
    updates, is there beside the optimizer's state, when the activations are gone."""
    loss: Loss = "ops"
    fused_loss_copies: float = 1.0
    """Tensors like the logits, in their dtype, that the backward of a loss compiled as one region makes."""
    fused_loss_keeps: float = 0.0
    """Such tensors that it keeps from its forward, beside the logits."""
    compiles: str = "blocks"
    """Regions that its own switch for compilation compiles, in the words of a `compile` sentence."""
    whole_logits: bool = False
    """True where the head's output is gathered over tensor parallelism before the loss."""
    dropout: tuple[str, ...] = ()
    """Families whose models have dropout by default: masks of a byte an element are kept, and of unfused attention also
    the scores after it."""
    saves_narrow: bool = False
    """True where a product in a narrow dtype keeps its input in that dtype for the backward, whatever the scales."""
    saves_divided: bool = False
    """True where a product keeps its input as it was before it was gathered, and gathers it again in the backward
    (Korthikanti et al. 2022, section 4.2.2). Products of experts keep what the dispatcher has gathered."""
    shared_beside_dispatch: bool = False
    """True where the shared expert runs beside the dispatcher's transfers, on a stream of its own: it gathers its input
    itself and keeps it so."""
    keeps_outputs: tuple[str, ...] = ()
    """Ops that run again in a checkpoint that is a function, whose output the next op keeps; the output of others is
    discarded and made again."""
    gathered_in_loss: bool = True
    """False where no gathered parameters of a divided model are there in the backward of the loss: each group is let go
    behind its forward, and gathered again when the backward comes to it."""
    prefetched: int = 2
    """Blocks whose gathered parameters are there at once: the one in use and the next."""
    spread: float = 0.15
    """Share of the tensors' bytes by which a published peak may be below the predicted one: 15 % where no peaks of the
    framework's runs are known."""
    workspace_bytes: float = 0.0
    """Bytes of libraries' workspaces and buffers, whatever the plan; `workspaces` has those of a plan beside."""
    sums_live_sets: bool = True
    """False where the memory of the blocks' and of the loss's backward is not added up on TPUs."""
    lost_across_nodes: float = 0.0
    """Share beyond the tensors' bytes that torch's allocator reserves in the framework's scripts for several nodes,
    whose segments cannot grow; 0 where it is the chip's `fragmentation` as in one node."""

    def attention_kernel(self, chip: str) -> str:
        """The kernel of attention on `chip`, as `attention.core as` names it; an empty string is FlashAttention-2."""
        return self.kernel_on.get(chip, self.kernel)

    def runs_whole_blocks(self, chip: str) -> bool:
        """True where a recomputed block runs to its end on `chip`."""
        return self.whole_blocks or chip in self.whole_blocks_on

    def workspaces(self, chip: str, *, experts: bool, overlaps: bool) -> float:
        """Bytes of libraries' workspaces on `chip`: for a model with `experts`, and where products hide tensor
        parallelism's transfers (`overlaps`), those of its streams too."""
        streams = self.expert_streams * experts + self.overlap_streams * overlaps
        return self.workspace_bytes + streams * (CUBLAS_BYTES_BEFORE if chip in AMPERE else CUBLAS_BYTES)

    def padded_vocab(self, vocab: int, tp: int) -> int:
        """Rows of the embedding for a vocabulary of `vocab` words, divided over `tp` ranks."""
        multiple = self.vocab_multiple * (tp if self.vocab_multiple > 1 else 1)
        return -(-vocab // multiple) * multiple
