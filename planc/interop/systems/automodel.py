"""NeMo AutoModel: the YAML of a recipe, with its `distributed` and `step_scheduler` sections.

Names and defaults are those of nemo_automodel/components/distributed/config.py and pipelining/config.py, at the commit
below; the mesh is pp > dp_replicate > dp_shard > cp > tp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from planc.diag.quoting import python_comment, yaml_string
from planc.interop.document import Document
from planc.interop.fields import Field, noted, refused
from planc.interop.ops import run_again_by_list
from planc.interop.setup import CannotSayError, Role, TrainingSetup
from planc.interop.system import OMIT, System, Writer
from planc.interop.systems.deepspeed import nested
from planc.interop.systems.torchtitan import CLASSES, LOOPED, SCHEDULES
from planc.interop.values import Values
from planc.ir.plan import Noun, Period, Precision, Recompute

VERSION = "36044ad"
"""The commit whose names and defaults these are, of 22 August 2026."""
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama2_7b",
    "meta-llama/Llama-2-70b-hf": "llama2_70b",
    "meta-llama/Meta-Llama-3-8B": "llama3_8b",
    "meta-llama/Meta-Llama-3-70B": "llama3_70b",
    "meta-llama/Llama-3.1-8B": "llama3_1_8b",
    "meta-llama/Llama-3.1-70B": "llama3_1_70b",
    "meta-llama/Llama-3.1-405B": "llama3_1_405b",
    "meta-llama/Llama-3.2-1B": "llama3_2_1b",
    "meta-llama/Llama-3.2-3B": "llama3_2_3b",
    "mistralai/Mistral-7B-v0.1": "mistral_7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral_8x7b",
    "Qwen/Qwen3-0.6B": "qwen3_0_6b",
    "Qwen/Qwen3-8B": "qwen3_8b",
    "Qwen/Qwen3-32B": "qwen3_32b",
    "Qwen/Qwen3-30B-A3B": "qwen3_30b_a3b",
    "Qwen/Qwen3-235B-A22B": "qwen3_235b_a22b",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "openai/gpt-oss-20b": "gpt_oss_20b",
    "openai/gpt-oss-120b": "gpt_oss_120b",
}
"""Names on the Hugging Face hub, and the catalog's."""
NAMES = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path")
LENGTHS = ("dataset.seq_length", "dataset.seq_len", "packed_sequence.packed_sequence_size")
Dtype = Literal["bf16", "fp32"]
DTYPES: dict[str, Dtype] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "auto": "bf16",
    "float32": "fp32",
    "fp32": "fp32",
    "torch.float32": "fp32",
}


def _model(v: Values) -> str:
    if v.options.model:
        return v.options.model
    name = next((text for field in NAMES if (text := v.text(field))), "")
    if not name:
        raise v.missing("--model", "the model")
    if name not in MODELS:
        raise v.refused(f"no model of the catalog is {name}; give one with --model", *NAMES)
    return MODELS[name]


def _degree(v: Values, name: str) -> int:
    return v.maybe_whole(f"distributed.{name}_size", minimum=1) or 1


def _ranks(v: Values) -> int:
    """Data-parallel ranks: what pipeline, context and tensor parallelism leave of the devices."""
    inner, devices = _degree(v, "pp") * _degree(v, "cp") * _degree(v, "tp"), v.devices()
    given = v.maybe_whole("distributed.dp_size", minimum=1)
    if devices % inner or (given is not None and given * inner != devices):
        message = f"{devices} devices are not {given or 'a whole number of'} data-parallel ranks x {inner} others"
        raise v.apart(message, "distributed.dp_size", "distributed.pp_size", "distributed.tp_size")
    return devices // inner


def _replicas(v: Values) -> int:
    if _strategy(v) == "ddp":
        return _ranks(v)
    replicas = _degree(v, "dp_replicate")
    if _ranks(v) % replicas:
        raise v.apart(f"{_ranks(v)} data-parallel ranks are no multiple of {replicas}", "distributed.dp_replicate_size")
    return replicas


def _strategy(v: Values) -> str:
    return v.text("distributed.strategy", "fsdp2", "megatron_fsdp", "ddp")


def _zero(v: Values) -> int:
    strategy = _strategy(v)
    if strategy == "megatron_fsdp":
        return v.whole("distributed.zero_dp_strategy", minimum=0)
    return 3 if strategy == "fsdp2" and _ranks(v) // _replicas(v) * _degree(v, "cp") > 1 else 0


def _length(v: Values) -> int:
    for name in LENGTHS:
        if v.is_given(name) and (length := v.maybe_whole(name)):
            return length  # a packed sequence of 0 tokens is none
    return v.needed(LENGTHS[0])


def _local(v: Values) -> int:
    return v.needed("step_scheduler.local_batch_size")


def _microbatch(v: Values) -> int:
    return v.whole("distributed.pipeline.pp_microbatch_size") if _degree(v, "pp") > 1 else _local(v)


def _sequences(v: Values) -> int:
    batch, each = v.needed("step_scheduler.global_batch_size"), _local(v) * _ranks(v)
    names = ("step_scheduler.global_batch_size", "step_scheduler.local_batch_size")
    if batch % each:
        raise v.apart(f"global batch {batch} is no multiple of {_ranks(v)} ranks x local batch {_local(v)}", *names)
    if batch != each and _degree(v, "pp") > 1:
        raise v.refused("running the pipeline several times a step has no sentence", *names)
    return batch


def _is_whole(v: Values) -> bool:
    """True where gradients are reduced at a step's last microbatch alone."""
    return _strategy(v) == "fsdp2" and (v.flag("distributed.defer_fsdp_grad_sync") or _degree(v, "pp") > 1)


