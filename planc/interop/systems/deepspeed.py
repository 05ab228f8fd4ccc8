"""DeepSpeed: `ds_config.json`; the arguments of Hugging Face's Trainer fill in its "auto" values.

Names and defaults are those of deepspeed/runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/precision_config.py and runtime/tensor_parallel/config.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planc.interop.document import Document
from planc.interop.fields import Field, field_tables
from planc.interop.setup import Role, TrainingSetup
from planc.interop.system import OMIT, System, when
from planc.interop.systems import trainer
from planc.interop.systems.trainer import BATCH
from planc.interop.values import AUTO, Values
from planc.ir.plan import Dtype, Noun, Precision

VERSION = "0.19.8"
ZERO = "zero_optimization"
STAGE = f"{ZERO}.stage"
INLINE_STAGE = "deepspeed_config.zero_stage"
"""Accelerate's field for the ZeRO stage, if its file holds DeepSpeed's settings."""
MICRO, TOTAL, ACCUMULATION = "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"


# Degrees of parallelism.


def tensor_parallel(v: Values) -> int:
    """Returns the degree of tensor parallelism (AutoTP); 1 if the file says 0, which means none."""
    return v.whole("tensor_parallel.autotp_size", minimum=0) or 1


def ulysses(v: Values) -> int:
    """Returns the degree of Ulysses sequence parallelism, an all-to-all around attention."""
    return v.whole("sequence_parallel_size")


def stages(v: Values) -> int:
    """Returns the number of pipeline stages, which the training script sets in PipelineModule(num_stages)."""
    if any(v.is_given(name) for name in PIPELINE) and not v.is_given("num_stages"):
        raise v.missing("--set num_stages=N", "the number of pipeline stages, which PipelineModule has")
    return v.whole("num_stages")


def data_parallel(v: Values) -> int:
    """Returns the number of data-parallel ranks: the devices divided by the degrees of pipeline, sequence and tensor
    parallelism."""
    devices, inner = v.devices(), tensor_parallel(v) * ulysses(v) * stages(v)
    if devices % inner:
        message = f"{devices} devices are no multiple of tensor x sequence x pipeline parallelism = {inner}"
        raise v.apart(message, "tensor_parallel.autotp_size", "sequence_parallel_size")
    return devices // inner


def shard(v: Values) -> int:
    """Returns the number of ranks that shard state: all data-parallel ranks, or the ranks of a MiCS group."""
    ranks, group = data_parallel(v), v.whole(f"{ZERO}.mics_shard_size", minimum=-1)
    if group <= 0:
        return ranks
    if ranks % group or stage(v) != 3:
        message = f"MiCS divides stage 3's state over {group} of {ranks} data-parallel ranks, at stage {stage(v)}"
        raise v.apart(message, f"{ZERO}.mics_shard_size")
    return group


def experts(v: Values) -> int:
    """Returns the degree of expert parallelism."""
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
    """Returns sequences per step, sequences per microbatch, and microbatches per step. Two of them determine the third.

    A value of "auto" is taken from the Trainer's arguments.
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
    """Returns the ZeRO stage."""
    own = v.system.known(INLINE_STAGE) is not None and not v.is_given(STAGE)
    name = INLINE_STAGE if own else STAGE
    value = v.whole(name, minimum=0)
    if value > 3:
        raise v.wrong(name, "0, 1, 2 or 3")
    if value > 1 and stages(v) > 1:
        raise v.apart(f"DeepSpeed's pipeline runs with ZeRO 0 or 1, not {value}", name)
    return value


def precision_of(v: Values) -> Dtype:
    """Returns the compute dtype. For "auto", Accelerate's or the Trainer's setting holds."""
    half, brain = _enabled(v, "fp16"), _enabled(v, "bf16")
    if half and brain:
        raise v.apart("DeepSpeed asserts that one of fp16 and bf16 is enabled", "fp16.enabled", "bf16.enabled")
    return "fp16" if half else "bf16" if brain else "fp32"


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
    """Returns the dtypes of compute and gradient reduction. By default, gradients are reduced in the compute dtype."""
    compute, said = precision_of(v), v.text("communication_data_type", "", "fp32", "bf16", "bfp16", "fp16", AUTO)
    if compute == "fp32":
        return Precision(products=trainer.products(v))
    reduces: dict[str, Dtype] = {"fp32": "fp32", "bf16": "bf16", "bfp16": "bf16", "fp16": "fp16"}
    return Precision(compute=compute, reduce=reduces.get(said, compute))


def stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    """Returns the state that is not in fp32, with its dtype. Gradients accumulate in the compute dtype unless
    `grad_accum_dtype` is fp32; master weights and Adam's moments are fp32 unless the file sets bf16."""
    whole, compute = v.text("data_types.grad_accum_dtype", "", "fp32", "bf16", "fp16"), precision_of(v)
    if compute == "fp32":
        return ()
    masters, moments = v.flag("bf16.bf16_master_weights_and_grads"), v.flag("bf16.bf16_optimizer_states")
    if moments and not masters:
        raise v.apart("bf16_optimizer_states needs bf16_master_weights_and_grads", "bf16.bf16_optimizer_states")
    if masters and stage(v) == 0:
        raise v.apart("bf16_master_weights_and_grads needs ZeRO 1, 2 or 3", "bf16.bf16_master_weights_and_grads")
    found: list[tuple[Noun, str]] = [("params", "bf16")] if masters else []
    found += [("grads", "bf16" if masters else whole or compute)] if masters or whole != "fp32" else []
    found += [("optimizer", "bf16")] if moments else []
    return tuple(found)


