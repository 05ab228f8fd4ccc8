"""torchtitan: reads its TOML (up to v0.2.2) or the JSON dump of its configuration (later); writes a Python module with
a function for `--module`.

Names and defaults are those of torchtitan/config/job_config.py at v0.2.2 and of torchtitan/config/configs.py at the
commit below; the mesh order is that of torchtitan/distributed/parallel_dims.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

from planc.backends.cuda.analysis.schedules import SCHEDULES as TORCH_SCHEDULES
from planc.diag.quoting import python_comment, python_string
from planc.interop.document import Document
from planc.interop.fields import field_tables
from planc.interop.ops import linear_layers, run_again_by_list
from planc.interop.setup import CannotSayError, Quantized, Role, TrainingSetup
from planc.interop.system import OMIT, System, unless
from planc.interop.values import Values
from planc.ir.plan import Period, Precision, Recompute

VERSION = "b5bcd76"
"""The commit of these names and defaults, of 21 August 2026; those of TOML files are of v0.2.2."""
MODELS = {
    ("llama3", "8B"): "llama3_8b",
    ("llama3", "70B"): "llama3_70b",
    ("llama3", "405B"): "llama3_405b",
    ("llama4", "17bx16e"): "llama4_scout",
    ("llama4", "17bx128e"): "llama4_maverick",
    ("qwen3", "0.6B"): "qwen3_0_6b",
    ("qwen3", "1.7B"): "qwen3_1_7b",
    ("qwen3", "4B"): "qwen3_4b",
    ("qwen3", "8B"): "qwen3_8b",
    ("qwen3", "14B"): "qwen3_14b",
    ("qwen3", "32B"): "qwen3_32b",
    ("qwen3", "30B-A3B"): "qwen3_30b_a3b",
    ("qwen3", "235B-A22B"): "qwen3_235b_a22b",
    ("deepseek_v3", "16B"): "deepseek_v2_lite",
    ("deepseek_v3", "236B"): "deepseek_v2",
    ("deepseek_v3", "671B"): "deepseek_v3",
    ("gpt_oss", "20B"): "gpt_oss_20b",
    ("gpt_oss", "120B"): "gpt_oss_120b",
}
"""torchtitan's models by name and flavor, and the catalog's."""
CLASSES = {name: kind.name.removeprefix("Schedule") for name, kind in TORCH_SCHEDULES.items()}
"""torch's names of planc's schedules."""
SCHEDULES = {word.lower(): name for name, word in CLASSES.items()}
"""The inverse, in lower case: torch finds a schedule by name in any case."""
LOOPED = tuple(name for name, kind in TORCH_SCHEDULES.items() if not kind.single)
"""Schedules with several stages per rank: two, unless the layers per stage are set."""


def _older(v: Values) -> bool:
    """True for the TOML of v0.2.2 or earlier; later files count the batch in tokens, not sequences."""
    return v.documents[0].format == "toml"


def _model(v: Values) -> str:
    if v.options.model:
        return v.options.model
    names = ("model.name", "model.flavor") if _older(v) else ("model_spec.name", "model_spec.flavor")
    name, flavor = (v.text(n) for n in names)
    if not name or not flavor:
        raise v.missing("--model", "the model's name and flavor")
    if (name, flavor) not in MODELS:
        known = ", ".join(f for n, f in MODELS if n == name)
        raise v.refused(f"no model of the catalog is {name} {flavor}; give one with --model (known: {known})", *names)
    return MODELS[name, flavor]


def _degree(v: Values, name: str) -> int:
    return v.whole(f"parallelism.{name}_degree")


def _shard(v: Values) -> int:
    """Returns the number of FSDP ranks; -1 in the file means the devices divided by the other degrees."""
    devices = v.devices()
    others = prod(_degree(v, n) for n in ("data_parallel_replicate", "context_parallel", "tensor_parallel"))
    others *= _degree(v, "pipeline_parallel")
    given = v.whole("parallelism.data_parallel_shard_degree", minimum=-1)
    names = [f"parallelism.{n}_degree" for n in ("data_parallel_shard", "tensor_parallel", "pipeline_parallel")]
    if given == -1:
        if devices % others:
            raise v.apart(f"{devices} devices are no multiple of the other degrees together, {others}", *names)
        return devices // others
    if given < 1 or given * others != devices:
        raise v.apart(f"the degrees' product is {given * others}, and there are {devices} devices", *names)
    return given


def _tokens(v: Values) -> int:
    return v.whole("training.seq_len") if _older(v) else v.whole("training.max_context_length")


def _local(v: Values) -> int:
    """Returns the sequences that a data-parallel rank processes at a time: one microbatch, or with a pipeline all
    microbatches of its run."""
    if _older(v):
        return v.whole("training.local_batch_size")
    tokens, length = v.whole("training.num_tokens_per_microbatch_per_dp_rank"), _tokens(v)
    if tokens % length:
        name = "training.num_tokens_per_microbatch_per_dp_rank"
        raise v.apart(f"{tokens} tokens are not a whole number of sequences of {length}", name)
    each = tokens // length
    return each * v.whole("parallelism.num_pp_microbatches") if _degree(v, "pipeline_parallel") > 1 else each


def _microbatch(v: Values) -> int:
    if _degree(v, "pipeline_parallel") == 1:
        return _local(v)
    if not _older(v):
        return v.whole("training.num_tokens_per_microbatch_per_dp_rank") // _tokens(v)
    return v.whole("parallelism.pipeline_parallel_microbatch_size")


def _sequences(v: Values) -> int:
    each = _local(v) * _degree(v, "data_parallel_replicate") * _shard(v)
    name = "training.global_batch_size" if _older(v) else "training.num_tokens_per_train_step"
    given = v.whole(name, minimum=-1)
    if given == -1:
        return each
    sequences = given if _older(v) else given // _tokens(v)
    if sequences % each or (not _older(v) and given % _tokens(v)):
        raise v.apart(f"{given} is no multiple of the {each} sequences that all ranks work on at a time", name)
    if sequences != each and _degree(v, "pipeline_parallel") > 1:
        raise v.refused("running the pipeline several times a step has no sentence", name)
    return sequences


def _gather(v: Values) -> Period | None:
    """Returns how long FSDP keeps gathered parameters: by default for a pass, and with pipelines for the step."""
    kind = v.text("parallelism.fsdp_reshard_after_forward", "default", "always", "never")
    if _degree(v, "pipeline_parallel") > 1:
        return "pass" if kind == "always" else "step"
    return "microbatch" if kind == "never" else "pass"


def _zero(v: Values) -> int:
    """Returns 3 if FSDP or context parallelism has several ranks, which then shard all state; else 0."""
    return 3 if _shard(v) * _degree(v, "context_parallel") > 1 else 0


def _sequence_parallel(v: Values) -> bool:
    parallel = _degree(v, "tensor_parallel") > 1
    return parallel and (_older(v) or v.flag("parallelism.enable_sequence_parallel"))


def _vocab(v: Values) -> bool:
    if _older(v) and v.flag("parallelism.disable_loss_parallel") and _degree(v, "tensor_parallel") > 1:
        raise v.refused("logits that are gathered over tp have no sentence", "parallelism.disable_loss_parallel")
    return True


def _context_method(v: Values) -> str:
    if not _older(v):
        return "all_gather"
    rotate = v.text("parallelism.context_parallel_rotate_method", "allgather", "alltoall")
    return "all_gather" if rotate == "allgather" else "ring"


def _balance(v: Values) -> str:
    kind = v.text("parallelism.context_parallel_load_balancer")
    if kind == "ptrr" and _degree(v, "context_parallel") > 1:
        raise v.refused("balance by the mask has no sentence", "parallelism.context_parallel_load_balancer")
    return "headtail" if kind in ("headtail", "ptrr") else "none"


def _experts(v: Values) -> tuple[int, int]:
    """Returns the degrees of expert parallelism and of expert tensor parallelism. Without expert parallelism, tensor
    parallelism shards the experts."""
    if not v.model().top_k:
        return 1, 1
    tp, ep = _degree(v, "tensor_parallel"), v.whole("parallelism.expert_parallel_degree")
    etp = v.whole("parallelism.expert_tensor_parallel_degree") if _older(v) else 1
    if ep == 1:
        return 1, tp
    if etp not in (1, tp):
        raise v.apart(f"it is 1 or tensor parallelism's {tp}", "parallelism.expert_tensor_parallel_degree")
    ranks = _shard(v) * _degree(v, "context_parallel") * tp
    if ranks % (ep * etp):
        raise v.apart(f"{ranks} ranks are no multiple of {ep * etp}", "parallelism.expert_parallel_degree")
    return ep, etp


def _schedule(v: Values) -> str:
    if v.text("parallelism.pipeline_parallel_schedule_csv") and _degree(v, "pipeline_parallel") > 1:
        raise v.refused("name the schedule's file in the plan's `split`", "parallelism.pipeline_parallel_schedule_csv")
    name = v.text("parallelism.pipeline_parallel_schedule").lower()
    if name not in SCHEDULES:
        raise v.wrong("parallelism.pipeline_parallel_schedule", f"one of {', '.join(CLASSES.values())}")
    return SCHEDULES[name]


def _virtual_stages(v: Values) -> int:
    """Returns the number of stages over all pipeline ranks. The embedding and the head count as the layers that the
    fields `..._stage_less_layers` give."""
    pp = _degree(v, "pipeline_parallel")
    each = v.maybe_whole("parallelism.pipeline_parallel_layers_per_stage", minimum=1)
    if each is None:
        return pp * (2 if _schedule(v) in LOOPED else 1)
    first, last = _ends(v)
    stages = -(-(v.model().layers + first + last) // each)
    if stages % pp:
        message = f"{each} layers a stage make {stages} stages, no multiple of {pp} ranks"
        raise v.apart(message, "parallelism.pipeline_parallel_layers_per_stage")
    return stages


def _ends(v: Values) -> tuple[int, int]:
    name = "parallelism.pipeline_parallel_{}_stage_less_layers"
    return v.whole(name.format("first"), minimum=0), v.whole(name.format("last"), minimum=0)


def _chunks(v: Values) -> int:
    pp = _degree(v, "pipeline_parallel")
    return _virtual_stages(v) // pp if pp > 1 else 1


def _stages(v: Values) -> tuple[int, ...]:
    """Returns the number of layers of each stage (torchtitan/distributed/pipeline_parallel.py,
    generate_llm_fqn_per_model_part); () for an even split."""
    if _degree(v, "pipeline_parallel") == 1:
        return ()
    if v.raw("parallelism.module_fqns_per_model_part") not in (None, ()):
        raise v.refused("write the stages in the plan's `split`", "parallelism.module_fqns_per_model_part")
    count, layers = _virtual_stages(v), v.model().layers
    first, last = _ends(v)
    base, more = divmod(layers + first + last, count)
    sizes = [base + (stage < more) for stage in range(count)]
    sizes[0] -= first
    sizes[-1] -= last
    if min(sizes) < 0:
        raise v.apart("the first or last stage has fewer layers than it is to leave out", _END_NAMES[0])
    even = [layers // count + (stage < layers % count) for stage in range(count)]
    return () if sizes == even else tuple(sizes)


_END_NAMES = tuple(f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))


def _precision(v: Values) -> Precision:
    param = v.text("training.mixed_precision_param", "bfloat16", "float32")
    whole = v.text("training.dtype", "bfloat16", "float32")
    compute = "bf16" if "bfloat16" in (param, whole) else "fp32"
    return Precision(compute="bf16" if compute == "bf16" else "fp32", reduce="fp32")


def _stored(v: Values) -> tuple[tuple[str, str], ...]:
    if v.text("training.dtype", "bfloat16", "float32") == "float32":
        return ()
    return tuple((noun, "bf16") for noun in ("params", "grads", "optimizer"))


def _recompute(v: Values) -> Recompute:
    if not _older(v):
        return _recompute_of_class(v)
    mode = v.text("activation_checkpoint.mode", "none", "full", "selective", "memory_budget")
    whole = Recompute(ops=("blocks",) if v.flag("activation_checkpoint.early_stop") else ("whole_blocks",))
    if mode == "memory_budget":
        raise v.refused("the compiler chooses what is kept", "activation_checkpoint.mode")
    if mode in ("none", "full"):
        return Recompute() if mode == "none" else whole
    option = v.text("activation_checkpoint.selective_ac_option")
    if option == "op":
        return _selected(v, "activation_checkpoint.selective_ac_option")
    every = v.whole("activation_checkpoint.selective_ac_option")
    return Recompute(ops=whole.ops, every=every)


def _recompute_of_class(v: Values) -> Recompute:
    """Returns the recomputation by the policy's class in a JSON dump; none if the dump has no class."""
    kind = v.text("activation_checkpoint")
    if not kind or kind == "None":
        return Recompute()
    if "FullAC" in kind:
        return Recompute(ops=("whole_blocks",))
    if "SelectiveAC" in kind:
        return _selected(v, "activation_checkpoint")
    raise v.refused("the compiler chooses what is kept", "activation_checkpoint")