def _gather(v: Values) -> Period | None:
    """FSDP frees a layer's parameters after its forward, but in pipelines and in models with experts, unless told."""
    if _strategy(v) != "fsdp2":
        return None
    name = "distributed.moe.reshard_after_forward" if _degree(v, "ep") > 1 else "distributed.reshard_after_forward"
    told = v.raw(name)
    usual: bool = _degree(v, "pp") == 1 and _degree(v, "ep") == 1
    frees = usual if told in (None, "") or (name.startswith("distributed.moe") and not told) else v.flag(name)
    if frees:
        return "pass"
    return "step" if _degree(v, "pp") > 1 else "microbatch"


def _tensor(v: Values) -> int:
    if v.raw("distributed.tp_plan") not in (None, "") and _degree(v, "tp") > 1:
        raise v.refused("a plan of one's own: write it as `shard` and `override` sentences", "distributed.tp_plan")
    return _degree(v, "tp")


def _schedule(v: Values) -> str:
    if _degree(v, "pp") == 1:
        return "1f1b"
    if v.text("distributed.pipeline.pp_schedule_csv"):
        raise v.refused("name the schedule's file in the plan's `split`", "distributed.pipeline.pp_schedule_csv")
    name = v.text("distributed.pipeline.pp_schedule").lower()
    if name not in SCHEDULES:
        raise v.wrong("distributed.pipeline.pp_schedule", f"one of {', '.join(CLASSES.values())}")
    return SCHEDULES[name]


