"""MaxText: `key=value` words after `base.yml`, or a YAML file with the same keys.

Names, defaults and the order of the mesh axes (`mesh_axes`) are those of src/maxtext/configs/base.yml at the commit
below.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any, Literal

from planc.diag.quoting import python_comment, shell_word
from planc.frameworks.maxtext import CUSTOM, POLICIES
from planc.interop.document import Document
from planc.interop.fields import field_tables
from planc.interop.ops import block_ops, existing, linear_layers, of_kind_saved
from planc.interop.setup import CannotSayError, DecoderShape, Quantized, Role, TrainingSetup
from planc.interop.shape import catalog_name, model_words
from planc.interop.system import OMIT, System, Writer, unless
from planc.interop.values import Values
from planc.ir.plan import Noun, Precision, Recompute, Route

VERSION = "e591f30"
"""The commit of these names and defaults, of 22 August 2026."""
MODELS = {
    "llama2-7b": "llama2_7b",
    "llama2-13b": "llama2_13b",
    "llama2-70b": "llama2_70b",
    "llama3-8b": "llama3_8b",
    "llama3-70b": "llama3_70b",
    "llama3-405b": "llama3_405b",
    "llama3.1-8b": "llama3_1_8b",
    "llama3.1-70b": "llama3_1_70b",
    "llama3.1-405b": "llama3_1_405b",
    "mistral-7b": "mistral_7b",
    "mixtral-8x7b": "mixtral_8x7b",
    "mixtral-8x22b": "mixtral_8x22b",
    "gemma3-4b": "gemma3_4b",
    "gemma3-12b": "gemma3_12b",
    "gemma3-27b": "gemma3_27b",
    "qwen3-0.6b": "qwen3_0_6b",
    "qwen3-1.7b": "qwen3_1_7b",
    "qwen3-4b": "qwen3_4b",
    "qwen3-8b": "qwen3_8b",
    "qwen3-14b": "qwen3_14b",
    "qwen3-32b": "qwen3_32b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "deepseek2-16b": "deepseek_v2_lite",
    "deepseek2-236b": "deepseek_v2",
    "deepseek3-671b": "deepseek_v3",
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt-oss-120b": "gpt_oss_120b",
    "llama4-17b-16e": "llama4_scout",
    "llama4-17b-128e": "llama4_maverick",
}
"""MaxText's models (src/maxtext/configs/models) that are in the catalog."""
AXES = ("data", "pipeline", "fsdp", "context", "tensor", "tensor_sequence", "expert")
"""Axes that a plan can express, outermost first; each is the product of its ICI and DCN degrees."""
OTHER_AXES = (
    "diloco",
    "fsdp_transpose",
    "sequence",
    "context_usp_ulysses",
    "context_autoregressive",
    "autoregressive",
)
ORDER: tuple[Role, ...] = ("replica", "pp", "shard", "cp", "tp")
PLANES = {16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
"""Topologies of v5e and v6e slices by number of chips (cloud.google.com/tpu/docs/v5e, v6e)."""
CUBES = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
    1024: "8x8x16",
    2048: "8x16x16",
    4096: "16x16x16",
}
"""Topologies of v4 and v5p slices by number of chips; their names count two cores per chip
(cloud.google.com/tpu/docs/v5p)."""


# The machine and the axes.


def _slices(v: Values) -> tuple[str, int]:
    """Returns the words after `cluster` and the number of devices, from the command line or `compile_topology`."""
    if v.options.cluster:
        return v.options.cluster, v.devices()
    name, slices = v.text("compile_topology"), v.whole("compile_topology_num_slices", minimum=-1)
    if not name:
        return "", v.devices()
    kind, _, number = name.rpartition("-")
    size = int(number) if number.isdigit() and len(number) < 6 else 0
    chips = size // 2 if kind in ("v4", "v5p") else size
    shapes = {"v4": CUBES, "v5p": CUBES, "v5e": PLANES, "v6e": PLANES}
    shape = shapes.get(kind, {}).get(chips)
    if shape is None:
        raise v.refused("a slice whose shape planc does not know; give it with --cluster", "compile_topology")
    count = max(1, slices)
    return f"{count} x tpu_{kind}({shape})" if count > 1 else f"tpu_{kind}({shape})", count * chips


