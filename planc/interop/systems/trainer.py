"""Arguments of Hugging Face's Trainer, in a JSON or YAML file: they stand beside a DeepSpeed or Accelerate file, and
beside a DistributedConfig. Names and defaults are those of `TrainingArguments` of transformers 5.23.0."""

from __future__ import annotations

from planc.interop.document import Document
from planc.interop.fields import Field, noted, refused
from planc.interop.setup import TrainingSetup
from planc.interop.values import AUTO, Values
from planc.ir.plan import Recompute

VERSION = "5.23.0"
BATCH = "per_device_train_batch_size"
REENTRANT = "activation_checkpointing_kwargs.use_reentrant"
OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"), "adamw"),
    "muon": "muon",
}

FIELDS = (
    Field(BATCH, 8),
    Field("gradient_accumulation_steps", 1),
    Field("sequence_length", None, aliases=("max_length", "max_seq_length", "block_size")),
    Field("activation_checkpointing", None, aliases=("gradient_checkpointing",)),
    Field(REENTRANT, False, aliases=("gradient_checkpointing_kwargs.use_reentrant",)),
    Field("optim", "adamw_torch_fused"),
    Field("bf16", False),
    Field("torch_compile", False),
    Field("torch_compile_backend", None),
    Field("torch_compile_mode", None),
    Field(
        "fp16",
        False,
        "refused",
        "planc computes in bf16 or fp32; bf16 has the same sizes: --set fp16=false --set bf16=true",
    ),
    refused("auto_find_batch_size", False, "the batch is found while it trains"),
    refused("use_liger_kernel", False, "kernels that keep other activations than planc counts"),
    refused("accelerator_config.split_batches", False, "the batch of a device is the batch of all of them"),
    refused("optim_target_modules", None, "an optimizer for some layers alone"),
    refused("use_peft", False, "adapters: a plan trains every parameter"),
    refused("load_in_4bit", False, "a plan trains every parameter"),
    refused("load_in_8bit", False, "a plan trains every parameter"),
    refused("use_cpu", False, "a plan is costed for accelerators"),
    refused("train_sampling_strategy", "random", "batches whose sequences differ in length"),
    refused("group_by_length", False, "batches whose sequences differ in length"),
    refused("label_smoothing_factor", 0.0, "a loss over the whole vocabulary"),
    *noted(
        "the files that make the layout",
        "deepspeed fsdp fsdp_config parallelism_config",
    ),
    *noted(
        "how checkpointing is done",
        "activation_checkpointing_kwargs gradient_checkpointing_kwargs",
    ),
    *noted(
        "the course of training",
        "num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs lr_scheduler_kwargs.min_lr "
        "lr_scheduler_kwargs.min_lr_rate lr_scheduler_kwargs.num_cycles lr_scheduler_kwargs.power "
        "lr_scheduler_kwargs.lr_end warmup_ratio warmup_steps",
    ),
    *noted(
        "the optimizer's constants",
        "optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm neftune_noise_alpha",
    ),
    *noted("means over tokens", "average_tokens_across_devices", "include_num_input_tokens_seen"),
    *noted(
        "evaluation",
        "bf16_full_eval fp16_full_eval eval_strategy eval_accumulation_steps eval_delay eval_steps "
        "eval_do_concat_batches eval_on_start eval_use_gather_object eval_packing per_device_eval_batch_size "
        "do_train do_eval do_predict prediction_loss_only include_for_metrics batch_eval_metrics "
        "load_best_model_at_end metric_for_best_model greater_is_better evaluation_strategy",
    ),
    *noted(
        "how products are computed",
        "tf32 liger_kernel_config liger_kernel_config.rope "
        "liger_kernel_config.swiglu liger_kernel_config.cross_entropy "
        "liger_kernel_config.fused_linear_cross_entropy liger_kernel_config.rms_norm use_cache",
    ),
    *noted(
        "logs",
        "logging_dir logging_strategy logging_first_step logging_steps logging_nan_inf_filter log_level "
        "log_level_replica log_on_each_node disable_tqdm report_to run_name project trackio_space_id "
        "trackio_bucket_id trackio_static_space_id debug",
    ),
    *noted(
        "checkpoints",
        "save_strategy save_steps save_total_limit save_safetensors save_on_each_node save_only_model output_dir "
        "overwrite_output_dir enable_jit_checkpoint resume_from_checkpoint",
    ),
    *noted(
        "publication",
        "push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token hub_model_id hub_strategy "
        "hub_token hub_private_repo hub_always_push hub_revision",
    ),
    *noted(
        "data",
        "dataloader_drop_last dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory "
        "dataloader_persistent_workers remove_unused_columns label_names length_column_name ignore_data_skip "
        "dataset_name dataset_config dataset_config_name dataset_text_field dataset_num_proc dataset_kwargs "
        "dataset_mixer dataset_splits dataset_train_split dataset_test_split dataset_batch_size packing "
        "accelerator_config accelerator_config.dispatch_batches accelerator_config.even_batches "
        "accelerator_config.use_seedable_sampler accelerator_config.non_blocking "
        "accelerator_config.gradient_accumulation_kwargs accelerator_config.use_configured_state",
    ),
    *noted("the model's files", "model_name_or_path", "trust_remote_code", "attn_implementation"),
    *noted("random numbers and memory", "full_determinism", "seed", "data_seed", "torch_empty_cache_steps"),
    *noted(
        "the process group",
        "ddp_backend ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_timeout "
        "ddp_static_graph local_rank skip_memory_metrics restore_callback_states_from_checkpoint",
    ),
)


