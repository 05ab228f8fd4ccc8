"""Megatron-LM: flags of `pretrain_gpt.py` in a shell script, or its `model_config.yaml`.

Names and defaults are those of megatron/training/arguments.py and of the dataclasses TransformerConfig and
ModelParallelConfig of megatron/core, at the commit below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planc.diag.quoting import python_comment, shell_word
from planc.interop.document import Document
from planc.interop.fields import OMIT, Field, System, noted, refused
from planc.interop.ops import existing, linear_layers
from planc.interop.setup import ROLES, CannotSayError, Quantized, Role, Shape, TrainingSetup
from planc.interop.shape import model_words
from planc.interop.values import Values
from planc.ir.plan import Precision, Recompute, Route

SCHEDULE = "1f1b"
VERSION = "d98e8a6"
"""The commit whose names and defaults these are, of 22 August 2026."""


def _data_parallel(v: Values) -> int:
    """Ranks that work on other sequences: what pipeline, context and tensor parallelism leave of the devices."""
    devices = _devices(v)
    inner = v.whole("tensor_model_parallel_size") * v.whole("pipeline_model_parallel_size")
    inner *= v.whole("context_parallel_size")
    if devices % inner:
        raise v.apart(
            f"{devices} devices are no multiple of tensor x pipeline x context parallelism = {inner}",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
        )
    return devices // inner


def _devices(v: Values) -> int:
    return v.devices()


def _microbatch(v: Values) -> int:
    return v.needed("micro_batch_size")


def _sequences(v: Values) -> int:
    """Sequences a step: the global batch, or one microbatch for each data-parallel rank where none is given."""
    ranks, micro = _data_parallel(v), _microbatch(v)
    batch = v.maybe_whole("global_batch_size", minimum=1)
    if batch is None:
        return ranks * micro
    if batch % (ranks * micro):
        message = f"global batch {batch} is no multiple of {ranks} data-parallel ranks x micro batch {micro}"
        raise v.apart(f"{message} = {ranks * micro}", "global_batch_size", "micro_batch_size")
    return batch


def _zero(v: Values) -> int:
    if v.flag("use_megatron_fsdp"):
        strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        return strategies[v.text("data_parallel_sharding_strategy", *strategies)]
    return 1 if v.flag("use_distributed_optimizer") else 0


def _shape(v: Values) -> Shape:
    """The decoder's sizes, with Megatron's rules for those that are not given."""
    embed, heads = v.needed("hidden_size"), v.needed("num_attention_heads")
    gated = v.flag("swiglu")
    ffn = v.maybe_whole("ffn_hidden_size", minimum=1)
    if ffn is None:  # arguments.py: 4h, and with swiglu (8/3)h cut to a multiple of 64
        ffn = int(4 * embed * 2 / 3 / 64) * 64 if gated else 4 * embed
    experts = v.maybe_whole("num_experts", minimum=1) or 0
    rotary = (
        v.text("position_embedding_type", "learned_absolute", "rope", "yarn", "none", "mrope") != "learned_absolute"
    )
    grouped = v.flag("group_query_attention")
    return Shape(
        layers=v.needed("num_layers"),
        embed=embed,
        heads=heads,
        kv_heads=v.whole("num_query_groups") if grouped else heads,
        head_dim=v.maybe_whole("kv_channels", minimum=1) or embed // heads,
        ffn=0 if experts else ffn,
        vocab=_padded_vocab(v),
        positions=0 if rotary else v.needed("max_position_embeddings"),
        gated=gated,
        rms_norm=v.text("normalization", "LayerNorm", "RMSNorm") == "RMSNorm",
        rotary=rotary,
        biased=not v.flag("disable_bias_linear"),
        query_norm=v.flag("qk_layernorm"),
        tied=not v.flag("untie_embeddings_and_output_weights"),
        experts=experts,
        top_k=v.whole("moe_router_topk") if experts else 0,
        expert_ffn=(v.maybe_whole("moe_ffn_hidden_size", minimum=1) or ffn) if experts else 0,
    )


def _padded_vocab(v: Values) -> int:
    """The vocabulary, padded to a multiple of `make_vocab_size_divisible_by` x tp."""
    given = v.maybe_whole("padded_vocab_size", minimum=1)
    if given is not None:
        return given
    multiple = v.whole("make_vocab_size_divisible_by") * v.whole("tensor_model_parallel_size")
    vocab = v.needed("vocab_size")
    return -(-vocab // multiple) * multiple


def _model(v: Values) -> str:
    if v.options.model:
        return v.options.model
    try:
        return model_words(_shape(v))
    except ValueError as error:
        raise v.refused(str(error), "num_layers", "hidden_size") from None


def _chunks(v: Values) -> int:
    pp, layers = v.whole("pipeline_model_parallel_size"), v.maybe_whole("num_layers", minimum=1) or 0
    if pp == 1:
        return 1
    each = v.maybe_whole("num_layers_per_virtual_pipeline_stage", minimum=1)
    if each is not None:
        if layers % (pp * each):
            message = f"{layers} layers are no multiple of {pp} stages x {each} layers a virtual stage"
            raise v.apart(message, "num_layers_per_virtual_pipeline_stage")
        return layers // (pp * each)
    direct = v.maybe_whole("virtual_pipeline_model_parallel_size", minimum=1)
    return direct or v.maybe_whole("num_virtual_stages_per_pipeline_rank", minimum=1) or 1


def _stages(v: Values) -> tuple[int, ...]:
    """Layers of each virtual stage where they are not an even split."""
    pp, layers = v.whole("pipeline_model_parallel_size"), v.maybe_whole("num_layers", minimum=1) or 0
    if pp == 1:
        return ()
    count = pp * _chunks(v)
    first = v.maybe_whole("decoder_first_pipeline_num_layers")
    last = v.maybe_whole("decoder_last_pipeline_num_layers")
    if first is not None or last is not None:
        given = (first is not None) + (last is not None)
        inner, rest = divmod(layers - (first or 0) - (last or 0), pp - given)
        if rest or _chunks(v) > 1:
            raise v.apart("the other stages do not divide the remaining layers", "decoder_first_pipeline_num_layers")
        stages = [inner] * pp
        stages[0], stages[-1] = first if first is not None else inner, last if last is not None else inner
        return tuple(stages)
    embed, loss = v.flag("account_for_embedding_in_pipeline_split"), v.flag("account_for_loss_in_pipeline_split")
    if not embed and not loss:
        return ()
    each, rest = divmod(layers + embed + loss, count)
    if rest:
        message = f"{layers} layers and the counted ends are no multiple of {count} stages"
        raise v.apart(message, "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    return (each - embed, *([each] * (count - 2)), each - loss)


def _schedule(v: Values) -> str:
    return "interleaved_1f1b" if _chunks(v) > 1 else SCHEDULE


def _context(v: Values) -> str:
    kind = v.words("cp_comm_type")
    methods = {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses"}
    if v.whole("context_parallel_size") == 1:
        return "ring"
    if len(set(kind)) > 1 or (kind and kind[0] not in methods):
        raise v.refused("hierarchical context parallelism has no sentence", "cp_comm_type")
    return methods[kind[0]] if kind else "ring"


def _order(v: Values) -> tuple[Role, ...]:
    return ("replica", "shard", "pp", "cp", "tp") if v.flag("use_tp_pp_dp_mapping") else ROLES


def _expert_degrees(v: Values) -> tuple[int, int]:
    if not v.maybe_whole("num_experts", minimum=1):
        return 1, 1
    ep = v.whole("expert_model_parallel_size")
    etp = v.maybe_whole("expert_tensor_parallel_size", minimum=1)
    etp = v.whole("tensor_model_parallel_size") if etp is None else etp
    ranks = _data_parallel(v) * v.whole("context_parallel_size") * v.whole("tensor_model_parallel_size")
    if ranks % (ep * etp):
        message = f"{ranks} ranks of a stage are no multiple of expert parallelism {ep} x tensor parallelism {etp}"
        raise v.apart(message, "expert_model_parallel_size", "expert_tensor_parallel_size")
    return ep, etp


def _dispatched(v: Values) -> None:
    """Tokens go to their experts by all-to-all, as planc costs it; Megatron's default gathers all of them."""
    if v.maybe_whole("num_experts", minimum=1) and v.text("moe_token_dispatcher_type") == "allgather":
        raise v.refused(
            "gathering every token for the experts has no sentence: alltoall or flex", "moe_token_dispatcher_type"
        )


