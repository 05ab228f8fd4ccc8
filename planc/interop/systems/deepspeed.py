"""DeepSpeed: `ds_config.json`, with the arguments of Hugging Face's Trainer for what is "auto" in it.

Names and defaults are those of deepspeed/runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/precision_config.py and runtime/tensor_parallel/config.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planc.interop.document import Document
from planc.interop.fields import Field, noted, refused
from planc.interop.setup import Role, TrainingSetup
from planc.interop.system import OMIT, System
from planc.interop.systems import trainer
from planc.interop.systems.trainer import BATCH
from planc.interop.values import AUTO, Values
from planc.ir.plan import Noun, Precision

VERSION = "0.19.8"
ZERO = "zero_optimization"
STAGE = f"{ZERO}.stage"
INLINE_STAGE = "deepspeed_config.zero_stage"
"""Accelerate's field for the stage, where its file holds DeepSpeed's settings."""
MICRO, TOTAL, ACCUMULATION = "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"


# Degrees of parallelism.


def tensor_parallel(v: Values) -> int:
    """AutoTP's degree, of which 0 is none."""
    return v.whole("tensor_parallel.autotp_size", minimum=0) or 1


def ulysses(v: Values) -> int:
    """Ranks that share a sequence, by all-to-all around attention."""
    return v.whole("sequence_parallel_size")


def stages(v: Values) -> int:
    """Pipeline stages: the number is in the script, as PipelineModule(num_stages)."""
    if any(v.is_given(name) for name in PIPELINE) and not v.is_given("num_stages"):
        raise v.missing("--set num_stages=N", "the number of pipeline stages, which PipelineModule has")
    return v.whole("num_stages")


def data_parallel(v: Values) -> int:
    """Ranks that work on other sequences: what pipeline, sequence and tensor parallelism leave of the devices."""
    devices, inner = v.devices(), tensor_parallel(v) * ulysses(v) * stages(v)
    if devices % inner:
        message = f"{devices} devices are no multiple of tensor x sequence x pipeline parallelism = {inner}"
        raise v.apart(message, "tensor_parallel.autotp_size", "sequence_parallel_size")
    return devices // inner


def shard(v: Values) -> int:
    """Ranks that divide state: all data-parallel ones, or those of a MiCS group."""
    ranks, group = data_parallel(v), v.whole(f"{ZERO}.mics_shard_size", minimum=-1)
    if group <= 0:
        return ranks
    if ranks % group or stage(v) != 3:
        message = f"MiCS divides stage 3's state over {group} of {ranks} data-parallel ranks, at stage {stage(v)}"
        raise v.apart(message, f"{ZERO}.mics_shard_size")
    return group


def experts(v: Values) -> int:
    """Ranks that divide the experts."""
    if not v.flag("expert_parallel.enabled"):
        return 1
    ep = v.whole("expert_parallel.autoep_size")
    if ep > 1 and not v.model().top_k:
        raise v.apart("the model has no experts", "expert_parallel.autoep_size")
    if data_parallel(v) % ep:
        raise v.apart(f"{data_parallel(v)} data-parallel ranks are no multiple of {ep}", "expert_parallel.autoep_size")
    return ep


# Batch.


def batch(v: Values) -> tuple[int, int, int]:
    """Sequences a step, sequences of a microbatch, and microbatches, by DeepSpeed's rule: two of three give the third.

    A number that is "auto" is what the Trainer's arguments say.
    """
    ranks = data_parallel(v)
    total, micro, steps = (_number(v, name) for name in (TOTAL, MICRO, ACCUMULATION))
    if micro is None and v.raw(MICRO) == AUTO:
        micro = trainer.microbatch(v)
    if micro is None and total is None:
        raise v.missing(f"--set {MICRO}=N", f"`{MICRO}` or `{TOTAL}`: DeepSpeed needs one of them")
    if steps is None and v.raw(ACCUMULATION) == AUTO:
        trainer.require(v, ACCUMULATION)
        steps = trainer.accumulation(v)
    if micro is None:
        assert total is not None
        micro = total // ranks // (steps or 1)
    if steps is None:
        steps = 1 if total is None else total // micro // ranks if micro else 0
    if total is not None and (total != micro * steps * ranks or micro * steps == 0):
        message = (
            f"train_batch_size {total} is not {micro} sequences x {steps} accumulation steps x {ranks} data-parallel"
            f" ranks = {micro * steps * ranks}"
        )
        raise v.apart(message, TOTAL, MICRO, ACCUMULATION)
    return micro * steps * ranks, micro, steps


