"""Megatron-Bridge: the `run_config.yaml` in its checkpoints, and overrides of a recipe, `model.x=y`.

Sections of its files are dataclasses of Megatron-Core, so the readers for Megatron-LM's flags are reused under Bridge's
names (CALLS). Names and defaults are those of the dataclasses at the commit below. A recipe is Python code, which planc
does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from planc.diag.quoting import python_comment, shell_word
from planc.interop.document import Document, FieldValue, Given
from planc.interop.fields import Field, field_tables
from planc.interop.setup import Role, TrainingSetup
from planc.interop.system import OMIT, System
from planc.interop.systems import megatron
from planc.interop.systems.megatron_asserts import check_asserts
from planc.interop.values import Values

VERSION = "067f987"
"""The commit of these names and defaults, of 22 August 2026."""
SAME = {
    "model": (
        "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size "
        "expert_tensor_parallel_size virtual_pipeline_model_parallel_size pipeline_model_parallel_layout "
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split sequence_parallel cp_comm_type "
        "tp_comm_overlap overlap_moe_expert_parallel_comm "
        "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels "
        "position_embedding_type normalization qk_layernorm add_qkv_bias make_vocab_size_divisible_by vocab_size "
        "multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim moe_router_topk "
        "moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_layer_freq moe_token_dispatcher_type "
        "moe_expert_capacity_factor bf16 fp16 fp8 fp8_recipe fp4 fp4_recipe first_last_layers_bf16 "
        "num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 attention_backend recompute_granularity "
        "recompute_method recompute_num_layers recompute_modules moe_layer_recompute cross_entropy_loss_fusion "
        "cross_entropy_fusion_impl mtp_num_layers"
    ),
    "train": "micro_batch_size global_batch_size",
    "ddp": (
        "use_distributed_optimizer num_distributed_optimizer_instances use_megatron_fsdp "
        "data_parallel_sharding_strategy overlap_grad_reduce overlap_param_gather"
    ),
    "optimizer": (
        "optimizer use_precision_aware_optimizer main_params_dtype main_grads_dtype exp_avg_dtype exp_avg_sq_dtype "
        "optimizer_cpu_offload optimizer_offload_fraction"
    ),
    "dist": "use_tp_pp_dp_mapping use_torch_fsdp2",
    "tokenizer": "tokenizer_type",
}
"""Sections, and the fields with the name of Megatron-LM's flag."""
CALLS = {
    **{name: f"{section}.{name}" for section, names in SAME.items() for name in names.split()},
    "seq_length": "dataset.seq_length",
    "max_position_embeddings": "model.seq_length",
    "num_experts": "model.num_moe_experts",
    "swiglu": "model.gated_linear_unit",
    "microbatch_group_size_per_virtual_pipeline_stage": "model.microbatch_group_size_per_vp_stage",
    "decoder_first_pipeline_num_layers": "model.num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "model.num_layers_in_last_pipeline_stage",
    "disable_bias_linear": "not model.add_bias_linear",
    "untie_embeddings_and_output_weights": "not model.share_embeddings_and_output_weights",
    "no_pad_vocab_size": "not model.should_pad_vocab",
    "grad_reduce_in_bf16": "not ddp.grad_reduce_in_fp32",
    "fp8_format": "model.fp8",
    "fp4_format": "model.fp4",
    **dict.fromkeys(("group_query_attention", "quick_geglu", "no_position_embedding"), ""),
    **dict.fromkeys(("use_rotary_position_embeddings", "padded_vocab_size", "recompute_activations"), ""),
    **dict.fromkeys(("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"), ""),
    **dict.fromkeys(("torch_fsdp2_no_reshard_after_forward",), ""),
}
"""Megatron-LM's flags, and Bridge's names for them; `not` before a field with the opposite meaning, "" for none."""
OTHER: dict[str, FieldValue] = {
    "ddp.data_parallel_sharding_strategy": "no_shard",
    "model.num_query_groups": None,
    "model.cp_comm_type": None,
    "model.add_bias_linear": True,
    "model.share_embeddings_and_output_weights": True,
    "model.should_pad_vocab": False,
    "ddp.grad_reduce_in_fp32": False,
    "optimizer.optimizer_offload_fraction": 0.0,
    "model.q_lora_rank": 512,
    "model.kv_lora_rank": 512,
}
"""Defaults of the dataclasses that differ from those of Megatron-LM's flags."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8"}
BACKENDS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}
"""Numbers in Megatron-Core's enumeration of attention backends."""


