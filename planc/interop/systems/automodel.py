"""NeMo AutoModel: the YAML of a recipe, with its `distributed` and `step_scheduler` sections.

Names and defaults are those of nemo_automodel/components/distributed/config.py and pipelining/config.py, at the commit
below; the mesh is pp > dp_replicate > dp_shard > cp > tp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planc.diag.quoting import python_comment, yaml_string
from planc.interop.document import Document
from planc.interop.fields import field_tables
from planc.interop.ops import run_again_by_list
from planc.interop.setup import CannotSayError, Role, TrainingSetup
from planc.interop.system import OMIT, System, Writer, unless
from planc.interop.systems.deepspeed import nested
from planc.interop.systems.torchtitan import CLASSES, LOOPED, SCHEDULES
from planc.interop.values import Values
from planc.ir.plan import Dtype, Noun, Period, Precision, Recompute

VERSION = "36044ad"
"""The commit of these names and defaults, of 22 August 2026."""
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
"""Model names on the Hugging Face hub, and the catalog's."""
NAMES = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path")
LENGTHS = ("dataset.seq_length", "dataset.seq_len", "packed_sequence.packed_sequence_size")
DTYPES: dict[str, Dtype] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "auto": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "torch.float16": "fp16",
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
    """Returns the number of data-parallel ranks: the devices divided by the degrees of pipeline, context and tensor
    parallelism."""
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
    """True if gradients stay unsharded until the step's last microbatch, when they are reduced."""
    return _strategy(v) == "fsdp2" and (v.flag("distributed.defer_fsdp_grad_sync") or _degree(v, "pp") > 1)


def _gather(v: Values) -> Period | None:
    """Returns how long FSDP keeps gathered parameters; None for other strategies. By default, parameters of a layer are
    freed after its forward, except with pipelines and with expert parallelism."""
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
    """Returns the number of virtual stages per pipeline rank. `layers_per_stage` gives the number of stages, which is
    rounded to a multiple of the ranks (pipelining/functional.py)."""
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
        raise v.wrong("distributed.mp_policy.param_dtype", "bfloat16, float16 or float32")
    return Precision(compute=compute, reduce=reduce)


def _stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    """Returns the state that is not in fp32, with its dtype: all state has the dtype in which the model is loaded."""
    dtype = DTYPES.get(v.text("model.torch_dtype"))
    if dtype is None:
        raise v.wrong("model.torch_dtype", "bf16, float16 or float32")
    nouns: tuple[Noun, ...] = ("params", "grads", "optimizer")
    return tuple((noun, dtype) for noun in nouns) if dtype != "fp32" else ()


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

FIELDS = field_tables("automodel")["fields"]


# Writing.


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


SPELLED = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

WRITES: dict[str, Writer] = {
    NAMES[0]: _named,
    "model.torch_dtype": lambda s: dict(s.stored).get("params", "float32"),
    LENGTHS[0]: lambda s: s.sequence_tokens,
    "step_scheduler.global_batch_size": lambda s: s.sequences,
    "step_scheduler.local_batch_size": lambda s: s.sequences // s.data_parallel if s.pp > 1 else s.microbatch,
    "distributed.strategy": _written_strategy,
    "distributed.zero_dp_strategy": lambda s: s.zero if s.zero in (1, 2) else OMIT,
    "distributed.dp_replicate_size": lambda s: unless(1, s.replica) if s.zero == 3 else OMIT,
    "distributed.tp_size": lambda s: unless(1, s.tp),
    "distributed.cp_size": lambda s: unless(1, s.cp),
    "distributed.pp_size": lambda s: unless(1, s.pp),
    "distributed.ep_size": lambda s: unless(1, s.ep),
    "distributed.sequence_parallel": lambda s: True if s.sp else OMIT,
    "distributed.activation_checkpointing": _written_policy,
    "distributed.defer_fsdp_grad_sync": lambda s: False if s.zero == 3 and not s.whole_grads and s.pp == 1 else OMIT,
    "distributed.reshard_after_forward": lambda s: _written_gather(s) if s.ep == 1 else OMIT,
    "distributed.moe.reshard_after_forward": lambda s: _written_gather(s) if s.ep > 1 else OMIT,
    "distributed.enable_async_tensor_parallel": lambda s: True if ("tp", "async_matmul") in s.overlaps else OMIT,
    "distributed.enable_compile": lambda s: True if "blocks" in s.compiled else OMIT,
    "distributed.mp_policy.param_dtype": lambda s: unless("bfloat16", SPELLED[s.precision.compute]),
    "distributed.mp_policy.reduce_dtype": lambda s: unless("float32", SPELLED[s.precision.reduce]),
    "distributed.offload_policy._target_": lambda s: (
        "torch.distributed.fsdp.CPUOffloadPolicy" if set(s.offloaded) >= {"params", "optimizer"} else OMIT
    ),
    "distributed.pipeline.pp_schedule": lambda s: CLASSES.get(s.schedule, OMIT) if s.pp > 1 else OMIT,
    "distributed.pipeline.pp_microbatch_size": lambda s: s.microbatch if s.pp > 1 else OMIT,
    "distributed.pipeline.layers_per_stage": _written_layers,
}


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """Returns the sections of a recipe that a plan decides; the user adds data, optimizer and checkpoints."""
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
