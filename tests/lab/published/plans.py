"""A published run as a plan: the sentences that a user would write for it, with `realise as` its framework.

Only a row's fields are spelled here. What a framework does with them is the framework's table (`planc.frameworks`),
and nothing depends on who published a row. A field that is not used fails its row by name (`unused_fields`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

from planc.catalog import build_model
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.frameworks import policy_of
from planc.frameworks.maxtext import CUSTOM
from planc.frameworks.megatron import RUN_AGAIN
from planc.ir.model import Model, Op
from planc.ir.plan import Plan
from planc.language.op_names import covering
from planc.pipeline.schedules import schedules
from tests.lab.published.published_clusters import TORI, TWO_DEVICES, cluster_words, machine_of_row
from tests.lab.published.row_fields import Fields, UnusedFieldError, framework_of
from tests.lab.published.rows import Row, missing

MACHINE, CONFIG = "machine.plan", "model.json"
"""Files beside a row's plan: machines that differ from the catalog's, and sizes that no family's names have."""


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
    etp: int = 1
    chunks: int = 1
    zero: int = 0
    """ZeRO stage over `data`: 1 optimizer, 2 parameters gathered from forward to backward, 3 all. With a
    pipeline, torch keeps gathered parameters and whole gradients until a step's last microbatch."""

    @property
    def devices(self) -> int:
        return self.pp * self.replica * self.data * self.cp * self.tp


def plan_of(row: Row) -> Plan:
    """The plan of `row` on the machine it ran on.

    Raises UnusedFieldError for a row that says more than its plan, and PlanError, which would be our mistake.
    """
    from planc.language.build import build_file

    folder = Path("/", row.id)
    texts = {folder / name: text for name, text in plan_files(row).items()}
    built = build_file(folder / "row.plan", unsaved=texts)
    if built.plan is None:
        raise PlanError(built.diagnostics)
    return built.plan


def unusable(row: Row) -> str:
    """The reason why `row` cannot be made into a plan, or must not be compared: that of `missing`, or a field that its
    plan would not say, by name; an empty string for one that counts."""
    try:
        Fields(row).check()
        if reason := missing(row):
            return reason
        plan_files(row)
    except UnusedFieldError as error:
        return str(error)
    return ""


def plan_text(row: Row) -> str:
    """The text of a plan file for `row`."""
    return plan_files(row)["row.plan"]


def plan_files(row: Row) -> dict[str, str]:
    """The plan of `row` as files: `row.plan`, and what it reads beside it."""
    fields = Fields(row)
    fields.check()
    found = {}
    name = "".join(c if c.isalnum() else "_" for c in row.id)
    lines = [f"plan r_{name}", f"# {row.source}"]
    if text := machine_of_row(fields):
        found[MACHINE] = text
        lines.append(f'import "{MACHINE}"')
    words, config = _model(fields)
    if config:
        found[CONFIG] = json.dumps(config, indent=1)
    layout = layout_of(fields)
    if layout.devices != (devices := (2 if row.chip in TWO_DEVICES else 1) * row.devices):
        raise UnusedFieldError(f"parallel: the axes make {layout.devices} devices, and hardware.n_devices {devices}")
    _repeated(fields, layout)
    lines += [f"model {words}", *_sentences(fields, layout)]
    if unused := fields.unused():
        raise UnusedFieldError(f"no sentence for {', '.join(unused)}")
    return {"row.plan": "\n".join(lines) + "\n", **found}


def _repeated(fields: Fields, layout: Layout) -> None:
    """Raise UnusedFieldError for a flag that says another number than the row's own field."""
    row = fields.row
    own = {
        "num-layers": row.model["layers"], "hidden-size": row.model["d_model"], "seq-length": row.sequence,
        "num-attention-heads": row.model["n_heads"], "global-batch-size": row.sequences,
        "micro-batch-size": microbatch(fields, layout), "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp, "context-parallel-size": layout.cp,
        "expert-model-parallel-size": layout.ep, "expert-tensor-parallel-size": layout.etp,
    }  # fmt: skip
    for name, value in own.items():
        if (said := fields.flag(name)) is not None and str(said) != str(value):
            raise UnusedFieldError(f"flags.{name} {said}, and the row's own field makes it {value}")