def _chunks(v: Values) -> int:
    """Virtual stages of a rank (pipelining/functional.py: layers a stage, rounded to a multiple of the ranks)."""
    pp = _degree(v, "pp")
    if pp == 1:
        return 1
    if v.raw("distributed.pipeline.module_fqns_per_model_part") not in (None, ()):
        raise v.refused("write the stages in the plan's `split`", "distributed.pipeline.module_fqns_per_model_part")
    each = v.maybe_whole("distributed.pipeline.layers_per_stage", minimum=1)
    if each is None:
        return 2 if _schedule(v) in LOOPED else 1
    stages = -(-v.model().layers // each)
    rounding = v.text("distributed.pipeline.round_virtual_stages_to_pp_multiple", "", "None", "up", "down")
    if stages % pp and rounding not in ("up", "down"):
        message = f"{each} layers a stage make {stages} stages, no multiple of {pp} ranks"
        raise v.apart(message, "distributed.pipeline.layers_per_stage")
    return max(1, -(-stages // pp) if rounding == "up" else stages // pp)


def _precision(v: Values) -> Precision:
    compute = DTYPES.get(v.text("distributed.mp_policy.param_dtype"))
    reduce = DTYPES.get(v.text("distributed.mp_policy.reduce_dtype"))
    if compute is None or reduce is None:
        raise v.wrong("distributed.mp_policy.param_dtype", "bfloat16 or float32")
    return Precision(compute=compute, reduce=reduce)


def _stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    """State is in the dtype that the model is loaded in; the optimizer's follows its parameters'."""
    dtype = DTYPES.get(v.text("model.torch_dtype"))
    if dtype is None:
        raise v.wrong("model.torch_dtype", "bf16 or float32")
    nouns: tuple[Noun, ...] = ("params", "grads", "optimizer")
    return tuple((noun, "bf16") for noun in nouns) if dtype == "bf16" else ()


def _recompute(v: Values) -> Recompute:
    kind = v.text("distributed.activation_checkpointing").lower()
    if kind in ("", "false", "none"):
        return Recompute()
    if v.text("distributed.activation_checkpointing_scope") != "all":
        raise v.refused("a part of the layers has no sentence", "distributed.activation_checkpointing_scope")
    if kind in ("true", "full"):
        return Recompute(ops=("blocks",))
    if kind != "selective":
        raise v.wrong("distributed.activation_checkpointing", "false, true, full or selective")
    v.approximate("torch's list of saved ops; the plan has torchtitan's", "distributed.activation_checkpointing")
    return Recompute(ops=run_again_by_list(v.model()))


def _optimizer(v: Values) -> str:
    name = v.text("optimizer._target_")
    if name and "adam" not in name.lower():
        raise v.refused("planc's optimizers are AdamW and Muon", "optimizer._target_")
    return "adamw"


def _experts(v: Values) -> int:
    ep = _degree(v, "ep")
    ranks = v.devices() // _degree(v, "pp")
    if ranks % ep:
        raise v.apart(f"{ranks} ranks of a stage are no multiple of {ep}", "distributed.ep_size")
    return ep


def _overlaps(v: Values) -> tuple[tuple[Role, str], ...]:
    on = v.flag("distributed.enable_async_tensor_parallel") and _degree(v, "tp") > 1
    return (("tp", "async_matmul"),) if on else ()


SETTINGS = {
    "cluster": lambda v: (v.devices(), v.options.cluster)[1],
    "devices": lambda v: v.devices(),
    "model": _model,
    "sequences": _sequences,
    "sequence_tokens": _length,
    "microbatch": _microbatch,
    "pp": lambda v: _degree(v, "pp"),
    "replica": _replicas,
    "shard": lambda v: _ranks(v) // _replicas(v),
    "cp": lambda v: _degree(v, "cp"),
    "tp": _tensor,
    "ep": _experts,
    "zero": _zero,
    "zero_over_cp": lambda v: _zero(v) > 0 and _degree(v, "cp") > 1,
    "whole_grads": lambda v: _zero(v) == 3 and _is_whole(v),
    "gather": _gather,
    "sp": lambda v: v.flag("distributed.sequence_parallel") and _degree(v, "tp") > 1,
    "cp_method": lambda v: "all_gather",
    "schedule": _schedule,
    "chunks": _chunks,
    "precision": _precision,
    "stored": _stored,
    "recompute": _recompute,
    "offloaded": lambda v: ("params", "optimizer") if v.text("distributed.offload_policy._target_") else (),
    "overlaps": _overlaps,
    "compiled": lambda v: ("blocks",) if v.flag("distributed.enable_compile") else (),
    "optimizer": _optimizer,
    "framework": lambda v: "automodel",
}

FIELDS = (
    *(Field(name, None) for name in (*NAMES, *LENGTHS)),
    Field("model.torch_dtype", "bf16"),
    Field("distributed.strategy", "fsdp2"),
    Field("distributed.dp_size", None),
    *(Field(f"distributed.{name}_size", 1) for name in ("dp_replicate", "tp", "cp", "pp", "ep")),
    Field("distributed.sequence_parallel", False),
    Field("distributed.tp_plan", None),
    Field("distributed.activation_checkpointing", False),
    Field("distributed.activation_checkpointing_scope", "all"),
    Field("distributed.defer_fsdp_grad_sync", True),
    Field("distributed.reshard_after_forward", None),
    Field("distributed.moe.reshard_after_forward", False),
    Field("distributed.enable_async_tensor_parallel", False),
    Field("distributed.enable_compile", False),
    Field("distributed.zero_dp_strategy", 3),
    Field("distributed.mp_policy.param_dtype", "bfloat16"),
    Field("distributed.mp_policy.reduce_dtype", "float32"),
    Field("distributed.offload_policy._target_", None),
    Field("distributed.pipeline.pp_schedule", "1f1b"),
    Field("distributed.pipeline.pp_schedule_csv", None),
    Field("distributed.pipeline.pp_microbatch_size", 1),
    Field("distributed.pipeline.layers_per_stage", None),
    Field("distributed.pipeline.round_virtual_stages_to_pp_multiple", None),
    Field("distributed.pipeline.module_fqns_per_model_part", None),
    Field("step_scheduler.global_batch_size", None),
    Field("step_scheduler.local_batch_size", None),
    Field("optimizer._target_", "torch.optim.AdamW"),
    refused("distributed.autocast_dtype", None, "a residual stream in another dtype than the products"),
    refused("distributed.pipeline.dtype", None, "messages between stages in another dtype"),
    *(
        refused(f"optimizer.{name}", default, "the optimizer's state in another dtype")
        for name, default in (
            *(("exp_avg_dtype", "float32"), ("exp_avg_sq_dtype", "float32"), ("master_weight_dtype", "float32")),
            *(("master_weights", False), ("master_weight_bits", None), ("store_param_remainders", False)),
            ("compress_state_dict", False),
        )
    ),
    *(
        refused(f"model.{name}", None, "sizes other than those of the model that is named: give it with --model")
        for name in (
            *("num_nextn_predict_layers", "config.num_nextn_predict_layers", "text_config.num_mtp_modules"),
            *("config.num_hidden_layers", "config.vocab_size", "config.hidden_size", "config.intermediate_size"),
            *("config.moe_intermediate_size", "config.num_attention_heads", "config.num_key_value_heads"),
            *("config.num_experts_per_tok", "mtp_use_repeated_layer"),
        )
    ),
    refused("model.backend.te_fp8.recipe", None, "products in 8 bits: write `quantize`"),
    refused("model.transformer_engine_fp8", False, "products in 8 bits: write `quantize`"),
    refused("peft._target_", None, "adapters beside frozen weights"),
    refused("compile.enabled", False, "the whole model as one region: distributed.enable_compile compiles blocks"),
    refused("fp8.enabled", False, "products in 8 bits: write `quantize`"),
    refused("quantization.load_in_4bit", False, "weights in 4 bits"),
    refused("quantization.load_in_8bit", False, "weights in 8 bits"),
    *noted(
        "prefetch, patches and buckets",
        "distributed.enable_fsdp2_prefetch distributed.fsdp2_forward_prefetch_depth "
        "distributed.fsdp2_backward_prefetch_depth distributed.patch_is_packed_sequence "
        "distributed.pipeline.scale_grads_in_schedule distributed.pipeline.patch_inner_model "
        "distributed.pipeline.patch_causal_lm_model distributed.pipeline.pp_seq_len "
        "distributed.pipeline.pp_batch_size distributed.pipeline.patch_stage_backward_maybe_with_nosync "
        "distributed.pipeline.loss_fn distributed.overlap_grad_reduce distributed.overlap_param_gather "
        "distributed.moe.wrap_outer_model distributed.moe.ignore_router_for_ac distributed.moe.lm_head_precision "
        "distributed.mp_policy.output_dtype distributed.mp_policy._target_ "
        "distributed.mp_policy.cast_forward_inputs distributed.moe distributed.pipeline",
    ),
    *noted(
        "tokens, gradients' clipping and what adapters are like",
        "tokenizer._target_ tokenizer.pretrained_model_name_or_path tokenizer.trust_remote_code "
        "tokenizer.add_bos_token tokenizer.add_eos_token tokenizer.padding_side tokenizer.q_max_length "
        "tokenizer.p_max_length tokenizer.query_prefix tokenizer.passage_prefix tokenizer.max_input_tiles "
        "tokenizer.force_hf clip_grad_norm.max_norm peft.dim peft.alpha peft.dropout peft.target_modules "
        "peft.match_all_linear peft.moe_rank_scaling peft.use_memory_efficient_lora peft.use_triton "
        "peft.exclude_modules",
    ),
    *noted(
        "other evaluations",
        "_validation_dataset._target_ _validation_dataset.path_or_dataset _validation_dataset.split "
        "_validation_dataset.pad_to_max_length _validation_dataset.tokenizer._target_ "
        "_validation_dataset.tokenizer.pretrained_model_name_or_path _validation_dataloader._target_ "
        "_validation_dataloader.shuffle _validation_dataloader.drop_last _validation_dataloader.collate_fn._target_ "
        "_validation_dataloader.collate_fn.pad_seq_len_divisible _validation_dataloader.collate_fn "
        "tool_call_eval._target_ tool_call_eval.dataset_name tool_call_eval.split tool_call_eval.max_eval_samples "
        "tool_call_eval.max_new_tokens tool_call_eval.max_prompt_tokens",
    ),
    *noted(
        "no policy is named",
        "distributed.offload_policy distributed.moe.mp_policy distributed.mp_policy "
        "distributed.multimodal.frozen_sharding "
        "distributed.multimodal.vision.frame_sharding.enabled "
        "distributed.multimodal.vision.frame_sharding.mesh_dims "
        "distributed.multimodal.vision.frame_sharding.min_tokens "
        "distributed.multimodal.vision.frame_sharding.cost_alpha",
    ),
    *noted(
        "how a model is loaded",
        "model._target_ model.trust_remote_code model.backend._target_ model.backend.rms_norm model.backend.linear "
        "model.backend.attn model.backend.dispatcher model.backend.experts "
        "model.backend.enable_hf_state_dict_adapter model.backend.rope_fusion model.backend.rope "
        "model.backend.fake_balanced_gate model.backend.enable_fsdp_optimizations model.backend.gate_precision "
        "model.backend.compile_attn model.backend.dispatcher_num_sms model.attn_implementation "
        "model.config._target_ model.config.name_or_path model.config.trust_remote_code model.config.architectures "
        "model.config.use_cache model.use_liger_kernel model.use_sdpa_patching model.text_config.use_cache "
        "model.text_config.output_hidden_states model.output_hidden_states model.force_hf model.load_base_model "
        "model.cache_dir model.attention_backend model.mtp_loss_scaling_factor model.router_aux_loss_coef "
        "compile.mode compile.fullgraph compile.dynamic compile.backend compile.options "
        "compile.dynamo_cache_size_limit fp8.recipe_name fp8.enable_fsdp_float8_all_gather "
        "fp8.precompute_float8_dynamic_scale_for_fsdp fp8.force_recompute_fp8_weight_in_bwd fp8.filter_fqns "
        "fp8.emulate quantization.bnb_4bit_compute_dtype quantization.bnb_4bit_use_double_quant "
        "quantization.bnb_4bit_quant_type quantization.bnb_4bit_quant_storage",
    ),
    *noted(
        "the course of training",
        "step_scheduler.ckpt_every_steps step_scheduler.num_epochs step_scheduler.max_steps "
        "step_scheduler.val_every_steps step_scheduler.gc_every_steps step_scheduler.log_remote_every_steps "
        "step_scheduler.save_checkpoint_every_epoch step_scheduler.loss_average_window_steps "
        "step_scheduler.start_step step_scheduler.start_epoch step_scheduler.preemption_signal optimizer.lr "
        "optimizer.weight_decay optimizer.betas optimizer.eps optimizer.foreach optimizer.fused "
        "optimizer.warmup_ratio optimizer.min_lr_ratio optimizer.adam_w_mode optimizer.bias_correction "
        "optimizer.flatten optimizer.nesterov optimizer.use_triton lr_scheduler.lr_decay_style "
        "lr_scheduler.lr_warmup_steps lr_scheduler.min_lr lr_scheduler.init_lr lr_scheduler.warmup_ratio "
        "lr_scheduler.schedule lr_scheduler.warmup_steps lr_scheduler.lr_decay_steps lr_scheduler.max_lr "
        "lr_scheduler.wd_incr_style loss_fn._target_ loss_fn.fp32_upcast loss_fn.chunk_len loss_fn.compile "
        "loss_fn.logit_softcapping loss_fn.reduction loss_fn.coordinate_weight loss_fn.class_token_start_idx "
        "loss_fn.num_heads loss_fn.ignore_index rng._target_ rng.seed rng.ranked rng.deterministic seed",
    ),
    *noted(
        "data",
        "dataset._target_ dataset.path_or_dataset dataset.name dataset.split dataset.audio_column "
        "dataset.text_column dataset.sampling_rate dataset.system_prompt dataset.user_prompt "
        "dataset.min_audio_duration_seconds dataset.max_audio_duration_seconds dataset.truncate "
        "dataset.chat_template dataset.path_or_dataset_id dataset.truncation dataset.padding dataset.shuffle_seed "
        "dataset.unshifted dataset.tokenizer.pretrained_model_name_or_path dataset.mask_history "
        "dataset.tokenizer.trust_remote_code dataset.num_samples dataset.vocab_size dataset.batch_size "
        "dataset.dataset_name dataset.revision dataset.filter_no_assistant dataset.filter_overlong "
        "dataset.trim_incomplete_last_turn dataset.truncate_history dataset.tokenizer.truncation_side "
        "dataset.mean_len dataset.std_len dataset.max_sentence_len dataset.seed dataset.tokenizer._target_ "
        "dataset.pad_to_max_length dataset.column_mapping.question dataset.column_mapping.answer "
        "dataset.answer_only_loss_mask dataset.num_samples_limit dataset.column_mapping.context dataset.num_groups "
        "dataset.completions_per_group dataset.prompt_len dataset.completion_len dataset.mask_reasoning_content "
        "dataset.paths dataset.splits_to_build dataset.index_mapping_dir dataset.file_pattern dataset.shuffle_files "
        "dataset.align_to_bos dataset.bos_token dataset.dataset_info.t2i_pretrain.t2i.data_dir "
        "dataset.dataset_info.t2i_pretrain.t2i.num_files dataset.dataset_info.t2i_pretrain.t2i.num_total_samples "
        "dataset.dataset_info.unified_edit.edit_data.data_dir dataset.dataset_info.unified_edit.edit_data.num_files "
        "dataset.dataset_info.unified_edit.edit_data.num_total_samples "
        "dataset.dataset_info.unified_edit.edit_data.parquet_info_path "
        "dataset.dataset_info.vlm_sft.vlm_data.data_dir dataset.dataset_info.vlm_sft.vlm_data.jsonl_path "
        "dataset.dataset_info.vlm_sft.vlm_data.num_total_samples "
        "dataset.grouped_datasets.t2i_pretrain.dataset_names "
        "dataset.grouped_datasets.t2i_pretrain.image_transform_args.image_stride "
        "dataset.grouped_datasets.t2i_pretrain.image_transform_args.max_image_size "
        "dataset.grouped_datasets.t2i_pretrain.image_transform_args.min_image_size "
        "dataset.grouped_datasets.t2i_pretrain.is_mandatory dataset.grouped_datasets.t2i_pretrain.num_used_data "
        "dataset.grouped_datasets.t2i_pretrain.weight dataset.grouped_datasets.unified_edit.dataset_names "
        "dataset.grouped_datasets.unified_edit.image_transform_args.image_stride "
        "dataset.grouped_datasets.unified_edit.image_transform_args.max_image_size "
        "dataset.grouped_datasets.unified_edit.image_transform_args.min_image_size "
        "dataset.grouped_datasets.unified_edit.vit_image_transform_args.image_stride "
        "dataset.grouped_datasets.unified_edit.vit_image_transform_args.max_image_size "
        "dataset.grouped_datasets.unified_edit.vit_image_transform_args.min_image_size "
        "dataset.grouped_datasets.unified_edit.is_mandatory dataset.grouped_datasets.unified_edit.num_used_data "
        "dataset.grouped_datasets.unified_edit.weight dataset.grouped_datasets.vlm_sft.dataset_names "
        "dataset.grouped_datasets.vlm_sft.image_transform_args.image_stride "
        "dataset.grouped_datasets.vlm_sft.image_transform_args.max_image_size "
        "dataset.grouped_datasets.vlm_sft.image_transform_args.min_image_size "
        "dataset.grouped_datasets.vlm_sft.image_transform_args.max_pixels "
        "dataset.grouped_datasets.vlm_sft.frame_sampler_args.max_num_frames "
        "dataset.grouped_datasets.vlm_sft.frame_sampler_args.min_num_frames "
        "dataset.grouped_datasets.vlm_sft.is_mandatory dataset.grouped_datasets.vlm_sft.shuffle_lines "
        "dataset.grouped_datasets.vlm_sft.shuffle_seed dataset.grouped_datasets.vlm_sft.num_used_data "
        "dataset.grouped_datasets.vlm_sft.weight dataset.expected_num_tokens dataset.max_num_tokens "
        "dataset.max_num_tokens_per_sample dataset.prefer_buffer_before dataset.max_buffer_size "
        "dataset.vit_patch_size dataset.max_num_patch_per_side dataset.interpolate_pos dataset.data_seed "
        "dataset.text_cond_dropout_prob dataset.vit_cond_dropout_prob dataset.vae_cond_dropout_prob "
        "dataset.vae_image_downsample dataset.max_latent_size dataset.use_flex dataset.model_type "
        "dataset.data_dir_list dataset.data_type dataset.n_passages dataset.do_shuffle "
        "dataset.use_dataset_instruction dataset.limit_dataset_samples dataset.num_images_per_sample "
        "dataset.image_size dataset.max_length dataset.pretokenize dataset.inject_fake_images dataset.tulu_split "
        "dataset.magicoder_split dataset.max_turns dataloader._target_ dataloader.num_workers "
        "dataloader.collate_fn._target_ dataloader.persistent_workers dataloader.pin_memory "
        "dataloader.collate_fn.pad_seq_len_divisible dataloader.shuffle dataloader.collate_fn "
        "dataloader.group_by_length dataloader.batch_size dataloader.drop_last dataloader.dataloader_type "
        "dataloader.prefetch_factor dataloader.collate_fn.q_max_len dataloader.collate_fn.p_max_len "
        "dataloader.collate_fn.query_prefix dataloader.collate_fn.passage_prefix "
        "dataloader.collate_fn.pad_to_multiple_of dataloader.collate_fn.use_dataset_instruction "
        "dataloader.collate_fn.collator_fn_name dataloader.collate_fn.rerank_max_length "
        "dataloader.collate_fn.prompt_template dataloader.dataset._target_ dataloader.dataset.model_type "
        "dataloader.dataset.n_passages dataloader.dataset.seed dataloader.dataset.do_shuffle "
        "dataloader.dataset.data_type dataloader.dataset.data_dir_list dataloader.collate_fn.max_length "
        "dataloader.collate_fn.drop_overlong validation_dataset._target_ validation_dataset.path_or_dataset_id "
        "validation_dataset.split validation_dataset.seq_length validation_dataset.padding "
        "validation_dataset.shuffle_seed validation_dataset.chat_template validation_dataloader._target_ "
        "validation_dataloader.collate_fn._target_ validation_dataloader.collate_fn.pad_seq_len_divisible "
        "validation_dataset.dataset_name validation_dataset.limit_dataset_samples "
        "validation_dataset.tokenizer.pretrained_model_name_or_path validation_dataloader.collate_fn "
        "validation_dataset.revision validation_dataset.filter_no_assistant validation_dataset.filter_overlong "
        "validation_dataset.trim_incomplete_last_turn validation_dataset.truncation "
        "validation_dataset.truncate_history validation_dataset.tokenizer.truncation_side "
        "validation_dataset.path_or_dataset validation_dataset.num_samples_limit "
        "validation_dataset.tokenizer._target_ validation_dataloader.shuffle validation_dataloader.drop_last "
        "validation_dataset.pad_to_max_length validation_dataloader.batch_size validation_dataloader.num_workers "
        "validation_dataloader.pin_memory validation_dataset.column_mapping.question "
        "validation_dataset.column_mapping.answer validation_dataset.answer_only_loss_mask "
        "validation_dataset.tokenizer.trust_remote_code validation_dataset validation_dataloader "
        "validation_dataset.mask_reasoning_content validation_dataset.paths validation_dataset.splits_to_build "
        "validation_dataset.num_val_samples validation_dataloader.dataloader_type "
        "validation_dataset.index_mapping_dir validation_dataset.num_samples "
        "validation_dataset.num_images_per_sample validation_dataset.image_size validation_dataset.max_length "
        "validation_dataset.seed validation_dataset.pretokenize validation_dataloader.collate_fn.max_length "
        "validation_dataset.tulu_split validation_dataset.magicoder_split validation_dataset.max_turns "
        "validation_dataset.limit_total packed_sequence.pretokenize packed_sequence.max_length "
        "packed_sequence.pack_size packed_sequence.collate_max_length packed_sequence.packing_ratio "
        "packed_sequence.drop_long_samples packed_sequence.post_tokenize_hook_fn packed_sequence.split_across_pack "
        "packed_sequence.packing_strategy packed_sequence.max_packs packed_sequence.num_proc "
        "packed_sequence.attn_implementation packed_sequence.balance_media_tokens packed_sequence.packing_format",
    ),
    *noted(
        "a run's surroundings",
        "recipe checkpoint.enabled checkpoint.checkpoint_dir checkpoint.model_save_format "
        "checkpoint.save_consolidated checkpoint.diffusers_compatible checkpoint.restore_from "
        "checkpoint.dequantize_base_checkpoint checkpoint.skip_task_head_prefixes_for_base_model "
        "checkpoint.v4_compatible checkpoint.model_cache_dir checkpoint.model_repo_id checkpoint.is_peft "
        "checkpoint.is_async checkpoint.wait_for_staging checkpoint.cpu_offload "
        "checkpoint.single_rank_consolidation checkpoint.staging_dir checkpoint.best_metric_key "
        "checkpoint.max_recent_checkpoints dist_env.backend dist_env.timeout_minutes dist_env.init_method "
        "wandb.enable wandb.project wandb.name wandb.dir wandb.entity wandb.mode wandb.group wandb.tags wandb.notes "
        "wandb.extra wandb.save_dir mlflow.experiment_name mlflow.run_name mlflow.tracking_uri "
        "mlflow.artifact_location mlflow.tags mlflow.resume mlflow.description mlflow.flatten_depth ci.recipe_owner "
        "ci.time ci.nodes ci.convergence.step_scheduler.max_steps ci.downstream_eval.tasks "
        "ci.downstream_eval.tokenizer ci.downstream_eval.tp_size ci.downstream_eval.dp_size "
        "ci.downstream_eval.extra_model_args ci.downstream_eval.metric ci.downstream_eval.baseline "
        "ci.downstream_eval.stderr ci.downstream_eval.k ci.downstream_eval.gen_kwargs ci.downstream_eval.thinking "
        "ci.cluster_tag ci.ep_size ci.env_vars.RDZV_TIMEOUT ci.env_vars.PYTORCH_CUDA_ALLOC_CONF "
        "ci.env_vars.HF_HUB_OFFLINE ci.known_issue_id ci.vllm_deploy ci.checkpoint_robustness.trust_remote_code "
        "ci.checkpoint_robustness.kl_threshold ci.checkpoint_robustness.hf_kl_threshold "
        "ci.checkpoint_robustness.distributed.tp_size ci.checkpoint_robustness.cross_tp_size "
        "ci.checkpoint_robustness.cross_tp_kl_threshold "
        "ci.checkpoint_robustness.training_reproducibility_loss_threshold ci.checkpoint_robustness.tokenizer_name "
        "ci.checkpoint_robustness.dataset.limit_dataset_samples "
        "ci.checkpoint_robustness.validation_dataset.limit_dataset_samples ci.max_steps ci.node_multiplier "
        "ci.checkpoint_robustness.check_source_load_parity ci.checkpoint_robustness.source_load_kl_threshold "
        "ci.checkpoint_robustness.source_load_cosine_threshold ci.checkpoint_robustness.hf_device_map_auto "
        "ci.checkpoint_robustness.dataset.num_samples_limit ci.allow_failure ci.release.step_scheduler.max_steps "
        "ci.release.packed_sequence.max_packs ci.checkpoint_robustness.no_check_resume "
        "ci.checkpoint_robustness.check_phantom_keys ci.nproc_per_node ci.local_batch_size ci.vllm_smoke_test "
        "ci.checkpoint_robustness.validation_dataset.num_samples_limit "
        "ci.env_vars.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN ci.env_vars.NUM_OF_STAGES_G2S_COMBINE_API "
        "ci.checkpoint_robustness.model.pretrained_model_name_or_path ci.checkpoint_robustness.check_fused_qkv_keys "
        "ci.checkpoint_robustness.step_scheduler.global_batch_size ci.checkpoint_robustness.process_isolation "
        "ci.checkpoint_robustness.skip_hf_logit_parity ci.checkpoint_robustness.source_load_mean_kl_threshold "
        "ci.checkpoint_robustness.experts_implementation ci.vllm_deploy_gpus "
        "ci.checkpoint_robustness.resume_tolerance_profile ci.vllm_deploy_known_issue_id "
        "ci.checkpoint_robustness.vllm_merge_lora ci.env_vars.OMP_NUM_THREADS ci.env_vars.MKL_NUM_THREADS "
        "ci.checkpoint_robustness.distributed.ep_size ci.vllm_enable_expert_parallel ci.vllm_deploy_time "
        "ci.checkpoint_robustness.hf_adapter_ignored_key_prefix ci.env_vars.REQUIRE_FINITE_METRICS "
        "ci.nightly.step_scheduler.global_batch_size ci.nightly.step_scheduler.local_batch_size "
        "ci.nightly.step_scheduler.max_steps ci.nightly.model.config.num_hidden_layers "
        "ci.nightly.distributed.pp_size ci.nightly.distributed.ep_size ci.nightly.optimizer.lr "
        "ci.nightly.lr_scheduler.lr_warmup_steps ci.nightly.checkpoint.enabled ci.nightly.dataset._target_ "
        "ci.nightly.dataset.vocab_size ci.nightly.dataset.seq_len ci.nightly.dataset.num_samples "
        "ci.nightly.dataset.batch_size ci.nightly.dataloader._target_ ci.nightly.dataloader.batch_size "
        "ci.nightly.dataloader.num_workers ci.nightly.validation_dataset._target_ "
        "ci.nightly.validation_dataset.vocab_size ci.nightly.validation_dataset.seq_len "
        "ci.nightly.validation_dataset.num_samples ci.nightly.validation_dataset.batch_size "
        "ci.nightly.validation_dataloader._target_ ci.nightly.validation_dataloader.batch_size "
        "ci.nightly.validation_dataloader.num_workers ci.release.step_scheduler.global_batch_size "
        "ci.release.step_scheduler.local_batch_size ci.release.model.config.num_hidden_layers "
        "ci.release.distributed.pp_size ci.release.distributed.ep_size ci.release.optimizer.lr "
        "ci.release.lr_scheduler.lr_warmup_steps ci.release.checkpoint.enabled ci.release.dataset._target_ "
        "ci.release.dataset.vocab_size ci.release.dataset.seq_len ci.release.dataset.num_samples "
        "ci.release.dataset.batch_size ci.release.dataloader._target_ ci.release.dataloader.batch_size "
        "ci.release.dataloader.num_workers ci.release.validation_dataset._target_ "
        "ci.release.validation_dataset.vocab_size ci.release.validation_dataset.seq_len "
        "ci.release.validation_dataset.num_samples ci.release.validation_dataset.batch_size "
        "ci.release.validation_dataloader._target_ ci.release.validation_dataloader.batch_size "
        "ci.release.validation_dataloader.num_workers ci.embed_eval ci.nightly.step_scheduler.ckpt_every_steps "
        "ci.nightly.step_scheduler.val_every_steps ci.release.step_scheduler.ckpt_every_steps "
        "ci.release.step_scheduler.val_every_steps ci.nightly.dataset.data_dir_list "
        "ci.checkpoint_robustness.dataset.data_dir_list ci.checkpoint_robustness.dataloader.num_workers "
        "ci.checkpoint_robustness.lr_scheduler.lr_warmup_steps "
        "ci.checkpoint_robustness.step_scheduler.local_batch_size ci.checkpoint_robustness.cosine_threshold "
        "ci.checkpoint_robustness.hf_cosine_threshold ci.checkpoint_robustness.check_hf_reload "
        "ci.checkpoint_robustness.check_resume ci.checkpoint_robustness.resume_loss_threshold ci.rerank_eval "
        "ci.env_vars.MAX_STEPS ci.env_vars.PYTORCH_ALLOC_CONF "
        "ci.checkpoint_robustness.hf_source_post_load_dequantize ci.checkpoint_robustness.loss_fn._target_ "
        "ci.checkpoint_robustness.model.backend.experts ci.checkpoint_robustness.step_scheduler.max_steps "
        "ci.checkpoint_robustness.step_scheduler.ckpt_every_steps "
        "ci.checkpoint_robustness.skip_automodel_logit_parity ci.checkpoint_robustness.hf_device_map_max_memory_gib "
        "ci.checkpoint_robustness.hf_device_map_cpu_max_memory_gib benchmark.warmup_steps benchmark.peak_tflops "
        "benchmark.nsys_start benchmark.nsys_end benchmark.nsys_ranks benchmark.num_nodes "
        "benchmark.json_output_path slurm.job_name slurm.nodes slurm.ntasks_per_node slurm.time slurm.account "
        "slurm.partition slurm.container_image slurm.extra_mounts slurm.nemo_mount slurm.hf_home slurm.master_port "
        "slurm.env_vars autonvtx auto_nvtx nvtx comet.project_name comet.workspace comet.api_key "
        "comet.experiment_name comet.tags comet.auto_metric_logging",
    ),
)


# Writing.


def _unless(default: object, value: object) -> object:
    return OMIT if value == default else value


def _named(s: TrainingSetup) -> str:
    found = next((key for key, name in MODELS.items() if name == s.model), None)
    if found is None:
        raise CannotSayError(f"planc knows no name on the hub for {s.model}", "model")
    return found


def _written_strategy(s: TrainingSetup) -> str:
    return "fsdp2" if s.zero == 3 else "ddp" if s.zero == 0 else "megatron_fsdp"


def _written_gather(s: TrainingSetup) -> object:
    if s.zero != 3:
        return OMIT
    usual: Period = "step" if s.pp > 1 else "pass" if s.ep == 1 else "microbatch"
    return OMIT if (s.gather or "pass") == usual else (s.gather or "pass") == "pass"


def _written_policy(s: TrainingSetup) -> object:
    if s.recompute == Recompute():
        return OMIT
    if s.recompute.blocks and not s.recompute.kept and s.recompute.every == 1:
        return True
    raise CannotSayError("it recomputes whole blocks, or what a list of torch's ops leaves out", "recompute")


def _written_layers(s: TrainingSetup) -> object:
    usual = 2 if s.schedule in LOOPED else 1
    return OMIT if s.pp == 1 or s.graph is None or s.chunks == usual else -(-s.graph.layers // (s.pp * s.chunks))


WRITES: dict[str, Writer] = {
    NAMES[0]: _named,
    "model.torch_dtype": lambda s: "bf16" if s.stored else "float32",
    LENGTHS[0]: lambda s: s.sequence_tokens,
    "step_scheduler.global_batch_size": lambda s: s.sequences,
    "step_scheduler.local_batch_size": lambda s: s.sequences // s.data_parallel if s.pp > 1 else s.microbatch,
    "distributed.strategy": _written_strategy,
    "distributed.zero_dp_strategy": lambda s: s.zero if s.zero in (1, 2) else OMIT,
    "distributed.dp_replicate_size": lambda s: _unless(1, s.replica) if s.zero == 3 else OMIT,
    "distributed.tp_size": lambda s: _unless(1, s.tp),
    "distributed.cp_size": lambda s: _unless(1, s.cp),
    "distributed.pp_size": lambda s: _unless(1, s.pp),
    "distributed.ep_size": lambda s: _unless(1, s.ep),
    "distributed.sequence_parallel": lambda s: True if s.sp else OMIT,
    "distributed.activation_checkpointing": _written_policy,
    "distributed.defer_fsdp_grad_sync": lambda s: False if s.zero == 3 and not s.whole_grads and s.pp == 1 else OMIT,
    "distributed.reshard_after_forward": lambda s: _written_gather(s) if s.ep == 1 else OMIT,
    "distributed.moe.reshard_after_forward": lambda s: _written_gather(s) if s.ep > 1 else OMIT,
    "distributed.enable_async_tensor_parallel": lambda s: True if ("tp", "async_matmul") in s.overlaps else OMIT,
    "distributed.enable_compile": lambda s: True if "blocks" in s.compiled else OMIT,
    "distributed.mp_policy.param_dtype": lambda s: "float32" if s.precision.compute == "fp32" else OMIT,
    "distributed.mp_policy.reduce_dtype": lambda s: "bfloat16" if s.precision.reduce == "bf16" else OMIT,
    "distributed.offload_policy._target_": lambda s: (
        "torch.distributed.fsdp.CPUOffloadPolicy" if set(s.offloaded) >= {"params", "optimizer"} else OMIT
    ),
    "distributed.pipeline.pp_schedule": lambda s: CLASSES.get(s.schedule, OMIT) if s.pp > 1 else OMIT,
    "distributed.pipeline.pp_microbatch_size": lambda s: s.microbatch if s.pp > 1 else OMIT,
    "distributed.pipeline.layers_per_stage": _written_layers,
}


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """The sections of a recipe that a plan decides; data, optimizer and checkpoints are to be added."""
    head = f"# {python_comment(s.name)}: written by planc for AutoModel {VERSION}; data and checkpoints are yours\n"
    return head + "".join(_lines(nested(fields), ""))


def _lines(fields: Mapping[str, Any], indent: str) -> list[str]:
    found = []
    for name, value in fields.items():
        if isinstance(value, dict):
            found += [f"{indent}{name}:\n", *_lines(value, f"{indent}  ")]
        else:
            shown = yaml_string(value) if isinstance(value, str) else str(value).lower()
            found.append(f"{indent}{name}: {shown}\n")
    return found


def _recognises(document: Document) -> bool:
    fields = document.fields
    if any(n.startswith("step_scheduler.") for n in fields) and any(n.startswith("distributed.") for n in fields):
        return True
    return str(fields["recipe"].value).endswith("Recipe") if "recipe" in fields else False


SYSTEM = System(
    name="automodel",
    title="AutoModel",
    version=VERSION,
    formats=("yaml",),
    fields=FIELDS,
    settings=SETTINGS,
    recognises=_recognises,
    batch_words=("step_scheduler.global_batch_size", "step_scheduler.local_batch_size", *LENGTHS),
    writes=WRITES,
    text=_text,
    ending=".yaml",
    cannot={
        "recompute": "it recomputes whole blocks, or what a list of torch's ops leaves out",
        "quantize": "its 8-bit products are configured by the model",
        "split": "stages are counted from layers a stage, in equal parts",
        "optimizer": "only AdamW is written",
    },
)
