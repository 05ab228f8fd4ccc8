"""The words of a plan's sentences that each framework can run, one row a decision, and where that is said.

A decision without a row has no limit that planc knows. A check of a plan with `realise as` finds what is not in the
rows, a search leaves such layouts out, and an export to the framework's own files refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planc.diag.fast_dataclass import dataclass
from planc.frameworks.megatron import MODULES, RUN_AGAIN
from planc.ir.axes_of_one import without_axes_of_one
from planc.ir.base import Cause, sentence_of
from planc.ir.model import Model
from planc.ir.plan import PASSES_KEYS, Plan


@dataclass(frozen=True)
class Decision:
    """The words of one decision that a framework has: of schedules, dtypes, forms of recomputation and so on."""

    frameworks: tuple[str, ...]
    what: str
    """The verb of the sentence, or `kernel` for a kernel of attention."""
    has: tuple[str, ...]
    why: str
    """The same in words for the user."""
    source: str
    """The file of its source, or the page of its manual, that says so."""


MEGATRON = ("megatron", "bridge", "nemo")
TORCH = ("torchtitan", "automodel", "torch")
WITHOUT_PIPELINES = ("accelerate", "fms", "llm_foundry")
SDPA = ("flash", "efficient", "cudnn", "unfused", "flex")
ROWS = (
    Decision(
        MEGATRON,
        "split",
        ("1f1b", "interleaved_1f1b"),
        "1f1b and its interleaved form",
        "megatron/core/pipeline_parallel/schedules.py, get_forward_backward_func",
    ),
    Decision(
        TORCH,
        "split",
        ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev", "csv"),
        "torch's schedules: gpipe, 1f1b, interleaved_1f1b, looped_bfs, interleaved_zero_bubble, zbv, dualpipev, csv",
        "torch/distributed/pipelining/schedules.py, get_schedule_class",
    ),
    Decision(("deepspeed",), "split", ("1f1b",), "its pipeline is 1F1B", "deepspeed/runtime/pipe/schedule.py"),
    Decision(
        ("maxtext",),
        "split",
        ("circular",),
        "its pipelines are circular, with stages of equal length",
        "src/maxtext/layers/pipeline.py",
    ),
    Decision(
        WITHOUT_PIPELINES,
        "split",
        (),
        "no pipeline parallelism of its own",
        "accelerate/parallelism_config.py; fms_fsdp/utils/train_utils.py; llmfoundry/command_utils/train.py",
    ),
    Decision(
        MEGATRON,
        "quantize",
        ("float8(tensorwise)", "float8(tile = 32)", "float8(tile = 128)", "float8(blockwise)", "float4"),
        "float8 by tensor or in tiles of 32 or 128, or float4",
        "megatron/training/arguments.py, --fp8-recipe and --fp4-format",
    ),
    Decision(
        ("maxtext",),
        "quantize",
        ("int8", "float8", "float8(tensorwise)", "float8(tile = 32)", "float4"),
        "int8, float8 by tensor or in tiles of 32, or float4",
        "src/maxtext/configs/base.yml, quantization",
    ),
    Decision(
        ("torchtitan",),
        "quantize",
        ("float8", "float8(rowwise)", "float8(tensorwise)", "float8(tile = 32)", "float4"),
        "float8 by row, by tensor or in tiles of 32, or float4",
        "torchtitan/components/quantization",
    ),
    Decision(("fms",), "quantize", (), "no narrow products", "fms_fsdp/config/training.py"),
    Decision(
        MEGATRON,
        "recompute",
        ("none", "blocks", "blocks every", "modules"),
        "whole layers, or its own modules whole",
        "megatron/training/arguments.py, --recompute-granularity, --recompute-method and --recompute-modules",
    ),
    Decision(
        ("deepspeed", "accelerate"),
        "recompute",
        ("none", "blocks"),
        "activation checkpointing runs every layer again",
        "deepspeed/runtime/activation_checkpointing/checkpointing.py; transformers/modeling_layers.py",
    ),
    Decision(
        MEGATRON,
        "overlap",
        ("none", "async_matmul", "weight_gradients", "dual_batch"),
        "a matmul in pieces, gradients of weights, or one microbatch beside another",
        "megatron/training/arguments.py, --tp-comm-overlap and --overlap-moe-expert-parallel-comm",
    ),
    Decision(
        TORCH,
        "overlap",
        ("none", "async_matmul"),
        "a matmul in pieces (asynchronous tensor parallelism)",
        "torch/distributed/_symmetric_memory",
    ),
    Decision(
        ("deepspeed",),
        "overlap",
        ("none",),
        "DeepSpeed overlaps the reduction of gradients with ZeRO alone, by overlap_comm",
        "deepspeed/runtime/zero/config.py",
    ),
    Decision(
        WITHOUT_PIPELINES,
        "overlap",
        (),
        "FSDP and DistributedDataParallel always overlap",
        "torch/distributed/fsdp; torch/nn/parallel/distributed.py",
    ),
    Decision(
        ("maxtext",),
        "overlap",
        ("none", "async_matmul", "windowed_einsum"),
        "XLA's collective matmul",
        "XLA's flags in its scripts",
    ),
    Decision(
        MEGATRON,
        "offload",
        ("optimizer",),
        "the optimizer's state is all that its flags keep in host memory",
        "megatron/training/arguments.py, --optimizer-cpu-offload",
    ),
    Decision(
        (*TORCH, "accelerate", "llm_foundry"),
        "offload",
        ("params, optimizer",),
        "FSDP offloads parameters and optimizer together",
        "torch/distributed/fsdp, CPUOffloadPolicy",
    ),
    Decision(("fms",), "offload", (), "nothing is kept in host memory", "fms_fsdp/config/training.py"),
    Decision(
        ("fms", "llm_foundry"), "optimizer", ("adamw",), "AdamW", "fms_fsdp/main_training_llama.py; llmfoundry/optim"
    ),
    Decision(
        ("torchtitan", "automodel"),
        "route",
        ("dropless",),
        "every token is served",
        "torchtitan/models/moe/moe.py; nemo_automodel/components/moe/layers.py",
    ),
    Decision(
        ("deepspeed",), "attention.core", ("ulysses",), "its context parallelism is Ulysses", "deepspeed/sequence"
    ),
    Decision(
        MEGATRON,
        "kernel",
        ("flash", "cudnn", "unfused"),
        "its backends are flash, fused and unfused",
        "megatron/core/transformer/enums.py, AttnBackend",
    ),
    Decision(
        (*TORCH, "deepspeed", "accelerate", "fms"),
        "kernel",
        SDPA,
        "the kernels of torch: flash, efficient, cudnn, unfused, flex",
        "torch/nn/attention",
    ),
    Decision(
        ("maxtext",),
        "kernel",
        ("flash", "splash", "unfused", "cudnn", "triton"),
        "dot_product, flash and cudnn_flash_te",
        "src/maxtext/layers/attention_op.py",
    ),
    Decision(
        MEGATRON,
        "compile",
        ("loss",),
        "it fuses the loss, and compiles nothing",
        "megatron/training/arguments.py, --cross-entropy-loss-fusion",
    ),
)
"""The table."""


@dataclass(frozen=True)
class Lack:
    """A sentence of a plan that a framework cannot run."""

    row: Decision
    word: str
    cause: Cause

    @property
    def why(self) -> str:
        """The sentence that cannot be run, and what the framework has instead."""
        what = f"the schedule {self.word}" if self.row.what == "split" else f"`{sentence_of(self.cause)}`"
        return f"cannot run {what}: {self.row.why}"


def lacks(plan: Plan, framework: str) -> Iterator[Lack]:
    """The sentences of `plan` that `framework`, by its name, has no row for. Those that `realise as` itself filled in,
    and those over axes of one rank, are none."""
    plan = without_axes_of_one(plan)
    own = plan.realise.cause if plan.realise else None
    for row in ROWS:
        if framework in row.frameworks:
            for word, cause in WORDS[row.what](plan):
                if cause is not None and cause != own and word not in row.has:
                    yield Lack(row, word, cause)


Words = Iterator[tuple[str, Cause | None]]


def _schedule(plan: Plan) -> Words:
    if (split := plan.pipelined) is not None:
        yield split.schedule, split.cause


def _narrow(plan: Plan) -> Words:
    for q in plan.quantize:
        inside = q.recipe or (f"tile = {q.tile}" if q.tile else "")
        yield (f"{q.dtype}({inside})" if inside and q.dtype != "int8" else q.dtype), q.cause


def _recompute(plan: Plan) -> Words:
    again = plan.recompute
    every = " every" if again.every > 1 else ""
    if again.blocks:
        yield f"blocks{' except' if again.kept else ''}{every}", again.cause
    elif not again.ops:
        yield "none", again.cause
    else:
        yield f"{'modules' if _are_modules(plan) and not again.kept else 'ops'}{every}", again.cause


def _are_modules(plan: Plan) -> bool:
    """True if the ops that are run again are Megatron-Core's modules, each whole."""
    chosen = _named(plan.model, plan.recompute.ops)
    return any(
        chosen == set().union(*(ops for words in modules.values() if (ops := _named(plan.model, words)) <= chosen))
        for modules in (MODULES, RUN_AGAIN)
    )


