"""Megatron-LM's flags: which are read, which are refused and why, and which change nothing that planc counts.

Names and defaults are those of its argument parser; `tests/interop/facts/megatron.json` holds what the parser itself
says of each, and a test compares.
"""

from __future__ import annotations

from planc.interop.fields import Field, noted, refused

LAYOUT = (
    Field("tensor_model_parallel_size", 1),
    Field("pipeline_model_parallel_size", 1),
    Field("context_parallel_size", 1),
    Field("expert_model_parallel_size", 1),
    Field("expert_tensor_parallel_size", None),
    Field("virtual_pipeline_model_parallel_size", None),
    Field("num_layers_per_virtual_pipeline_stage", None),
    Field("num_virtual_stages_per_pipeline_rank", None),
    Field("microbatch_group_size_per_virtual_pipeline_stage", None, aliases=("microbatch_group_size_per_vp_stage",)),
    Field("pipeline_model_parallel_layout", None),
    Field("decoder_first_pipeline_num_layers", None, aliases=("num_layers_in_first_pipeline_stage",)),
    Field("decoder_last_pipeline_num_layers", None, aliases=("num_layers_in_last_pipeline_stage",)),
    Field("account_for_embedding_in_pipeline_split", False),
    Field("account_for_loss_in_pipeline_split", False),
    Field("sequence_parallel", False),
    Field("cp_comm_type", ("p2p",)),
    Field("use_tp_pp_dp_mapping", False),
    Field("use_distributed_optimizer", False),
    Field("num_distributed_optimizer_instances", 1),
    Field("use_megatron_fsdp", False),
    Field("data_parallel_sharding_strategy", "optim_grads_params"),
    Field("use_torch_fsdp2", False),
    Field("torch_fsdp2_no_reshard_after_forward", False),
    Field("overlap_grad_reduce", False),
    Field("overlap_param_gather", False),
    Field("tp_comm_overlap", False),
    Field("overlap_moe_expert_parallel_comm", False),
    refused("outer_dp_sharding_strategy", "no_shard", "state that replicas divide once more has no sentence"),
    refused("enable_full_sharding_in_hsdp", False, "state that replicas divide once more has no sentence"),
    refused(
        "tensor_parallel_num_weight_shards", None, "weights divided otherwise than their products have no sentence"
    ),
    refused("expert_tensor_parallel_num_weight_shards", None, "weights divided otherwise than their products"),
    refused("gtp_remat_opt_in_modules", (), "weights divided otherwise than their products have no sentence"),
    refused("hierarchical_context_parallel_sizes", None, "context parallelism of two levels has no sentence"),
    refused("hybrid_context_parallel", False, "context parallelism that differs from sequence to sequence"),
    refused("dynamic_context_parallel", False, "context parallelism that differs from sequence to sequence"),
    refused("max_seqlen_per_dp_cp_rank", None, "context parallelism that differs from sequence to sequence"),
    refused("overlap_param_gather_with_optimizer_step", False, "an optimizer's step beside the gather of parameters"),
    refused("no_overlap_p2p_communication", False, "planc hides the transfers between stages behind compute"),
    refused("overlap_p2p_communication_warmup_flush", False, "transfers hidden in the ends of a pipeline"),
    refused("delay_wgrad_compute", False, "gradients of weights computed later in a schedule of their own"),
    refused("defer_embedding_wgrad_compute", False, "the embedding's gradient in the pipeline's end"),
    refused("overlap_dispatch_backward_with_experts_wgrad", False, "the experts' all-to-all hidden behind gradients"),
    refused("moe_shared_expert_overlap", False, "shared experts computed beside the all-to-all"),
    refused("mtp_standalone", False, "a stage without layers: planc reads the layout string"),
    refused("fsdp_double_buffer", False, "two buffers of gathered parameters that stay allocated"),
    refused("megatron_fsdp_max_pool_double_buffer", False, "two buffers of gathered parameters that stay allocated"),
    refused("megatron_fsdp_grad_comm_dtype", "auto", "gradients reduced in a dtype other than they are kept in"),
    refused("megatron_fsdp_main_grads_dtype", "auto", "gradients in a dtype that only one implementation has"),
    refused("megatron_fsdp_main_params_dtype", "fp32", "master parameters in another dtype than fp32"),
    refused("keep_fp8_transpose_cache", False, "a second copy of 8-bit weights"),
    refused("model_parallel_size", None, "Megatron-LM itself refuses it: tensor_model_parallel_size"),
    *noted(
        "parts of the overlap of tensor parallelism",
        "tp_comm_overlap_cfg tp_comm_bootstrap_backend",
    ),
    *noted(
        "parts of the overlap of tensor parallelism",
        "no_tp_comm_bulk_dgrad no_tp_comm_bulk_wgrad no_tp_comm_overlap_ag no_tp_comm_overlap_rs "
        "no_tp_comm_split_ag no_tp_comm_split_rs disable_tp_comm_bulk_dgrad disable_tp_comm_bulk_wgrad "
        "disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs disable_tp_comm_split_ag disable_tp_comm_split_rs "
        "tp_comm_overlap_rs_dgrad",
        default=False,
    ),
    *noted(
        "buckets and buffers of collectives",
        "ddp_bucket_size ddp_num_buckets nccl_communicator_config_path suggested_communication_unit_size "
        "symmetric_ar_type megatron_fsdp_version",
    ),
    *noted(
        "buckets and buffers of collectives",
        "ddp_average_in_collective ddp_pad_buckets_for_high_nccl_busbw ddp_reduce_scatter_with_fp32_accumulation "
        "no_align_grad_reduce no_align_param_gather disable_align_grad_reduce gtp_expert_remat_nccl_ub "
        "gtp_remat_nccl_ub use_nccl_ub nccl_all_reduce_for_prefill create_all_gather_group fsdp_manual_registration "
        "disable_symmetric_registration fsdp_db_use_persist_buf_on_alloc_fail no_gradient_reduce_div_fusion "
        "no_use_layer_wise_param_layout gtp_remat_reduce_scatter_with_fp32_accumulation "
        "megatron_fsdp_enable_fine_grained_param_gather",
        default=False,
    ),
    *noted(
        "buckets and buffers of collectives",
        "ddp_param_name_patterns_for_fp32_local_accumulation",
        default=(),
    ),
    *noted(
        "process groups and their start",
        "distributed_backend distributed_timeout_minutes distributed_timeout_seconds_after_init local_rank "
        "sharp_enabled_group flight_recorder_dump_path flight_recorder_trace_buffer_size "
        "pipeline_model_parallel_comm_backend wgrad_deferral_limit",
    ),
    *noted(
        "process groups and their start",
        "lazy_mpu_init use_sharp disable_gloo_process_groups high_priority_a2a_comm_stream "
        "flight_recorder_include_stack_trace no_flight_recorder_dump_on_timeout "
        "no_flight_recorder_extra_dump_on_exec no_flight_recorder_include_only_active "
        "disable_flight_recorder_dump_on_timeout disable_flight_recorder_extra_dump_on_exec "
        "disable_flight_recorder_include_only_active fake_process_group use_ring_exchange_p2p "
        "ep_overlap_early_attn_memory_release",
        default=False,
    ),
    *noted(
        "process groups and their start",
        "high_priority_stream_groups",
        default=(),
    ),
)
MODEL = (
    Field("num_layers", None),
    Field("hidden_size", None),
    Field("ffn_hidden_size", None),
    Field("num_attention_heads", None),
    Field("group_query_attention", False),
    Field("num_query_groups", 1),
    Field("kv_channels", None),
    Field("max_position_embeddings", None),
    Field("position_embedding_type", "learned_absolute"),
    Field("no_position_embedding", False),
    Field("use_rotary_position_embeddings", False),
    Field("normalization", "LayerNorm"),
    Field("swiglu", False),
    Field("quick_geglu", False),
    Field("disable_bias_linear", False),
    Field("qk_layernorm", False),
    Field("untie_embeddings_and_output_weights", False),
    Field("make_vocab_size_divisible_by", 128),
    Field("vocab_size", None),
    Field("padded_vocab_size", None),
    Field("no_pad_vocab_size", False, aliases=("disable_pad_vocab_size",)),
    Field("tokenizer_type", None),
    Field("multi_latent_attention", False),
    Field("q_lora_rank", None),
    Field("kv_lora_rank", 32),
    Field("qk_head_dim", 128),
    Field("qk_pos_emb_head_dim", 64),
    Field("v_head_dim", 128),
    refused("vocab_extra_ids", 0, "more rows of the vocabulary, by the tokenizer"),
    refused("window_size", None, "sliding windows are in the catalog's own models alone"),
    refused("window_attn_skip_freq", None, "sliding windows are in the catalog's own models alone"),
    refused("softmax_type", "vanilla", "attention with sinks is in the catalog's own models alone"),
    refused("add_qkv_bias", False, "biases in the projections of attention alone"),
    refused("qk_l2_norm", False, "norms of queries and keys without parameters"),
    refused("qk_clip", False, "queries and keys that are rescaled after the step"),
    refused("attention_output_gate", False, "a gate behind attention"),
    refused("apply_residual_connection_post_layernorm", False, "a residual stream behind the norm"),
    refused("fp32_residual_connection", False, "a residual stream in fp32"),
    refused("experimental_attention_variant", None, "attention in a form that the catalog has not"),
    refused("linear_attention_freq", None, "layers of linear attention"),
    refused("hybrid_layer_pattern", None, "layers of state-space models"),
    refused("hybrid_override_pattern", None, "layers of state-space models"),
    refused("hybrid_attention_ratio", 0.0, "layers of state-space models"),
    refused("hybrid_mlp_ratio", 0.0, "layers of state-space models"),
    refused("is_hybrid_model", False, "layers of state-space models"),
    refused("heterogeneous_layers_config_path", None, "layers of different sizes"),
    refused("heterogeneous_layers_config_encoded_json", None, "layers of different sizes"),
    refused("enable_mhc_connections", False, "several residual streams"),
    Field("mtp_num_layers", None),
    refused("mtp_hybrid_override_pattern", None, "modules for further tokens of several layers"),
    refused("encoder_num_layers", None, "a model with an encoder"),
    refused("decoder_num_layers", None, "a model with an encoder"),
    refused("encoder_seq_length", None, "a model with an encoder"),
    refused("decoder_seq_length", None, "a model with an encoder"),
    refused("vision_pretraining", False, "a model of images"),
    refused("spec", None, "a model in code"),
    refused("model_provider", None, "a model in code"),
    refused("use_checkpoint_args", False, "sizes that a checkpoint holds: give the model with --model"),
    refused("use_mp_args_from_checkpoint_args", False, "degrees that a checkpoint holds"),
    refused("yaml_cfg", None, "the configuration stands in that file: import it"),
    refused("mlp_chunks_for_training", 1, "a feed-forward in pieces"),
    refused("freeze_all_layers", False, "layers that are not trained"),
    *noted(
        "activations of the same cost, scales and epsilons",
        "glu_linear_offset activation_func_clamp_value layernorm_epsilon norm_epsilon rotary_base rotary_percent "
        "rotary_scaling_factor rotary_seq_len_interpolation_factor rope_scaling_factor rope_type no_rope_freq "
        "yarn_beta_fast yarn_beta_slow yarn_correction_range_round_to_int yarn_original_max_position_embeddings "
        "mscale mscale_all_dim mrope_section mup_attn_scale_power mup_base_head_dim mup_base_hidden_size "
        "mup_embedding_mult mup_output_mult mup_width_mult relative_attention_max_distance "
        "relative_attention_num_buckets qk_clip_alpha qk_clip_threshold",
    ),
    *noted(
        "activations of the same cost, scales and epsilons",
        "openai_gelu squared_relu apply_layernorm_1p rotary_interleaved use_rope_scaling "
        "no_yarn_correction_range_round_to_int use_mup apply_query_key_layer_scaling attention_softmax_in_fp32",
        default=False,
    ),
    *noted("dropout, whose masks planc does not count", "hidden_dropout", "attention_dropout"),
    *noted(
        "what only other models have",
        "linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads "
        "linear_num_value_heads dsa_indexer_head_dim dsa_indexer_k_norm_epsilon dsa_indexer_loss_coeff "
        "dsa_indexer_n_heads dsa_indexer_skip_topk_offset dsa_indexer_topk dsa_indexer_topk_freq dsa_kernel_backend "
        "gdp_num_chunk_states_to_recompute gdp_num_householder mhc_init_gating_factor mhc_num_residual_streams "
        "mhc_sinkhorn_iterations mamba_head_dim mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype "
        "mamba_num_groups mamba_num_heads mamba_state_dim mamba_training_ssm_states_dtype mtp_loss_scaling_factor "
        "bert_embedder_type bert_load biencoder_projection_dim ict_head_size ict_load dino_bottleneck_size "
        "dino_freeze_last_layer dino_head_hidden_size dino_local_crops_number dino_local_img_size dino_teacher_temp "
        "dino_warmup_teacher_temp dino_warmup_teacher_temp_epochs swin_backbone_type titles_data_path "
        "query_in_block_prob img_h img_w evidence_data_path block_data_path embedding_path indexer_batch_size "
        "indexer_log_interval num_classes num_channels patch_dim classes_fraction data_per_class_fraction "
        "head_lr_mult mask_factor mask_prob mask_type vision_backbone_type vision_pretraining_type iter_per_epoch "
        "short_seq_prob",
    ),
    *noted(
        "what only other models have",
        "dsa_indexer_k_norm_fp32 dsa_indexer_rope_interleaved dsa_indexer_use_sparse_loss "
        "no_dsa_indexer_rotate_activation no_dsa_indexer_scoring_relu disable_dsa_indexer_rotate_activation "
        "disable_dsa_indexer_scoring_relu gdp_cutedsl_kernel mtp_detach_heads disable_mamba_mem_eff_path mtp_hsm "
        "mtp_use_repeated_layer bert_no_binary_head biencoder_shared_query_context_model dino_norm_last_layer "
        "use_one_sent_docs retriever_score_scaling no_data_sharding output_bert_embeddings",
        default=False,
    ),
    *noted(
        "what only other models have",
        "retriever_report_topk_accuracies",
        default=(),
    ),
    *noted(
        "initial values",
        "embedding_init_method_std init_method_std seed use_cpu_initialization",
    ),
    *noted(
        "initial values",
        "init_method_xavier_uniform no_initialization init_model_with_meta_device data_parallel_random_init "
        "te_rng_tracker",
        default=False,
    ),
)
EXPERTS = (
    Field("num_experts", None),
    Field("moe_router_topk", 2),
    Field("moe_ffn_hidden_size", None),
    Field("moe_shared_expert_intermediate_size", None),
    Field("moe_layer_freq", 1),
    Field("moe_token_dispatcher_type", "allgather"),
    Field("moe_expert_capacity_factor", None),
    refused("moe_shared_expert_gate", False, "a gate on the shared expert"),
    refused("moe_latent_size", None, "experts in a smaller width"),
    refused("moe_expert_rank_capacity_factor", None, "room for tokens by rank, not by expert"),
    refused("moe_paged_stash", False, "the experts' saved tensors in pages"),
    refused("moe_dispatch_fwd_dtype", "bf16", "tokens sent to their experts in another dtype"),
    refused("moe_combine_bwd_dtype", "bf16", "gradients sent from the experts in another dtype"),
    refused("moe_use_upcycling", False, "a model with experts made of one without"),
    *noted(
        "the router's choice: planc routes evenly",
        "moe_router_bias_update_rate moe_router_dtype moe_router_force_biased moe_router_group_topk "
        "moe_router_quantile_balancing_ema moe_router_score_function moe_router_topk_scaling_factor "
        "moe_z_loss_coeff moe_input_jitter_eps moe_token_drop_policy moe_upcycling_granularity",
    ),
    *noted(
        "the router's choice: planc routes evenly",
        "moe_router_enable_expert_bias moe_router_force_load_balancing moe_router_fusion moe_router_padding_for_fp8 "
        "moe_router_padding_for_quantization moe_router_pre_softmax moe_enable_routing_replay "
        "moe_pad_expert_input_to_capacity",
        default=False,
    ),
    *noted(
        "the router's choice: planc routes evenly",
        "moe_router_load_balancing_type moe_router_num_groups moe_aux_loss_coeff",
        default=(),
    ),
    *noted(
        "kernels and libraries of the experts",
        "moe_flex_dispatcher_backend moe_flex_dispatcher_num_sms moe_hybridep_num_blocks_permute "
        "moe_hybridep_num_blocks_unpermute moe_hybridep_num_sms moe_hybridep_num_sms_preprocessing "
        "moe_deepep_num_sms moe_mlp_glu_interleave_size moe_shared_expert_glu_interleave_size "
        "moe_paged_stash_buffer_size_factor_cpu moe_paged_stash_buffer_size_factor_cuda moe_paged_stash_page_size "
        "moe_routing_trace_max_training_iters moe_routing_trace_path moe_extended_tp moe_use_legacy_grouped_gemm",
    ),
    *noted(
        "kernels and libraries of the experts",
        "moe_grouped_gemm moe_use_grouped_tensor moe_single_grouped_bias moe_single_grouped_weight "
        "moe_permute_fusion moe_permute_fusion_into_hybridep moe_enable_deepep "
        "moe_hybridep_pad_uneven_dispatch_inputs moe_ncclep_zero_copy use_grouped_gemm_for_dense_mlp "
        "use_grouped_gemm_for_shared_expert moe_apply_probs_on_input moe_per_layer_logging "
        "moe_pad_experts_for_cuda_graph_inference moe_routing_trace_capture_hidden_states "
        "moe_routing_trace_capture_logits moe_routing_trace_dump_weights",
        default=False,
    ),
)
STEP = (
    Field("micro_batch_size", None),
    Field("global_batch_size", None),
    Field("seq_length", None),
    Field("bf16", False),
    Field("fp16", False),
    Field("grad_reduce_in_bf16", False),
    Field("use_precision_aware_optimizer", False),
    Field("main_params_dtype", "fp32"),
    Field("main_grads_dtype", "fp32"),
    Field("exp_avg_dtype", "fp32"),
    Field("exp_avg_sq_dtype", "fp32"),
    Field("fp8", None, aliases=("fp8_format",)),
    Field("fp8_recipe", "delayed"),
    Field("fp4", None, aliases=("fp4_format",)),
    Field("fp4_recipe", "nvfp4"),
    Field("first_last_layers_bf16", False),
    Field("num_layers_at_start_in_bf16", 1),
    Field("num_layers_at_end_in_bf16", 1),
    Field("attention_backend", "auto"),
    Field("recompute_granularity", None),
    Field("recompute_method", None),
    Field("recompute_num_layers", None),
    Field("recompute_modules", None),
    Field("recompute_activations", False),
    Field("moe_layer_recompute", False),
    Field("cross_entropy_loss_fusion", False),
    Field("optimizer", "adam"),
    Field("optimizer_cpu_offload", False),
    Field("optimizer_offload_fraction", 1.0),
    refused("rampup_batch_size", None, "a plan has one batch"),
    refused("step_batch_size_schedule", None, "a plan has one batch"),
    refused("batch_size", None, "Megatron-LM itself refuses it: micro_batch_size"),
    refused("checkpoint_activations", False, "Megatron-LM itself refuses it: recompute_granularity"),
    refused("distribute_saved_activations", False, "recomputed layers' inputs divided over tensor parallelism"),
    refused("mhc_recompute_layer_num", None, "several residual streams"),
    refused("cpu_offloading_num_layers", 0, "the saved tensors of some layers in host memory"),
    refused("fine_grained_activation_offloading", False, "saved tensors of modules in host memory, while they last"),
    refused("fp8_param_gather", False, "parameters that are kept and gathered in 8 bits"),
    refused("fp4_param_gather", False, "parameters that are kept and gathered in 4 bits"),
    refused(
        "no_fp8_wgrad", False, "gradients of weights in bf16 where the products are in 8 bits", "disable_fp8_wgrad"
    ),
    refused("fp8_output_proj", False, "the head in 8 bits"),
    refused("fp8_quantizer_factory", None, "a recipe in code"),
    refused("fp4_quantizer_factory", None, "a recipe in code"),
    refused("te_precision_config_file", None, "a recipe in a file of its own"),
    refused("kitchen_config_file", None, "a recipe in a file of its own"),
    refused("kitchen_recipe_number", None, "a recipe of a library of its own"),
    refused("use_kitchen_attention", False, "attention of a library of its own"),
    refused("output_logit_dtype", None, "logits in another dtype"),
    refused("perform_rl_step", False, "reinforcement learning: planc costs steps of training alone"),
    refused("skip_train", False, "planc costs steps of training alone"),
    refused("use_legacy_static_engine", False, "planc costs steps of training alone"),
    refused("inference_dynamic_batching", False, "planc costs steps of training alone"),
    *noted(
        "kernels: planc counts the work, and not who does it",
        "transformer_impl flash_attention_version batch_invariant_backend cross_entropy_fusion_impl onnx_safe "
        "kitchen_attention_backend",
    ),
    *noted(
        "kernels: planc counts the work, and not who does it",
        "no_bias_dropout_fusion no_bias_gelu_fusion no_bias_swiglu_fusion no_gradient_accumulation_fusion "
        "no_masked_softmax_fusion no_rope_fusion use_flash_attn flash_decode deterministic_mode "
        "batch_invariant_mode disable_jit_fuser no_persist_layer_norm use_te_activation_func "
        "use_fused_weighted_squared_relu fused_residual_rmsnorm use_transformer_engine_op_fuser "
        "disable_bf16_reduced_precision_matmul use_mcore_models disable_clone_scatter_output_in_embedding "
        "no_clone_scatter_output_in_embedding mla_down_proj_fusion enable_experimental fp16_lm_cross_entropy "
        "reuse_grad_buf_for_mxfp8_param_ag",
        default=False,
    ),
    *noted(
        "CUDA graphs: planc counts no launches",
        "cuda_graph_impl cuda_graph_warmup_steps inference_cuda_graph_max_tokens inference_cuda_graph_scope "
        "inference_dynamic_batching_cuda_graph_mixed_prefill_count "
        "inference_dynamic_batching_cuda_graph_sizing_distribution inference_dynamic_batching_num_cuda_graphs",
    ),
    *noted(
        "CUDA graphs: planc counts no launches",
        "decode_only_cuda_graphs delay_offload_until_cuda_graph enable_cuda_graph external_cuda_graph "
        "inference_cuda_graph_all_prefills no_rl_persist_cuda_graphs no_rl_training_cuda_graphs "
        "optimizer_cuda_graph rl_persist_cuda_graphs rl_training_cuda_graphs",
        default=False,
    ),
    *noted(
        "CUDA graphs: planc counts no launches",
        "cuda_graph_modules cuda_graph_scope",
        default=(),
    ),
    *noted(
        "scaling of narrow dtypes",
        "fp8_margin fp8_interval fp8_amax_compute_algo fp8_amax_history_len loss_scale loss_scale_window "
        "initial_loss_scale min_loss_scale hysteresis",
    ),
    *noted(
        "scaling of narrow dtypes",
        "accumulate_allreduce_grads_in_fp32",
        default=False,
    ),
    *noted(
        "the course of training",
        "lr lr_decay_iters lr_decay_samples lr_decay_style lr_warmup_fraction lr_warmup_init lr_warmup_iters "
        "lr_warmup_samples lr_wsd_decay_iters lr_wsd_decay_samples lr_wsd_decay_style min_lr warmup decoupled_lr "
        "decoupled_min_lr end_weight_decay no_weight_decay_cond_type start_weight_decay weight_decay "
        "weight_decay_incr_style clip_grad adam_beta1 adam_beta2 adam_eps sgd_momentum muon_extra_scale_factor "
        "muon_fp32_matmul_prec muon_momentum muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_tp_mode "
        "lion_beta1 lion_beta2 train_iters train_samples exit_duration_in_mins exit_interval exit_signal "
        "train_sync_interval phase_transition_iterations eval_global_batch_size eval_interval eval_iters "
        "eval_micro_batch_size start_eval_at_iter logits_load_decode_threads logits_load_dir "
        "logits_load_kd_loss_alpha logits_load_msc_prefetch_depth logits_load_prefetch_factor logits_save_dir "
        "logits_save_dtype logits_save_top_k logits_save_top_p logits_save_top_p_min_k",
    ),
    *noted(
        "the course of training",
        "muon_nesterov muon_no_split_qkv muon_use_syrk apply_wd_to_qk_layernorm exit_on_missing_checkpoint "
        "exit_signal_handler exit_signal_handler_for_dataloader exit_signal_handler_for_training "
        "decrease_batch_size_if_needed override_opt_param_scheduler use_checkpoint_opt_param_scheduler "
        "calculate_per_token_loss test_mode full_validation multiple_validation_sets logits_load_ignore_errors",
        default=False,
    ),
    *noted(
        "the course of training",
        "muon_coefficient_type iterations_to_skip validation_set_names",
        default=(),
    ),
    *noted(
        "offload in part",
        "min_offloaded_tensor_size delta_offload_bytes_across_pp_ranks activation_offload_fraction "
        "fine_grained_offloading_max_inflight_offloads",
    ),
    *noted(
        "offload in part",
        "cpu_offloading_retain_pinned_cpu_buffers use_torch_optimizer_for_cpu_offload overlap_cpu_optimizer_d2h_h2d "
        "no_pin_cpu_grads no_pin_cpu_params",
        default=False,
    ),
    *noted(
        "offload in part",
        "offload_modules",
        default=(),
    ),
    *noted(
        "collection of garbage and caches",
        "manual_gc_interval empty_unused_memory_level",
    ),
    *noted(
        "collection of garbage and caches",
        "manual_gc no_manual_gc_eval disable_manual_gc_eval",
        default=False,
    ),
    *noted(
        "data",
        "data_cache_path split num_workers sft_tokenizer_prompt_format dataloader_type num_dataset_builder_threads "
        "object_storage_cache_path mid_level_dataset_surplus sample_rate fim_eod_token fim_fragment_rate "
        "fim_middle_token fim_no_prefix fim_pad_token fim_prefix_token fim_rate fim_split_sample fim_spm_rate "
        "fim_suffix_token per_dataset_sequences_path null_tokenizer_eod_id null_tokenizer_pad_id tokenizer_metadata "
        "tokenizer_model tokenizer_special_tokens vocab_file merge_file tiktoken_num_special_tokens "
        "tiktoken_pattern chat_template",
    ),
    *noted(
        "data",
        "mock_data sft dataloader_defer_npy_index_mmap dataloader_fast_cache_load dataloader_inter_document_masking "
        "no_mmap_bin_files reset_attention_mask reset_position_ids eod_mask_loss "
        "no_create_attention_mask_in_dataloader fim_data allow_ambiguous_pad_tokens "
        "disable_tokenizer_sentencepiece_ignore_extra_whitespaces disable_use_tokenizer_model_from_checkpoint_args "
        "no_save_tokenizer_assets no_tokenizer_sentencepiece_ignore_extra_whitespaces "
        "no_use_tokenizer_model_from_checkpoint_args tokenizer_hf_no_include_special_tokens "
        "tokenizer_hf_no_use_fast tokenizer_sentencepiece_legacy trust_remote_code use_gigatoken enable_msc "
        "disable_msc",
        default=False,
    ),
    *noted(
        "data",
        "data_path test_data_path train_data_path valid_data_path data_args_path per_split_data_args_path",
        default=(),
    ),
    *noted(
        "checkpoints",
        "save save_activations_interval save_dgrads_interval save_interval save_params_interval "
        "save_retain_interval save_tokens_per_expert_interval save_wgrads_interval load async_ckpt_cpu_priority "
        "async_ckpt_io_priority ckpt_convert_format ckpt_convert_save ckpt_format "
        "ckpt_fully_parallel_load_exchange_algo ckpt_fully_parallel_load_process_group "
        "ckpt_fully_parallel_save_process_group ckpt_pg_tensors_cache_path ckpt_step dist_ckpt_format "
        "dist_ckpt_strictness dist_ckpt_workers non_persistent_ckpt_type non_persistent_global_ckpt_dir "
        "non_persistent_local_ckpt_algo non_persistent_local_ckpt_dir override_ckpt_iteration no_load_optim "
        "no_load_rng no_save_optim no_save_rng non_persistent_save_interval persistent_save_interval "
        "pretrained_checkpoint async_strategy replication_factor replication_jump",
    ),
    *noted(
        "checkpoints",
        "load_main_params_from_ckpt async_ckpt_use_cpu_shm auto_detect_ckpt_format ckpt_assume_constant_structure "
        "ckpt_convert_update_legacy_dist_opt_format ckpt_drop_redundant_extra_state ckpt_fully_parallel_load "
        "ckpt_fully_parallel_load_per_rank_objects ckpt_fully_parallel_save ckpt_pg_tensors_cache_create "
        "disable_ckpt_load_validate_sharding_integrity dist_ckpt_optim_fully_reshardable "
        "dist_ckpt_save_pre_mcore_014 no_ckpt_fully_parallel_save no_ckpt_load_validate_sharding_integrity "
        "use_dist_ckpt use_persistent_ckpt_worker finetune async_save replication verify_integrity "
        "distrib_optim_fully_reshardable_mem_efficient no_strict_fsdp_dtensor_load disable_strict_fsdp_dtensor_load "
        "disable_save_tokenizer_assets",
        default=False,
    ),
    *noted(
        "logs and metrics",
        "log_interval log_memory_interval wandb_entity wandb_exp_name wandb_project wandb_save_dir tensorboard_dir "
        "tensorboard_log_interval tensorboard_queue_size timing_log_level timing_log_option one_logger_project "
        "one_logger_run_name profile_step_end profile_step_start memory_snapshot_path otel_service_name "
        "otel_span_groups app_tag_run_version config_logger_dir logging_level dump_param_to_param_group_map "
        "comet_project",
    ),
    *noted(
        "logs and metrics",
        "log_device_memory_used log_energy log_max_attention_logit log_memory_to_tensorboard log_num_zeros_in_grad "
        "log_params_norm log_progress log_straggler log_throughput log_timers_to_tensorboard "
        "log_validation_ppl_to_tensorboard log_world_size_to_tensorboard no_log_loss_scale_to_tensorboard "
        "disable_log_loss_scale_to_tensorboard one_logger_async no_one_logger profile "
        "pytorch_profiler_collect_callstack pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes "
        "use_pytorch_profiler record_memory_history record_shapes nvtx_ranges otel_enabled "
        "no_barrier_with_level_1_timing",
        default=False,
    ),
    *noted(
        "logs and metrics",
        "profile_ranks app_tag_run_name",
        default=(),
    ),
    *noted(
        "faults and restarts",
        "rerun_mode error_injection_rate error_injection_type inprocess_active_world_size inprocess_barrier_timeout "
        "inprocess_completion_timeout inprocess_granularity inprocess_hard_timeout inprocess_heartbeat_interval "
        "inprocess_heartbeat_timeout inprocess_last_call_wait inprocess_max_iterations "
        "inprocess_monitor_process_interval inprocess_monitor_thread_interval inprocess_progress_watchdog_interval "
        "inprocess_soft_timeout inprocess_termination_grace_time straggler_ctrlr_port straggler_minmax_count "
        "ft_num_warmup_iters adlr_autoresume_interval fault_injector_delay_start_iteration "
        "fault_injector_fault_delay fault_injector_fault_probabilities fault_injector_fault_types "
        "fault_injector_mtti_seconds fault_injector_num_ranks fault_injector_offset_seconds fault_injector_ranks "
        "fault_injector_seed result_rejected_tracker_filename nvrx_version gpu_sniff_test_interval",
    ),
    *noted(
        "faults and restarts",
        "inprocess_empty_cuda_cache inprocess_restart disable_straggler_on_startup enable_ft_package "
        "calc_ft_timeouts adlr_autoresume check_for_large_grads check_for_spiky_loss "
        "no_check_for_nan_in_loss_and_grad run_workload_inspector_server",
        default=False,
    ),
    *noted(
        "faults and restarts",
        "check_weight_hash_across_dp_replicas_interval",
        default=(),
    ),
    *noted(
        "generation and reinforcement learning",
        "inference_batch_times_seqlen_threshold inference_coordinator_port "
        "inference_dynamic_batching_async_sched_mode inference_dynamic_batching_block_size "
        "inference_dynamic_batching_buffer_size_gb inference_dynamic_batching_logprobs_mode "
        "inference_dynamic_batching_mamba_memory_ratio inference_dynamic_batching_max_requests "
        "inference_dynamic_batching_max_tokens inference_dynamic_batching_paused_buffer_size_gb "
        "inference_dynamic_batching_prefix_caching_coordinator_policy "
        "inference_dynamic_batching_prefix_caching_eviction_policy "
        "inference_dynamic_batching_prefix_caching_mamba_gb inference_dynamic_batching_prefix_caching_routing_alpha "
        "inference_dynamic_batching_sampling_backend inference_dynamic_batching_unified_memory_level "
        "inference_grouped_gemm_backend inference_logging_step_interval inference_max_requests "
        "inference_max_seq_length inference_moe_token_dispatcher_type inference_shards rl_consumption_granularity "
        "rl_default_temperature rl_default_top_k rl_default_top_p rl_generation_lag "
        "rl_importance_sampling_truncation_coef rl_inference_expert_model_parallel_size "
        "rl_inference_expert_tensor_model_parallel_size rl_inference_model_unified_memory_level "
        "rl_inference_pipeline_model_parallel_size rl_inference_tensor_model_parallel_size "
        "rl_kv_cache_management_mode rl_max_inflight_requests rl_profile_dir rl_prompts_per_eval "
        "rl_rollout_bank_dir rl_rollout_bank_max_bytes rl_sequence_packing_algo "
        "rl_sequence_packing_max_sequences_per_bin rl_submission_granularity grpo_clamp_eps_lower "
        "grpo_clamp_eps_upper grpo_entropy_term_weight grpo_group_size grpo_iterations grpo_kl_beta "
        "grpo_prompts_per_step langrl_env_config refit_method max_tokens_to_oom num_speculative_tokens "
        "mlp_chunks_for_prefill",
    ),
    *noted(
        "generation and reinforcement learning",
        "inference_disable_ep_consensus inference_disable_triton_nvls_kernels "
        "inference_dynamic_batching_prefix_caching inference_dynamic_batching_track_generated_token_events "
        "inference_dynamic_batching_track_paused_request_events inference_fuse_tp_communication "
        "inference_moe_disable_fused_quant_kernels inference_rng_tracker inference_text_gen_server_logging "
        "inference_use_synchronous_zmq_collectives inference_wandb_logging no_inference_disable_ep_consensus "
        "no_inference_dynamic_batching_prefix_caching no_inference_text_gen_server_logging "
        "no_inference_use_synchronous_zmq_collectives no_inference_wandb_logging rl_durable_rollout_bank "
        "rl_inference_logprobs_is_correction rl_offload_inference_model_weights_when_idle "
        "rl_offload_optimizer_during_inference rl_partial_rollouts rl_profile rl_skip_bos_token "
        "rl_use_sequence_packing rl_verify_model_weights_swap no_rl_inference_logprobs_is_correction "
        "no_rl_offload_inference_model_weights_when_idle no_rl_partial_rollouts no_rl_skip_bos_token "
        "no_rl_use_sequence_packing no_rl_verify_model_weights_swap grpo_filter_groups_with_same_reward "
        "enable_chunked_prefill cache_mla_latents use_same_sampling_seed_across_dp_ranks",
        default=False,
    ),
    *noted(
        "generation and reinforcement learning",
        "rl_inference_parsers",
        default=(),
    ),
)
AROUND = (
    refused("MODE", "pretraining", "planc costs steps of training alone"),
    *(refused(f"MODEL_ARGS_{n}", None, "a second run with other flags: import each by itself") for n in range(2, 10)),
    refused("BASE_MODEL_ARGS", None, "flags shared by aliases: import each run by itself"),
    *noted(
        "what stands around the flags",
        "ENV_VARS.ARTIFACTS_ROOT ENV_VARS.CUBLAS_WORKSPACE_CONFIG ENV_VARS.CUDA_DEVICE_MAX_CONNECTIONS "
        "ENV_VARS.DISTILL_CONFIG ENV_VARS.ENABLE_LIGHTWEIGHT_MODE ENV_VARS.HF_HOME ENV_VARS.MAMBA_DETERMINISTIC "
        "ENV_VARS.MODEL_BF16_CKPT ENV_VARS.NCCL_ALGO ENV_VARS.NCCL_DEBUG ENV_VARS.NCCL_GRAPH_REGISTER "
        "ENV_VARS.NCCL_IB_SL ENV_VARS.NCCL_IB_TIMEOUT ENV_VARS.NCCL_NVLS_ENABLE ENV_VARS.NCCL_P2P_NET_CHUNKSIZE "
        "ENV_VARS.NON_DETERMINSTIC_RESULTS ENV_VARS.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN "
        "ENV_VARS.NUM_OF_TOKENS_PER_CHUNK_COMBINE_API ENV_VARS.NVLINK_DOMAIN_SIZE ENV_VARS.NVSHMEM_IB_ENABLE_IBGDA "
        "ENV_VARS.NVTE_ALLOW_NONDETERMINISTIC_ALGO ENV_VARS.NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE "
        "ENV_VARS.NVTE_APPLY_QK_LAYER_SCALING ENV_VARS.NVTE_BWD_LAYERNORM_SM_MARGIN ENV_VARS.NVTE_CPU_OFFLOAD_V1 "
        "ENV_VARS.NVTE_CUTEDSL_FUSED_GROUPED_MLP ENV_VARS.NVTE_FUSED_ATTN ENV_VARS.NVTE_FWD_LAYERNORM_SM_MARGIN "
        "ENV_VARS.NVTE_NORM_BWD_USE_CUDNN ENV_VARS.NVTE_NORM_FWD_USE_CUDNN ENV_VARS.N_REPEAT ENV_VARS.N_REPEATS "
        "ENV_VARS.PTQ_QUANTIZED_CKPT ENV_VARS.PYTHONWARNINGS ENV_VARS.PYTORCH_CUDA_ALLOC_CONF "
        "ENV_VARS.QUANTIZATION_TYPE_DEBUG ENV_VARS.SKIP_PYTEST ENV_VARS.THROUGHPUT_START_STEP ENV_VARS.TOKENIZER "
        "ENV_VARS.TORCHDYNAMO_DISABLE ENV_VARS.TORCHINDUCTOR_WORKER_START ENV_VARS.TORCH_COMPILE_DISABLE "
        "ENV_VARS.TORCH_INDUCTOR_DISABLE ENV_VARS.TORCH_NCCL_AVOID_RECORD_STREAMS ENV_VARS.TORCH_NCCL_HIGH_PRIORITY "
        "ENV_VARS.TRITON_CACHE_AUTOTUNING ENV_VARS.USE_MNNVL ENV_VARS MODEL_ENV_VARS MODEL_ENV_VARS.MODEL_ARGS "
        "MODEL_ENV_VARS.MODEL_ARGS_10 MODEL_ENV_VARS.MODEL_ARGS_2 MODEL_ENV_VARS.MODEL_ARGS_3 "
        "MODEL_ENV_VARS.MODEL_ARGS_4 MODEL_ENV_VARS.MODEL_ARGS_5 TEST_TYPE LAUNCHER METRICS AFTER_SCRIPT "
        "BEFORE_SCRIPT TEST_EVALUATION THROUGHPUT_TEST_PARAMS THROUGHPUT_TEST_PARAMS.--start_step",
    ),
)
"""The rest of a `model_config.yaml`, beside its flags."""
FIELDS = (*LAYOUT, *MODEL, *EXPERTS, *STEP, *AROUND)