def _route(v: Values) -> Route:
    _dispatched(v)
    factor = v.maybe_number("moe_expert_capacity_factor")
    return Route() if factor is None else Route(method="capacity", factor=factor)


def _precision(v: Values) -> Precision:
    if v.flag("fp16"):
        raise v.refused("planc computes in bf16 or fp32", "fp16")
    if not v.flag("bf16"):
        return Precision()
    return Precision(compute="bf16", reduce="bf16" if v.flag("grad_reduce_in_bf16") else "fp32")


def _recompute(v: Values) -> Recompute:
    granularity = v.text("recompute_granularity", "", "None", "none", "full", "selective")
    if granularity == "full":
        return _whole_layers(v)
    if granularity == "selective":
        modules = v.words("recompute_modules") or ("core_attn",)
        unknown = [m for m in modules if m not in MODULES]
        if unknown:
            raise v.refused(f"no op of a plan is Megatron's `{unknown[0]}`", "recompute_modules")
        ops = dict.fromkeys(op for m in modules for op in MODULES[m])
        return Recompute(ops=existing(v.model(), *ops))
    if v.flag("recompute_activations"):
        return Recompute(ops=MODULES["core_attn"])
    return Recompute()


MODULES = {
    "core_attn": ("attention.core",),
    "layernorm": ("attention.norm", "ffn.norm", "moe.norm"),
    "mlp": ("ffn.gate", "ffn.up", "ffn.swiglu"),
    "moe_act": ("moe.swiglu",),
    "mla_up_proj": ("mla.up_proj",),
}
"""Megatron-Core's names of modules for selective recomputation, and the ops of a plan that they are."""


