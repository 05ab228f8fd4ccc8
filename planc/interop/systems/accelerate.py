"""Accelerate: the YAML of `accelerate config`, with FSDP 1 or 2, `ParallelismConfig`, or DeepSpeed (its settings in the
same file or in a JSON file).

Names and defaults are those of accelerate/commands/launch.py, parallelism_config.py and utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planc.interop.document import Document
from planc.interop.fields import field_tables
from planc.interop.setup import CannotSayError, TrainingSetup
from planc.interop.system import OMIT, System, when
from planc.interop.systems import deepspeed, trainer
from planc.interop.systems.deepspeed import merged, model_words, nested
from planc.interop.systems.trainer import BATCH
from planc.interop.values import Values
from planc.ir.plan import Dtype, Noun, Period, Precision, Recompute

VERSION = "1.15.0"
SIZES = "parallelism_config.parallelism_config_"
REPLICATE, SHARD, TENSOR, CONTEXT = (f"{SIZES}{n}_size" for n in ("dp_replicate", "dp_shard", "tp", "cp"))
FSDP = "fsdp_config.fsdp_"
STRATEGY, RESHARD = f"{FSDP}sharding_strategy", f"{FSDP}reshard_after_forward"
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Sharding strategies of FSDP 1 in the order of their numbers, from 1."""
KINDS = ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_HPU", "FSDP", "DEEPSPEED")


def kind(v: Values) -> str:
    """Returns how training is distributed: NO, MULTI_GPU (DDP), FSDP or DEEPSPEED."""
    name = v.text("distributed_type").upper()
    name = "NO" if name in ("FALSE", "") else name  # YAML reads an unquoted NO as false
    if name not in KINDS:
        raise v.refused(f"planc reads {', '.join(KINDS)}", "distributed_type")
    return "MULTI_GPU" if name.startswith("MULTI_") else name


def devices(v: Values) -> int:
    """Returns the number of devices of the cluster, which must equal `num_processes` if that is set."""
    count = v.maybe_whole("num_processes", minimum=-1)
    if count in (None, -1) and kind(v) == "NO":
        count = 1
    if count not in (None, -1):
        v.narrow(count or 1)
    if count not in (None, -1) and v.options.devices and v.devices() != count:
        raise v.apart(f"num_processes is {count}, the cluster has {v.devices()} devices", "num_processes")
    return v.devices()


def version(v: Values) -> int:
    """Returns the version of FSDP, 1 or 2."""
    number = v.whole(f"{FSDP}version")
    if number not in (1, 2):
        raise v.wrong(f"{FSDP}version", "1 or 2")
    return number


def strategy(v: Values) -> str:
    """Returns the sharding strategy of FSDP 1; version 2 ignores it."""
    text = v.text(STRATEGY).upper()
    text = STRATEGIES[int(text) - 1] if text in ("1", "2", "3", "4", "5") else text
    if text not in STRATEGIES:
        raise v.wrong(STRATEGY, f"one of {', '.join(STRATEGIES)}")
    return text


def _is_meshed(v: Values) -> bool:
    return any(v.is_given(name) for name in (REPLICATE, SHARD, TENSOR, CONTEXT))


def degrees(v: Values) -> tuple[int, int, int, int]:
    """Returns the numbers of ranks of dp_replicate, dp_shard, cp and tp, outermost first."""
    if _is_meshed(v):
        return _meshed(v)
    if kind(v) != "FSDP":
        return devices(v), 1, 1, 1
    if version(v) == 2 or strategy(v) in ("FULL_SHARD", "SHARD_GRAD_OP"):
        return 1, devices(v), 1, 1
    if strategy(v) == "NO_SHARD":
        return devices(v), 1, 1, 1
    machines = v.whole("num_machines")
    if devices(v) % machines:
        raise v.apart(f"{devices(v)} processes are no multiple of {machines} machines", "num_machines")
    return machines, devices(v) // machines, 1, 1