def _default(name: str) -> FieldValue:
    if name in OTHER:
        return OTHER[name]
    flag = next(flag for flag, own in CALLS.items() if own == name)
    known = megatron.SYSTEM.known(flag)
    return known.default if known else None


_READ = tuple(dict.fromkeys(own.removeprefix("not ") for own in CALLS.values() if own))
_CORE = {"encoder_num_layers", "decoder_num_layers", "spec", "model_provider", "yaml_cfg", "fp8_param_gather"}
_OF_MEGATRON = chain.from_iterable(megatron.TABLES[name] for name in ("model", "experts", "step"))
FIELDS = (
    *(Field(name, _default(name)) for name in _READ),
    *(
        replace(f, name=f"model.{f.name}", aliases=tuple(f"model.{a}" for a in f.aliases))
        for f in _OF_MEGATRON
        if f.treatment != "read" and f.name not in _CORE and f"model.{f.name}" not in _READ
    ),
    *field_tables("bridge")["fields"],
)
PRECISIONS: dict[str, dict[str, FieldValue]] = {
    "bf16_mixed": {"bf16": True},
    "fp16_mixed": {"fp16": True, "grad_reduce_in_fp32": False},
    "bf16_with_fp8_delayed_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_param_gather": True},
    "bf16_with_mxfp8_mixed": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "bf16_with_fp8_subchannel_scaling_mixed": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "blockwise"},
    "bf16_with_fp8_current_scaling_mixed": {
        "bf16": True,
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "first_last_layers_bf16": True,
        "fp8_param_gather": True,
    },
}
"""Named mixed-precision recipes, and the fields they set."""
COPIED = {
    **{f"mixed_precision.{n}": f"model.{n}" for n in ("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe")},
    **{
        f"mixed_precision.{n}": f"model.{n}"
        for n in ("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
    },
    "mixed_precision.grad_reduce_in_fp32": "ddp.grad_reduce_in_fp32",
    "mixed_precision.fp8_param_gather": "ddp.fp8_param_gather",
    "comm_overlap.tp_comm_overlap": "model.tp_comm_overlap",
    "comm_overlap.overlap_grad_reduce": "ddp.overlap_grad_reduce",
    "comm_overlap.overlap_param_gather": "ddp.overlap_param_gather",
    "comm_overlap.overlap_moe_expert_parallel_comm": "model.overlap_moe_expert_parallel_comm",
    "comm_overlap.delay_wgrad_compute": "model.delay_wgrad_compute",
    "comm_overlap.defer_embedding_wgrad_compute": "model.defer_embedding_wgrad_compute",
}
"""Fields that Bridge copies to other sections before it trains."""


def _prepared(document: Document) -> Document:
    """Returns the document after two steps that Bridge itself does: dtypes and enumerations, which are written as
    objects, become names, and fields are copied to other sections (COPIED)."""
    fields: dict[str, Given] = {}
    for name, given in document.fields.items():
        owner, _, last = name.rpartition(".")
        if last == "_target_" and f"{owner}._call_" in document.fields:
            word = str(given.value).rpartition(".")[2]
            args = document.fields.get(f"{owner}._args_")
            number = args.value[0] if args and isinstance(args.value, tuple) and args.value else None
            backend = BACKENDS.get(number) if word == "AttnBackend" and isinstance(number, int) else None
            fields[owner] = replace(given, value=backend or DTYPES.get(word, word))
        elif last not in ("_args_", "_call_"):
            value = DTYPES.get(str(given.value).removeprefix("torch."), given.value)
            fields[name] = replace(given, value=megatron.listed(value))
    if (unset := fields.get("model.attention_backend")) and unset.value is None:
        fields["model.attention_backend"] = replace(unset, value="auto")
    fields |= _precision(fields)
    for name, other in COPIED.items():
        if name in fields and fields[name].value is not None:
            fields[other] = fields[name]
    return replace(document, fields=fields)


def _precision(fields: Mapping[str, Given]) -> dict[str, Given]:
    """Returns the fields that the recipe named in `mixed_precision` sets."""
    named = fields.get("mixed_precision")
    found = PRECISIONS.get(str(named.value).replace("-", "_")) if named else None
    if found is None or named is None:
        return {}
    values: dict[str, FieldValue] = {"grad_reduce_in_fp32": True, **found}
    return {f"mixed_precision.{n}": Given(v, named.span, named.certain) for n, v in values.items()}


def _model(v: Values) -> Any:
    if not v.options.model and v.maybe_whole("ffn_hidden_size") is None:
        raise v.missing("--model MODEL", "the model's sizes: a recipe takes them from Hugging Face")
    return megatron.model_of_sizes(v)


def _precise(v: Values) -> Any:
    named = v.text("mixed_precision")
    if named and named.replace("-", "_") not in PRECISIONS and not v.is_given("mixed_precision.bf16"):
        raise v.refused(f"a recipe of precision that planc does not know: {', '.join(PRECISIONS)}", "mixed_precision")
    return megatron.mixed_precision(v)


def _overlaps(v: Values) -> tuple[tuple[Role | Literal["ep"], str], ...]:
    """Returns the overlaps of transfers and compute. Tensor-parallel transfers that do not overlap are stated as
    `none`, because Bridge's recipes overlap them by default."""
    found = megatron.overlaps(v)
    said = any(role == "tp" for role, _ in found) or v.whole("tensor_model_parallel_size") == 1
    return found if said else (*found, ("tp", "none"))


SETTINGS = {
    "model": _model,
    "precision": _precise,
    "overlaps": _overlaps,
    "framework": lambda v: megatron.framework_of(v, "bridge"),
}


def _writer(flag: str, write: Callable[[TrainingSetup], Any]) -> Callable[[TrainingSetup], Any]:
    """Returns the writer of the Bridge field for Megatron-LM's `flag`; `write` is the flag's own writer."""
    own, default = CALLS[flag], _default(CALLS[flag].removeprefix("not ")) if CALLS[flag] in OTHER else None

    def written(setup: TrainingSetup) -> Any:
        value = write(setup)
        if own.startswith("not "):
            return value is OMIT or not value
        return default if value is OMIT and default is not None else value

    return written


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """Returns the command line that starts a recipe with these overrides. The environment names the recipe."""
    lines = [
        f"# {python_comment(s.name)}: written by planc for Megatron-Bridge {VERSION}",
        'scripts/training/train.sh --recipe "${RECIPE:?}" \\',
    ]
    for name, value in fields.items():
        text = f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
        lines.append(f"  {shell_word(f'{name}={text}')} \\")
    lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"


WRITES = {
    CALLS[flag].removeprefix("not "): _writer(flag, write) for flag, write in megatron.WRITES.items() if CALLS.get(flag)
} | {"model.virtual_pipeline_model_parallel_size": megatron.WRITES["num_virtual_stages_per_pipeline_rank"]}
SYSTEM = System(
    name="bridge",
    title="Megatron-Bridge",
    version=VERSION,
    formats=("yaml", "assignments"),
    fields=(Field("mixed_precision", None), *(f for f in FIELDS if f.name != "mixed_precision")),
    settings={**megatron.SETTINGS, **SETTINGS},
    recognises=lambda d: "model.tensor_model_parallel_size" in d.fields,
    batch_words=("train.global_batch_size", "train.micro_batch_size", "dataset.seq_length"),
    writes=WRITES,
    text=_text,
    ending=".overrides",
    prepared=_prepared,
    calls=CALLS,
    cannot=megatron.CANNOT,
    asserts=check_asserts,
)