def overlaps(v: Values) -> tuple[tuple[Role, str], ...]:
    """Returns `none` for the data-parallel axes; () with ZeRO and `overlap_comm` (the default at stage 3), by which
    gradients are reduced during the backward."""
    given = v.raw(f"{ZERO}.overlap_comm")
    level = stage(v)
    overlapped = level == 3 if given in (None, AUTO) else v.flag(f"{ZERO}.overlap_comm")
    if level and overlapped:
        return ()
    roles: tuple[Role, ...] = ("replica", "shard") if data_parallel(v) > shard(v) else ("shard",)
    return tuple((role, "none") for role in roles)


def offloaded(v: Values) -> tuple[str, ...]:
    """Returns the state (`params`, `optimizer`) that is offloaded to host memory."""
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
    """Returns adamw or muon, from DeepSpeed's `optimizer.type` or else from the Trainer's arguments."""
    name = v.text("optimizer.type")
    if not name:
        return trainer.optimizer(v)
    kinds = {"adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "muon": "muon"}
    if name.lower() not in kinds:
        raise v.refused("planc's optimizers are AdamW and Muon", "optimizer.type")
    return kinds[name.lower()]


def tensor_parallel_parts(v: Values) -> bool:
    """True if tensor parallelism shards the vocabulary (`vocab_parallel_lm_head`), or is off."""
    if tensor_parallel(v) == 1:
        return True
    return v.flag("tensor_parallel.vocab_parallel_lm_head")


def pipeline_schedule(v: Values) -> str:
    """Returns 1f1b. Warns if DeepSpeed balances stages by parameters: a plan divides the layers evenly."""
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
    """Returns the words after `model` in the plan, from the command line or the `config.json` among the files."""
    if not v.options.model:
        raise v.missing("--model, or its config.json beside this file", "the model")
    return v.options.model


# The file that an export writes.


def _overlapped(s: TrainingSetup) -> bool:
    return ("shard", "none") not in s.overlaps and ("replica", "none") not in s.overlaps


WRITES = {
    MICRO: lambda s: s.microbatch,
    ACCUMULATION: lambda s: s.sequences // (s.data_parallel * s.microbatch),
    STAGE: lambda s: s.zero,
    f"{ZERO}.overlap_comm": lambda s: when(s.zero, _overlapped(s)),
    f"{ZERO}.mics_shard_size": lambda s: when(s.replica > 1 and s.zero == 3, s.shard),
    f"{ZERO}.offload_param.device": lambda s: when("params" in s.offloaded, "cpu"),
    f"{ZERO}.offload_optimizer.device": lambda s: when("optimizer" in s.offloaded, "cpu"),
    "bf16.enabled": lambda s: s.precision.compute == "bf16",
    "bf16.bf16_master_weights_and_grads": lambda s: when(("params", "bf16") in s.stored),
    "bf16.bf16_optimizer_states": lambda s: when(("optimizer", "bf16") in s.stored),
    "fp16.enabled": lambda s: when(s.precision.compute == "fp16"),
    "communication_data_type": lambda s: when(s.precision.reduce != s.precision.compute, s.precision.reduce),
    "data_types.grad_accum_dtype": lambda s: when(
        s.precision.compute != "fp32" and "grads" not in dict(s.stored), "fp32"
    ),
    "tensor_parallel.autotp_size": lambda s: when(s.tp > 1, s.tp),
    "tensor_parallel.vocab_parallel_lm_head": lambda s: when(s.tp > 1 and s.vocab_over_tp),
    "expert_parallel.enabled": lambda s: when(s.ep > 1),
    "expert_parallel.autoep_size": lambda s: when(s.ep > 1, s.ep),
    "sequence_parallel_size": lambda s: when(s.cp > 1, s.cp),
    "pipeline.partition": lambda s: when(s.pp > 1, "uniform"),
    "optimizer.type": lambda s: when(s.optimizer == "muon", "Muon"),
}
BESIDE = {
    "sequence_length": lambda s: s.sequence_tokens,
    "activation_checkpointing": lambda s: trainer.recompute_beside(s).get("activation_checkpointing", OMIT),
    trainer.REENTRANT: lambda s: trainer.recompute_beside(s).get(trainer.REENTRANT, OMIT),
    "torch_compile": lambda s: when(s.compiled),
    "num_stages": lambda s: when(s.pp > 1, s.pp),
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
    """Returns nested mappings of `fields`, whose names are dotted paths.

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
OWN = field_tables("deepspeed")["fields"]


def merged(*tables: tuple[Field, ...]) -> tuple[Field, ...]:
    """Returns one table of the fields in `tables`. A field in several tables is taken from the first."""
    found: dict[str, Field] = {}
    for field in (field for table in tables for field in table):
        if not any(name in found for name in (field.name, *field.aliases)):
            found[field.name] = field
    return tuple(found.values())


def recognises(document: Document) -> bool:
    """True if `document` is JSON with DeepSpeed's field names."""
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
