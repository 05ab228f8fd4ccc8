"""Megatron-Bridge: the `run_config.yaml` beside its checkpoints, and overrides of a recipe, `model.x=y`.

Its sections are Megatron-Core's dataclasses, so that Megatron-LM's settings read them, by other names; names and
defaults are those of these dataclasses at the commit below. A recipe itself is Python, which planc does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from planc.diag.quoting import python_comment, shell_word
from planc.interop.document import Document, FieldValue, Given
from planc.interop.fields import Field, noted, refused
from planc.interop.setup import Role, TrainingSetup
from planc.interop.system import OMIT, System
from planc.interop.systems import megatron
from planc.interop.systems.megatron_asserts import check_asserts
from planc.interop.systems.megatron_fields import EXPERTS, MODEL, STEP
from planc.interop.values import Values

VERSION = "067f987"
"""The commit whose names and defaults these are, of 22 August 2026."""
SAME = {
    "model": (
        "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size "
        "expert_tensor_parallel_size virtual_pipeline_model_parallel_size pipeline_model_parallel_layout "
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split sequence_parallel cp_comm_type "
        "tp_comm_overlap overlap_moe_expert_parallel_comm "
        "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels "
        "position_embedding_type normalization qk_layernorm make_vocab_size_divisible_by vocab_size "
        "multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim moe_router_topk "
        "moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_layer_freq moe_token_dispatcher_type "
        "moe_expert_capacity_factor bf16 fp16 fp8 fp8_recipe fp4 fp4_recipe first_last_layers_bf16 "
        "num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 attention_backend recompute_granularity "
        "recompute_method recompute_num_layers recompute_modules moe_layer_recompute cross_entropy_loss_fusion "
        "mtp_num_layers"
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
"""Sections, and the fields that have the name of Megatron-LM's flag."""
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
"""Megatron-LM's flags, and what Bridge calls them; `not` before a field that says the opposite, nothing for none."""
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
"""Defaults of the dataclasses that are not those of Megatron-LM's flags."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8"}
BACKENDS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}
"""Numbers of Megatron-Core's enumeration of attention backends."""


def _default(name: str) -> FieldValue:
    if name in OTHER:
        return OTHER[name]
    flag = next(flag for flag, own in CALLS.items() if own == name)
    known = megatron.SYSTEM.known(flag)
    return known.default if known else None