def _degrees(v: Values) -> dict[str, int]:
    """Returns the number of ranks of each axis, its ICI times its DCN degree. A degree of -1 takes the remaining ranks;
    by default, the DCN degree of data and the ICI degree of fsdp are -1."""
    devices = _slices(v)[1]
    for name in (f"{where}_{axis}_parallelism" for axis in OTHER_AXES for where in ("ici", "dcn")):
        if v.is_given(name) and v.whole(name) > 1:
            raise v.refused("the axis has no sentence", name)
    inside = {axis: v.whole(f"ici_{axis}_parallelism", minimum=-1) for axis in AXES}
    across = {axis: v.whole(f"dcn_{axis}_parallelism", minimum=-1) for axis in AXES}
    slices = v.whole("num_slices", minimum=-1)
    fixed = prod(n for n in across.values() if n > 0)
    count = slices if slices > 0 else _slice_count(v, fixed)
    across = _filled(v, across, count, "dcn")
    if devices % count:
        raise v.apart(f"{devices} devices are no multiple of {count} slices", "dcn_data_parallelism")
    inside = _filled(v, inside, devices // count, "ici")
    return {axis: inside[axis] * across[axis] for axis in AXES}


def _slice_count(v: Values, fixed: int) -> int:
    """Returns the number of slices: N in a cluster `N x tpu_...`, otherwise `fixed`, the product of the DCN degrees."""
    words = _slices(v)[0]
    count, cross, _ = words.partition(" x ")
    return int(count) if cross and count.strip().isdigit() and "tpu" in words else fixed


def _filled(v: Values, sizes: dict[str, int], total: int, where: str) -> dict[str, int]:
    names = [f"{where}_{axis}_parallelism" for axis in AXES]
    known = prod(n for n in sizes.values() if n > 0)
    unknown = [axis for axis, n in sizes.items() if n < 1]
    if len(unknown) > 1:
        raise v.apart("only one axis may be -1", *(f"{where}_{axis}_parallelism" for axis in unknown))
    if (not unknown and known != total) or total % known:
        raise v.apart(f"the {where} axes have {known} ranks together, and there are {total}", *names)
    return sizes | dict.fromkeys(unknown, total // known)


def _tensor(v: Values) -> int:
    degrees = _degrees(v)
    if degrees["tensor"] > 1 and degrees["tensor_sequence"] > 1:
        raise v.refused("two axes of tensor parallelism have no sentence", "ici_tensor_sequence_parallelism")
    return degrees["tensor"] * degrees["tensor_sequence"]


def _shard(v: Values) -> int:
    """Returns the number of ranks that shard all state: fsdp x expert (this axis shards dense weights too)."""
    degrees = _degrees(v)
    if degrees["expert"] > 1 and degrees["fsdp"] > 1 and degrees["context"] * _tensor(v) > 1:
        raise v.refused("fsdp and expert with other axes between them have no sentence", "ici_expert_parallelism")
    return degrees["fsdp"] * degrees["expert"]


# The batch.


def _pass(v: Values) -> int:
    """Returns the sequences of one forward over all devices. `per_device_batch_size` may be a fraction."""
    devices, each = _slices(v)[1], v.number("per_device_batch_size")
    sequences = each * devices
    ranks = _degrees(v)["data"] * _shard(v)
    if sequences != int(sequences) or int(sequences) % ranks or not sequences:
        message = f"{each:g} sequences a device x {devices} devices are not shared evenly by {ranks} data ranks"
        raise v.apart(message, "per_device_batch_size")
    return int(sequences)


def _microbatch(v: Values) -> int:
    each = _pass(v) // (_degrees(v)["data"] * _shard(v))
    if _degrees(v)["pipeline"] == 1:
        return each
    count = v.whole("num_pipeline_microbatches", minimum=-1)
    count = _degrees(v)["pipeline"] if count == -1 else count
    if each % count:
        message = f"{each} sequences of a rank are no multiple of {count} microbatches"
        raise v.apart(message, "num_pipeline_microbatches")
    return each // count


def _sequences(v: Values) -> int:
    times = v.whole("gradient_accumulation_steps")
    if times > 1 and _degrees(v)["pipeline"] > 1:
        raise v.refused("running the pipeline several times a step has no sentence", "gradient_accumulation_steps")
    return _pass(v) * times


# The model and its layers.


def _model(v: Values) -> str:
    if v.options.model:
        return v.options.model
    name = v.text("model_name")
    if name in MODELS or catalog_name(name):
        return MODELS.get(name) or catalog_name(name)
    if name != "default":
        raise v.refused(f"no model of the catalog is {name}; give one with --model", "model_name")
    if v.text("decoder_block") != "llama2":
        raise v.refused("only llama2's blocks are told from sizes; give the model with --model", "decoder_block")
    scale = v.whole("global_parameter_scale")
    if scale & (scale - 1):
        raise v.wrong("global_parameter_scale", "a power of two")
    deep, rest = divmod(scale.bit_length() - 1, 3)  # as get_individual_scales of src/maxtext/configs/types.py
    wide = 2 ** (deep + (rest > 0))
    shape = DecoderShape(
        layers=2**deep * v.whole("base_num_decoder_layers"),
        embed=2 ** (deep + (rest > 1)) * v.whole("base_emb_dim"),
        heads=wide * v.whole("base_num_query_heads"),
        kv_heads=wide * v.whole("base_num_kv_heads"),
        head_dim=v.whole("head_dim"),
        ffn=wide * v.whole("base_mlp_dim"),
        vocab=v.whole("vocab_size"),
        tied=v.flag("logits_via_embedding"),
    )
    try:
        return model_words(shape)
    except ValueError as error:
        raise v.refused(str(error), "base_emb_dim") from None


def _chunks(v: Values) -> int:
    pp = _degrees(v)["pipeline"]
    if pp == 1:
        return 1
    repeats, each = v.whole("num_pipeline_repeats", minimum=-1), v.whole("num_layers_per_pipeline_stage")
    layers = v.model().layers
    if v.whole("pipeline_parallel_layers", minimum=-1) not in (-1, layers):
        raise v.refused("a pipeline of some of the layers has no sentence", "pipeline_parallel_layers")
    if repeats == -1:
        repeats = layers // (pp * each)
    if repeats * pp * each != layers:
        message = f"{pp} stages x {repeats} repeats x {each} layers are not the {layers} layers"
        raise v.apart(message, "num_pipeline_repeats", "num_layers_per_pipeline_stage")
    return repeats


def _policy(v: Values) -> tuple[Recompute, tuple[str, ...]]:
    """Returns the recomputation by `remat_policy`, and the activations that the policy offloads to host memory."""
    name, model = v.text("remat_policy"), v.model()
    if name == "custom":
        return _custom(v)
    if name.startswith("minimal"):
        if name not in ("minimal", "minimal_flash", "minimal_with_context", "minimal_offloaded"):
            raise v.refused("the policy has no sentence", "remat_policy")
        if name == "minimal_offloaded":
            raise v.refused("every product in host memory is named one by one: remat_policy=custom", "remat_policy")
        ops = of_kind_saved(model, "norm", "elementwise", "add", "rope")
        core = () if name in ("minimal_flash", "minimal_with_context") else existing(model, "attention.core")
        return Recompute(ops=(*ops, *core)), ()
    if name not in POLICIES:
        raise v.wrong("remat_policy", f"one of {', '.join((*POLICIES, 'minimal', 'minimal_with_context', 'custom'))}")
    kept = existing(model, *POLICIES[name])
    offloaded = _outputs(v, kept) if name.endswith("_offloaded") else ()
    return Recompute(ops=("blocks",), kept=kept), offloaded


def _custom(v: Values) -> tuple[Recompute, tuple[str, ...]]:
    model = v.model()
    places = {name: v.text(name, "remat", "device", "offload") for name in CUSTOM}
    kept = [op for name, ops in CUSTOM.items() if places[name] != "remat" for op in existing(model, *ops)]
    host = [op for name, ops in CUSTOM.items() if places[name] == "offload" for op in existing(model, *ops)]
    offloaded = _outputs(v, host)
    if v.text("decoder_layer_input", "remat", "device", "offload") == "offload":
        offloaded = (model.block_output, *offloaded)
    return Recompute(ops=("blocks",), kept=tuple(dict.fromkeys(kept))), offloaded


def _outputs(v: Values, ops: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Returns the names of the output tensors of `ops`."""
    made = {op.name: op.output for op in block_ops(v.model())}
    return tuple(dict.fromkeys(made[op] for op in ops if op in made))


def _offloaded(v: Values) -> tuple[str, ...]:
    state = ["params"] if v.flag("parameter_memory_host_offload") else []
    state += ["optimizer"] if v.flag("optimizer_memory_host_offload") else []
    return (*state, *_policy(v)[1])


# Precision, attention, experts.


def _precision(v: Values) -> Precision:
    dtypes: dict[str, Literal["bf16", "fp32"]] = {"bfloat16": "bf16", "float32": "fp32"}
    compute = dtypes[v.text("dtype", *dtypes)]
    return Precision(compute=compute, reduce=dtypes[v.text("grad_dtype", *dtypes)])


def _stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    narrow = v.text("weight_dtype", "float32", "bfloat16") == "bfloat16"
    moment = v.text("mu_dtype", "", "float32", "bfloat16") or ("bfloat16" if narrow else "float32")
    if (moment == "bfloat16") != narrow:
        raise v.refused("moments in two dtypes have no sentence", "mu_dtype")
    nouns: tuple[Noun, ...] = ("params", "grads", "optimizer")
    return tuple((noun, "bf16") for noun in nouns) if narrow else ()


def _quantized(v: Values) -> tuple[Quantized, ...]:
    name = v.text("quantization")
    if not name:
        return ()
    methods = {"int8": "int8", "fp8": "float8(tensorwise)", "fp8_full": "float8(tensorwise)"}
    if name not in methods:
        raise v.refused("the recipe has no sentence", "quantization")
    return (Quantized(which=linear_layers(v.model()), method=methods[name]),)


def _kernel(v: Values) -> str:
    name = v.text("attention")
    return {"dot_product": "unfused", "cudnn_flash_te": "cudnn", "cudnn_flash_jax": "cudnn"}.get(name, "")


def _context_method(v: Values) -> str:
    name = v.text("context_parallel_strategy", "all_gather", "ring", "ulysses", "usp")
    if name == "usp" and _degrees(v)["context"] > 1:
        raise v.refused("Ulysses with rings between its groups has no sentence", "context_parallel_strategy")
    return name if name != "usp" else "all_gather"


def _route(v: Values) -> Route:
    factor = v.number("capacity_factor", minimum=-1.0)
    return Route(method="capacity", factor=factor) if factor > 0 else Route()


SETTINGS = {
    "cluster": lambda v: _slices(v)[0],
    "devices": lambda v: _slices(v)[1],
    "model": _model,
    "sequences": _sequences,
    "sequence_tokens": lambda v: v.whole("max_target_length"),
    "microbatch": _microbatch,
    "order": lambda v: ORDER,
    "pp": lambda v: _degrees(v)["pipeline"],
    "replica": lambda v: _degrees(v)["data"],
    "shard": _shard,
    "cp": lambda v: _degrees(v)["context"],
    "tp": _tensor,
    "sp": lambda v: _degrees(v)["tensor_sequence"] > 1,
    "ep": lambda v: _degrees(v)["expert"] if v.model().top_k else 1,
    "etp": lambda v: _tensor(v) if v.model().top_k else 1,
    "experts_over": lambda v: ("shard", "tp") if _tensor(v) > 1 else ("shard",),
    "zero": lambda v: 3 if _shard(v) * _degrees(v)["context"] > 1 else 0,
    "zero_over_cp": lambda v: _degrees(v)["context"] > 1,
    "cp_method": _context_method,
    "cp_balance": lambda v: "headtail" if v.flag("context_parallel_load_balance") else "none",
    "schedule": lambda v: "circular" if _degrees(v)["pipeline"] > 1 else "1f1b",
    "chunks": _chunks,
    "route": _route,
    "precision": _precision,
    "stored": _stored,
    "recompute": lambda v: _policy(v)[0],
    "offloaded": _offloaded,
    "loss_chunks": lambda v: v.whole("num_vocab_tiling", minimum=1),
    "quantized": _quantized,
    "kernel": _kernel,
    "framework": lambda v: "maxtext",
    "optimizer": lambda v: _optimizer(v),
}


def _optimizer(v: Values) -> str:
    name = v.text("opt_type", "adamw", "adam_pax", "sgd", "muon")
    if name in ("adam_pax", "sgd"):
        raise v.refused("planc's optimizers are AdamW and Muon", "opt_type")
    return name


FIELDS = field_tables("maxtext")["fields"]


# Writing.


def _named(s: TrainingSetup) -> str:
    found = next((key for key, name in MODELS.items() if name == s.model), None)
    if found is None:
        raise CannotSayError(f"MaxText has no model {s.model} by a name", "model")
    return found


def _per_device(s: TrainingSetup) -> float:
    times = 1 if s.pp > 1 else s.sequences // (s.data_parallel * s.microbatch)
    return s.sequences / times / s.devices


def _slices_of(s: TrainingSetup) -> int:
    """Returns the number of slices of a TPU cluster, which must divide the replicas; 1 for GPU nodes."""
    count, cross, machine = s.cluster.partition(" x ")
    slices = int(count) if cross and count.isdigit() and machine.startswith("tpu") else 1
    if s.replica % slices:
        raise CannotSayError(f"{slices} slices are no divisor of {s.replica} replicas", "mesh")
    return slices


def _repeated(s: TrainingSetup) -> object:
    return OMIT if s.pp > 1 else unless(1, s.sequences // (s.data_parallel * s.microbatch))


def _written_policy(s: TrainingSetup) -> object:
    """Returns the `remat_policy` that saves and offloads what the plan does; `custom` if no named policy does."""
    if s.recompute.blocks and s.recompute.every == 1:
        host = set(s.offloaded) - {"params", "optimizer"}
        made = {op.name: op.output for op in block_ops(s.graph)} if s.graph else {}
        for name, kept in POLICIES.items():
            offloaded = {made.get(op, "") for op in kept} if name.endswith("_offloaded") else set()
            if set(s.recompute.kept) == set(kept) and host == offloaded:
                return name
        return "custom"
    if s.graph is not None and s.recompute.ops:
        cheap = set(of_kind_saved(s.graph, "norm", "elementwise", "add", "rope"))
        if set(s.recompute.ops) == cheap:
            return "minimal_with_context"
        if set(s.recompute.ops) == cheap | {"attention.core"}:
            return "minimal"
    raise CannotSayError("each of its policies runs something again, and keeps named products", "recompute")


def _place(name: str, s: TrainingSetup) -> object:
    """Returns `device` or `offload` for `name`, an activation that `remat_policy=custom` saves; OMIT for another."""
    ops = CUSTOM[name]
    if _written_policy(s) != "custom" or name in ("qkv_proj", "mlpwi") or not set(ops) <= set(s.recompute.kept):
        return OMIT
    made = {op.name: op.output for op in block_ops(s.graph)} if s.graph else {}
    return "offload" if any(made.get(op) in s.offloaded for op in ops) else "device"


def _written_layers(s: TrainingSetup) -> object:
    if s.pp == 1 or s.graph is None:
        return OMIT
    if s.graph.layers % (s.pp * s.chunks) or s.schedule != "circular":
        raise CannotSayError("its pipelines are circular, with stages of equal length", "split")
    return s.graph.layers // (s.pp * s.chunks)


def _axis(name: str, size: int) -> object:
    return OMIT if size == 1 and name not in ("fsdp",) else size


WRITES: dict[str, Writer] = {
    "model_name": _named,
    "max_target_length": lambda s: s.sequence_tokens,
    "per_device_batch_size": _per_device,
    "gradient_accumulation_steps": _repeated,
    "ici_data_parallelism": lambda s: _axis("data", s.replica // _slices_of(s)),
    "dcn_data_parallelism": lambda s: _slices_of(s),
    "ici_pipeline_parallelism": lambda s: _axis("pipeline", s.pp),
    "ici_fsdp_parallelism": lambda s: s.shard // s.ep,
    "ici_context_parallelism": lambda s: _axis("context", s.cp),
    "ici_tensor_parallelism": lambda s: _axis("tensor", 1 if s.sp else s.tp),
    "ici_tensor_sequence_parallelism": lambda s: _axis("tensor_sequence", s.tp if s.sp else 1),
    "ici_expert_parallelism": lambda s: _axis("expert", s.ep),
    "num_pipeline_microbatches": lambda s: s.sequences // (s.data_parallel * s.microbatch) if s.pp > 1 else OMIT,
    "num_pipeline_repeats": lambda s: s.chunks if s.pp > 1 else OMIT,
    "num_layers_per_pipeline_stage": lambda s: _written_layers(s),
    "context_parallel_strategy": lambda s: unless("all_gather", s.cp_method) if s.cp > 1 else OMIT,
    "context_parallel_load_balance": lambda s: False if s.cp > 1 and s.cp_balance == "none" else OMIT,
    "remat_policy": _written_policy,
    **{name: partial(_place, name) for name in CUSTOM},
    "decoder_layer_input": lambda s: (
        "offload" if s.graph and s.graph.block_output in s.offloaded and _written_policy(s) == "custom" else OMIT
    ),
    "optimizer_memory_host_offload": lambda s: True if "optimizer" in s.offloaded else OMIT,
    "parameter_memory_host_offload": lambda s: True if "params" in s.offloaded else OMIT,
    "dtype": lambda s: "float32" if s.precision.compute == "fp32" else OMIT,
    "grad_dtype": lambda s: "bfloat16" if s.precision.reduce == "bf16" else OMIT,
    "weight_dtype": lambda s: "bfloat16" if s.stored else OMIT,
    "quantization": lambda s: (
        {"int8": "int8", "float8(tensorwise)": "fp8"}.get(s.quantized[0].method, OMIT) if s.quantized else OMIT
    ),
    "opt_type": lambda s: "muon" if s.optimizer == "muon" else OMIT,
    "attention": lambda s: {"unfused": "dot_product", "cudnn": "cudnn_flash_te"}.get(s.kernel, OMIT),
    "num_vocab_tiling": lambda s: unless(1, s.loss_chunks),
    "capacity_factor": lambda s: s.route.factor if s.route.method == "capacity" else OMIT,
}


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """Returns a script that starts MaxText's pre-training with these `key=value` words."""
    words = [f"  {name}={shell_word(_word(value))}" for name, value in fields.items()]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {python_comment(s.name)}: written by planc for MaxText {VERSION}",
            "python3 -m maxtext.trainers.pre_train.train base.yml run_name=${RUN_NAME:?} \\",
            " \\\n".join(words),
            "",
        ]
    )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _recognises(document: Document) -> bool:
    if any("maxtext" in word.lower() for word in document.program):
        return True
    return any(f"{where}_{axis}_parallelism" in document.fields for where in ("ici", "dcn") for axis in AXES)


SYSTEM = System(
    name="maxtext",
    title="MaxText",
    version=VERSION,
    formats=("assignments", "yaml"),
    fields=FIELDS,
    settings=SETTINGS,
    recognises=_recognises,
    batch_words=("per_device_batch_size", "gradient_accumulation_steps", "max_target_length"),
    writes=WRITES,
    text=_text,
    ending=".sh",
    cannot={
        "store": "fsdp divides parameters, gradients and the optimizer's state together",
        "recompute": "its policies keep named products of a block, or all of them",
        "gather": "XLA decides how long gathered parameters live",
        "split": "its pipelines are circular, with stages of equal length",
        "compile": "XLA compiles the whole step",
    },
)
