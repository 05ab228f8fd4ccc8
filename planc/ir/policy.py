"""The policy of a framework: what it does where the plan says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Library
from planc.ir.model import Model

Loss = Literal["ops", "narrow", "fp32_in_place", "gradient", "in_place"]
"""Tensors saved by the loss in addition to the logits: fp32 tensors, op by op (`ops`), or these in the dtype
of the logits (`narrow`); one fp32 copy that its backward overwrites; only their gradient, by one kernel; or nothing, if
the gradient overwrites the logits."""
AMPERE = ("a100", "a100_40", "a800")
BLACKWELL = ("b200", "gb200", "b300", "gb300")
CUBLAS_BYTES = 32 * 2**20
"""cuBLAS workspace that Transformer Engine allocates per stream of matmuls, from Hopper on (bytes)."""
CUBLAS_BYTES_BEFORE = 4 * 2**20
"""`CUBLAS_BYTES` on older chips."""


def core_alone(model: Model, kernel: str) -> tuple[str, ...]:
    """Return the attention core, which is all that selective recomputation recomputes (Korthikanti et al. 2022). It is
    the same for each `model` and `kernel`."""
    return ("attention.core",)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A framework's decisions where the plan says nothing. The defaults are those of planc's own programs."""

    name: str
    title: str
    """The framework's own name."""
    matmuls: Library = "torch"
    """The library that runs matmuls; a chip's hardware file has its speed."""
    kernel: str = ""
    """The default attention kernel; "" is FlashAttention-2."""
    kernel_on: Mapping[str, str] = field(default_factory=dict)
    """`kernel` by chip, where it differs."""
    whole_blocks: bool = False
    """True if a recomputed block runs to its end: the framework's checkpoint is its own autograd function and does not
    stop early at the last tensor that is needed."""
    whole_blocks_on: tuple[str, ...] = ()
    """Chips whose published runs predate the release that stops early."""
    selective: Callable[[Model, str], tuple[str, ...]] = core_alone
    """The ops of a model that `recompute selective` recomputes, given the attention kernel."""
    scatters_sends_on: tuple[str, ...] = ()
    """Chips whose published runs predate sequence parallelism: a hidden state that all tensor-parallel ranks hold is
    sent between stages in shards, one from each rank, and gathered by the receivers (Narayanan et al. 2021, section
    4.1)."""
    tp_overlap: str = ""
    """Default TP overlap for dense models on GPUs."""
    tp_overlap_torus: str = ""
    """Default TP overlap for dense models on TPUs."""
    expert_streams: int = 0
    """Streams that run the matmuls of experts, one kernel each; 0 for one grouped kernel."""
    expert_call_s: float = 0.0
    """Host time (s) to launch one expert's matmul if each is its own kernel: the host waits for the token counts and
    never runs ahead, unless another microbatch overlaps."""
    experts_call_s: float = 0.0
    """Host time (s) to call all of them, beside their launches."""
    routes_op_by_op: bool = False
    """True if tokens are routed and permuted in many small ops, each launched by the host."""
    narrow_launches: int = 1
    """Launches of an op that the host needs for a quantized matmul."""
    graphs_on: tuple[str, ...] = ()
    """Chips on which its own recipes launch layers with experts as CUDA graphs, all but the experts."""
    overlap_streams: int = 0
    """Streams of matmuls that overlap tensor-parallel transfers, each with a cuBLAS workspace, as are those of
    `expert_streams`."""
    expert_tile_rows: int = 0
    """Tile rows of the grouped matmul kernel of dropless experts on TPUs; a tile with rows of two experts is computed
    once for each. 0 if every expert starts a new tile."""
    weighs_outputs: bool = False
    """True if the outputs of experts are multiplied by the tokens' weights, whose gradients need them; False if the
    smaller activation before the last matmul is."""
    expert_bias_in_fp32: bool = False
    """True if the bias of an expert's last matmul is multiplied by the token's weight and added in fp32, op by op, and
    the inputs of such an expert's gate are clamped op by op; other biases are fused into the matmul."""
    launch_wait_s: float = 0.0
    """Time (s) that the device waits for the host at each op of a pipeline, because launches block until the kernel
    ends."""
    update_passes: int = 0
    """Passes over the bytes of a stored master weight in clipping and AdamW's update; 0 if the update is one kernel."""
    fuses_amax: bool = False
    """True if a norm also computes the amax of its output for a low-precision matmul, and if chips whose matmuls accept
    any layout get one low-precision copy."""
    vocab_multiple: int = 1
    """The vocabulary is padded to a multiple of this times the tensor-parallel size."""

    reduce: str = "fp32"
    """The dtype of gradient reduction in its own configurations."""
    grads_as_reduced: bool = False
    """True if gradients are stored in the dtype they are reduced in; False for fp32."""
    updates_on_host: bool = False
    """True if the host runs the update of optimizer state that a plan keeps in its memory; False if the state is copied
    to the device for it."""
    keeps_grads_from_host: bool = False
    """True if gradients stay on the device until such an update; else each goes to the host once it is reduced."""
    keeps_narrow_grads: bool = False
    """True if the gradients that a backward makes in the compute dtype stay allocated beside unsharded fp32 gradients,
    to which they are added."""
    bucket_elements: float = 0.0
    """Elements of the flat buffer in which gradients are reduced, at most; 0 for none of its own."""
    updates_in_fp32: bool = False
    """True if the update needs fp32 gradients: an fp32 copy of the shard that a rank updates is then live with the
    optimizer state, after the activations are freed."""
    loss: Loss = "ops"
    loss_copies: float = 0.0
    """fp32 tensors of the logits' size in the backward of a loss that runs op by op; 0 for that of torch's loss."""
    frees_logits: bool = False
    """True if the logits in the compute dtype are freed before the backward of a loss that copies them to fp32."""
    fuses_head_and_loss: bool = False
    """True if a compiled loss is one kernel with the head, in chunks of tokens: the logits never exist whole."""
    fused_loss_copies: float = 1.0
    """Number of tensors of the logits' size and dtype that the backward of a compiled loss allocates."""
    fused_loss_keeps: float = 0.0
    """Number of such tensors that its forward saves, in addition to the logits."""
    compiles: str = "blocks"
    """Regions that the framework's own compile switch compiles, as in a `compile` sentence."""
    whole_logits: bool = False
    """True if the head's output is gathered over tensor parallelism before the loss."""
    dropout: tuple[str, ...] = ()
    """Families whose models have dropout by default: masks of one byte per element are saved, and for unfused attention
    also the scores after dropout."""
    saves_narrow: bool = False
    """True if a low-precision matmul saves its input in that dtype for the backward, for any scaling recipe."""
    saves_divided: bool = False
    """True if a matmul saves its input before the all-gather and gathers it again in the backward (Korthikanti et al.
    2022, section 4.2.2). Matmuls of experts save what the dispatcher has gathered."""
    shared_beside_dispatch: bool = False
    """True if the shared expert overlaps with the dispatcher's transfers on its own stream: it gathers its input itself
    and saves it gathered."""
    eager: bool = False
    """True if a block's ops run one by one: a gate's activation is its own op and its output is saved, a norm saves an
    fp32 copy of its input, a LoRA update in fp32 one of its own, and gradients of an activation and its inputs are live
    at once."""
    fixed_segments: bool = False
    """True if the allocator's `expandable_segments` is not set: memory of the loss, of a block, of the gradients and of
    the update's tensors is not reused for one another, since their sizes differ, until the device is full."""
    fresh_grads: bool = False
    """True if the update frees the gradients, so that the step's first backward starts without any."""
    update_copies: float = 0.0
    """Tensors of a trained parameter's stored bytes that the update allocates for all parameters at once."""
    fsdp1: bool = False
    """True if sharded parameters are units of `torch.distributed.fsdp.FullyShardedDataParallel`: a unit is gathered in
    place; embedding and head are one, gathered for the whole pass and reduced at its end; and the hooks of a unit of
    frozen parameters keep the input of a checkpointed block and its gradient until then
    (`_register_post_backward_reshard_only_hook` in torch/distributed/fsdp/_runtime_utils.py)."""
    keeps_outputs: tuple[str, ...] = ()
    """Ops recomputed in a checkpoint function whose output stays allocated for the next op; outputs of the others are
    freed and recomputed."""
    gathered_in_loss: bool = True
    """False if no gathered parameters of a sharded model are live in the backward of the loss: each group is freed
    after its forward and gathered again in the backward."""
    prefetched: int = 2
    """Blocks whose gathered parameters are live at once: the current one and the prefetched next."""
    spread: float = 0.15
    """Share of the tensors' bytes by which a published peak may be below the prediction; 15 % if no peaks of the
    framework's runs are known."""
    workspace_bytes: float = 0.0
    """Bytes of library workspaces and buffers for any plan; `workspaces` adds those of a given plan."""
    sums_live_sets: bool = True
    """False if the peaks of the blocks' and of the loss's backward are not added on TPUs."""
    lost_across_nodes: float = 0.0
    """Extra share of the tensors' bytes that torch's allocator reserves in the framework's multi-node scripts, without
    expandable segments; 0 if it is the chip's `fragmentation`, as in one node."""

    def attention_kernel(self, chip: str) -> str:
        """Return the default attention kernel on `chip`, as `attention.core as` names it; "" is FlashAttention-2."""
        return self.kernel_on.get(chip, self.kernel)

    def runs_whole_blocks(self, chip: str) -> bool:
        """True if a recomputed block runs to its end on `chip`, beyond what the backward needs."""
        return self.whole_blocks or chip in self.whole_blocks_on

    def workspaces(self, chip: str, *, experts: bool, overlaps: bool) -> float:
        """Return the bytes of library workspaces on `chip`, also those of further streams: the streams of a model with
        `experts`, and of matmuls that overlap tensor-parallel transfers (`overlaps`)."""
        streams = self.expert_streams * experts + self.overlap_streams * overlaps
        return self.workspace_bytes + streams * (CUBLAS_BYTES_BEFORE if chip in AMPERE else CUBLAS_BYTES)

    def padded_vocab(self, vocab: int, tp: int) -> int:
        """Return `vocab`, the number of tokens in the vocabulary, padded for `tp` tensor-parallel ranks."""
        multiple = self.vocab_multiple * (tp if self.vocab_multiple > 1 else 1)
        return -(-vocab // multiple) * multiple