def _sentences(fields: Fields, layout: Layout) -> Iterator[str]:
    row = fields.row
    yield f"batch {row.sequences} x {row.sequence} tokens microbatch {microbatch(fields, layout)}"
    yield f"cluster {cluster_words(row)}"
    sizes = [("pp", layout.pp), ("replica", layout.replica), ("data", layout.data), ("cp", layout.cp)]
    axes = [(name, size) for name, size in (*sizes, ("tp", layout.tp)) if size > 1]
    yield "mesh " + " > ".join(f"{name} {size}" for name, size in axes or [("data", 1)])
    yield f"realise as {framework_of(fields)}"
    used = dict(axes)
    yield from _data(fields, layout, used)
    yield from _layout_sentences(fields, used)
    yield from _experts(fields, layout, used)
    yield from _pipeline(fields, layout)
    yield f"optimizer {_optimizer(fields)}"
    own = policy_of(framework_of(fields)).reduce
    yield f"compute {_computed_in(fields)} reduce {'bf16' if _narrow_gradients(fields) else own}"
    yield from _kernels(fields, used)
    yield from _compiled(fields)
    yield from recompute_words(fields)
    if fields.option("gradient_bucket") is False:
        yield from (f"overlap {axis} as none" for axis in ("data", "replica") if axis in used)


# Axes.


