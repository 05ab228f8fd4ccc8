"""Hugging Face transformers: a `DistributedConfig` in JSON or YAML, with the model's `config.json` and the Trainer's
arguments.

Names and defaults are those of transformers/distributed/configuration_utils.py. Each model class has its own TP plan: a
sharding style (colwise, rowwise, ...) for each module (`tp_plans.toml`).
"""

from __future__ import annotations

from planc.files import package_table
from planc.interop.document import Document
from planc.interop.fields import field_tables
from planc.interop.system import System
from planc.interop.systems import trainer
from planc.interop.systems.deepspeed import merged, model_words
from planc.interop.systems.trainer import BATCH
from planc.interop.values import AUTO, Values
from planc.ir.plan import Dtype, Noun, Period, Precision

PLANS: dict[str, dict[str, str]] = package_table("planc.interop.systems", "tp_plans.toml")
OWN_NAMES = ("tp_size", "tp_plan", "fsdp_size", "dp_replicate_size", "pp_size", "ep_size", "enable_expert_parallel")


def _size(v: Values, name: str) -> int:
    return v.maybe_whole(name, minimum=1) or 1


def _plan_given(v: Values, name: str) -> dict[str, str]:
    """Returns the style (colwise, ...) that the file sets for each module in `tp_plan.*` or `fsdp_plan.*` (`name`)."""
    found, start = {}, name.removesuffix("*")
    for document in v.documents:
        for field in document.fields:
            if field.startswith(start):
                found[field.removeprefix(start)] = v.text(field)
    return found


def tensor_parallel(v: Values) -> int:
    """Returns the degree of tensor parallelism: `tp_size`; or, if the file has only a TP plan, the devices divided by
    the other degrees; else 1."""
    size = v.maybe_whole("tp_size", minimum=1)
    if size is not None:
        return size
    planned = v.is_given("tp_plan") and v.raw("tp_plan") is not None
    if not planned and not _plan_given(v, "tp_plan.*"):
        return 1
    others = _size(v, "fsdp_size") * _size(v, "dp_replicate_size") * pipeline(v)
    if v.devices() % others:
        raise v.apart(f"{v.devices()} devices are no multiple of the other sizes = {others}", "fsdp_size", "tp_plan")
    return v.devices() // others


def pipeline(v: Values) -> int:
    """Returns 1. Raises RefusedError for more ranks, because transformers' own pipeline has no microbatches."""
    if _size(v, "pp_size") > 1:
        raise v.refused("the native pipeline has no schedule of microbatches", "pp_size")
    return 1


def shard(v: Values) -> int:
    """Returns the number of FSDP ranks. Raises RefusedError if the degrees' product is not the number of devices."""
    sizes = _size(v, "dp_replicate_size"), _size(v, "fsdp_size"), tensor_parallel(v) * pipeline(v)
    product = sizes[0] * sizes[1] * sizes[2]
    if product != v.devices():
        message = f"dp_replicate {sizes[0]} x fsdp {sizes[1]} x tp {sizes[2]} = {product} of {v.devices()} devices"
        raise v.apart(message, "fsdp_size", "tp_size", "dp_replicate_size")
    return sizes[1]


def experts(v: Values) -> int:
    """Returns the degree of expert parallelism."""
    ep, tp = v.maybe_whole("ep_size", minimum=1), tensor_parallel(v)
    if ep is None and v.flag("enable_expert_parallel"):
        ep = tp
        if tp > 1:
            why = "the ranks of tensor parallelism compute the dense layers all of them: give ep_size"
            raise v.refused(why, "enable_expert_parallel")
    if ep is None or ep == 1:
        return 1
    if not v.model().top_k:
        raise v.apart("the model has no experts", "ep_size")
    if ep % tp or (shard(v) * tp) % ep:
        message = f"ep_size {ep} is no multiple of tp {tp}, or does not divide fsdp x tp = {shard(v) * tp}"
        raise v.apart(message, "ep_size")
    if v.text("ep_implementation", AUTO, "all_to_all", "all_reduce", "deepgemm_megamoe") == "all_reduce":
        raise v.refused("experts on a batch that their ranks share have no sentence", "ep_implementation")
    return ep


def expert_tensor_parallel(v: Values) -> int:
    """Returns the number of ranks that shard the hidden dim of an expert: all tensor-parallel ranks if there is no
    expert parallelism, else 1."""
    tp = tensor_parallel(v)
    if tp == 1 or experts(v) > 1 or not v.model().top_k:
        return 1
    rules = _rules(v)
    divided = any(style == "packed_colwise" for name, style in rules.items() if "experts" in name)
    if not divided:
        raise v.refused("experts replicated over tensor-parallel ranks have no sentence", "tp_plan")
    return tp


# The rules of a model's plan.


def _rules(v: Values) -> dict[str, str]:
    """Returns the sharding style of each module: the TP plan of the model's class, with the file's changes."""
    kind = v.text("model_type")
    if v.raw("tp_plan") == () and v.is_given("tp_plan"):  # an empty plan divides nothing
        own: dict[str, str] = {}
    elif kind in PLANS:
        own = PLANS[kind]
    elif not kind:
        own = PLANS["llama"]
        v.approximate("without the model's config.json its plan is taken to be Llama's", "tp_plan", "tp_size")
    else:
        raise v.refused(f"transformers has no plan for the layers of {kind}", "tp_size", "tp_plan")
    given = _plan_given(v, "tp_plan.*")
    return {**own, **{name.removeprefix("model."): style for name, style in given.items()}}


_ATTENTION = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
_FEED_FORWARD = {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}
_STYLES = (
    *("colwise", "rowwise", "packed_colwise", "moe_tp_experts", "replicate", "replicated_with_grad_allreduce"),
    *("colwise_gather_output", "colwise_rep", "embedding_rowwise", "mla_kv_a_proj", "auto"),
)