def _meshed(v: Values) -> tuple[int, int, int, int]:
    sizes = v.whole(REPLICATE), v.whole(SHARD), v.whole(CONTEXT), v.whole(TENSOR)
    replicate, shard, cp, tp = sizes
    product = replicate * shard * cp * tp
    if product == 1:  # what Accelerate does with a mesh of one rank
        return devices(v), 1, 1, 1
    if product != devices(v):
        message = f"dp_replicate {replicate} x dp_shard {shard} x cp {cp} x tp {tp} = {product} of {devices(v)} devices"
        raise v.apart(message, TENSOR, SHARD, REPLICATE, CONTEXT)
    if kind(v) == "FSDP" and version(v) != 2:
        raise v.apart("ParallelismConfig works with FSDP 2 alone", f"{FSDP}version", "distributed_type")
    if replicate > 1 and shard == 1 and (tp > 1 or cp > 1):
        raise v.apart("tensor and context parallelism need dp_shard > 1 beside dp_replicate > 1", REPLICATE)
    if kind(v) == "FSDP" and shard * cp == 1:
        raise v.apart("FSDP has no axis to divide over: dp_shard and cp are 1", SHARD, "distributed_type")
    if kind(v) != "FSDP" and shard * cp > 1:
        raise v.apart(f"dp_shard and cp need distributed_type FSDP, not {kind(v)}", SHARD, "distributed_type")
    return sizes


def _deep(v: Values) -> bool:
    return kind(v) == "DEEPSPEED" and _has_settings(v)


def _has_settings(v: Values) -> bool:
    """Returns True if DeepSpeed's settings are known: they are in the YAML, or the JSON file that it names was given
    too. Raises RefusedError otherwise."""
    named = v.text("deepspeed_config.deepspeed_config_file") not in ("", "none", "None")
    beside = any(deepspeed.recognises(document) for document in v.documents)
    if named and not beside:
        raise v.missing("that JSON together with this file", "what is in its deepspeed_config_file")
    if named and v.is_given(deepspeed.INLINE_STAGE):
        raise v.apart("Accelerate rejects zero_stage together with deepspeed_config_file", deepspeed.INLINE_STAGE)
    return True


def sequences(v: Values) -> int:
    """Returns the global batch, in sequences per optimizer step."""
    if _deep(v):
        return deepspeed.batch(v)[0]
    replicate, shard, _, _ = degrees(v)
    return trainer.microbatch(v) * trainer.accumulation(v) * replicate * shard


def zero(v: Values) -> int:
    """Returns the ZeRO stage: DeepSpeed's own, 3 for FSDP over several ranks, else 0."""
    if _deep(v):
        return deepspeed.stage(v)
    _, shard, cp, _ = degrees(v)
    return 3 if kind(v) == "FSDP" and shard * cp > 1 else 0


def gather(v: Values) -> Period | None:
    """Returns how long FSDP keeps gathered parameters: `pass`, or `microbatch` if not resharded; None without FSDP."""
    if kind(v) != "FSDP" or zero(v) == 0:
        return None
    _wrapped(v)
    if version(v) == 2:
        return "pass" if v.flag(RESHARD) else "microbatch"
    return "microbatch" if strategy(v) in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else "pass"


def _wrapped(v: Values) -> None:
    """Warns if FSDP gathers other units than one layer at a time."""
    policy = v.text(f"{FSDP}auto_wrap_policy").upper()
    if policy in ("", "NO_WRAP", "NONE"):
        v.approximate(
            "NO_WRAP gathers all parameters at once; the plan gathers layer by layer", f"{FSDP}auto_wrap_policy"
        )
    elif policy == "SIZE_BASED_WRAP":
        v.approximate("parts by size are gathered at once; the plan gathers layer by layer", f"{FSDP}auto_wrap_policy")
    elif policy != "TRANSFORMER_BASED_WRAP":
        raise v.wrong(f"{FSDP}auto_wrap_policy", "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP")


HALVES: dict[str, Dtype] = {"bf16": "bf16", "fp16": "fp16"}


def precision(v: Values) -> Precision:
    """Returns the dtypes of compute and gradient reduction. FSDP reduces in the compute dtype; DDP in fp32, the dtype
    of its parameters."""
    if _deep(v):
        return deepspeed.precision(v)
    mixed = v.text("mixed_precision", "", "no", "False", "bf16", "fp16", "fp8").lower()
    if mixed == "fp8":
        raise v.refused("which layers are in fp8 is in the libraries' own code", "mixed_precision")
    dtype: Dtype | None = HALVES.get(mixed)
    if dtype is None:
        return trainer.autocast(v) if not mixed else Precision(products=trainer.products(v))
    return Precision(compute=dtype, reduce=dtype if kind(v) == "FSDP" else "fp32")