def _named(model: Model, words: tuple[str, ...]) -> set[str]:
    names = {op.name for kind in model.blocks for op in model.ops[kind]}
    return {n for n in names for word in words if n == word or n.startswith(f"{word}.")}


def _overlap(plan: Plan) -> Words:
    tensor = {a for s in plan.shards if s.dim in ("heads", "ffn") and not s.region for a in s.axes}
    for overlap in plan.overlaps:
        if overlap.method != "none" or overlap.axis not in tensor:
            yield overlap.method, overlap.cause


def _offload(plan: Plan) -> Words:
    """State alone: where activations go is not in the table."""
    state = [(what, o.cause) for o in plan.offloads for what in o.what if what in ("params", "optimizer")]
    if state:
        yield ", ".join(n for n in ("params", "optimizer") if n in dict(state)), state[0][1]


def _meeting(plan: Plan) -> Words:
    """How attention meets the keys of other ranks."""
    kernel = plan.attention
    sequence = plan.axes_of("sequence")
    if set(sequence) & set(plan.axes_of("heads", "attention")):
        yield "ulysses", plan.cause_of_shard("sequence", sequence[0])
    elif axes := plan.axes_of("sequence", "attention"):
        said = kernel is not None and kernel.method in PASSES_KEYS
        cause = plan.cause_of_shard("sequence", axes[0], "attention")
        yield (kernel.method, kernel.cause) if kernel is not None and said else ("all_gather", cause)


def _kernel(plan: Plan) -> Words:
    if plan.attention is not None and plan.attention.runs:
        yield plan.attention.runs, (plan.attention.kernel or plan.attention).cause


WORDS: dict[str, Callable[[Plan], Words]] = {
    "split": _schedule,
    "quantize": _narrow,
    "recompute": _recompute,
    "overlap": _overlap,
    "offload": _offload,
    "optimizer": lambda plan: iter([(plan.optimizer.name, plan.optimizer.cause)]),
    "route": lambda plan: iter([(plan.route.method, plan.route.cause)] if plan.model.top_k else []),
    "attention.core": _meeting,
    "kernel": _kernel,
    "compile": lambda plan: ((c.what, c.cause) for c in plan.compiles),
}
"""The words of a plan that a row is about, each with its sentence."""