def heads_divided(v: Values) -> bool:
    """True if the TP plan shards attention by heads, False if it replicates attention. Raises RefusedError for a TP
    plan that no sentence expresses, such as one that shards only a part of attention or of the feed-forward."""
    if tensor_parallel(v) == 1:
        return True
    rules = _rules(v)
    for style in rules.values():
        if style == "sequence_parallel":
            raise v.refused("which norms run on parts of a sequence is in the rules, not in a sentence", "tp_plan")
        if style not in _STYLES:
            raise v.refused(f"planc knows no style `{style}`", "tp_plan")
    dense = {n: s for n, s in rules.items() if ".mlp.experts" not in n and ".shared_expert" not in n}
    if any("mlp." in n for n in dense) and _part(dense, ".mlp.", _FEED_FORWARD) is None:
        raise v.refused("a part of the feed-forward is divided", "tp_plan")
    if not any("mlp" in n for n in rules):
        raise v.refused("a plan that replicates the feed-forward has no sentence", "tp_plan")
    attention = _part(dense, ".self_attn.", _ATTENTION)
    if attention is None:
        raise v.refused("a part of attention is divided", "tp_plan")
    return attention


def _part(rules: dict[str, str], module: str, wanted: dict[str, str]) -> bool | None:
    """True if the TP plan (`rules`) gives every matrix in `wanted` the style there, False if it gives none that style,
    else None. `module`, such as `.mlp.`, precedes the matrix in module names."""
    found = [any(f"{module}{n}" in name and s == style for name, s in rules.items()) for n, style in wanted.items()]
    return all(found) if all(found) or not any(found) else None


def vocab_divided(v: Values) -> bool:
    """True if tensor parallelism shards the head, or is off. Warns about a sharded head: its logits are gathered, and
    the embedding is replicated."""
    if tensor_parallel(v) == 1:
        return True
    head = _rules(v).get("lm_head", "")
    if head in ("", "replicate"):
        return False
    v.approximate(
        "the logits are gathered and the embedding is whole: more memory than the plan's", "tp_plan", "tp_size"
    )
    return True


# State and precision.


def gather(v: Values) -> Period | None:
    """Returns how long FSDP keeps gathered parameters: for a pass, or for the microbatch if the FSDP plan keeps those
    of the layers. None without FSDP."""
    if shard(v) == 1:
        return None
    styles = {s for name, s in _plan_given(v, "fsdp_plan.*").items() if "layers" in name}
    if styles - {"free_full_weight", "keep_full_weight"} or len(styles) > 1:
        raise v.refused("layers of which some keep their weights have no sentence", "fsdp_plan")
    return "microbatch" if "keep_full_weight" in styles else "pass"


LOADED: dict[str, Dtype] = {"bfloat16": "bf16", "float16": "fp16"}


def _loaded(v: Values) -> Dtype:
    """Returns the dtype in which the weights are loaded and stored."""
    return LOADED.get(v.text("dtype").removeprefix("torch."), "fp32")


def precision(v: Values) -> Precision:
    """Returns the dtypes of compute and gradient reduction, by FSDP, the loaded weights or the Trainer."""
    if shard(v) > 1 and v.flag("fsdp_mixed_precision"):
        return Precision(compute="bf16", reduce="fp32")
    loaded = _loaded(v)
    return trainer.autocast(v) if loaded == "fp32" else Precision(compute=loaded, reduce=loaded)


def stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    """Returns the state that is not in fp32, with its dtype: all state has the dtype of the loaded weights."""
    nouns: tuple[Noun, ...] = ("params", "grads", "optimizer")
    return tuple((noun, dtype) for noun in nouns) if (dtype := _loaded(v)) != "fp32" else ()


def offloaded(v: Values) -> tuple[str, ...]:
    """Returns the state that FSDP's CPUOffloadPolicy offloads to host memory: parameters and optimizer state."""
    return ("params", "optimizer") if shard(v) > 1 and v.flag("fsdp_cpu_offload") else ()


SETTINGS = {
    "cluster": lambda v: (v.devices(), v.options.cluster)[1],
    "devices": lambda v: v.devices(),
    "model": model_words,
    "sequences": lambda v: trainer.microbatch(v) * trainer.accumulation(v) * _size(v, "dp_replicate_size") * shard(v),
    "sequence_tokens": trainer.sequence_tokens,
    "microbatch": trainer.microbatch,
    "pp": pipeline,
    "replica": lambda v: _size(v, "dp_replicate_size"),
    "shard": shard,
    "tp": tensor_parallel,
    "heads_over_tp": heads_divided,
    "vocab_over_tp": vocab_divided,
    "ep": experts,
    "etp": expert_tensor_parallel,
    "experts_over": lambda v: ("shard", "tp") if experts(v) > 1 else ("tp",),
    "zero": lambda v: 3 if shard(v) > 1 else 0,
    "gather": gather,
    "optimizer": trainer.optimizer,
    "precision": precision,
    "stored": stored,
    "recompute": trainer.recompute,
    "offloaded": offloaded,
    "compiled": trainer.compiled,
    "framework": lambda v: "accelerate",
}

OWN = field_tables("hugging_face")["fields"]


def _recognises(document: Document) -> bool:
    own = set(OWN_NAMES) & document.fields.keys() or "model_type" in document.fields
    return bool(own) or trainer.recognises(document)


SYSTEM = System(
    name="hugging_face",
    title="transformers",
    version=trainer.VERSION,
    formats=("json", "yaml"),
    fields=merged(OWN, trainer.FIELDS),
    settings=SETTINGS,
    recognises=_recognises,
    batch_words=(BATCH, "gradient_accumulation_steps", "sequence_length"),
)