def recompute(v: Values) -> Recompute:
    """Returns the recomputation of decoder layers that FSDP's activation checkpointing or the Trainer sets."""
    if kind(v) == "FSDP" and v.flag(f"{FSDP}activation_checkpointing"):
        return Recompute(ops=("blocks",))
    return trainer.recompute(v)


def offloaded(v: Values) -> tuple[str, ...]:
    """Returns the state (`params`, `optimizer`) that is offloaded to host memory."""
    if _deep(v):
        return deepspeed.offloaded(v)
    return ("params", "optimizer") if kind(v) == "FSDP" and v.flag(f"{FSDP}offload_params") else ()


def stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    """Returns the state that is not in fp32, with its dtype; only DeepSpeed sets one."""
    return deepspeed.stored(v) if _deep(v) else ()


def tensor_parallel_parts(v: Values) -> bool:
    """True if tensor parallelism shards the vocabulary, or is off. Without DeepSpeed, the model's TP plan is used: it
    replicates the embedding and gathers the logits."""
    if _deep(v):
        return deepspeed.tensor_parallel_parts(v)
    return degrees(v)[3] == 1


def compiled(v: Values) -> tuple[str, ...]:
    """Returns the parts (`blocks`, `loss`) that `torch.compile` compiles, as Accelerate or the Trainer sets."""
    backend = v.text("dynamo_config.dynamo_backend").lower()
    return ("blocks", "loss") if backend not in ("", "no", "false", "none") else trainer.compiled(v)


SETTINGS = {
    "cluster": lambda v: (devices(v), v.options.cluster)[1],
    "devices": devices,
    "model": model_words,
    "sequences": sequences,
    "sequence_tokens": trainer.sequence_tokens,
    "microbatch": lambda v: deepspeed.batch(v)[1] if _deep(v) else trainer.microbatch(v),
    "replica": lambda v: deepspeed.data_parallel(v) // deepspeed.shard(v) if _deep(v) else degrees(v)[0],
    "shard": lambda v: deepspeed.shard(v) if _deep(v) else degrees(v)[1],
    "cp": lambda v: deepspeed.ulysses(v) if _deep(v) else degrees(v)[2],
    "tp": lambda v: deepspeed.tensor_parallel(v) if _deep(v) else degrees(v)[3],
    "vocab_over_tp": tensor_parallel_parts,
    "cp_method": lambda v: _context(v),
    "ep": lambda v: deepspeed.experts(v) if _deep(v) else 1,
    "zero": zero,
    "zero_over_cp": lambda v: zero(v) > 0 and (deepspeed.ulysses(v) if _deep(v) else degrees(v)[2]) > 1,
    "gather": gather,
    "optimizer": lambda v: deepspeed.optimizer(v) if _deep(v) else trainer.optimizer(v),
    "precision": precision,
    "stored": stored,
    "recompute": recompute,
    "offloaded": offloaded,
    "overlaps": lambda v: deepspeed.overlaps(v) if _deep(v) else (),
    "compiled": compiled,
    "framework": lambda v: "accelerate",
}


def _context(v: Values) -> str:
    if _deep(v):
        return "ulysses"
    strategies = {"allgather": "all_gather", "alltoall": "ring"}
    return strategies[v.text(f"{SIZES}cp_comm_strategy", *strategies)] if degrees(v)[2] > 1 else "ring"


# The file that an export writes.


def _is_fsdp(s: TrainingSetup) -> bool:
    if s.pp > 1:
        raise CannotSayError("Accelerate has no pipeline parallelism outside Megatron-LM", "split")
    if s.zero in (1, 2):
        raise CannotSayError(
            "FSDP divides parameters, gradients and optimizer alike; ZeRO 1 and 2 are DeepSpeed's", "store"
        )
    return s.zero == 3


def _is_mesh(s: TrainingSetup) -> bool:
    return s.tp * s.cp > 1 or (s.replica > 1 and s.zero == 3)