def _selected(v: Values, name: str) -> Recompute:
    """Returns the recomputation by torchtitan's selective policy: norms, adds, and every second matmul of a block."""
    v.approximate("every other matmul of a block is recomputed, counted from the first", name)
    return Recompute(ops=run_again_by_list(v.model()))


def _quantized(v: Values) -> tuple[Quantized, ...]:
    if not _older(v):
        return ()
    converters = v.words("model.converters")
    other = [c for c in converters if c not in ("float8", "quantize.linear.float8")]
    if other:
        raise v.refused(f"the converter {other[0]} has no sentence", "model.converters")
    if not converters:
        return ()
    recipe = v.text("quantize.linear.float8.recipe_name") or "tensorwise"
    if recipe not in ("tensorwise", "rowwise"):
        raise v.refused("weights' gradients in high precision have no sentence", "quantize.linear.float8.recipe_name")
    if v.flag("quantize.linear.float8.enable_fsdp_float8_all_gather"):
        why = "parameters are gathered in 8 bits; the plan gathers them in the compute dtype, twice the bytes"
        v.approximate(why, "quantize.linear.float8.enable_fsdp_float8_all_gather")
    skipped = [name for name in v.words("quantize.linear.float8.filter_fqns") if name != "auto_filter_small_kn"]
    if [name for name in skipped if name != "output"]:
        raise v.refused("layers are left out by parts of their names", "quantize.linear.float8.filter_fqns")
    which = linear_layers(v.model(), experts=False)
    return (Quantized(which=which if "output" in skipped else (*which, "head"), method=f"float8({recipe})"),)