def _number(v: Values, name: str) -> int | None:
    return None if v.raw(name) == AUTO else v.maybe_whole(name, minimum=1)


# State and precision.


def stage(v: Values) -> int:
    """ZeRO's stage."""
    own = v.system.known(INLINE_STAGE) is not None and not v.is_given(STAGE)
    name = INLINE_STAGE if own else STAGE
    value = v.whole(name, minimum=0)
    if value > 3:
        raise v.wrong(name, "0, 1, 2 or 3")
    if value > 1 and stages(v) > 1:
        raise v.apart(f"DeepSpeed's pipeline runs with ZeRO 0 or 1, not {value}", name)
    return value


def precision_of(v: Values) -> str:
    """The dtype of compute: bf16 or fp32; "auto" is the Trainer's or Accelerate's."""
    if _enabled(v, "fp16"):
        raise v.refused(
            "planc computes in bf16 or fp32; bf16 has the same sizes: --set fp16.enabled=false --set bf16.enabled=true",
            "fp16.enabled",
        )
    return "bf16" if _enabled(v, "bf16") else "fp32"


def _enabled(v: Values, dtype: str) -> bool:
    name = f"{dtype}.enabled"
    if v.raw(name) != AUTO:
        return v.flag(name)
    if v.system.known("mixed_precision") is not None and v.raw("mixed_precision") is not None:
        return v.text("mixed_precision") == dtype
    if not v.is_given(dtype) and not trainer.is_beside(v):
        if not v.is_given(name):
            return False
        raise v.missing(f"--set {name}=true or false, or a file of Trainer arguments", f"`{name}`, which is auto,")
    return v.flag(dtype)


def precision(v: Values) -> Precision:
    """Gradients are reduced in the model's dtype unless `communication_data_type` says another."""
    compute, reduce = precision_of(v), v.text("communication_data_type", "", "fp32", "bf16", "bfp16", "fp16", AUTO)
    if reduce == "fp16":
        raise v.refused("planc reduces in bf16 or fp32", "communication_data_type")
    if compute == "fp32":
        return Precision()
    return Precision(compute="bf16", reduce="fp32" if reduce == "fp32" else "bf16")


def stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    """Gradients add up in the model's dtype; masters and moments are fp32 unless they are asked in bf16."""
    whole = v.text("data_types.grad_accum_dtype", "", "fp32", "bf16", "fp16")
    if precision_of(v) == "fp32":
        return ()
    masters, moments = v.flag("bf16.bf16_master_weights_and_grads"), v.flag("bf16.bf16_optimizer_states")
    if moments and not masters:
        raise v.apart("bf16_optimizer_states needs bf16_master_weights_and_grads", "bf16.bf16_optimizer_states")
    if masters and stage(v) == 0:
        raise v.apart("bf16_master_weights_and_grads needs ZeRO 1, 2 or 3", "bf16.bf16_master_weights_and_grads")
    found: list[tuple[Noun, str]] = [("params", "bf16")] if masters else []
    found += [("grads", "bf16")] if masters or whole != "fp32" else []
    found += [("optimizer", "bf16")] if moments else []
    return tuple(found)


def overlaps(v: Values) -> tuple[tuple[Role, str], ...]:
    """Gradients are reduced during the backward only with ZeRO, and where `overlap_comm` says so: at stage 3 by
    default."""
    given = v.raw(f"{ZERO}.overlap_comm")
    level = stage(v)
    overlapped = level == 3 if given in (None, AUTO) else v.flag(f"{ZERO}.overlap_comm")
    if level and overlapped:
        return ()
    roles: tuple[Role, ...] = ("replica", "shard") if data_parallel(v) > shard(v) else ("shard",)
    return tuple((role, "none") for role in roles)


