"""A published run as a plan: the same sentences that a user would write for it.

What a source does not print is chosen by the rules stated here, the same for all its rows: how Megatron
places ranks (tp innermost, then cp, dp, pp), what its overlap and sequence parallelism do, which tensors
MaxText's policies keep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

from planc.calibration.published_clusters import TORI, TWO_DEVICES, cluster_words, machine
from planc.calibration.rows import Row
from planc.catalog import build_model
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Op
from planc.ir.plan import Plan
from planc.language.op_names import covering

UNFUSED = ("VIA-Research/vTrain", "calculon-ai/calculon", "NVIDIA/Megatron-LM images", "cli99/llm-analysis")
"""Sources from before flash attention: scores go through memory."""

SUMS_BESIDE = ("calculon-ai/calculon",)
"""Sources whose Megatron-LM sums inputs' gradients beside the products for the weights' (Korthikanti et al. 2022,
section 6.2)."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes of a row; 1 where it has none."""

    pp: int = 1
    replica: int = 1
    """Data-parallel size over which state is replicated."""
    data: int = 1
    """Data-parallel size over which state is sharded as `zero` says."""
    cp: int = 1
    tp: int = 1
    ep: int = 1
    chunks: int = 1
    zero: int = 0
    """ZeRO stage over `data`: 1 optimizer, 2 parameters gathered from forward to backward, 3 all. With a
    pipeline, torch keeps gathered parameters and whole gradients until a step's last microbatch."""

    @property
    def devices(self) -> int:
        return self.pp * self.replica * self.data * self.cp * self.tp


def plan_of(row: Row) -> Plan:
    """The plan of `row` on the machine it ran on. Raises PlanError, which would be our mistake."""
    from planc.language.build import build_file

    path = Path("/", f"{row.id}.plan")
    built = build_file(path, unsaved={path: plan_text(row)})
    if built.plan is None:
        raise PlanError(built.diagnostics)
    return replace(built.plan, cluster=machine(row, built.plan.cluster))


def plan_text(row: Row) -> str:
    """The text of a plan file for `row`."""
    layout = layout_of(row)
    name = "".join(c if c.isalnum() else "_" for c in row.id)
    return "\n".join((f"plan r_{name}", f"# {row.source}", *_sentences(row, layout))) + "\n"


def _sentences(row: Row, layout: Layout) -> Iterator[str]:
    facts = row.facts
    yield f"model {model_words(row)}"
    micro = microbatch(row, layout)
    yield f"batch {row.sequences} x {row.sequence} tokens microbatch {micro}"
    yield f"cluster {cluster_words(row)}"
    sizes = [("pp", layout.pp), ("replica", layout.replica), ("data", layout.data), ("cp", layout.cp)]
    axes = [(name, size) for name, size in (*sizes, ("tp", layout.tp)) if size > 1]
    yield "mesh " + " > ".join(f"{name} {size}" for name, size in axes or [("data", 1)])
    used = dict(axes)
    yield from _data(layout, used)
    yield from _layout_sentences(row, layout, used)
    yield from _experts(row, layout, used)
    yield from _pipeline(row, layout)
    yield "optimizer adamw"
    reduce = "bf16" if _narrow_gradients(row) else "fp32"
    yield f"compute bf16 reduce {reduce}"
    yield from _kernels(row, used)
    yield from _compiled(row)
    yield from recompute_words(row)
    if facts["options"].get("gradient_bucket") is False:
        yield from (f"overlap {axis} as none" for axis in ("data", "replica") if axis in used)


# Axes.