def _compiled(v: Values) -> tuple[str, ...]:
    if not v.flag("compile.enable"):
        return ()
    parts = {"model": "blocks", "loss": "loss"}
    return tuple(parts[c] for c in v.words("compile.components") if c in parts)


def _overlaps(v: Values) -> tuple[tuple[Role, str], ...]:
    section = "parallelism" if _older(v) else "compile"
    on = v.flag(f"{section}.enable_async_tensor_parallel")
    return (("tp", "async_matmul"),) if on and _degree(v, "tensor_parallel") > 1 else ()


SETTINGS = {
    "cluster": lambda v: (v.devices(), v.options.cluster)[1],
    "devices": lambda v: v.devices(),
    "model": _model,
    "sequences": _sequences,
    "sequence_tokens": _tokens,
    "microbatch": _microbatch,
    "pp": lambda v: _degree(v, "pipeline_parallel"),
    "replica": lambda v: _degree(v, "data_parallel_replicate"),
    "shard": _shard,
    "cp": lambda v: _degree(v, "context_parallel"),
    "tp": lambda v: _degree(v, "tensor_parallel"),
    "ep": lambda v: _experts(v)[0],
    "etp": lambda v: _experts(v)[1],
    "zero": _zero,
    "zero_over_cp": lambda v: _degree(v, "context_parallel") > 1,
    "whole_grads": lambda v: _zero(v) == 3 and _degree(v, "pipeline_parallel") > 1,
    "gather": _gather,
    "sp": _sequence_parallel,
    "vocab_over_tp": _vocab,
    "cp_method": _context_method,
    "cp_balance": _balance,
    "schedule": _schedule,
    "chunks": _chunks,
    "stages": _stages,
    "precision": _precision,
    "stored": _stored,
    "recompute": _recompute,
    "quantized": _quantized,
    "compiled": _compiled,
    "loss_chunks": lambda v: v.maybe_whole("loss.num_chunks", minimum=1) or 1,
    "overlaps": _overlaps,
    "framework": lambda v: "torchtitan",
    "offloaded": lambda v: ("params", "optimizer") if v.flag("training.enable_cpu_offload") else (),
    "optimizer": lambda v: _optimizer(v),
}