def recognises(document: Document) -> bool:
    """True for a file of Trainer arguments."""
    return bool({BATCH, "num_train_epochs", "output_dir"} & document.fields.keys())


def is_beside(v: Values) -> bool:
    """True if a file of Trainer arguments is among the files: what it does not say has the Trainer's defaults."""
    return any(recognises(document) for document in v.documents)


def require(v: Values, name: str) -> None:
    """A finding that asks for the argument `name`, unless a file or an option gives it or all of them.

    Raises RefusedError where it is not given.
    """
    if not v.is_given(name) and not is_beside(v):
        raise v.missing(f"--set {name}=VALUE, or a file of Trainer arguments beside this one", f"`{name}`")


def microbatch(v: Values) -> int:
    """Sequences of a device's forward pass."""
    require(v, BATCH)
    return v.whole(BATCH)


def accumulation(v: Values) -> int:
    """Microbatches of a step: those of the file, or else 1."""
    value = v.raw("gradient_accumulation_steps")
    return 1 if value in (None, AUTO) else v.whole("gradient_accumulation_steps")


def sequence_tokens(v: Values) -> int:
    """Tokens of a sequence, which only the training script knows."""
    return v.needed("sequence_length")


def optimizer(v: Values) -> str:
    """AdamW or Muon, by the name in `optim`."""
    name = v.text("optim")
    if name not in OPTIMIZERS:
        raise v.refused("planc's optimizers are AdamW and Muon with all of their state", "optim")
    return OPTIMIZERS[name]


def recompute(v: Values) -> Recompute:
    """Every decoder layer is run again, or none is: torch's reentrant checkpoint runs it to its end."""
    if not v.flag("activation_checkpointing"):
        return Recompute()
    return Recompute(ops=("whole_blocks",) if v.flag(REENTRANT) else ("blocks",))


def recompute_beside(s: TrainingSetup) -> dict[str, bool]:
    """The Trainer's arguments that `recompute` reads as the setup's."""
    found = {"activation_checkpointing": True} if s.recompute.blocks else {}
    return found | ({REENTRANT: True} if "whole_blocks" in s.recompute.ops else {})


def compiled(v: Values) -> tuple[str, ...]:
    """`torch.compile` of the model, whose forward computes the loss."""
    named = v.text("torch_compile_backend") or v.text("torch_compile_mode")  # either turns it on
    return ("blocks", "loss") if named or v.flag("torch_compile") else ()