def layout_of(row: Row) -> Layout:
    """The mesh axes of `row`, from its source's own option names."""
    parallel = row.facts["parallel"]
    value: Callable[[str], int] = lambda name: int(parallel.get(name) or 1)  # noqa: E731
    zero = parallel.get("zero")
    slices = value("dcn_dp")
    tp = value("tp") * value("ici_tp")
    per_chip = 2 if row.chip in TWO_DEVICES else 1
    if row.publisher.startswith("AI-Hypercomputer"):
        inside = per_chip * row.devices // (slices * tp)
        replica = slices * (value("dp") if "fsdp" in parallel else 1)
        return Layout(replica=replica, data=inside * slices // replica, tp=tp, ep=value("ici_ep"), zero=3)
    fsdp = value("fsdp")
    if fsdp > 1 or ("fsdp" in parallel and value("cp") > 1):  # torchtitan stores over both
        kept = 2 if zero == 2 else 3
        return Layout(pp=value("pp"), data=fsdp, cp=value("cp"), tp=tp, ep=value("ep"), chunks=_chunks(row), zero=kept)
    inner = value("pp") * value("cp") * tp
    stored = 1 if zero is None or zero == 1 or str(zero).startswith("ZeRO-1") else int(zero)
    return Layout(
        pp=value("pp"),
        data=row.devices // inner,
        cp=value("cp"),
        tp=tp,
        ep=value("ep"),
        chunks=_chunks(row),
        zero=min(stored, 1),
    )


def _chunks(row: Row) -> int:
    """Stages a rank. Where an interleaved schedule's are not printed: the most that divide, up to 6."""
    parallel, layers = row.facts["parallel"], int(row.model["layers"])
    pp = int(parallel.get("pp") or 1)
    if pp == 1 or parallel.get("vpp"):
        return int(parallel.get("vpp") or 1) if pp > 1 else 1
    if row.id.startswith("llama3-t4"):
        return 8
    schedule = str(parallel.get("pp_schedule", ""))
    if schedule == "Interleaved1F1B":
        return 2
    if "interleaved" in schedule or row.publisher == "NVIDIA/NeMo-Framework-Launcher":
        return max((n for n in range(1, 7) if layers % (pp * n) == 0), default=1)
    return 1


def microbatch(row: Row, layout: Layout) -> int:
    """Sequences that a data-parallel rank of `row` works on at a time.

    Where a source prints none: all of a rank's on a TPU, and without a pipeline 4, else 1. torchtitan's pipelines have
    as many microbatches as ranks unless told otherwise (its pipeline_llama.py), so that its batch of a rank is that of
    all of them.
    """
    batch = row.facts["batch"]
    each = row.sequences // (layout.replica * layout.data)
    if row.publisher.startswith("AI-Hypercomputer") or "local_batch_seqs" in batch:
        return max(1, each // layout.pp)
    if "micro_batch_seqs" in batch:
        return int(batch["micro_batch_seqs"])
    return 1 if layout.pp > 1 else min(each, 4)


# Sentences.


def model_words(row: Row) -> str:
    """The model of a `model` sentence: one of the catalog, with the sizes of `row`."""
    model = row.model
    sizes = {"layers": model["layers"] + int(row.facts["options"].get("mtp") or 0), "vocab": model["vocab"]}
    shape = {"embed": model["d_model"], "heads": model["n_heads"]}
    if model.get("mla"):
        base, more = "deepseek_v3", {"heads": model["n_heads"], "experts": model["moe"]["experts"]}
    elif "moe" in model:
        base, more = _moe_base(str(model["name"])), {}
    elif not model.get("gated_mlp", True):
        biased = model.get("learned_pos_emb") or model["name"].startswith(("GPT", "MT-NLG"))
        base = "gpt3_175b" if biased else "mpt_7b"
        more = {**shape, "head_dim": model["head_dim"], "ffn": model["ffn"]}
        more |= {"positions": row.sequence} if biased else {}
    elif "Gemma 3" in model["name"]:
        base, more = "gemma3_12b", {**shape, "kv_heads": model["n_kv_heads"], "ffn": model["ffn"]}
    else:
        base = "llama3_8b"
        more = {**shape, "kv_heads": model["n_kv_heads"], "head_dim": model["head_dim"], "ffn": model["ffn"]}
    return f"{base}({', '.join(f'{k} = {v}' for k, v in {**sizes, **more}.items())})"


def _moe_base(name: str) -> str:
    known = {
        "Qwen3 30B": "qwen3_30b_a3b",
        "Qwen3 235B": "qwen3_235b_a22b",
        "GPT-OSS 120B": "gpt_oss_120b",
        "GPT-OSS 20B": "gpt_oss_20b",
        "Mixtral 8x7B": "mixtral_8x7b",
        "Mixtral 8x22B": "mixtral_8x22b",
        "Llama 4 Scout": "llama4_scout",
        "Llama 4 Maverick": "llama4_maverick",
    }
    return next(base for start, base in known.items() if name.startswith(start))


def _data(layout: Layout, used: dict[str, int]) -> Iterator[str]:
    axes = [a for a in ("replica", "data") if a in used]
    if axes:
        yield f"shard batch over {', '.join(axes)}"
    divided = [a for a in ("data", "cp") if a in used]
    if not divided:
        return
    if layout.zero in (2, 3):
        nouns = "params, grads, optimizer" if layout.pp == 1 else "params, optimizer"
        yield f"store {nouns} over {', '.join(divided)}"
        if layout.zero == 2 or layout.pp > 1:
            yield f"gather params per {'microbatch' if layout.pp == 1 else 'step'}"
    elif layout.zero == 1:
        yield f"store optimizer over {', '.join(divided)}"


def _layout_sentences(row: Row, layout: Layout, used: dict[str, int]) -> Iterator[str]:
    options = row.facts["options"]
    if "tp" in used:
        yield "use tp over tp"
        if options.get("sequence_parallel", True) and row.publisher != "VIA-Research/vTrain":
            yield "use sp over tp"
        if row.source.startswith(SUMS_BESIDE):
            yield "overlap tp as weight_gradients"
        elif options.get("async_tp") or _overlaps_tp(row):
            yield f"overlap tp as {'windowed_einsum' if row.chip in TORI else 'async_matmul'}"
    if "cp" in used:
        passes = "all_gather" if row.id.startswith("llama3-t4") else "ring"
        yield f"use cp over cp as {passes}"


def _overlaps_tp(row: Row) -> bool:
    """Megatron-Bridge's dense recipes and MaxText overlap the transfers of tensor parallelism."""
    return not row.moe and row.publisher.startswith(("NVIDIA-NeMo", "NVIDIA/NeMo", "AI-Hyper"))


def _experts(row: Row, layout: Layout, used: dict[str, int]) -> Iterator[str]:
    if not row.moe:
        return
    dtype = str(row.facts["options"].get("dtype", ""))
    drops = "capacity factor 1.25" in dtype or "token-drop" in str(row.facts.get("notes", ""))
    yield f"route experts as {'capacity(factor = 1.25)' if drops else 'dropless'}"
    if layout.ep == 1:
        return
    covered = [a for a in ("data", "cp", "tp") if a in used]
    total = prod(used[a] for a in covered)
    alone = covered == ["data"] and layout.ep == total
    if _overlaps_experts(row):
        yield f"overlap {'data' if alone else 'ep'} as dual_batch"
    if alone:
        yield "shard experts over data"
        return
    rest = total // layout.ep
    outer = f"edp {rest} > " if rest > 1 else ""
    yield f"view {outer}ep {layout.ep} of {', '.join(covered)} for experts"
    yield "shard experts over ep"
    if rest > 1 and layout.zero:
        nouns = "params, grads, optimizer" if layout.zero >= 2 else "optimizer"
        yield f"store {nouns} over edp for experts"


def _overlaps_experts(row: Row) -> bool:
    """True where Megatron-Bridge's published recipe overlaps tokens' transfers with another microbatch's compute.

    `overlap_moe_expert_parallel_comm` (earlier `moe_a2a_overlap`) is set by those that capture whole iterations,
    MXFP8 on Blackwell: commits of June 2026, before the container of 26.06; and by some others. Source: its
    perf_recipes, and scripts/performance/configs at v0.2.0, v0.3.0 and v0.4.0 (25.11, 26.02, 26.04).
    """
    if not row.publisher.endswith("Megatron-Bridge"):
        return False
    name, dtype, when = str(row.model["name"]), str(row.facts["options"].get("dtype")), release(row)
    captured = when >= "26.06" and dtype == "MXFP8" and name.startswith(CAPTURED.get(row.chip, ()))
    others = (o for o in OVERLAPPED if name.startswith(o[0]) and row.chip == o[1] and dtype != "MXFP8")
    return captured or any(first <= when <= last for _, _, first, last in others)


CAPTURED = {
    "GB200 NVL72": ("Qwen3", "DeepSeek-V3", "GPT-OSS"),
    "GB300 NVL72": ("Qwen3", "DeepSeek-V3", "GPT-OSS"),
    "B300": ("Qwen3", "DeepSeek-V3"),
    "B200": ("Qwen3",),
}
"""Models with experts whose MXFP8 recipes capture whole iterations."""
OVERLAPPED = (
    ("Qwen3 235B", "H100 SXM", "25.11", "26.08"),
    ("Qwen3 235B", "B200", "25.11", "25.11"),
    ("Qwen3 235B", "B300", "26.02", "26.02"),
    ("Qwen3 30B", "H100 SXM", "25.11", "26.02"),
    ("DeepSeek-V3", "H100 SXM", "25.11", "25.11"),
)
"""Other recipes that overlap: model, chip, first and last release."""


def release(row: Row) -> str:
    """The release of the container that the source of `row` names, as `26.06`; an empty string where it names none."""
    found = re.search(r"\((\d\d\.\d\d)[\d.]* container", row.source)
    return found[1] if found else ""


def _pipeline(row: Row, layout: Layout) -> Iterator[str]:
    if layout.pp == 1:
        return
    schedule = f"interleaved_1f1b(chunks = {layout.chunks})" if layout.chunks > 1 else "1f1b"
    yield f"split layers over pp as {schedule}{_stages(row, layout.pp * layout.chunks)}"


def _stages(row: Row, stages: int) -> str:
    """Stages that count embedding and head as a layer each, where the layers do not divide otherwise."""
    layers = int(row.model["layers"]) + int(row.facts["options"].get("mtp") or 0)
    each, rest = divmod(layers + 2, stages)
    if layers % stages == 0 or rest or stages < 3:
        return ""
    ends = ("embed", "head") if each == 1 else (f"embed + {each - 1}", f"{each - 1} + head")
    return f" stages [{ends[0]}, {stages - 2} x {each} layers, {ends[1]}]"


def _narrow_gradients(row: Row) -> bool:
    """True where gradients are reduced in 16 bits: pure bf16, and Megatron's fp16."""
    options = row.facts["options"]
    return options.get("fsdp_mixed_precision") == "PURE" or row.publisher == "VIA-Research/vTrain"


def _kernels(row: Row, used: dict[str, int]) -> Iterator[str]:
    kernel = _kernel(row, used)
    if kernel:
        yield f"attention.core as {kernel}"
    narrow = _narrow_dtype(row)
    if narrow:
        regions: tuple[str, ...] = ("projection", "experts" if row.moe else "ffn")
        if row.model.get("mla") or (row.moe and (row.model["moe"].get("shared_experts") or 0)):
            regions += ("ffn",)
        matmuls = [op for op in _block_ops(row) if op.kind == "matmul"]
        names = covering((op.name for op in matmuls if op.region in regions), matmuls)
        yield f"quantize {', '.join(names)} as {narrow}"


def _compiled(row: Row) -> Iterator[str]:
    """The `compile` sentence. torchtitan compiles its loss since 2025: `compiling loss function causes CUDA errors,
    turning off for now`, says its train.py of the benchmarks of 2024."""
    if row.publisher == "pytorch/torchtitan" and row.facts["options"].get("compile"):
        yield f"compile {'blocks' if '_202412_' in row.source else 'blocks, loss'}"


def _kernel(row: Row, used: dict[str, int]) -> str:
    """Attention's kernel where it is not FlashAttention-2. torchtitan prefers cuDNN's on Blackwell alone (its
    attention.py: from compute capability 10.0 on)."""
    if row.source.startswith(UNFUSED):
        return "unfused"
    if row.publisher.startswith("mosaicml"):
        return "triton"
    nvidia = row.publisher.startswith("NVIDIA") or row.id.startswith("maxtext-a3")
    blackwell = row.publisher == "pytorch/torchtitan" and row.chip.startswith(("B", "GB"))
    return "cudnn" if "cp" not in used and (nvidia or blackwell) else ""


def _narrow_dtype(row: Row) -> str:
    """The narrow dtype of a row's linear layers, with its recipe."""
    options = row.facts["options"]
    words = f"{options.get('fp8') or ''} {options.get('dtype') or ''}".lower()
    if "nvfp4" in words:
        return "float4"
    if "mxfp8" in words or "fp8-mx" in words:
        return "float8(tile = 32)"
    if "rowwise" in words:
        return "float8(rowwise)"
    return "float8(tensorwise)" if "fp8" in words or "float8" in words else ""


def recompute_words(row: Row) -> Iterator[str]:
    """The sentences for recomputation and offload of activations that `row` was run with."""
    words = str(row.facts["options"]["recompute"])
    if row.publisher.startswith("AI-Hypercomputer"):
        yield from _maxtext(row, words)
    elif words.startswith("full"):
        yield f"recompute {_blocks(row)}"
    elif words.startswith("selective") and row.publisher == "pytorch/torchtitan":
        # Its list of what is saved has every other `mm`, narrow ones too (a product of float8 tensors is an `mm` when
        # the list is asked: its tables have the same memory for both), and flash attention, not cuDNN's.
        core = ", attention.core" if "cudnn" in _kernel(row, {}) else ""
        cheap = _ops_of_kind(row, "norm", "rope", "add")
        yield f"recompute {cheap}, ffn.swiglu, attention.k, attention.out, ffn.up{core}"
    elif words.startswith("selective"):
        yield "recompute attention.core"
    elif words.startswith("none for"):
        yield f"recompute {_ops_of_kind(row, 'norm')}"
    elif 'granularity="full"' in words:
        count = int(words.rsplit("num_layers=", 1)[1].split()[0])
        yield f"recompute {_blocks(row)} every {max(1, round(row.model['layers'] / count))} layers"
    else:
        norms = {"layernorm": _ops_of_kind(row, "norm")}
        ops = [op for name, op in (MODULES | norms).items() if f'"{name}"' in words]
        yield f"recompute {', '.join(ops) or 'none'}"


def _ops_of_kind(row: Row, *kinds: str) -> str:
    """Names of the ops of these kinds, in a block of the row's model."""
    ops = _block_ops(row)
    return ", ".join(covering((op.name for op in ops if op.kind in kinds), ops))


def _block_ops(row: Row) -> tuple[Op, ...]:
    return _ops_of_model(model_words(row).partition("(")[0])


@cache
def _ops_of_model(name: str) -> tuple[Op, ...]:
    model = build_model(name)
    return tuple(op for kind in model.blocks for op in model.ops[kind])


def _blocks(row: Row) -> str:
    """Blocks run again to their end where the framework's checkpoint is a function of its own.

    Megatron-Core's and DeepSpeed's are; torch stops early from release 2.1 on. llm-foundry's tables of A100 are
    from before torch 2.0 (its benchmarking/README.md), those of H100 from after.
    """
    early = row.publisher == "pytorch/torchtitan" or (row.publisher.startswith("mosaicml") and row.chip == "H100 SXM")
    return "blocks" if early else "whole_blocks"


MODULES = {
    "mla_up_proj": "mla.up_proj",
    "moe_act": "moe.swiglu",
    "mlp": "ffn.swiglu, ffn.gate, ffn.up",
}
"""Megatron-Core's names of modules for selective recomputation."""


def _maxtext(row: Row, words: str) -> Iterator[str]:
    """MaxText's policies: `minimal` keeps what matmuls make; others keep named tensors, here or on the host."""
    if words.startswith("minimal"):
        core = "" if "flash" in words else ", attention.core"
        yield f"recompute {_ops_of_kind(row, 'norm', 'elementwise', 'add', 'rope')}{core}"
        return
    kept = []
    if "qkv" in words and not row.model.get("mla"):
        kept += ["attention.q", "attention.k", "attention.v"]
    if "k,v saved" in words:
        kept += ["attention.k", "attention.v"]
    if "context" in words:
        kept += ["attention.core"]
    if "out_proj" in words:
        kept += ["attention.out"]
    if "mlpwo" in words and not row.moe:
        kept += ["ffn.down"]
    if "qkv remat" in words:
        kept = []
    yield "recompute blocks" + (f" except {', '.join(kept)}" if kept else "")
    if "offload" in words:
        outputs = {"attention.core": "attention.mixed", "ffn.down": "ffn.out"}
        names = ["hidden", *(outputs.get(op, op) for op in kept if "saved" not in words or op not in SAVED)]
        yield f"offload {', '.join(names)} to host"


SAVED = ("attention.k", "attention.v")
"""Ops whose outputs stay on the device under a policy that says `k,v saved`, while the rest is offloaded."""