def _mixed(s: TrainingSetup) -> str:
    return "no" if s.precision.compute == "fp32" else s.precision.compute


def _divided(s: TrainingSetup) -> int:
    return s.shard if s.zero == 3 else 1


WRITES = {
    "compute_environment": lambda s: "LOCAL_MACHINE",
    "distributed_type": lambda s: "FSDP" if _is_fsdp(s) else "MULTI_GPU",
    "mixed_precision": _mixed,
    "num_machines": lambda s: max(1, s.devices // 8),
    "num_processes": lambda s: s.devices,
    f"{FSDP}version": lambda s: when(_is_fsdp(s), 2),
    f"{FSDP}auto_wrap_policy": lambda s: when(_is_fsdp(s), "TRANSFORMER_BASED_WRAP"),
    RESHARD: lambda s: when(_is_fsdp(s), s.gather in (None, "pass")),
    f"{FSDP}offload_params": lambda s: when(_is_fsdp(s) and set(s.offloaded) == {"params", "optimizer"}),
    f"{FSDP}activation_checkpointing": lambda s: when(_is_fsdp(s) and s.recompute.ops == ("blocks",)),
    REPLICATE: lambda s: when(_is_mesh(s), s.data_parallel // _divided(s)),
    SHARD: lambda s: when(_is_mesh(s), _divided(s)),
    CONTEXT: lambda s: when(_is_mesh(s), s.cp),
    TENSOR: lambda s: when(_is_mesh(s), s.tp),
    f"{SIZES}cp_comm_strategy": lambda s: when(s.cp > 1, "alltoall" if s.cp_method == "ring" else "allgather"),
}


def _trainer_recompute(s: TrainingSetup, name: str) -> object:
    if s.zero == 3 and s.recompute.ops == ("blocks",):
        return OMIT
    return trainer.recompute_beside(s).get(name, OMIT)


BESIDE = {
    BATCH: lambda s: s.microbatch,
    "gradient_accumulation_steps": lambda s: s.sequences // (s.data_parallel * s.microbatch),
    "sequence_length": lambda s: s.sequence_tokens,
    "optim": lambda s: when(s.optimizer == "muon", "muon"),
    "activation_checkpointing": lambda s: _trainer_recompute(s, "activation_checkpointing"),
    trainer.REENTRANT: lambda s: _trainer_recompute(s, trainer.REENTRANT),
    "torch_compile": lambda s: when(s.compiled),
}
CANNOT = {
    "mesh": "its axes are dp_replicate, dp_shard, cp and tp, in this order",
    "store": "FSDP divides parameters, gradients and optimizer alike, in fp32",
    "compute": "FSDP computes and reduces in bf16; plain data parallelism reduces in fp32",
    "shard": "the model's own plan divides heads and feed-forward, not the vocabulary",
    "gather": "FSDP keeps gathered parameters for a pass or a microbatch",
    "route": "Accelerate has no expert parallelism",
    "compile": "torch_compile is of the blocks and the loss together",
}


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    return "".join(_lines(nested(fields), ""))


def _lines(fields: Mapping[str, Any], indent: str) -> list[str]:
    found: list[str] = []
    for name, value in sorted(fields.items()):
        if isinstance(value, Mapping):
            found += [f"{indent}{name}:\n", *_lines(value, f"{indent}  ")]
        else:
            word = str(value).lower() if isinstance(value, bool) else "'no'" if value == "no" else str(value)
            found.append(f"{indent}{name}: {word}\n")
    return found


OWN = field_tables("accelerate")["fields"]


def _recognises(document: Document) -> bool:
    own = {"distributed_type", "compute_environment", "mixed_precision"} & document.fields.keys()
    return bool(own) or any(n.startswith((SIZES, FSDP)) for n in document.fields)


SYSTEM = System(
    name="accelerate",
    title="Accelerate",
    version=VERSION,
    formats=("yaml", "json"),
    fields=merged(OWN, deepspeed.OWN, trainer.FIELDS),
    settings=SETTINGS,
    recognises=_recognises,
    batch_words=(BATCH, *deepspeed.SYSTEM.batch_words),
    writes=WRITES,
    beside=BESIDE,
    cannot=CANNOT,
    text=_text,
    ending=".yaml",
)