def _optimizer(v: Values) -> str:
    groups = v.words("optimizer.param_groups")
    others = [name for word, name in pairwise(groups) if word == "optimizer_name" and name not in ("AdamW", "Adam")]
    if others:
        raise v.refused("planc's optimizers are AdamW and Muon, one for all parameters", "optimizer.param_groups")
    if v.text("optimizer.name", "AdamW", "Adam") == "AdamW":
        return "adamw"
    raise v.refused("planc's optimizers are AdamW and Muon", "optimizer.name")


def _older_names(name: str) -> tuple[str, ...]:
    """Returns the spelling before v0.1 of a field of `parallelism`, when the section was called `experimental`."""
    return (f"experimental.{name}",)


FIELDS = field_tables("torchtitan")["fields"]


# Writing: a function of the coming form.


def _named(s: TrainingSetup) -> tuple[str, str]:
    found = next((key for key, name in MODELS.items() if name == s.model), None)
    if found is None:
        raise CannotSayError(f"torchtitan has no model {s.model} by a name and flavor", "model")
    return found


def _written_gather(s: TrainingSetup) -> object:
    if s.zero != 3:
        return OMIT
    usual: Period = "step" if s.pp > 1 else "pass"
    period = s.gather or "pass"
    if period == usual:
        return OMIT
    return {"pass": "always", "microbatch": "never"}.get(period, OMIT)