def layout_of(fields: Fields) -> Layout:
    """The mesh axes of the row in `fields`, from its source's own option names."""
    row, value = fields.row, fields.size
    system = framework_of(fields)
    zero = fields.parallel("zero")
    zero = fields.option("zero") if zero is None else zero
    if system == "maxtext":
        slices, tp = value("dcn_dp"), value("tp") * value("ici_tp")
        cp = value("cp") * value("ici_cp")
        inside = (2 if row.chip in TWO_DEVICES else 1) * row.devices // (slices * tp * cp)
        if not inside:
            raise UnusedFieldError("parallel: dcn_dp, ici_tp and ici_cp are more ranks than hardware.n_devices")
        replica = slices * (value("dp") if fields.parallel("fsdp") else 1)
        axes = ("ici_fsdp", "ici_fsdp_transpose", "fsdp_transpose", "fsdp", "ici_ep")  # all of them divide state alike
        if (given := prod(map(value, axes))) * value("dp") not in (1, inside):
            raise UnusedFieldError(f"parallel.{'.'.join(axes)}: {given}, hardware.n_devices makes it {inside}")
        return Layout(replica=replica, data=inside * slices // replica, cp=cp, tp=tp, ep=value("ici_ep"), zero=3)
    sizes = {"pp": value("pp"), "cp": value("cp"), "tp": value("tp"), "ep": value("ep"), "etp": value("etp")}
    chunks = _chunks(fields)
    if sizes["ep"] * sizes["etp"] > 1 and not row.moe:
        raise UnusedFieldError("parallel.ep: the model has no experts")
    strategy = str(fields.parallel("strategy") or fields.option("strategy") or "").lower().replace("_", "")
    if strategy not in STRATEGIES:
        raise UnusedFieldError(f"parallel.strategy {strategy!r}: none of {', '.join(filter(None, STRATEGIES))}")
    if fields.parallel("fsdp") or STRATEGIES[strategy] is not None:
        kept = STRATEGIES[strategy] or (2 if zero == 2 else 3)
        replica = value("dp_replicate")
        if not fields.parallel("fsdp"):
            data = row.devices // (sizes["pp"] * sizes["cp"] * sizes["tp"] * replica)
            return Layout(**sizes, replica=replica, data=data, chunks=chunks, zero=kept)
        if value("dp") not in (1, replica, value("fsdp"), replica * value("fsdp")):
            raise UnusedFieldError(f"parallel.dp {value('dp')} beside parallel.fsdp {value('fsdp')}")
        return Layout(**sizes, replica=replica, data=value("fsdp"), chunks=chunks, zero=kept)
    stored = 1 if zero is None or zero == 1 or str(zero).startswith("ZeRO-1") else int(zero)
    if value("model_parallel") not in (1, sizes["pp"] * sizes["tp"]):
        raise UnusedFieldError(f"parallel.model_parallel {value('model_parallel')}: not tp times pp")
    data = row.devices // (sizes["pp"] * sizes["cp"] * sizes["tp"])
    if value("dp") not in (1, data):
        raise UnusedFieldError(f"parallel.dp {value('dp')}: hardware.n_devices makes it {data}")
    return Layout(**sizes, data=data, chunks=chunks, zero=min(stored, 1))


STRATEGIES = {"": None, "fsdp": 3, "fsdp2": 3, "fullshard": 3, "hsdp": 3, "hybridshard": 3, "shardgradop": 2}
"""Names of ways to divide state over the data-parallel ranks, with the ZeRO stage of each."""


def _chunks(fields: Fields) -> int:
    """Stages a rank. Where an interleaved schedule's are not printed: the most that divide, up to 6."""
    layers, pp, given = int(fields.row.model["layers"]), fields.size("pp"), fields.size("vpp")
    schedule = str(fields.parallel("pp_schedule") or "1F1B")
    known = schedules()[_schedule(fields, 1)]
    if pp == 1 and given > 1:
        raise UnusedFieldError(f"parallel.vpp {given}: there is no pipeline")
    if pp == 1 or (given > 1 and (known.free_chunks or known.name == "1f1b")):
        return given if pp > 1 else 1
    if schedule == "Interleaved1F1B":
        return 2
    if known.name != "1f1b":
        return known.chunks
    if "interleaved" in schedule and not fields.parallel("vpp"):
        return max((n for n in range(1, 7) if layers % (pp * n) == 0), default=1)
    return 1


def microbatch(fields: Fields, layout: Layout) -> int:
    """Sequences that a data-parallel rank of the row in `fields`, laid out as `layout`, works on at a time.

    Where a source prints none: without a pipeline 4, else 1. A batch of a device or rank is that of one forward;
    torchtitan's pipelines have as many microbatches as ranks unless told otherwise (its pipeline_llama.py), so that its
    batch of a rank is that of all of them.
    """
    each = fields.row.sequences // (layout.replica * layout.data)
    device = fields.batch("per_device_batch_seqs") or fields.batch("per_jax_device_batch_seqs")
    local, micro = fields.batch("local_batch_seqs"), fields.batch("micro_batch_seqs")
    if framework_of(fields) == "maxtext":
        if device is not None and float(device) * layout.devices != fields.row.sequences:
            raise UnusedFieldError(f"batch.per_device_batch_seqs {device}: not the {fields.row.sequences} of a step")
        return max(1, each // layout.pp)
    micro = device if micro is None else micro
    if local is not None:
        return max(1, int(local) // layout.pp)
    if micro is not None:
        return int(micro)
    return 1 if layout.pp > 1 else min(each, 4)


# Sentences.


def model_words(row: Row) -> str:
    """The model of a `model` sentence for `row`."""
    return _model(Fields(row))[0]


def _model(fields: Fields) -> tuple[str, dict[str, Any] | None]:
    """Words of a `model` sentence: one of the catalog with the sizes of a row, or a configuration of its own."""
    size = fields.model
    sizes = {"layers": int(size("layers")), "vocab": size("vocab")}
    shape = {"embed": size("d_model"), "heads": size("n_heads")}
    gated, tied, head_dim = size("gated_mlp"), size("tied_embeddings"), size("head_dim")
    positions, name = size("learned_pos_emb"), str(size("name"))
    keys, ffn, bias = size("n_kv_heads"), size("ffn"), size("bias")
    attention = str(size("attention") or "gqa")
    size("norm")  # costed alike
    latent, routed = size("mla"), size("moe")
    own = next((words for start, words in WINDOWS.items() if name.startswith(start)), "")
    if attention not in ("mha", "gqa", "mqa", "mla", own):
        raise UnusedFieldError(f"model.attention {attention[:40]!r}: no family of the catalog is built of it")
    if latent:
        return _latent(fields, {**sizes, **shape, "ffn": ffn})
    if routed:
        return _routed(fields, {**sizes, **shape, "kv_heads": keys, "head_dim": head_dim}, gated=gated is not False)
    if gated is False:
        grouped = keys not in (None, shape["heads"])
        biased = bool(positions or bias or (positions is None and name.startswith(("GPT", "MT-NLG"))))
        if bias is not None and biased != bool(positions):
            raise UnusedFieldError("model.bias: no family of the catalog has biases without learned positions")
        base = "mpt_7b" if not biased else "gpt_grouped" if grouped or tied is False else "gpt3_175b"
        more = {**shape, "head_dim": head_dim, "ffn": ffn}
        more |= {"kv_heads": keys} if base == "gpt_grouped" else {}
        more |= {"positions": fields.row.sequence} if biased else {}
        if grouped and base != "gpt_grouped":
            raise UnusedFieldError(f"model.n_kv_heads {keys}: {base} has as many as queries")
    elif "Gemma 3" in name:
        base, more = "gemma3_12b", {**shape, "kv_heads": keys, "head_dim": head_dim, "ffn": ffn}
    else:
        if bias:
            raise UnusedFieldError("model.bias: no family of the catalog has gates and biases")
        base = "llama3_2_1b" if tied else "llama3_8b"
        more = {**shape, "kv_heads": keys, "head_dim": head_dim, "ffn": ffn}
    return f"{base}({_changes({**sizes, **more})})", None


def _changes(sizes: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {length}" for name, length in sizes.items() if length is not None)


def _latent(fields: Fields, sizes: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """DeepSeek's block with the row's sizes, as a Hugging Face configuration."""
    mla, moe = fields.latent, fields.moe
    if fields.model("n_kv_heads") not in (None, sizes["heads"]):
        raise UnusedFieldError("model.n_kv_heads: latent attention has as many as queries")
    moe("layer_freq"), moe("shared_ffn")  # the first layers are dense, which `dense_layers` says
    return f'from "{CONFIG}"', {
        "model_type": "deepseek_v3",
        "num_hidden_layers": sizes["layers"],
        "first_k_dense_replace": int(moe("dense_layers") or 0),
        "hidden_size": sizes["embed"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["heads"],
        "v_head_dim": mla("v_head_dim"),
        "qk_nope_head_dim": mla("qk_nope_head_dim"),
        "qk_rope_head_dim": mla("qk_rope_head_dim"),
        "q_lora_rank": mla("q_lora_rank"),
        "kv_lora_rank": mla("kv_lora_rank"),
        "intermediate_size": sizes["ffn"],
        "moe_intermediate_size": moe("expert_ffn"),
        "n_routed_experts": moe("experts"),
        "num_experts_per_tok": moe("top_k"),
        "n_shared_experts": int(moe("shared_experts") or 0),
        "n_group": 1,
        "topk_group": 1,
        "mtp_layers": _ahead(fields),
        "vocab_size": sizes["vocab"],
    }


def _routed(fields: Fields, sizes: dict[str, Any], *, gated: bool) -> tuple[str, dict[str, Any] | None]:
    """A model of the catalog whose name and experts are the row's, or Mixtral's block with the row's sizes."""
    name, moe = str(fields.row.model["name"]), fields.moe
    experts, top_k, expert_ffn = moe("experts"), moe("top_k"), moe("expert_ffn")
    shared, dense, every = moe("shared_experts") or 0, moe("dense_layers") or 0, moe("moe_every_n_layers")
    moe("shared_ffn")
    known = next((base for start, base in ROUTED.items() if name.startswith(start)), None)
    if known and build_model(known).sizes["experts"] == experts and not dense:
        _check_sizes(fields, build_model(known), sizes)
        changed = {**{k: sizes[k] for k in ("layers", "vocab")}, "mtp_layers": _ahead(fields) or None}
        return f"{known}({_changes(changed)})", None
    if not gated:
        raise UnusedFieldError("model.gated_mlp: no family of the catalog has these experts without gates")
    if fields.model("ffn") not in (None, expert_ffn):
        raise UnusedFieldError("model.ffn: no family of the catalog has other widths beside these experts")
    if shared or dense or every not in (None, 1):
        raise UnusedFieldError("model.moe: no family of the catalog has these layers")
    return f'from "{CONFIG}"', {
        "model_type": "mixtral",
        "num_hidden_layers": sizes["layers"],
        "hidden_size": sizes["embed"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "intermediate_size": expert_ffn,
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "vocab_size": sizes["vocab"],
        "sliding_window": None,
    }


def _check_sizes(fields: Fields, model: Model, sizes: dict[str, Any]) -> None:
    """Raise UnusedFieldError for a size that the catalog's `model` does not have as the row says it."""
    own = model.sizes
    said = {
        **{k: sizes.get(k) for k in ("embed", "heads", "kv_heads", "head_dim")},
        "expert_ffn": fields.moe("expert_ffn"),
    }
    wrong = [name for name, value in said.items() if value not in (None, own.get(name))]
    wrong += ["top_k"] if fields.moe("top_k") not in (None, model.top_k) else []
    wrong += ["shared_experts"] if int(fields.moe("shared_experts") or 0) != ("shared_ffn" in own) else []
    wrong += ["ffn"] if fields.model("ffn") not in (None, own.get("ffn"), own["expert_ffn"]) else []
    if wrong:
        raise UnusedFieldError(f"model.{wrong[0]}: {model.name} of the catalog has another one")


WINDOWS = {
    "GPT-OSS": "gqa+sliding128 alternating",
    "Llama 4": "gqa, chunked 8192 on 3 of 4 layers",
    "Gemma 3": "gqa, sliding 1024 on 5 of 6 layers",
}
"""Words for the attention of families whose layers differ in it."""
ROUTED = {
    "Qwen3 30B": "qwen3_30b_a3b",
    "Qwen3 235B": "qwen3_235b_a22b",
    "GPT-OSS 120B": "gpt_oss_120b",
    "GPT-OSS 20B": "gpt_oss_20b",
    "Mixtral 8x7B": "mixtral_8x7b",
    "Mixtral 8x22B": "mixtral_8x22b",
    "Llama 4 Scout": "llama4_scout",
    "Llama 4 Maverick": "llama4_maverick",
    "Nemotron 3 Nano": "nemotron_3_nano",
    "Nemotron 3 Super": "nemotron_3_super",
}
"""Models with experts by the beginning of their name."""


def _data(fields: Fields, layout: Layout, used: dict[str, int]) -> Iterator[str]:
    axes = [a for a in ("replica", "data") if a in used]
    if axes:
        yield f"shard batch over {', '.join(axes)}"
    narrow = " as bf16" if _narrow_weights(fields) else ""
    divided = [a for a in ("data", "cp") if a in used]
    if not divided:
        yield from ([f"store params, grads, optimizer{narrow}"] if narrow else [])
        return
    if layout.zero in (2, 3):
        whole = layout.pp > 1 or bool(fields.option("whole_grads"))
        nouns = "params, optimizer" if whole else "params, grads, optimizer"
        yield f"store {nouns}{narrow} over {', '.join(divided)}"
        if layout.zero == 2 or layout.pp > 1:
            yield f"gather params per {'microbatch' if layout.pp == 1 else 'step'}"
        return
    yield from ([f"store params, grads{narrow}"] if narrow else [])
    if layout.zero == 1:
        yield f"store optimizer{narrow or _moments(fields)} over {', '.join(divided)}"
    elif narrow:
        yield f"store optimizer{narrow}"


def _narrow_weights(fields: Fields) -> bool:
    """True where parameters, gradients and moments are stored in bf16."""
    said = str(fields.option("weights") or "fp32")
    if not said.startswith(("fp32", "bf16")):
        raise UnusedFieldError(f"options.weights {said[:40]!r}: neither fp32 nor bf16")
    return said.startswith("bf16") or "bf16 weights" in str(fields.option("dtype") or "").lower()


def _optimizer(fields: Fields) -> str:
    """The name of the optimizer in a plan: AdamW where the row says none."""
    said = str(fields.option("optimizer") or "adamw").lower()
    if "muon" in said:
        return "muon"
    if "adam" not in said or any(word in said for word in ("8bit", "8-bit", "paged")):
        raise UnusedFieldError(f"options.optimizer {said[:40]!r}: neither AdamW nor Muon, with moments in fp32 or bf16")
    return "adamw"


def _computed_in(fields: Fields) -> str:
    """The dtype of a plan's matmuls, of which some may be narrower. Runs in fp16 have the rates of bf16."""
    said = str(fields.option("dtype") or "bf16").lower()
    if said.startswith("fp32"):
        return "fp32"
    if not any(word in said for word in ("bf16", "fp16", "fp8", "float8", "nvfp4", "int8")):
        raise UnusedFieldError(f"options.dtype {said[:40]!r}: no such dtype")
    return "bf16"


def _moments(fields: Fields) -> str:
    """Words for the dtype of the optimizer's moments, where the row says one."""
    moments = fields.option("moments")
    return f" as {moments}" if moments else ""


def _layout_sentences(fields: Fields, used: dict[str, int]) -> Iterator[str]:
    said = [str(o) for o in fields.option("overlap") or ()]
    own = fields.option("tp_overlap")
    sequence_parallel, cut = fields.option("sequence_parallel"), fields.option("async_tp")
    whole_table = fields.option("embedding") == "replicated over tp"
    if "tp" in used:
        yield "use tp over tp"
        yield from (["override tok_embeddings = replicated"] if whole_table else [])
        if sequence_parallel is not False:
            yield "use sp over tp"
        if own:
            yield f"overlap tp as {own}"
        elif cut or "tp" in said or fields.flag("tp-comm-overlap"):
            yield f"overlap tp as {'windowed_einsum' if fields.row.chip in TORI else 'async_matmul'}"
    passes = fields.option("cp_comm")
    if "cp" in used:
        yield "use ulysses over cp" if passes == "a2a" else f"use cp over cp as {passes or 'ring'}"


def _experts(fields: Fields, layout: Layout, used: dict[str, int]) -> Iterator[str]:
    row = fields.row
    if not row.moe:
        return
    dtype = str(fields.option("dtype") or "")
    drops = "capacity factor 1.25" in dtype or "token-drop" in str(row.facts.get("notes", ""))
    factor = fields.option("moe_capacity_factor") or (1.25 if drops else None)
    dispatcher = str(fields.option("dispatcher") or "").lower()
    once = any(name in dispatcher for name in ONCE_A_NODE)
    if dispatcher and not once and dispatcher not in ("alltoall", "none"):
        raise UnusedFieldError(f"options.dispatcher {dispatcher[:40]!r}: no such dispatcher")
    inside = [*([f"factor = {float(factor):g}"] if factor else []), *(["copies = node"] if once else [])]
    words = f"({', '.join(inside)})" if inside else ""
    yield f"route experts as {'capacity' if factor else 'dropless'}{words}"
    if layout.ep * layout.etp == 1 and "tp" in used:
        yield "use etp over tp"  # the width of an expert is divided as that of a feed-forward is
    overlapped = fields.option("ep_overlap") or fields.flag("overlap-moe-expert-parallel-comm")
    if layout.ep * layout.etp == 1:
        return
    covered = [a for a in ("data", "cp", "tp") if a in used]
    total = prod(used[a] for a in covered)
    alone = covered == ["data"] and layout.ep == total
    if overlapped:
        yield f"overlap {'data' if alone else 'ep'} as dual_batch"
    if alone:
        yield "shard experts over data"
        return
    rest = total // (layout.ep * layout.etp)
    inner = [("edp", rest), ("ep", layout.ep), ("etp", layout.etp)]
    factors = " > ".join(f"{name} {size}" for name, size in inner if size > 1)
    yield f"view {factors} of {', '.join(covered)} for experts"
    yield from (["shard experts over ep"] if layout.ep > 1 else [])
    yield from (["use etp over etp"] if layout.etp > 1 else [])
    if rest > 1 and layout.zero:
        nouns = "params, grads, optimizer" if layout.zero >= 2 else "optimizer"
        yield f"store {nouns} over edp for experts"


ONCE_A_NODE = ("hybridep", "deepep")
"""Dispatchers of Megatron-Core that send a token once to each node."""


def _pipeline(fields: Fields, layout: Layout) -> Iterator[str]:
    if layout.pp == 1:
        return
    name = _schedule(fields, layout.chunks)
    chunks = f"(chunks = {layout.chunks})" if schedules()[name].free_chunks else ""
    yield f"split layers over pp as {name}{chunks}{_stages(fields, layout.pp * layout.chunks)}"


def _schedule(fields: Fields, chunks: int) -> str:
    """The schedule of a row's pipeline by its name in plans, however a framework spells it."""
    said = str(fields.parallel("pp_schedule") or "1F1B").lower()
    if said.startswith(("1f1b", "interleaved 1f1b", "interleaved1f1b")) or said == "interleaved":
        return "interleaved_1f1b" if chunks > 1 else "1f1b"
    known = {"".join(filter(str.isalnum, name)): name for name in schedules() if name != "csv"}
    plain = "".join(filter(str.isalnum, said)).removesuffix("zerobubble") if said.startswith("zbv") else said
    name = known.get("".join(filter(str.isalnum, plain)))
    if name is None:
        raise UnusedFieldError(f"parallel.pp_schedule {said}: no such schedule")
    return name


def _stages(fields: Fields, stages: int) -> str:
    """The stages that a row says; or those that count embedding and head as a layer each, where the layers do not
    divide otherwise. Layers for multi-token prediction are the last stage's
    (megatron/core/transformer/multi_token_prediction.py)."""
    given = fields.parallel("stage_layers")
    if given and (not isinstance(given, list) or len(given) < 2):
        raise UnusedFieldError(f"parallel.stage_layers {str(given)[:40]!r}: no list of layers")
    if given:
        runs = [(n, len(list(same))) for n, same in groupby(given[1:-1])]
        middle = "".join(f"{count} x {n} layers, " for n, count in runs)
        return f" stages [embed + {given[0]}, {middle}{given[-1]} + head]"
    layers, ahead = int(fields.row.model["layers"]), _ahead(fields)
    each, rest = divmod(layers + ahead + 2, stages)
    if layers % stages == 0 and ahead and stages > 1:
        each = layers // stages
        middle = f"{stages - 2} x {each} layers, " if stages > 2 else ""
        return f" stages [embed + {each}, {middle}{each + ahead} + head]"
    if (layers + ahead) % stages == 0 or rest or stages < 3:
        return ""
    ends = ("embed", "head") if each == 1 else (f"embed + {each - 1}", f"{each - 1} + head")
    return f" stages [{ends[0]}, {stages - 2} x {each} layers, {ends[1]}]"


def _ahead(fields: Fields) -> int:
    """Layers for multi-token prediction."""
    return int(fields.option("mtp") or 0) + int(fields.flag("mtp-num-layers") or 0)


def _narrow_gradients(fields: Fields) -> bool:
    """True where gradients are reduced in 16 bits: pure bf16, and Megatron's fp16."""
    pure = fields.option("fsdp_mixed_precision") == "PURE"
    return pure or str(fields.option("dtype")).startswith("fp16 ")


def _kernels(fields: Fields, used: dict[str, int]) -> Iterator[str]:
    """Attention's kernel where the row says one, and narrow products. Runs in fp16 are older than flash attention."""
    backend = str(fields.option("attention_backend") or "auto")
    kept = fields.option("flash_attention")
    before_flash = kept is None and str(fields.option("dtype")).startswith("fp16")
    local = backend == "auto" and fields.flag("transformer-impl") == "local" and not fields.flag("use-flash-attn")
    if kept is False or before_flash or local or backend in ("unfused", "local"):
        yield "attention.core as unfused"
    elif backend in ("flash", "cudnn", "fused") and "cp" not in used:
        yield f"attention.core as {'flash' if backend == 'flash' else 'cudnn'}"
    narrow, kept = _narrow_dtype(fields), fields.option("wide_layers")
    spared = f" except layers {kept}" if kept else ""
    if by_op := fields.option("quantized"):
        yield from (f"quantize {ops} as {dtype}{spared}" for dtype, ops in by_op.items())
    elif narrow:
        row = fields.row
        regions: tuple[str, ...] = ("projection", "experts" if row.moe else "ffn")
        if row.model.get("mla") or (row.moe and (row.model["moe"].get("shared_experts") or 0)):
            regions += ("ffn",)
        matmuls = [op for op in _block_ops(row) if op.kind == "matmul"]
        names = covering((op.name for op in matmuls if op.region in regions), matmuls)
        yield f"quantize {', '.join(names)} as {narrow}{spared}"


def _compiled(fields: Fields) -> Iterator[str]:
    """The `compile` sentence; `compile: "blocks"` is all but the loss, Megatron-LM's fused loss is the loss alone."""
    said = fields.option("compile")
    if not isinstance(said, bool | str | None):
        raise UnusedFieldError(f"options.compile {said}: neither yes nor no nor what is compiled")
    compiled = said or ("loss" if fields.flag("cross-entropy-loss-fusion") else None)
    if compiled:
        own = policy_of(framework_of(fields)).compiles
        yield f"compile {compiled if isinstance(compiled, str) else own}"


def _narrow_dtype(fields: Fields) -> str:
    """The narrow dtype of a row's linear layers, with its recipe."""
    words = f"{fields.option('fp8') or ''} {fields.option('dtype') or ''}".lower()
    if "nvfp4" in words:
        return "float4"
    if "mxfp8" in words or "fp8-mx" in words:
        return "float8(tile = 32)"
    if "rowwise" in words:
        return "float8(rowwise)"
    if "int8" in words:
        return "int8"
    if fields.option("fp8") and not ("fp8" in words or "float8" in words):
        raise UnusedFieldError(f"options.fp8 {words.strip()[:40]!r}: no such recipe")
    return "float8(tensorwise)" if "fp8" in words or "float8" in words else ""


def recompute_words(fields: Fields) -> Iterator[str]:
    """The sentences for recomputation and offload of activations that the row in `fields` was run with."""
    row = fields.row
    given = fields.option("recompute")
    words = str(fields.option("activation_checkpointing") if given is None else given)
    system = framework_of(fields)
    if system == "maxtext":
        yield from _maxtext(row, words)
    elif words.startswith("full") or words.lower().startswith(("true", "whole block")):
        yield "recompute whole_blocks" if "block to its end" in words else "recompute blocks"
    elif words.startswith("none for"):
        yield f"recompute {_ops_of_kind(row, 'norm')}"
    elif 'granularity="full"' in words:
        count = int(words.rsplit("num_layers=", 1)[1].split()[0])
        yield f"recompute blocks every {max(1, round(row.model['layers'] / count))} layers"
    elif named := [op for name, ops in RUN_AGAIN.items() for op in _existing(row, ops) if _names_module(words, name)]:
        yield f"recompute {', '.join(dict.fromkeys(named))}"
    elif words.startswith("selective"):
        yield "recompute selective"
    elif words.startswith(("none", "null", "False", "None", "granularity")):
        yield "recompute none"
    else:
        raise UnusedFieldError(f"options.recompute {words[:40]!r}")


def _names_module(words: str, module: str) -> bool:
    """True if `words` list a module of Megatron-Core's: after `modules=`, in brackets or after `selective:`."""
    listed = words.replace('"', " ").replace("[", " ").replace("]", " ").replace(",", " ").split()
    return (words.startswith(("granularity", "selective:", "selective ["))) and module in listed


def _existing(row: Row, names: tuple[str, ...]) -> list[str]:
    known = [op.name for op in _block_ops(row)]
    return [n for n in names if any(op == n or op.startswith(f"{n}.") for op in known)]


def _ops_of_kind(row: Row, *kinds: str) -> str:
    """Names of the ops of these kinds, in a block of the row's model."""
    ops = _block_ops(row)
    return ", ".join(covering((op.name for op in ops if op.kind in kinds), ops))


def _block_ops(row: Row) -> tuple[Op, ...]:
    words, config = _model(Fields(row))
    if config is None:
        return _ops_of_model(words.partition("(")[0])
    if config["model_type"] == "mixtral":
        return _ops_of_model("mixtral_8x7b")
    return _ops_of_model("deepseek_v3" if config["q_lora_rank"] else "deepseek_v2_lite")


@cache
def _ops_of_model(name: str) -> tuple[Op, ...]:
    return build_model(name).block_ops


def _maxtext(row: Row, words: str) -> Iterator[str]:
    """MaxText's policies: `minimal` keeps what matmuls make; others keep named tensors, here or on the host."""
    if words.startswith("none"):
        yield "recompute none"
        return
    if not words.startswith(("full", "minimal", "custom", "decoder_layer_input", "qkv_proj_offloaded", "save")):
        raise UnusedFieldError(f"options.recompute {words[:40]!r}")
    if words.startswith("minimal"):
        core = "" if "flash" in words else ", attention.core"
        yield f"recompute {_ops_of_kind(row, 'norm', 'elementwise', 'add', 'rope')}{core}"
        return
    kept: list[str] = []
    if "qkv" in words and not row.model.get("mla"):
        kept += CUSTOM["qkv_proj"]
    if "k,v saved" in words:
        kept += [*CUSTOM["key_proj"], *CUSTOM["value_proj"]]
    if "context" in words:
        kept += CUSTOM["context"]
    if "out_proj" in words:
        kept += CUSTOM["out_proj"]
    if "mlpwo" in words and not row.moe:
        kept += CUSTOM["mlpwo"]
    if "qkv remat" in words:
        kept = []
    yield "recompute blocks" + (f" except {', '.join(kept)}" if kept else "")
    if "offload" in words:
        outputs = {"attention.core": "attention.mixed", "ffn.down": "ffn.out"}
        names = ["hidden", *(outputs.get(op, op) for op in kept if "saved" not in words or op not in SAVED)]
        yield f"offload {', '.join(names)} to host"


SAVED = ("attention.k", "attention.v")
"""Ops whose outputs stay on the device under a policy that says `k,v saved`, while the rest is offloaded."""