def offloaded(v: Values) -> tuple[str, ...]:
    """State in the host's memory."""
    params = _device(v, f"{ZERO}.offload_param.device", f"{ZERO}.cpu_offload_param")
    optimizer = _device(v, f"{ZERO}.offload_optimizer.device", f"{ZERO}.cpu_offload")
    if params and stage(v) != 3:
        raise v.apart(f"offload_param needs stage 3, not {stage(v)}", f"{ZERO}.offload_param.device")
    if optimizer and stage(v) == 0:
        raise v.apart("offload_optimizer needs stage 1, 2 or 3", f"{ZERO}.offload_optimizer.device")
    return tuple(word for word, there in (("params", params), ("optimizer", optimizer)) if there)


def _device(v: Values, name: str, old: str) -> bool:
    device = v.text(name, "", "none", "cpu", "nvme")
    if device == "nvme":
        raise v.refused("state on disks has no sentence", name)
    return device == "cpu" or (device in ("", "none") and not v.is_given(name) and v.flag(old))


def optimizer(v: Values) -> str:
    """DeepSpeed's optimizer by name, or the Trainer's."""
    name = v.text("optimizer.type")
    if not name:
        return trainer.optimizer(v)
    kinds = {"adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "muon": "muon"}
    if name.lower() not in kinds:
        raise v.refused("planc's optimizers are AdamW and Muon", "optimizer.type")
    return kinds[name.lower()]


def tensor_parallel_parts(v: Values) -> bool:
    """AutoTP leaves the vocabulary whole on every rank, unless it is told to divide the head."""
    if tensor_parallel(v) == 1:
        return True
    return v.flag("tensor_parallel.vocab_parallel_lm_head")


def pipeline_schedule(v: Values) -> str:
    """1F1B; DeepSpeed divides layers by their parameters, which a plan does evenly."""
    if stages(v) > 1 and v.text("pipeline.partition") not in ("uniform",):
        v.approximate(
            "DeepSpeed balances stages by their parameters; the plan has as many layers in each", "pipeline.partition"
        )
    return "1f1b"


SETTINGS = {
    "cluster": lambda v: (v.devices(), v.options.cluster)[1],
    "devices": lambda v: v.devices(),
    "model": lambda v: model_words(v),
    "sequences": lambda v: batch(v)[0],
    "sequence_tokens": trainer.sequence_tokens,
    "microbatch": lambda v: batch(v)[1],
    "pp": stages,
    "replica": lambda v: data_parallel(v) // shard(v),
    "shard": shard,
    "cp": ulysses,
    "cp_method": lambda v: "ulysses",
    "tp": tensor_parallel,
    "vocab_over_tp": tensor_parallel_parts,
    "ep": experts,
    "experts_over": lambda v: ("shard", "cp", "tp"),
    "zero": stage,
    "zero_over_cp": lambda v: stage(v) > 0 and ulysses(v) > 1,
    "schedule": pipeline_schedule,
    "optimizer": optimizer,
    "precision": precision,
    "stored": stored,
    "recompute": trainer.recompute,
    "offloaded": offloaded,
    "overlaps": overlaps,
    "compiled": trainer.compiled,
    "framework": lambda v: "accelerate" if trainer.is_beside(v) else "deepspeed",
}


def model_words(v: Values) -> str:
    """The model of the command line, or the `config.json` beside the files."""
    if not v.options.model:
        raise v.missing("--model, or its config.json beside this file", "the model")
    return v.options.model


# The file that an export writes.


def _when(condition: object, value: object = True) -> object:
    return value if condition else OMIT


def _overlapped(s: TrainingSetup) -> bool:
    return ("shard", "none") not in s.overlaps and ("replica", "none") not in s.overlaps


WRITES = {
    MICRO: lambda s: s.microbatch,
    ACCUMULATION: lambda s: s.sequences // (s.data_parallel * s.microbatch),
    STAGE: lambda s: s.zero,
    f"{ZERO}.overlap_comm": lambda s: _when(s.zero, _overlapped(s)),
    f"{ZERO}.mics_shard_size": lambda s: _when(s.replica > 1 and s.zero == 3, s.shard),
    f"{ZERO}.offload_param.device": lambda s: _when("params" in s.offloaded, "cpu"),
    f"{ZERO}.offload_optimizer.device": lambda s: _when("optimizer" in s.offloaded, "cpu"),
    "bf16.enabled": lambda s: s.precision.compute == "bf16",
    "bf16.bf16_master_weights_and_grads": lambda s: _when(("params", "bf16") in s.stored),
    "bf16.bf16_optimizer_states": lambda s: _when(("optimizer", "bf16") in s.stored),
    "communication_data_type": lambda s: _when(s.precision.compute == "bf16" and s.precision.reduce == "fp32", "fp32"),
    "data_types.grad_accum_dtype": lambda s: _when(
        s.precision.compute == "bf16" and ("grads", "bf16") not in s.stored, "fp32"
    ),
    "tensor_parallel.autotp_size": lambda s: _when(s.tp > 1, s.tp),
    "tensor_parallel.vocab_parallel_lm_head": lambda s: _when(s.tp > 1 and s.vocab_over_tp),
    "expert_parallel.enabled": lambda s: _when(s.ep > 1),
    "expert_parallel.autoep_size": lambda s: _when(s.ep > 1, s.ep),
    "sequence_parallel_size": lambda s: _when(s.cp > 1, s.cp),
    "pipeline.partition": lambda s: _when(s.pp > 1, "uniform"),
    "optimizer.type": lambda s: _when(s.optimizer == "muon", "Muon"),
}
BESIDE = {
    "sequence_length": lambda s: s.sequence_tokens,
    "activation_checkpointing": lambda s: trainer.recompute_beside(s).get("activation_checkpointing", OMIT),
    trainer.REENTRANT: lambda s: trainer.recompute_beside(s).get(trainer.REENTRANT, OMIT),
    "torch_compile": lambda s: _when(s.compiled),
    "num_stages": lambda s: _when(s.pp > 1, s.pp),
}
CANNOT = {
    "mesh": "its axes are pipeline, data, sequence and tensor parallelism, in this order",
    "store": "ZeRO divides optimizer, gradients and parameters over all data-parallel ranks, or over a MiCS group",
    "split": "its pipeline is 1F1B with layers divided evenly",
    "shard": "AutoTP divides heads and feed-forward, and the vocabulary where it is told to",
    "gather": "ZeRO 3 gathers parameters again for the backward",
    "compile": "torch_compile is of the blocks and the loss together",
}


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    return json.dumps(nested(fields), indent=2) + "\n"


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by dotted path as the mapping of mappings that they are in a file.

    >>> nested({"a.b": 1, "a.c": 2, "d": 3})
    {'a': {'b': 1, 'c': 2}, 'd': 3}
    """
    found: dict[str, Any] = {}
    for path, value in fields.items():
        *outer, name = path.split(".")
        place = found
        for word in outer:
            place = place.setdefault(word, {})
        place[name] = value
    return found


PIPELINE = ("pipeline", "pipeline.stages", "pipeline.partition", "pipeline.activation_checkpoint_interval")
OWN = (
    Field(TOTAL, None),
    Field(MICRO, None),
    Field(ACCUMULATION, None, aliases=("deepspeed_config.gradient_accumulation_steps",)),
    Field(STAGE, 0),
    Field(f"{ZERO}.overlap_comm", None),
    Field(f"{ZERO}.mics_shard_size", -1),
    Field(f"{ZERO}.offload_param.device", None, aliases=("deepspeed_config.offload_param_device",)),
    Field(f"{ZERO}.offload_optimizer.device", None, aliases=("deepspeed_config.offload_optimizer_device",)),
    Field(f"{ZERO}.cpu_offload", None),
    Field(f"{ZERO}.cpu_offload_param", None),
    Field("bf16.enabled", False, aliases=("bfloat16.enabled",)),
    Field("bf16.bf16_master_weights_and_grads", False),
    Field("bf16.bf16_optimizer_states", False),
    Field("fp16.enabled", False),
    Field("communication_data_type", None),
    Field("data_types.grad_accum_dtype", None),
    Field("tensor_parallel.autotp_size", 0),
    Field("tensor_parallel.vocab_parallel_lm_head", None),
    Field("expert_parallel.enabled", False),
    Field("expert_parallel.autoep_size", 1),
    Field("sequence_parallel_size", 1),
    Field("num_stages", 1),
    Field("pipeline.partition", "best"),
    Field("optimizer.type", None),
    *noted("a section without fields", ZERO),
    refused(f"{ZERO}.zero_hpz_partition_size", 1, "a second copy of the parameters, divided inside a node"),
    refused(f"{ZERO}.mics_hierarchical_params_gather", False, "a gather in two steps"),
    refused(f"{ZERO}.zero_quantized_weights", False, "parameters gathered in eight bits"),
    refused(f"{ZERO}.zero_quantized_nontrainable_weights", False, "parameters stored in eight bits"),
    refused(f"{ZERO}.zero_quantized_gradients", False, "gradients reduced in few bits"),
    refused(f"{ZERO}.offload_optimizer.ratio", 1.0, "a part of the optimizer's state in the host's memory"),
    refused(f"{ZERO}.offload_optimizer.super_offload", False, "an optimizer that overlaps with the backward"),
    refused(f"{ZERO}.reduce_scatter", True, "gradients reduced whole on every rank"),
    Field(f"{ZERO}.zenflow*", None, "refused", "an optimizer that updates some parameters later"),
    refused("tensor_parallel.partition_config", None, "layers divided by patterns of names"),
    Field("tensor_parallel.partition_config.*", None, "refused", "layers divided by patterns of names"),
    refused("tensor_parallel.tp_overlap_comm", False, "all-reduces of tensor parallelism that overlap"),
    refused("expert_parallel.expert_tensor_parallel_size", 1, "DeepSpeed itself takes 1 alone"),
    refused("pipeline.activation_checkpoint_interval", 0, "activations recomputed by groups of layers of a stage"),
    refused("activation_checkpointing.cpu_checkpointing", False, "kept activations in the host's memory"),
    refused(
        "activation_checkpointing.partition_activations", False, "kept activations divided over tensor parallelism"
    ),
    refused("fp16.fp16_master_weights_and_grads", False, "planc computes in bf16 or fp32"),
    refused("torch_autocast.enabled", False, "compute in a dtype that differs from op to op"),
    refused("amp.enabled", False, "planc computes in bf16 or fp32"),
    refused("compile.deepcompile", False, "a schedule of transfers that a compiler finds"),
    refused("compile.passes", (), "a schedule of transfers that a compiler finds"),
    refused("elasticity.enabled", False, "a batch that follows the number of devices"),
    refused("autotuning.enabled", False, "a batch that is found by trying"),
    refused("sparse_gradients", False, "gradients as indices and values"),
    refused("hybrid_engine.enabled", False, "generation between steps"),
    refused("progressive_layer_drop.enabled", False, "layers left out at random"),
    refused("curriculum_learning.enabled", False, "sequences that grow while it trains"),
    refused("data_efficiency.enabled", False, "layers or tokens left out while it trains"),
    refused("weight_quantization", None, "weights in few bits"),
    refused("eigenvalue.enabled", False, "eigenvalues computed beside the step"),
    Field("weight_quantization.*", None, "refused", "weights in few bits"),
    Field("compression_training.*.enabled", False, "refused", "weights compressed while it trains"),
    Field("quantize_training.*", None, "refused", "weights in few bits while it trains"),
    Field("sparse_attention*", None, "refused", "attention over blocks"),
    *noted(
        "buffers: none of them is costed",
        "zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size "
        "zero_optimization.prefetch_bucket_size zero_optimization.stage3_prefetch_bucket_size "
        "zero_optimization.stage3_gather_fp16_weights_on_model_save "
        "zero_optimization.stage3_param_persistence_threshold zero_optimization.stage3_model_persistence_threshold "
        "zero_optimization.stage3_max_live_parameters zero_optimization.stage3_max_reuse_distance "
        "zero_optimization.stage3_gather_16bit_weights_on_model_save "
        "zero_optimization.stage3_module_granularity_threshold "
        "zero_optimization.stage3_use_all_reduce_for_fetch_params zero_optimization.stage3_allgather_sequential "
        "zero_optimization.sub_group_size zero_optimization.param_persistence_threshold "
        "zero_optimization.model_persistence_threshold zero_optimization.max_live_parameters "
        "zero_optimization.max_reuse_distance zero_optimization.buffer_count "
        "zero_optimization.module_granularity_threshold",
    ),
    *noted(
        "how state is moved",
        "zero_optimization.contiguous_gradients zero_optimization.allgather_partitions "
        "zero_optimization.allgather_sequential zero_optimization.use_multi_rank_bucket_allreduce "
        "zero_optimization.round_robin_gradients zero_optimization.parameter_alignment "
        "zero_optimization.leaf_module zero_optimization.leaf_module.classes zero_optimization.leaf_module.names "
        "zero_optimization.leaf_module.name_suffixes zero_optimization.legacy_stage1 "
        "zero_optimization.cpu_offload_use_pin_memory zero_optimization.ignore_unused_parameters "
        "zero_optimization.memory_efficient_linear zero_optimization.offload_param.pin_memory "
        "zero_optimization.offload_param.nvme_path zero_optimization.offload_param.buffer_count "
        "zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu "
        "zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_optimizer.nvme_path "
        "zero_optimization.offload_optimizer.buffer_count zero_optimization.offload_optimizer.buffer_size "
        "zero_optimization.offload_optimizer.pipeline_read zero_optimization.offload_optimizer.pipeline_write "
        "zero_optimization.offload_optimizer.pipeline zero_optimization.offload_optimizer.fast_init "
        "zero_optimization.offload_optimizer.cpuadam_cores_perc "
        "zero_optimization.save_muon_momentum_buffer_in_memory",
    ),
    *noted("checks", f"{ZERO}.compute_grad_norm", f"{ZERO}.log_trace_cache_warnings", f"{ZERO}.enable_sanity_checks"),
    *noted(
        "checkpoints",
        "checkpoint checkpoint.tag_validation checkpoint.load_universal checkpoint.use_node_local_storage "
        "checkpoint.parallel_write.pipeline_stage checkpoint.writer.type checkpoint.writer.decoupled "
        "checkpoint.writer.io_buffer_size checkpoint.writer.show_statistics checkpoint.writer.data_parallel "
        "load_universal_checkpoint nebula.enabled nebula.persistent_storage_path nebula.persistent_time_interval "
        "nebula.num_of_version_in_retention nebula.enable_nebula_load nebula.load_path datastates.enabled "
        "datastates.config datastates.config.host_cache_size datastates.config.parser_threads "
        "zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint "
        "zero_optimization.pipeline_loading_checkpoint zero_optimization.gather_16bit_weights_on_model_save "
        "zero_optimization.override_module_apply",
    ),
    *noted(
        "the optimizer's constants",
        "optimizer.params optimizer.params.lr optimizer.params.betas optimizer.params.eps "
        "optimizer.params.weight_decay optimizer.params.torch_adam optimizer.params.adam_w_mode "
        "optimizer.params.bias_correction optimizer.params.momentum optimizer.params.freeze_step "
        "optimizer.params.cuda_aware optimizer.params.comm_backend_name optimizer.params.amsgrad "
        "optimizer.params.max_coeff optimizer.params.min_coeff optimizer.params.max_grad_norm "
        "optimizer.params.warmup_start_lr optimizer.params.fused optimizer.params.ns_steps optimizer.params.muon_lr "
        "optimizer.params.adam_lr optimizer.params.nesterov optimizer.legacy_fusion scheduler.type scheduler.params "
        "scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr scheduler.params.warmup_num_steps "
        "scheduler.params.warmup_type scheduler.params.total_num_steps scheduler.params.last_batch_iteration "
        "scheduler.params.warmup_min_ratio scheduler.params.cos_min_ratio scheduler.params.lr_range_test_min_lr "
        "scheduler.params.lr_range_test_step_size scheduler.params.lr_range_test_step_rate "
        "scheduler.params.lr_range_test_staircase scheduler.params.cycle_min_lr scheduler.params.cycle_max_lr "
        "scheduler.params.decay_lr_rate scheduler.params.cycle_first_step_size "
        "scheduler.params.cycle_second_step_size scheduler.params.cycle_first_stair_count "
        "scheduler.params.cycle_second_stair_count scheduler.params.decay_step_size scheduler.params.cycle_momentum "
        "scheduler.params.cycle_min_mom scheduler.params.cycle_max_mom scheduler.params.decay_mom_rate "
        "gradient_clipping",
    ),
    *noted(
        "loss scaling",
        "fp16.auto_cast fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis "
        "fp16.consecutive_hysteresis fp16.min_loss_scale fp16.opt_level bf16.immediate_grad_update "
        "bf16.check_grad_overflow",
    ),
    *noted("how gradients are averaged", "prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op"),
    *noted("how gradients are averaged", "disable_allgather", "seq_parallel_communication_data_type"),
    *noted("which calls are allowed", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
    *noted(
        "how AutoTP finds layers",
        "tensor_parallel.tp tensor_parallel.tp_size tensor_parallel.tp_grain_size tensor_parallel.tp.tp_size "
        "tensor_parallel.tp.tp_grain_size tensor_parallel.tp.mpu tensor_parallel.tp.tp_group "
        "tensor_parallel.preset_model tensor_parallel.dtype tensor_parallel.keep_module_on_host "
        "tensor_parallel.vocab_parallel_ce_backend",
    ),
    *noted(
        "how experts are found",
        "expert_parallel.preset_model expert_parallel.moe_layer_pattern expert_parallel.expert_pattern "
        "expert_parallel.router_pattern expert_parallel.num_experts_attr expert_parallel.top_k_attr "
        "expert_parallel.use_grouped_mm expert_parallel.score_apply expert_parallel.load_balance_coeff "
        "expert_parallel.route_norm expert_parallel.route_scale expert_parallel.expert_w1 expert_parallel.expert_w2 "
        "expert_parallel.expert_w3 expert_parallel.has_shared_experts expert_parallel.shared_experts_pattern "
        "expert_parallel.top_k expert_parallel.score_func",
    ),
    *noted(
        "how a pipeline starts",
        "pipeline.stages pipeline.seed_layers pipeline.pipe_partitioned pipeline.grad_partitioned "
        "pipeline.use_reentrant",
    ),
    *noted(
        "how activations are checkpointed",
        "activation_checkpointing.contiguous_memory_optimization activation_checkpointing.number_checkpoints "
        "activation_checkpointing.synchronize_checkpoint_boundary activation_checkpointing.profile",
    ),
    *noted(
        "logs",
        "steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level timers.throughput.enabled "
        "timers.throughput.synchronized tensorboard tensorboard.enabled tensorboard.output_path "
        "tensorboard.job_name wandb wandb.enabled wandb.group wandb.team wandb.project csv_monitor "
        "csv_monitor.enabled csv_monitor.output_path csv_monitor.job_name comet comet.enabled "
        "comet.samples_log_interval comet.project comet.workspace comet.api_key comet.experiment_name "
        "comet.experiment_key comet.online comet.mode comms_logger comms_logger.enabled comms_logger.prof_all "
        "comms_logger.prof_ops comms_logger.verbose comms_logger.debug flops_profiler flops_profiler.enabled "
        "flops_profiler.recompute_fwd_factor flops_profiler.profile_step flops_profiler.module_depth "
        "flops_profiler.top_modules flops_profiler.detailed flops_profiler.output_file",
    ),
    *noted(
        "disks",
        "aio aio.block_size aio.queue_depth aio.thread_count aio.intra_op_parallelism aio.single_submit "
        "aio.overlap_events aio.use_gds",
    ),
    *noted(
        "off",
        "autotuning.fast autotuning.results_dir autotuning.exps_dir autotuning.overwrite "
        "autotuning.start_profile_step autotuning.end_profile_step autotuning.metric autotuning.metric_path "
        "autotuning.arg_mappings autotuning.arg_mappings.train_micro_batch_size_per_gpu "
        "autotuning.arg_mappings.gradient_accumulation_steps autotuning.mp_size autotuning.max_train_batch_size "
        "autotuning.min_train_micro_batch_size_per_gpu autotuning.max_train_micro_batch_size_per_gpu "
        "autotuning.num_tuning_micro_batch_sizes autotuning.tuner_type autotuning.tuner_early_stopping "
        "autotuning.tuner_num_trials autotuning.model_info autotuning.model_info.profile "
        "autotuning.model_info.num_params autotuning.model_info.hidden_size autotuning.model_info.num_layers "
        "elasticity.max_train_batch_size elasticity.micro_batch_sizes elasticity.min_gpus elasticity.max_gpus "
        "elasticity.min_time elasticity.prefer_larger_batch elasticity.ignore_non_elastic_batch_info "
        "elasticity.version elasticity.model_parallel_size elasticity.num_gpus_per_node compression_training "
        "data_efficiency.seed data_efficiency.data_sampling data_efficiency.data_sampling.enabled "
        "data_efficiency.data_sampling.num_epochs data_efficiency.data_sampling.num_workers "
        "data_efficiency.data_routing data_efficiency.data_routing.enabled curriculum_learning.curriculum_type "
        "curriculum_learning.min_difficulty curriculum_learning.max_difficulty curriculum_learning.schedule_type "
        "curriculum_learning.schedule_config curriculum_learning.schedule_config.total_curriculum_step "
        "curriculum_learning.schedule_config.difficulty_step curriculum_learning.schedule_config.root_degree "
        "curriculum_learning.schedule_config.difficulty curriculum_learning.schedule_config.max_step "
        "hybrid_engine.max_out_tokens hybrid_engine.inference_tp_size hybrid_engine.release_inference_cache "
        "hybrid_engine.pin_parameters hybrid_engine.tp_gather_partition_size hybrid_engine.enable_cuda_graph "
        "amp.opt_level torch_autocast.dtype torch_autocast.lower_precision_safe_modules compile.free_activation "
        "compile.free_activation_threshold compile.offload_activation compile.offload_activation_pin_memory "
        "compile.offload_opt_states compile.double_buffer compile.symmetric_memory compile.debug_log "
        "compile.offload_parameters compile.sync_before_reduce compile.sync_after_reduce "
        "compile.sync_before_allgather compile.sync_after_allgather compile.keep_int_input_tensors "
        "compile.keep_all_input_tensors compile.enabled compile.backend compile.kwargs compile "
        "progressive_layer_drop.theta progressive_layer_drop.gamma eigenvalue.verbose eigenvalue.max_iter "
        "eigenvalue.tol eigenvalue.stability eigenvalue.gas_boundary_resolution eigenvalue.layer_name "
        "eigenvalue.layer_num data_types.param_dtype data_types.buffer_dtype data_types.keep_in_fp32_modules",
    ),
    *noted("data", "dataloader_drop_last", "vocabulary_size", "disable_python_gc", "managed_gradient_accumulation"),
    *noted("the launcher", "cuda_visible_devices", "use_data_before_expert_parallelism"),
)


def merged(*tables: tuple[Field, ...]) -> tuple[Field, ...]:
    """Tables of fields as one: where a name is in several, the first of them counts."""
    found: dict[str, Field] = {}
    for field in (field for table in tables for field in table):
        if not any(name in found for name in (field.name, *field.aliases)):
            found[field.name] = field
    return tuple(found.values())


def recognises(document: Document) -> bool:
    """True for a JSON with DeepSpeed's names."""
    return any(
        n.startswith((f"{ZERO}.", "train_micro_batch_size_per_gpu", "train_batch_size")) for n in document.fields
    )


SYSTEM = System(
    name="deepspeed",
    title="DeepSpeed",
    version=VERSION,
    formats=("json", "yaml"),
    fields=merged(OWN, trainer.FIELDS),
    settings=SETTINGS,
    recognises=recognises,
    batch_words=(TOTAL, MICRO, ACCUMULATION, BATCH, "sequence_length"),
    writes=WRITES,
    beside=BESIDE,
    cannot=CANNOT,
    text=_text,
    ending=".json",
)