_READ = tuple(dict.fromkeys(own.removeprefix("not ") for own in CALLS.values() if own))
_CORE = {"encoder_num_layers", "decoder_num_layers", "spec", "model_provider", "yaml_cfg", "fp8_param_gather"}
FIELDS = (
    *(Field(name, _default(name)) for name in _READ),
    *(
        replace(f, name=f"model.{f.name}", aliases=tuple(f"model.{a}" for a in f.aliases))
        for f in (*MODEL, *EXPERTS, *STEP)
        if f.treatment != "read" and f.name not in _CORE and f"model.{f.name}" not in _READ
    ),
    refused("model.fp8_param", False, "parameters that are kept and gathered in 8 bits"),
    refused("model.fp4_param", False, "parameters that are kept and gathered in 4 bits"),
    refused("model.cpu_offloading", False, "the saved tensors of some layers in host memory"),
    refused("model.fp8_wgrad", True, "gradients of weights in bf16 where the products are in 8 bits"),
    refused("model.fp8_dot_product_attention", False, "attention in 8 bits"),
    refused("model.fp8_multi_head_attention", False, "attention in 8 bits"),
    refused("model.delay_wgrad_compute", False, "gradients of weights computed later in a schedule of their own"),
    refused("model.defer_embedding_wgrad_compute", False, "the embedding's gradient in the pipeline's end"),
    refused("model.moe_shared_expert_overlap", False, "shared experts computed beside the all-to-all"),
    refused("model.mtp_standalone", False, "a stage without layers: planc reads the layout string"),
    refused("model.hierarchical_context_parallel_sizes", None, "context parallelism of two levels has no sentence"),
    refused("model.hybrid_context_parallel", False, "context parallelism that differs from sequence to sequence"),
    refused("model.heterogeneous_block_specs", False, "layers of different sizes"),
    refused("model.quant_recipe", None, "a recipe in a file of its own"),
    refused("model.gtp_weight_remat_size", 1, "weights divided otherwise than their products have no sentence"),
    refused("model.expert_gtp_weight_remat_size", 1, "weights divided otherwise than their products"),
    refused("model.tensor_parallel_num_weight_shards", None, "weights divided otherwise than their products"),
    refused("model.expert_tensor_parallel_num_weight_shards", None, "weights divided otherwise than their products"),
    refused("model.gtp_remat_opt_in_modules", (), "weights divided otherwise than their products"),
    refused("model.max_seqlen_per_dp_cp_rank", None, "context parallelism that differs from sequence to sequence"),
    refused("model.overlap_dispatch_backward_with_experts_wgrad", False, "the all-to-all hidden behind gradients"),
    *noted("what mtp_num_layers says", "model.mtp_enabled"),
    refused("train.rampup_batch_size", None, "a plan has one batch"),
    refused("ddp.fp8_param_gather", False, "parameters that are kept and gathered in 8 bits"),
    refused("ddp.fp4_param_gather", False, "parameters that are kept and gathered in 4 bits"),
    refused("ddp.outer_dp_sharding_strategy", "no_shard", "state that replicas divide once more has no sentence"),
    refused("ddp.fsdp_double_buffer", False, "two buffers of gathered parameters that stay allocated"),
    refused("ddp.megatron_fsdp_main_grads_dtype", None, "gradients in a dtype that only one implementation has"),
    refused("ddp.megatron_fsdp_grad_comm_dtype", None, "gradients reduced in a dtype other than they are kept in"),
    refused("ddp.keep_fp8_transpose_cache", False, "a second copy of 8-bit weights"),
    refused("ddp.delay_wgrad_compute", False, "gradients of weights computed later in a schedule of their own"),
    refused("optimizer.overlap_param_gather_with_optimizer_step", False, "an optimizer's step beside the gather"),
    refused("peft", None, "parameters that are not trained"),
    refused("peft.*", None, "parameters that are not trained"),
    *noted(
        "what Megatron-Core derives or calls",
        "model.activation_func model.experimental_attention_variant_loss_scale_func model.finalize_model_grads_func "
        "model.grad_scale_func model.moe_grad_scale_func model.mtp_grad_scale_func model.no_sync_func "
        "model.grad_sync_func model.param_sync_func model.params_dtype model.autocast_dtype model.pipeline_dtype "
        "model.logit_dtype model.init_method model.output_layer_init_method model.embedding_init_method "
        "model._target_ model.generation_config._target_ model.timers._target_ ddp._target_ optimizer._target_ "
        "scheduler._target_ train._target_ validation._target_ rng._target_ dist._target_ checkpoint._target_ "
        "logger._target_ tokenizer._target_ profiling._target_ ft._target_ straggler._target_ "
        "nvrx_straggler._target_ rerun_state_machine._target_ tensor_inspect._target_ inprocess_restart._target_ "
        "comm_overlap._target_ mixed_precision._target_ dataset._target_ _target_ "
        "optimizer_config_override_provider._target_ model.timers model.batch_p2p_comm model.batch_p2p_sync "
        "model.overlap_p2p_comm model.overlap_p2p_comm_warmup_flush model.deallocate_pipeline_outputs "
        "model.variable_seq_lengths model.generation_config._call_ model.timers._call_ model.enable_autocast "
        "model.perform_initialization model.use_te_rng_tracker model.dsa_indexer_rotate_activation "
        "model.dsa_indexer_scoring_relu model.moe_router_topk_limited_devices model.cuda_graph_use_single_mempool "
        "model.cuda_graph_retain_backward_graph model.clone_scatter_output_in_embedding "
        "model.inference_sampling_seed "
        "model.rope_scaling model.yarn_rotary_scaling_factor model.yarn_mscale model.yarn_mscale_all_dim",
    ),
    *noted(
        "kernels",
        "model.bias_activation_fusion model.masked_softmax_fusion model.bias_dropout_fusion model.apply_rope_fusion "
        "model.gradient_accumulation_fusion model.fused_single_qkv_rope model.persist_layer_norm "
        "model.memory_efficient_layer_norm model.tp_comm_bulk_wgrad model.tp_comm_bulk_dgrad "
        "model.tp_comm_overlap_ag model.tp_comm_overlap_rs model.tp_comm_overlap_rs_dgrad model.tp_comm_split_ag "
        "model.tp_comm_atomic_ag model.tp_comm_split_rs model.tp_comm_atomic_rs model.tp_comm_overlap_disable_qkv "
        "model.tp_comm_overlap_disable_fc1 model.tp_comm_bootstrap_backend model.tp_comm_overlap_cfg "
        "model.tp_only_amax_red model.moe_token_dropping model.activation_func_fp8_input_store "
        "model.layernorm_zero_centered_gamma model.scatter_embedding_sequence_parallel model.parallel_output "
        "model.hf_model_id model.hf_model_revision model.generation_config model.transformer_layer_spec "
        "model.use_transformer_engine_full_layer_spec model.use_kitchen model.cpu_offloading_activations "
        "model.cpu_offloading_weights model.cpu_offloading_double_buffering model.softmax_scale "
        "model.use_inference_optimized_layers model.high_priority_a2a_comm_stream model.nccl_all_reduce_for_prefill "
        "model.symmetric_ar_type model.pipeline_model_parallel_comm_backend model.use_ring_exchange_p2p "
        "model.wgrad_deferral_limit model.ep_overlap_early_attn_memory_release "
        "model.num_microbatches_with_partial_activation_checkpoints model._cpu_offloading_context "
        "model._pg_collection model.barrier_with_L1_time model.disable_parameter_transpose_cache "
        "model.hetereogenous_dist_checkpoint model.use_mamba_mem_eff_path model.dense_grouped_gemm "
        "model.use_arbitrary_attention_mask",
    ),
    *noted(
        "scales and checkpoints",
        "model.original_max_position_embeddings model.beta_fast model.beta_slow model.seq_len_interpolation_factor "
        "model.restore_modelopt_state",
    ),
    *noted(
        "buckets and buffers",
        "ddp.bucket_size ddp.num_buckets ddp.pad_buckets_for_high_nccl_busbw ddp.nccl_ub ddp.align_param_gather "
        "ddp.check_for_nan_in_grad ddp.check_for_large_grads ddp.average_in_collective "
        "ddp.gradient_reduce_div_fusion ddp.suggested_communication_unit_size "
        "ddp.reduce_scatter_with_fp32_accumulation ddp.param_name_patterns_for_fp32_local_accumulation "
        "ddp.use_custom_fsdp ddp.megatron_fsdp_version ddp.megatron_fsdp_main_params_dtype "
        "ddp.megatron_fsdp_use_decoupled_grad ddp.megatron_fsdp_cuda_graph_mode "
        "ddp.megatron_fsdp_enable_fine_grained_param_gather ddp.megatron_fsdp_max_pool_double_buffer "
        "ddp.fsdp_db_use_persist_buf_on_alloc_fail ddp.fsdp_all_gather_in_start_param_sync "
        "ddp.fsdp_manual_registration ddp.disable_symmetric_registration ddp.reuse_grad_buf_for_mxfp8_param_ag",
    ),
    *noted(
        "the course of training",
        "optimizer.lr optimizer.min_lr optimizer.decoupled_lr optimizer.decoupled_min_lr optimizer.weight_decay "
        "optimizer.apply_wd_to_qk_layernorm optimizer.fp8_recipe optimizer.fp16 optimizer.bf16 "
        "optimizer.reuse_grad_buf_for_mxfp8_param_ag optimizer.params_dtype optimizer.store_param_remainders "
        "optimizer.loss_scale optimizer.initial_loss_scale optimizer.min_loss_scale optimizer.loss_scale_window "
        "optimizer.hysteresis optimizer.adam_beta1 optimizer.adam_beta2 optimizer.adam_eps "
        "optimizer.decoupled_weight_decay optimizer.sgd_momentum optimizer.muon_momentum optimizer.muon_split_qkv "
        "optimizer.muon_nesterov optimizer.muon_scale_mode optimizer.muon_fp32_matmul_prec "
        "optimizer.muon_coefficient_type optimizer.muon_num_ns_steps optimizer.muon_tp_mode optimizer.muon_use_syrk "
        "optimizer.muon_extra_scale_factor optimizer.muon_scalar_optimizer optimizer.lion_beta1 "
        "optimizer.lion_beta2 optimizer.soap_shampoo_beta optimizer.soap_use_kl_shampoo "
        "optimizer.adaptive_muon_moment2_method optimizer.adaptive_muon_beta2 optimizer.adaptive_muon_eps "
        "optimizer.use_distributed_optimizer optimizer.use_layer_wise_distributed_optimizer "
        "optimizer.overlap_param_gather optimizer.use_torch_optimizer_for_cpu_offload "
        "optimizer.overlap_cpu_optimizer_d2h_h2d optimizer.pin_cpu_grads optimizer.pin_cpu_params "
        "optimizer.clip_grad optimizer.grad_norm_skip_threshold optimizer.log_num_zeros_in_grad "
        "optimizer.barrier_with_L1_time optimizer.timers optimizer.config_logger_dir optimizer.optimizer_cuda_graph "
        "train.step_batch_size_schedule train.decrease_batch_size_if_needed train.empty_unused_memory_level "
        "train.check_weight_hash_across_dp_replicas_interval train.gpu_sniff_test_interval "
        "train.train_sync_interval train.train_iters train.train_samples train.exit_interval "
        "train.exit_duration_in_mins train.exit_signal_handler train.exit_signal "
        "train.exit_signal_handler_for_dataloader train.exit_signal_handler_for_training train.manual_gc "
        "train.manual_gc_interval train.manual_gc_eval train.iterations_to_skip train.num_epochs "
        "train._train_iters_from_num_epochs train.check_optimizer_step_success train.skip_sync_grad_norm_across_mp "
        "train.eval_iters train.eval_interval train.skip_train scheduler.lr_decay_style "
        "scheduler.lr_wsd_decay_style scheduler.lr_decay_iters scheduler.lr_decay_samples "
        "scheduler.lr_wsd_decay_iters scheduler.lr_wsd_decay_samples scheduler.lr_warmup_fraction "
        "scheduler.lr_warmup_iters scheduler.lr_warmup_samples scheduler.lr_warmup_init scheduler.lr_decay_steps "
        "scheduler.lr_warmup_steps scheduler.override_opt_param_scheduler "
        "scheduler.use_checkpoint_opt_param_scheduler scheduler.start_weight_decay scheduler.end_weight_decay "
        "scheduler.weight_decay_incr_style scheduler.no_weight_decay_cond_type scheduler.wd_incr_steps "
        "scheduler.wsd_decay_steps scheduler.max_steps validation.eval_iters validation.eval_interval "
        "validation.start_eval_at_iter validation.eval_global_batch_size validation.eval_micro_batch_size "
        "validation.skip_train validation.test_mode validation.full_validation validation.multiple_validation_sets "
        "validation.validation_set_names rng.seed rng.te_rng_tracker rng.inference_rng_tracker "
        "rng.data_parallel_random_init dataset._processors dataset._tokenizer dataset.adapter_kwargs "
        "dataset.add_bos dataset.add_eos dataset.add_extra_token_to_sequence dataset.add_sep "
        "dataset.allow_ambiguous_pad_tokens dataset.blend dataset.blend_per_split dataset.blend_seed "
        "dataset.collapse_image_tokens dataset.completion_column dataset.context_parallel_size "
        "dataset.create_attention_mask dataset.data_parallel_size dataset.data_path dataset.data_sharding "
        "dataset.dataloader_load dataset.dataloader_save dataset.dataloader_type dataset.dataset_kwargs "
        "dataset.dataset_name dataset.dataset_root dataset.defer_in_batch_packing_to_step "
        "dataset.defer_npy_index_mmap dataset.do_test dataset.do_validation dataset.drop_last "
        "dataset.drop_last_partial_validation_sequence dataset.enable_in_batch_packing "
        "dataset.enable_offline_packing dataset.encoder_seq_lengths dataset.eod_mask_loss dataset.fast_cache_load "
        "dataset.full_validation dataset.hf_data_files dataset.hf_dataset dataset.hf_dataset_name "
        "dataset.hf_dataset_path dataset.hf_output_root dataset.hf_processor_kwargs dataset.hf_processor_path "
        "dataset.hf_processor_revision dataset.hf_rewrite dataset.hf_test_dataset dataset.hf_tokenizer_path "
        "dataset.hf_validation_dataset dataset.hf_validation_proportion dataset.hybrid_context_parallel "
        "dataset.image_size dataset.in_batch_packing_pad_to_multiple_of dataset.include_end_tokens_for_roles "
        "dataset.include_start_tokens_for_roles dataset.inter_document_masking dataset.load_kwargs "
        "dataset.loss_mode dataset.loss_roles dataset.max_audio_duration dataset.max_num_frames "
        "dataset.max_num_images dataset.max_pixels dataset.max_samples_per_sequence dataset.max_sequence_length "
        "dataset.max_train_samples dataset.max_visual_tokens dataset.memmap_workers dataset.micro_batch_size "
        "dataset.mid_level_dataset_surplus dataset.min_pixels dataset.mmap_bin_files dataset.mock "
        "dataset.modality_columns dataset.modality_configs dataset.modality_presence_prob "
        "dataset.multiple_validation_sets dataset.num_base_examples dataset.num_dataset_builder_threads "
        "dataset.num_images dataset.num_mel_bins dataset.num_val_workers dataset.num_workers "
        "dataset.object_storage_cache_path dataset.offline_packing_specs dataset.packing_buffer_size "
        "dataset.pad_to_max_length dataset.pad_to_multiple_of dataset.patch_dim dataset.patch_size dataset.path "
        "dataset.path_or_dataset dataset.path_to_cache dataset.per_dataset_sequences_path "
        "dataset.persistent_workers dataset.pin_memory dataset.preprocess_fn dataset.preprocessing "
        "dataset.processor_paths dataset.prompt dataset.prompt_column dataset.prompt_template dataset.random_seed "
        "dataset.rendered_turn_end_roles dataset.reset_attention_mask dataset.reset_position_ids "
        "dataset.role_end_token_variants dataset.role_end_tokens dataset.role_start_tokens dataset.schema_adapter "
        "dataset.seed dataset.separator dataset.sequence_length dataset.sequence_parallel_size "
        "dataset.sequences_per_dataset dataset.sft_mock_dataset_config_json dataset.shuffle_buffer_size "
        "dataset.size dataset.skip_getting_attention_mask_from_dataset dataset.source dataset.source_weights "
        "dataset.spatial_merge_size dataset.special_token_ids dataset.split dataset.split_matrix "
        "dataset.strip_whitespace dataset.subset dataset.task_encoder dataset.temporal_patch_size "
        "dataset.test_source dataset.test_split dataset.text_column dataset.text_prompt dataset.token_dtype_code "
        "dataset.tokenizer dataset.tokenizer_path dataset.train_split dataset.trim_leading_token_ids "
        "dataset.trim_leading_token_sequences dataset.truncation_method dataset.trust_remote_code "
        "dataset.use_temporal_video_embedder dataset.valid_split dataset.validation_source "
        "dataset.varlen_mock_dataset_config_json dataset.varlen_sbhd_validation dataset.video_fps "
        "dataset.video_nframes dataset.visual_keys",
    ),
    *noted(
        "what is copied to the other sections",
        "mixed_precision mixed_precision.fp32 mixed_precision.fp16 mixed_precision.bf16 "
        "mixed_precision.params_dtype mixed_precision.pipeline_dtype mixed_precision.autocast_dtype "
        "mixed_precision.autocast_enabled mixed_precision.grad_reduce_in_fp32 mixed_precision.fp8 "
        "mixed_precision.fp8_recipe mixed_precision.first_last_layers_bf16 mixed_precision.fp8_margin "
        "mixed_precision.fp8_amax_history_len mixed_precision.fp8_amax_compute_algo mixed_precision.fp8_wgrad "
        "mixed_precision.fp8_dot_product_attention mixed_precision.fp8_multi_head_attention "
        "mixed_precision.fp8_param mixed_precision.fp8_param_gather mixed_precision.fp4 mixed_precision.fp4_recipe "
        "mixed_precision.fp4_param mixed_precision.fp4_param_gather mixed_precision.loss_scale "
        "mixed_precision.initial_loss_scale mixed_precision.min_loss_scale mixed_precision.loss_scale_window "
        "mixed_precision.hysteresis mixed_precision.num_layers_at_start_in_bf16 "
        "mixed_precision.num_layers_at_end_in_bf16 mixed_precision.reuse_grad_buf_for_mxfp8_param_ag comm_overlap "
        "comm_overlap.tp_comm_overlap comm_overlap.tp_comm_overlap_cfg comm_overlap.tp_comm_bootstrap_backend "
        "comm_overlap.overlap_p2p_comm comm_overlap.batch_p2p_comm comm_overlap.overlap_grad_reduce "
        "comm_overlap.overlap_param_gather comm_overlap.overlap_param_gather_with_optimizer_step "
        "comm_overlap.align_param_gather comm_overlap.bucket_size comm_overlap.defer_embedding_wgrad_compute "
        "comm_overlap.wgrad_deferral_limit comm_overlap.overlap_moe_expert_parallel_comm "
        "comm_overlap.delay_wgrad_compute comm_overlap.data_parallel_size",
    ),
    *noted(
        "around the training",
        "dist.distributed_backend dist.distributed_timeout_minutes dist.align_grad_reduce dist.local_rank "
        "dist.lazy_mpu_init dist.use_megatron_fsdp dist.nccl_communicator_config_path dist.use_gloo_process_groups "
        "dist.use_sharp dist.sharp_enabled_group dist.high_priority_stream_groups "
        "dist.distributed_timeout_seconds_after_init dist.flight_recorder_dump_path "
        "dist.flight_recorder_trace_buffer_size dist.flight_recorder_dump_on_timeout "
        "dist.flight_recorder_include_stack_trace dist.flight_recorder_include_only_active "
        "dist.flight_recorder_extra_dump_on_exec dist.disable_jit_fuser dist.external_gpu_device_mapping "
        "dist.enable_megatron_core_experimental dist.use_decentralized_pg dist.eval_context_parallel_size "
        "logger.log_interval logger.log_params_norm logger.log_throughput logger.log_throughput_to_tensorboard "
        "logger.throughput_window_size logger.log_progress logger.timing_log_level logger.timing_log_option "
        "logger.tensorboard_dir logger.tensorboard_log_interval logger.tensorboard_queue_size "
        "logger.log_timers_to_tensorboard logger.log_loss_scale_to_tensorboard "
        "logger.log_validation_ppl_to_tensorboard logger.log_memory_to_tensorboard logger.memory_keys "
        "logger.log_memory_interval logger.log_device_memory_used logger.log_l2_norm_grad_to_tensorboard "
        "logger.log_num_zeros_in_grad logger.log_max_attention_logit logger.log_runtime_to_tensorboard "
        "logger.runtime_time_unit logger.barrier_with_L1_time logger.log_world_size_to_tensorboard "
        "logger.wandb_project logger.wandb_exp_name logger.wandb_save_dir logger.wandb_entity logger.logging_level "
        "logger.filter_warnings logger.modules_to_filter logger.set_level_for_all_loggers logger.log_energy "
        "logger.save_config_filepath logger.moe_routing_trace_path logger.moe_routing_trace_max_training_iters "
        "logger.moe_routing_trace_capture_logits logger.moe_routing_trace_capture_hidden_states "
        "logger.moe_routing_trace_dump_weights logger.skip_train_metrics_log logger.mlflow_experiment "
        "logger.mlflow_run_name logger.mlflow_tracking_uri logger.mlflow_tags logger.mlflow_description "
        "logger.mlflow_log_artifacts logger.comet_project logger.comet_experiment_name logger.comet_workspace "
        "logger.comet_api_key logger.comet_tags checkpoint.save checkpoint.save_interval "
        "checkpoint.save_params_interval checkpoint.save_activations_interval "
        "checkpoint.save_tokens_per_expert_interval checkpoint.save_wgrads_interval checkpoint.save_dgrads_interval "
        "checkpoint.save_retain_interval checkpoint.most_recent_k checkpoint.save_optim checkpoint.save_rng "
        "checkpoint.load checkpoint.load_optim checkpoint.load_main_params_from_ckpt checkpoint.load_rng "
        "checkpoint.non_persistent_save_interval checkpoint.non_persistent_ckpt_type "
        "checkpoint.non_persistent_global_ckpt_dir checkpoint.non_persistent_local_ckpt_dir "
        "checkpoint.non_persistent_local_ckpt_algo checkpoint.finetune checkpoint.pretrained_checkpoint "
        "checkpoint.ckpt_step checkpoint.use_checkpoint_args checkpoint.use_mp_args_from_checkpoint_args "
        "checkpoint.use_tokenizer_model_from_checkpoint_args checkpoint.exit_on_missing_checkpoint "
        "checkpoint.ckpt_format checkpoint.auto_detect_ckpt_format checkpoint.ckpt_convert_format "
        "checkpoint.ckpt_convert_save checkpoint.ckpt_convert_update_legacy_dist_opt_format "
        "checkpoint.fully_parallel_save checkpoint.async_save checkpoint.async_strategy "
        "checkpoint.use_persistent_ckpt_worker checkpoint.async_ckpt_cpu_priority checkpoint.async_ckpt_io_priority "
        "checkpoint.async_ckpt_use_cpu_shm checkpoint.fully_parallel_load "
        "checkpoint.ckpt_fully_parallel_load_exchange_algo checkpoint.ckpt_fully_parallel_load_per_rank_objects "
        "checkpoint.ckpt_fully_parallel_save_process_group checkpoint.ckpt_fully_parallel_load_process_group "
        "checkpoint.ckpt_assume_constant_structure checkpoint.ckpt_pg_tensors_cache_path "
        "checkpoint.ckpt_pg_tensors_cache_create checkpoint.ckpt_load_validate_sharding_integrity "
        "checkpoint.strict_fsdp_dtensor_load checkpoint.dist_ckpt_strictness "
        "checkpoint.dist_ckpt_save_pre_mcore_014 checkpoint.dist_ckpt_optim_fully_reshardable "
        "checkpoint.distrib_optim_fully_reshardable_mem_efficient checkpoint.save_tokenizer_assets "
        "checkpoint.replication checkpoint.replication_jump checkpoint.replication_factor "
        "checkpoint.verify_integrity checkpoint.storage_writers_per_rank checkpoint.async_write_results_mp_mode "
        "checkpoint.custom_manager_class checkpoint.dist_ckpt_workers checkpoint.also_save_hf_checkpoint "
        "checkpoint.hf_source_path checkpoint.hf_trust_remote_code checkpoint.hf_distributed_save "
        "checkpoint.hf_save_every_n_ranks tokenizer.vocab_size tokenizer.padded_vocab_size tokenizer.pad_vocab_size "
        "tokenizer.vocab_file tokenizer.merge_file tokenizer.vocab_extra_ids tokenizer.tokenizer_model "
        "tokenizer.metadata_path tokenizer.special_tokens tokenizer.tiktoken_pattern "
        "tokenizer.tiktoken_num_special_tokens tokenizer.tokenizer_sentencepiece_legacy "
        "tokenizer.tokenizer_sentencepiece_ignore_extra_whitespaces tokenizer.tokenizer_hf_no_use_fast "
        "tokenizer.tokenizer_hf_no_include_special_tokens tokenizer.trust_remote_code "
        "tokenizer.null_tokenizer_eod_id tokenizer.null_tokenizer_pad_id tokenizer.chat_template "
        "tokenizer.use_gigatoken tokenizer.make_vocab_size_divisible_by tokenizer.tensor_model_parallel_size "
        "tokenizer.rank tokenizer.use_tokenizer_vocab_size tokenizer.hf_tokenizer_kwargs "
        "tokenizer.sp_tokenizer_kwargs tokenizer.chat_template_path tokenizer.tokenizer_prompt_format "
        "tokenizer.image_tag_type tokenizer.force_system_message profiling.use_nsys_profiler "
        "profiling.profile_step_start profiling.profile_step_end profiling.use_pytorch_profiler "
        "profiling.pytorch_profiler_collect_shapes profiling.pytorch_profiler_collect_callstack "
        "profiling.pytorch_profiler_collect_chakra profiling.profile_ranks profiling.record_memory_history "
        "profiling.memory_snapshot_path profiling.record_shapes profiling.nvtx_ranges env_vars ft "
        "ft.enable_ft_package ft.calc_ft_timeouts ft.simulate_fault ft.simulated_fault_type ft.simulated_fault_rank "
        "ft.simulated_fault_base_delay straggler straggler.log_straggler straggler.straggler_ctrlr_port "
        "straggler.straggler_minmax_count straggler.disable_straggler_on_startup "
        "straggler.enable_straggler_on_startup nvrx_straggler nvrx_straggler.enabled "
        "nvrx_straggler.report_time_interval nvrx_straggler.calc_relative_gpu_perf "
        "nvrx_straggler.calc_individual_gpu_perf nvrx_straggler.num_gpu_perf_scores_to_print "
        "nvrx_straggler.gpu_relative_perf_threshold nvrx_straggler.gpu_individual_perf_threshold "
        "nvrx_straggler.stop_if_detected nvrx_straggler.enable_logging nvrx_straggler.profiling_interval "
        "nvrx_straggler.logger_name rerun_state_machine.error_injection_rate "
        "rerun_state_machine.error_injection_type rerun_state_machine.rerun_mode "
        "rerun_state_machine.check_for_nan_in_loss rerun_state_machine.check_for_spiky_loss "
        "rerun_state_machine.spiky_loss_factor tensor_inspect tensor_inspect.enabled tensor_inspect.features "
        "tensor_inspect.feature_dirs tensor_inspect.allow_custom_feature_dirs tensor_inspect.log_dir "
        "tensor_inspect.init_training_step tensor_inspect._feature_dirs_from_default inprocess_restart "
        "inprocess_restart.enabled inprocess_restart.max_iterations inprocess_restart.monitor_thread_interval "
        "inprocess_restart.monitor_process_interval inprocess_restart.progress_watchdog_interval "
        "inprocess_restart.heartbeat_interval inprocess_restart.soft_timeout inprocess_restart.hard_timeout "
        "inprocess_restart.heartbeat_timeout inprocess_restart.barrier_timeout inprocess_restart.completion_timeout "
        "inprocess_restart.last_call_wait inprocess_restart.termination_grace_time inprocess_restart.granularity "
        "inprocess_restart.active_world_size inprocess_restart.empty_cuda_cache inprocess_restart.max_rank_faults "
        "inprocess_restart.monitor_process_logdir optimizer_config_override_provider",
    ),
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
"""Named recipes of mixed precision, and what they set."""
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
"""Fields that Bridge copies over those of other sections before it trains."""


def _prepared(document: Document) -> Document:
    """The fields with their dtypes and enumerations by name, and with those that Bridge copies in their places."""
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
    """Fields that the recipe of precision sets which `mixed_precision` names."""
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
    """Those of Megatron-LM; that transfers of tensor parallelism are not hidden is said, for Bridge's recipes hide
    them."""
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
    """The writer of a flag, for the field that Bridge has in its place."""
    own, default = CALLS[flag], _default(CALLS[flag].removeprefix("not ")) if CALLS[flag] in OTHER else None

    def written(setup: TrainingSetup) -> Any:
        value = write(setup)
        if own.startswith("not "):
            return value is OMIT or not value
        return default if value is OMIT and default is not None else value

    return written


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """The command line that starts a recipe with these overrides; the recipe's name is left to the environment."""
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