def _written_layers(s: TrainingSetup) -> object:
    """Returns the layers per stage; OMIT if torchtitan's default gives the plan's number of stages (one per rank, or
    two for looped schedules)."""
    usual = 2 if s.schedule in LOOPED else 1
    if s.pp == 1 or s.graph is None or s.chunks == usual:
        return OMIT
    first, last = _written_ends(s)
    return -(-(s.graph.layers + first + last) // (s.pp * s.chunks))


def _written_ends(s: TrainingSetup) -> tuple[int, int]:
    """Returns how many layers fewer the first and the last stage have than the longest stage between them."""
    if s.graph is None or not s.stages or len(s.stages) < 3:
        return 0, 0
    inner = max(s.stages[1:-1])
    return max(0, inner - s.stages[0]), max(0, inner - s.stages[-1])


def _written_policy(s: TrainingSetup) -> object:
    if s.recompute == Recompute():
        return OMIT
    if s.recompute.blocks and not s.recompute.kept and s.recompute.every == 1:
        return "FullAC"
    raise CannotSayError("its policies keep nothing of a block, or what a list of torch's ops names", "recompute")


def _written_components(s: TrainingSetup) -> object:
    if not s.compiled or set(s.compiled) == {"blocks", "loss"}:
        return OMIT
    return tuple({"blocks": "model", "loss": "loss"}[part] for part in s.compiled)


WRITES = {
    "model_spec.name": lambda s: _named(s)[0],
    "model_spec.flavor": lambda s: _named(s)[1],
    "training.num_tokens_per_microbatch_per_dp_rank": lambda s: s.microbatch * s.sequence_tokens,
    "training.num_tokens_per_train_step": lambda s: OMIT if s.pp > 1 else s.sequences * s.sequence_tokens,
    "training.max_context_length": lambda s: s.sequence_tokens,
    "training.mixed_precision_param": lambda s: OMIT if s.precision.compute == "bf16" else "float32",
    "training.dtype": lambda s: "bfloat16" if s.stored else OMIT,
    "training.enable_cpu_offload": lambda s: True if set(s.offloaded) >= {"params", "optimizer"} else OMIT,
    "parallelism.data_parallel_replicate_degree": lambda s: unless(1, s.replica),
    "parallelism.data_parallel_shard_degree": lambda s: s.shard,
    "parallelism.fsdp_reshard_after_forward": _written_gather,
    "parallelism.tensor_parallel_degree": lambda s: unless(1, s.tp),
    "parallelism.enable_sequence_parallel": lambda s: OMIT if s.sp or s.tp == 1 else False,
    "parallelism.pipeline_parallel_degree": lambda s: unless(1, s.pp),
    "parallelism.pipeline_parallel_schedule": lambda s: CLASSES.get(s.schedule, OMIT) if s.pp > 1 else OMIT,
    "parallelism.pipeline_parallel_first_stage_less_layers": lambda s: _written_ends(s)[0] if s.pp > 1 else OMIT,
    "parallelism.pipeline_parallel_last_stage_less_layers": lambda s: _written_ends(s)[1] if s.pp > 1 else OMIT,
    "parallelism.pipeline_parallel_layers_per_stage": _written_layers,
    "parallelism.num_pp_microbatches": lambda s: s.sequences // (s.data_parallel * s.microbatch) if s.pp > 1 else OMIT,
    "parallelism.context_parallel_degree": lambda s: unless(1, s.cp),
    "parallelism.context_parallel_load_balancer": lambda s: None if s.cp > 1 and s.cp_balance == "none" else OMIT,
    "parallelism.expert_parallel_degree": lambda s: unless(1, s.ep),
    "activation_checkpoint": _written_policy,
    "compile.enable": lambda s: True if s.compiled else OMIT,
    "compile.components": _written_components,
    "compile.enable_async_tensor_parallel": lambda s: True if ("tp", "async_matmul") in s.overlaps else OMIT,
    "loss.num_chunks": lambda s: unless(1, s.loss_chunks),
}
CLASSES_OF_SECTIONS = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig"}


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """Returns a Python module with one function, which `MODULE=... CONFIG=... ./run_train.sh` calls."""
    module = f"torchtitan.models.{fields['model_spec.name']}"
    policy, chunks = fields.get("activation_checkpoint"), fields.get("loss.num_chunks")
    loss = "ChunkedLossWrapper" if chunks else "CrossEntropyLoss"
    lines = [
        f'"""{python_comment(s.name)}: written by planc for torchtitan {VERSION}."""',
        "",
        f"from torchtitan.components.loss import {loss}",
        "from torchtitan.components.optimizer import default_adamw",
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        *([f"from torchtitan.distributed.activation_checkpoint import {policy}"] if policy else []),
        f"from {module} import model_registry",
        "from torchtitan.trainer import Trainer",
        "",
        "",
        f"def {s.name}() -> Trainer.Config:",
        "    return Trainer.Config(",
        f"        model_spec=model_registry({python_string(str(fields['model_spec.flavor']))}),",
        f"        loss={loss}.Config({f'num_chunks={chunks}' if chunks else ''}),",
        "        optimizer=default_adamw(lr=8e-4),  # a plan has no learning rate",
    ]
    for section, kind in CLASSES_OF_SECTIONS.items():
        named = {n.partition(".")[2]: value for n, value in fields.items() if n.startswith(f"{section}.")}
        if named:
            arguments = (f"            {name}={_literal(value)}," for name, value in named.items())
            lines += [f"        {section}={kind}(", *arguments, "        ),"]
    lines += [f"        activation_checkpoint={policy}.Config(),"] if policy else []
    return "\n".join([*lines, "    )", ""])


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return python_string(value) if isinstance(value, str) else repr(value)


def _recognises(document: Document) -> bool:
    fields = document.fields
    if document.format == "toml":
        return "model.flavor" in fields or any(f.startswith("parallelism.") for f in fields)
    return "parallelism.data_parallel_shard_degree" in fields and "parallelism.tensor_parallel_degree" in fields


SYSTEM = System(
    name="torchtitan",
    title="torchtitan",
    version=VERSION,
    formats=("json", "toml"),
    fields=FIELDS,
    settings=SETTINGS,
    recognises=_recognises,
    batch_words=(
        "training.global_batch_size",
        "training.local_batch_size",
        "training.seq_len",
        "training.num_tokens_per_train_step",
        "training.num_tokens_per_microbatch_per_dp_rank",
        "training.max_context_length",
        "parallelism.num_pp_microbatches",
        "parallelism.pipeline_parallel_microbatch_size",
    ),
    writes=WRITES,
    text=_text,
    ending=".py",
    cannot={
        "store": "its FSDP divides parameters, gradients and the optimizer's state together",
        "recompute": "its policies keep nothing of a block, or what a list of torch's ops names",
        "quantize": "converters belong to the model's registry; write them there",
        "split": "stages are counted from layers a stage, with embedding and head as layers",
        "optimizer": "only AdamW is written",
    },
)