def _whole_layers(v: Values) -> Recompute:
    method, number = v.text("recompute_method", "", "None", "uniform", "block"), v.maybe_whole("recompute_num_layers")
    layers, pp = v.maybe_whole("num_layers", minimum=1) or 0, v.whole("pipeline_model_parallel_size")
    if method == "block" and number is not None and number * pp < layers:
        if layers % (number * pp):
            raise v.refused("recomputing some layers of a stage has no sentence", "recompute_num_layers")
        return Recompute(ops=("whole_blocks",), every=layers // (number * pp))
    if method == "uniform" and (number or 1) > 1:
        raise v.refused("keeping the input of each few layers has no sentence", "recompute_num_layers")
    return Recompute(ops=("whole_blocks",))


def _quantized(v: Values) -> tuple[Quantized, ...]:
    if v.flag("fp4"):
        return (Quantized(which=linear_layers(v.model()), method="float4"),)
    if v.text("fp8", "", "None", "e4m3", "hybrid") in ("", "None"):
        return ()
    recipes = {"tensorwise": "tensorwise", "delayed": "tensorwise", "mxfp8": "tile = 32", "blockwise": "tile = 128"}
    recipe = v.text("fp8_recipe", *recipes, "custom")
    if recipe == "custom":
        raise v.refused("a recipe in code has no sentence", "fp8_recipe")
    return (Quantized(which=linear_layers(v.model()), method=f"float8({recipes[recipe]})"),)


def _overlaps(v: Values) -> tuple[tuple[Role, str], ...]:
    """Megatron overlaps the gradients' reduction and the parameters' gather only where it is told to."""
    found: list[tuple[Role, str]] = []
    if not v.flag("overlap_grad_reduce"):
        v.flag("overlap_param_gather")
        found.append(("shard", "none"))
    if v.flag("tp_comm_overlap") and v.whole("tensor_model_parallel_size") > 1:
        found.append(("tp", "async_matmul"))
    return tuple(found)


def _optimizer(v: Values) -> str:
    kind = v.text("optimizer", "adam", "sgd", "muon", "dist_muon")
    if kind == "sgd":
        raise v.refused("planc's optimizers are AdamW and Muon", "optimizer")
    return "adamw" if kind == "adam" else "muon"


def _sequence_parallel(v: Values) -> bool:
    return v.flag("sequence_parallel") and v.whole("tensor_model_parallel_size") > 1


def _offloaded(v: Values) -> tuple[str, ...]:
    if not v.flag("optimizer_cpu_offload"):
        return ()
    if v.number("optimizer_offload_fraction") != 1.0:
        raise v.refused("a part of the optimizer's state in host memory has no sentence", "optimizer_offload_fraction")
    return ("optimizer",)


SETTINGS = {
    "cluster": lambda v: (v.devices(), v.options.cluster)[1],
    "devices": _devices,
    "model": _model,
    "sequences": _sequences,
    "sequence_tokens": lambda v: v.needed("seq_length"),
    "microbatch": _microbatch,
    "pp": lambda v: v.whole("pipeline_model_parallel_size"),
    "shard": _data_parallel,
    "cp": lambda v: v.whole("context_parallel_size"),
    "tp": lambda v: v.whole("tensor_model_parallel_size"),
    "ep": lambda v: _expert_degrees(v)[0],
    "etp": lambda v: _expert_degrees(v)[1],
    "order": _order,
    "zero": _zero,
    "zero_over_cp": lambda v: _zero(v) > 0 and v.whole("context_parallel_size") > 1,
    "sp": _sequence_parallel,
    "cp_method": _context,
    "schedule": _schedule,
    "chunks": _chunks,
    "stages": _stages,
    "route": _route,
    "optimizer": _optimizer,
    "precision": _precision,
    "recompute": _recompute,
    "quantized": _quantized,
    "offloaded": _offloaded,
    "overlaps": _overlaps,
}


def _unless(default: object, value: object) -> object:
    """`value`, or OMIT where it is what Megatron takes anyway."""
    return OMIT if value == default else value


def _when(condition: bool, value: object = True) -> object:
    return value if condition else OMIT


def _shape_of(s: TrainingSetup) -> Shape:
    if s.shape is None:
        raise CannotSayError("the model is not one whose sizes are Megatron's flags", "model")
    return s.shape


def _written_zero(s: TrainingSetup) -> object:
    strategies = {2: "optim_grads", 3: "optim_grads_params"}
    return strategies.get(s.zero, OMIT) if s.zero >= 2 else OMIT


def _written_granularity(s: TrainingSetup) -> object:
    if s.recompute.blocks:
        return "full"
    return "selective" if s.recompute.ops else OMIT


def _written_modules(s: TrainingSetup) -> object:
    """Megatron's modules whose ops are all recomputed."""
    if s.recompute.blocks or not s.recompute.ops or s.graph is None:
        return OMIT
    modules = {m: existing(s.graph, *named) for m, named in MODULES.items()}
    found = tuple(m for m, named in modules.items() if named and set(named) <= set(s.recompute.ops))
    return OMIT if found == ("core_attn",) else found or OMIT


def _written_blocks(s: TrainingSetup) -> object:
    if not s.recompute.blocks:
        return OMIT
    return s.shape.layers // (s.pp * s.recompute.every) if s.shape and s.recompute.every > 1 else 1


WRITES = {
    "num_layers": lambda s: _shape_of(s).layers,
    "hidden_size": lambda s: _shape_of(s).embed,
    "ffn_hidden_size": lambda s: _unless(0, _shape_of(s).ffn or _shape_of(s).expert_ffn),
    "num_attention_heads": lambda s: _shape_of(s).heads,
    "group_query_attention": lambda s: _when(_grouped(s)),
    "num_query_groups": lambda s: _when(_grouped(s), _shape_of(s).kv_heads),
    "kv_channels": lambda s: _when(_odd_heads(s), _shape_of(s).head_dim),
    "seq_length": lambda s: s.sequence_tokens,
    "max_position_embeddings": lambda s: _shape_of(s).positions or s.sequence_tokens,
    "position_embedding_type": lambda s: _when(_shape_of(s).rotary, "rope"),
    "normalization": lambda s: _when(_shape_of(s).rms_norm, "RMSNorm"),
    "swiglu": lambda s: _when(_shape_of(s).gated),
    "disable_bias_linear": lambda s: _when(not _shape_of(s).biased),
    "qk_layernorm": lambda s: _when(_shape_of(s).query_norm),
    "untie_embeddings_and_output_weights": lambda s: _when(not _shape_of(s).tied),
    "vocab_size": lambda s: _shape_of(s).vocab,
    "make_vocab_size_divisible_by": lambda s: _when(_shape_of(s).vocab % (128 * s.tp) > 0, 1),
    "num_experts": lambda s: _unless(0, _shape_of(s).experts),
    "moe_router_topk": lambda s: _when(_shape_of(s).experts > 0, _shape_of(s).top_k),
    "moe_token_dispatcher_type": lambda s: _when(_shape_of(s).experts > 0, "alltoall"),
    "moe_expert_capacity_factor": lambda s: _when(s.route.method == "capacity", s.route.factor),
    "micro_batch_size": lambda s: s.microbatch,
    "global_batch_size": lambda s: s.sequences,
    "tensor_model_parallel_size": lambda s: s.tp,
    "pipeline_model_parallel_size": lambda s: s.pp,
    "context_parallel_size": lambda s: _unless(1, s.cp),
    "expert_model_parallel_size": lambda s: _when(_shape_of(s).experts > 0, s.ep),
    "expert_tensor_parallel_size": lambda s: _when(_shape_of(s).experts > 0, s.etp),
    "sequence_parallel": lambda s: _when(s.sp),
    "cp_comm_type": lambda s: _when(s.cp > 1, {"ring": "p2p", "ulysses": "a2a"}.get(s.cp_method, s.cp_method)),
    "use_tp_pp_dp_mapping": lambda s: _when(_outermost_data(s)),
    "num_virtual_stages_per_pipeline_rank": lambda s: _when(s.chunks > 1, s.chunks),
    "decoder_first_pipeline_num_layers": lambda s: _when(
        bool(s.stages) and s.chunks == 1, s.stages[:1] and s.stages[0]
    ),
    "decoder_last_pipeline_num_layers": lambda s: _when(
        bool(s.stages) and s.chunks == 1, s.stages[-1:] and s.stages[-1]
    ),
    "use_distributed_optimizer": lambda s: _when(s.zero > 0),
    "use_megatron_fsdp": lambda s: _when(s.zero >= 2),
    "data_parallel_sharding_strategy": _written_zero,
    "overlap_grad_reduce": lambda s: _when(
        ("shard", "none") not in s.overlaps and ("replica", "none") not in s.overlaps
    ),
    "overlap_param_gather": lambda s: _when(s.zero > 0 and ("shard", "none") not in s.overlaps),
    "tp_comm_overlap": lambda s: _when(("tp", "async_matmul") in s.overlaps),
    "bf16": lambda s: _when(s.precision.compute == "bf16"),
    "grad_reduce_in_bf16": lambda s: _when(s.precision.reduce == "bf16"),
    "recompute_granularity": _written_granularity,
    "recompute_method": lambda s: _when(s.recompute.blocks, "block" if s.recompute.every > 1 else "uniform"),
    "recompute_num_layers": _written_blocks,
    "recompute_modules": _written_modules,
    "optimizer": lambda s: _when(s.optimizer == "muon", "muon"),
    "optimizer_cpu_offload": lambda s: _when("optimizer" in s.offloaded),
}


def _grouped(s: TrainingSetup) -> bool:
    shape = _shape_of(s)
    return shape.kv_heads not in (0, shape.heads)


def _odd_heads(s: TrainingSetup) -> bool:
    shape = _shape_of(s)
    return shape.head_dim * shape.heads != shape.embed and shape.head_dim > 0


def _outermost_data(s: TrainingSetup) -> bool:
    used = [role for role in s.order if s.degree(role) > 1]
    return "pp" in used and any(role in used[: used.index("pp")] for role in ("shard", "replica"))


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """A script that starts `pretrain_gpt.py` with these flags; what a plan does not know is left to the environment."""
    node = min(s.devices, 8)
    lines = [
        "#!/bin/bash",
        f"# {python_comment(s.name)}: written by planc for Megatron-LM {VERSION}",
        *(["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if s.tp * s.cp > 1 and s.zero < 2 else []),
        f"torchrun --nnodes {s.devices // node} --nproc-per-node {node} \\",
        '  --rdzv-backend c10d --rdzv-endpoint "${HEAD_NODE:?}" pretrain_gpt.py \\',
    ]
    for name, value in fields.items():
        words = value if isinstance(value, tuple) else () if value is True else (value,)
        lines.append("  " + " ".join([f"--{name.replace('_', '-')}", *(shell_word(str(w)) for w in words)]) + " \\")
    lines.append('  --data-path "${DATA_PATH:?}" --train-iters "${TRAIN_ITERS:?}" --lr "${LR:?}"')
    return "\n".join(lines) + "\n"


FIELDS = (
    Field("tensor_model_parallel_size", 1),
    Field("pipeline_model_parallel_size", 1),
    Field("context_parallel_size", 1),
    Field("expert_model_parallel_size", 1),
    Field("expert_tensor_parallel_size", None),
    Field("virtual_pipeline_model_parallel_size", None),
    Field("num_layers_per_virtual_pipeline_stage", None),
    Field("num_virtual_stages_per_pipeline_rank", None),
    Field("decoder_first_pipeline_num_layers", None, aliases=("num_layers_in_first_pipeline_stage",)),
    Field("decoder_last_pipeline_num_layers", None, aliases=("num_layers_in_last_pipeline_stage",)),
    Field("account_for_embedding_in_pipeline_split", False),
    Field("account_for_loss_in_pipeline_split", False),
    Field("sequence_parallel", False),
    Field("cp_comm_type", ("p2p",)),
    Field("use_tp_pp_dp_mapping", False),
    Field("use_distributed_optimizer", False),
    Field("use_megatron_fsdp", False),
    Field("data_parallel_sharding_strategy", "optim_grads_params"),
    Field("overlap_grad_reduce", False),
    Field("overlap_param_gather", False),
    Field("moe_token_dispatcher_type", "allgather"),
    Field("tp_comm_overlap", False),
    Field("recompute_granularity", None),
    Field("recompute_method", None),
    Field("recompute_num_layers", None),
    Field("recompute_modules", None),
    Field("recompute_activations", False),
    Field("bf16", False),
    Field("fp16", False),
    Field("grad_reduce_in_bf16", False),
    Field("fp8", None, aliases=("fp8_format",)),
    Field("fp8_recipe", "delayed"),
    Field("fp4", None, aliases=("fp4_format",)),
    Field("micro_batch_size", None),
    Field("global_batch_size", None),
    Field("seq_length", None),
    Field("num_layers", None),
    Field("hidden_size", None),
    Field("ffn_hidden_size", None),
    Field("num_attention_heads", None),
    Field("group_query_attention", False),
    Field("num_query_groups", 1),
    Field("kv_channels", None),
    Field("max_position_embeddings", None),
    Field("position_embedding_type", "learned_absolute"),
    Field("normalization", "LayerNorm"),
    Field("swiglu", False),
    Field("disable_bias_linear", False),
    Field("qk_layernorm", False),
    Field("untie_embeddings_and_output_weights", False),
    Field("make_vocab_size_divisible_by", 128),
    Field("vocab_size", None),
    Field("padded_vocab_size", None),
    Field("num_experts", None),
    Field("moe_router_topk", 2),
    Field("moe_ffn_hidden_size", None),
    Field("moe_expert_capacity_factor", None),
    Field("optimizer", "adam"),
    Field("optimizer_cpu_offload", False),
    Field("optimizer_offload_fraction", 1.0),
    refused("num_distributed_optimizer_instances", 1, "state divided over a part of the data-parallel ranks"),
    refused("microbatch_group_size_per_vp_stage", None, "only groups as large as the pipeline are simulated"),
    refused("pipeline_model_parallel_layout", None, "a layout with parts of its own for multi-token prediction"),
    refused("rampup_batch_size", None, "a plan has one batch"),
    refused("step_batch_size_schedule", None, "a plan has one batch"),
    *noted("logs and metrics", "log_*", "wandb_*", "tensorboard_*", "timing_log_*"),
    *noted("the course of training", "lr", "min_lr", "lr_*", "weight_decay", "clip_grad", "adam_*", "train_iters"),
    *noted("data", "data_path", "split", "tokenizer_*", "vocab_file", "merge_file", "mock_data", "num_workers"),
    *noted("checkpoints", "save", "load", "save_interval", "ckpt_*", "no_load_*", "no_save_*"),
    *noted("evaluation", "eval_interval", "eval_iters"),
    *noted("initial values", "init_method_std", "seed"),
)


def _recognises(document: Document) -> bool:
    return "tensor_model_parallel_size" in document.fields or any(w.startswith("pretrain_") for w in document.program)


SYSTEM = System(
    name="megatron",
    title="Megatron-LM",
    version=VERSION,
    formats=("flags", "yaml"),
    fields=FIELDS,
    settings=SETTINGS,
    recognises=_recognises,
    batch_words=("global_batch_size", "micro_batch_size", "seq_length"),
    writes=WRITES,
    text=_text,
    ending=".sh",
)
