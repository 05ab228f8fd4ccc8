"""Megatron-LM: flags of `pretrain_gpt.py` in a shell script, or its `model_config.yaml`.

Names and defaults are those of megatron/training/arguments.py and of the dataclasses TransformerConfig and
ModelParallelConfig of megatron/core, at the commit below. `SETTINGS` reads flags, `WRITES` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from planc.diag.quoting import python_comment, shell_word
from planc.frameworks import OWN
from planc.frameworks.megatron import MODULES, VOCAB
from planc.interop.document import Document, FieldValue, Given
from planc.interop.fields import field_tables
from planc.interop.layer_patterns import even, layers_of_pattern, layout_of_stages, stages_of_layout
from planc.interop.ops import existing, linear_layers
from planc.interop.setup import ROLES, CannotSayError, DecoderShape, Quantized, Role, TrainingSetup
from planc.interop.shape import model_words, nearest_words
from planc.interop.system import OMIT, System, unless, when
from planc.interop.systems.megatron_asserts import check_asserts
from planc.interop.systems.published import experts, published_model
from planc.interop.values import Values
from planc.ir.plan import Copies, Dtype, Noun, Period, Precision, Recompute, Route

SCHEDULE = "1f1b"
VERSION = "d98e8a6"
"""The commit of these names and defaults, of 22 August 2026."""


def _data_parallel(v: Values) -> int:
    """Returns the number of data-parallel ranks: the devices divided by the degrees of pipeline, context and tensor
    parallelism."""
    devices = _devices(v)
    _older(v, "model_parallel_size", "tensor_model_parallel_size")
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
    _older(v, "batch_size", "micro_batch_size")
    return v.needed("micro_batch_size")


def _older(v: Values, old: str, name: str) -> None:
    """Raises an error for a flag of older releases, which Megatron-LM itself refuses: `name` is today's."""
    if v.is_given(old) and not v.is_given(name):
        instead = f"--set {name}={v.raw(old)}"
        raise v.refused(f"Megatron-LM itself refuses it: {name}", old, instead=instead, off="the same as it was then")


def _sequences(v: Values) -> int:
    """Returns the global batch in sequences; by default, one microbatch per data-parallel rank."""
    ranks, micro = _data_parallel(v), _microbatch(v)
    batch = v.maybe_whole("global_batch_size", minimum=1)
    if batch is None:
        return ranks * micro
    if batch % (ranks * micro):
        message = f"global batch {batch} is no multiple of {ranks} data-parallel ranks x micro batch {micro}"
        raise v.apart(f"{message} = {ranks * micro}", "global_batch_size", "micro_batch_size")
    return batch


def _replicas(v: Values) -> int:
    """Returns the number of data-parallel groups that each store a full copy of the optimizer state."""
    groups = v.whole("num_distributed_optimizer_instances")
    ranks = _data_parallel(v)
    if ranks % groups:
        message = f"{ranks} data-parallel ranks are no multiple of {groups} groups that hold the optimizer's state"
        raise v.apart(message, "num_distributed_optimizer_instances")
    return groups


def _gather(v: Values) -> Period | None:
    return "microbatch" if v.flag("use_torch_fsdp2") and v.flag("torch_fsdp2_no_reshard_after_forward") else None


def _zero(v: Values) -> int:
    if v.is_given("deepspeed"):
        v.approximate("DeepSpeed's engine trains: its buckets and overlap are taken to be Megatron-LM's", "deepspeed")
        return v.maybe_whole("zero_stage") or 0
    if v.flag("use_torch_fsdp2"):
        return 3
    if v.flag("use_megatron_fsdp"):
        strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        return strategies[v.text("data_parallel_sharding_strategy", *strategies)]
    return 1 if v.flag("use_distributed_optimizer") else 0


def _shape(v: Values) -> DecoderShape:
    """Returns the sizes of the decoder. Missing sizes follow Megatron-LM's rules."""
    embed, heads = v.needed("hidden_size"), v.needed("num_attention_heads")
    gated = v.flag("swiglu") or v.flag("quick_geglu")
    ffn = v.maybe_whole("ffn_hidden_size", minimum=1)
    if ffn is None:  # arguments.py: 4h, and with swiglu (8/3)h cut to a multiple of 64
        ffn = int(4 * embed * 2 / 3 / 64) * 64 if v.flag("swiglu") else 4 * embed
    routed = v.maybe_whole("num_experts", minimum=1) or 0
    dense = dense_layers(v) if routed else 0
    rotary, latent = _rotary(v), v.flag("multi_latent_attention")
    return DecoderShape(
        layers=v.needed("num_layers"),
        embed=embed,
        heads=heads,
        kv_heads=heads if latent else _kv_heads(v, heads),
        head_dim=v.whole("v_head_dim") if latent else v.maybe_whole("kv_channels", minimum=1) or embed // heads,
        ffn=ffn if not routed or dense else 0,
        vocab=_padded_vocab(v),
        positions=0 if rotary else v.needed("max_position_embeddings"),
        gated=gated,
        rms_norm=v.text("normalization", "LayerNorm", "RMSNorm", "layernorm", "rmsnorm").lower() == "rmsnorm",
        rotary=rotary,
        biased=not v.flag("disable_bias_linear"),
        query_norm=not latent and v.flag("qk_layernorm"),
        query_bias=v.flag("disable_bias_linear") and v.flag("add_qkv_bias"),
        tied=not v.flag("untie_embeddings_and_output_weights"),
        experts=routed,
        top_k=v.whole("moe_router_topk") if routed else 0,
        expert_ffn=(v.maybe_whole("moe_ffn_hidden_size", minimum=1) or ffn) if routed else 0,
        shared_ffn=(v.maybe_whole("moe_shared_expert_intermediate_size") or 0) if routed else 0,
        dense_layers=dense,
        mtp_layers=_ahead(v),
        q_lora=(v.maybe_whole("q_lora_rank") or 0) if latent else 0,
        kv_lora=v.whole("kv_lora_rank") if latent else 0,
        nope_dim=v.whole("qk_head_dim") if latent else 0,
        rope_dim=v.whole("qk_pos_emb_head_dim") if latent else 0,
    )


def _ahead(v: Values) -> int:
    """Returns the number of MTP modules."""
    return v.maybe_whole("mtp_num_layers") or 0


def _kv_heads(v: Values, heads: int) -> int:
    if v.has("group_query_attention") and not v.flag("group_query_attention"):
        return heads
    return v.maybe_whole("num_query_groups", minimum=1) or heads


def _rotary(v: Values) -> bool:
    """True if positions are rotary, False if they are learned."""
    kind = v.text("position_embedding_type", "learned_absolute", "rope", "yarn", "none", "mrope", "relative", *_FORKS)
    if v.flag("use_rotary_position_embeddings"):
        return True
    if kind in ("none", "relative", "alibi") or (kind == "learned_absolute" and v.flag("no_position_embedding")):
        off = "they have no parameters, and the same time but for the positions' own"
        instead = "--set position_embedding_type=rope, the nearest"
        raise v.refused("no model of the catalog has such positions", _POSITIONS, instead=instead, off=off)
    return kind not in ("learned_absolute", "absolute")


_POSITIONS = "position_embedding_type"
_FORKS = ("alibi", "rotary", "absolute")
"""Positions that only versions of Megatron-LM by others have."""


def dense_layers(v: Values) -> int:
    """Returns the number of leading layers without experts, from `moe_layer_freq`."""
    layers, text = v.needed("num_layers"), v.text("moe_layer_freq")
    pattern = layers_of_pattern(text, layers)
    if pattern is None:
        raise v.wrong("moe_layer_freq", f"a number or a pattern of {layers} zeros and ones, as ([0]*3+[1]*58)")
    dense = pattern.index(1) if 1 in pattern else layers
    if 0 in pattern[dense:]:
        raise v.refused("layers without experts among those with them", "moe_layer_freq")
    return dense


def _padded_vocab(v: Values) -> int:
    """Returns the size of the vocabulary, padded to a multiple of `make_vocab_size_divisible_by` x tp."""
    given = v.maybe_whole("padded_vocab_size", minimum=1)
    if given is not None:
        return given
    if v.flag("no_pad_vocab_size"):
        return v.needed("vocab_size")
    multiple = v.whole("make_vocab_size_divisible_by") * v.whole("tensor_model_parallel_size")
    vocab = v.needed("vocab_size")
    return -(-vocab // multiple) * multiple


def model_of_sizes(v: Values) -> str:
    """Returns the words after `model` in the plan, from the command line or the flags for sizes (`--num-layers`)."""
    programs = [w for d in v.documents for w in d.program if "pretrain_" in w]
    if any(word in w for w in programs for word in ("bert", "t5", "vlm", "vision", "ict", "retro", "mamba", "hybrid")):
        raise v.refused(f"{programs[0]} trains a model of another kind than GPT", "num_layers")
    if v.text("tokenizer_type").startswith("Bert"):
        raise v.refused("the tokenizer of BERT, whose model is an encoder", "tokenizer_type")
    if named := v.options.model or published_model(v):
        return named
    try:
        return model_words(_shape(v))
    except ValueError as error:
        if not v.options.approximate:
            raise v.refused(str(error), "num_layers", "hidden_size") from None
        why = str(error)
    try:
        words, unlike = nearest_words(_shape(v))
    except ValueError:
        raise v.refused(why, "num_layers", "hidden_size") from None
    v.approximate(f"{why}; the plan's is the nearest, without {unlike}", "num_layers", "hidden_size")
    return words


def _chunks(v: Values) -> int:
    pp, layers = v.whole("pipeline_model_parallel_size"), v.maybe_whole("num_layers", minimum=1) or 0
    if pp == 1:
        return 1
    if layout := _layout(v):
        return len(layout) // pp
    each = v.maybe_whole("num_layers_per_virtual_pipeline_stage", minimum=1)
    if each is not None:
        if layers % (pp * each):
            message = f"{layers} layers are no multiple of {pp} stages x {each} layers a virtual stage"
            raise v.apart(message, "num_layers_per_virtual_pipeline_stage")
        return layers // (pp * each)
    direct = v.maybe_whole("virtual_pipeline_model_parallel_size", minimum=1)
    return direct or v.maybe_whole("num_virtual_stages_per_pipeline_rank", minimum=1) or 1


def _layout(v: Values) -> tuple[int, ...]:
    """Returns the number of layers of each virtual stage in `pipeline_model_parallel_layout`; () if it is not set."""
    text = v.text("pipeline_model_parallel_layout")
    if text.lower() in ("", "none"):
        return ()
    stages = stages_of_layout(text)
    if stages is None:
        raise v.refused("stages of other parts than embedding, layers and loss", "pipeline_model_parallel_layout")
    pp, layers = v.whole("pipeline_model_parallel_size"), v.maybe_whole("num_layers", minimum=1) or 0
    layers += _ahead(v) if layers else 0
    if len(stages) % pp or (layers and sum(stages) != layers):
        message = f"{len(stages)} stages of {sum(stages)} layers are not those of {layers} layers over {pp} ranks"
        raise v.apart(message, "pipeline_model_parallel_layout")
    return stages


def _stages(v: Values) -> tuple[int, ...]:
    """Returns the number of layers of each virtual stage; () for an even split. MTP modules count as layers: without a
    layout they are all on the last stage (megatron/core/transformer/multi_token_prediction.py)."""
    pp, layers, ahead = v.whole("pipeline_model_parallel_size"), v.maybe_whole("num_layers", minimum=1) or 0, _ahead(v)
    if pp == 1:
        return ()
    if layout := _layout(v):
        return () if layout == even(layers + ahead, len(layout)) else layout
    stages = _stages_of_layers(v, pp, layers)
    if not ahead:
        return stages
    stages = stages or even(layers, pp * _chunks(v))
    return (*stages[:-1], stages[-1] + ahead)


def _stages_of_layers(v: Values, pp: int, layers: int) -> tuple[int, ...]:
    """Returns the layers of each virtual stage if no layout is set, MTP modules not counted; () for an even split."""
    count = pp * _chunks(v)
    first = v.maybe_whole("decoder_first_pipeline_num_layers")
    last = v.maybe_whole("decoder_last_pipeline_num_layers")
    if first is not None or last is not None:
        given = (first is not None) + (last is not None)
        inner, rest = divmod(layers - (first or 0) - (last or 0), max(pp - given, 1))
        names = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
        if rest or inner < 0 or (inner and pp == given):
            raise v.apart("the other stages do not divide the remaining layers", *names)
        if _chunks(v) > 1:
            off = "the first and last rank have as many layers as the others: their memory and time are other in truth"
            raise v.refused("a first and last rank of several stages: planc reads the layout string", *names, off=off)
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
    group = v.maybe_whole("microbatch_group_size_per_virtual_pipeline_stage", minimum=1)
    if group not in (None, v.whole("pipeline_model_parallel_size")) and _chunks(v) > 1:
        name = "microbatch_group_size_per_virtual_pipeline_stage"
        off = "the bubble and the microbatches in flight are slightly other in truth"
        raise v.refused("only groups as large as the pipeline are simulated", name, off=off)
    return "interleaved_1f1b" if _chunks(v) > 1 else SCHEDULE


def _context(v: Values) -> str:
    kind = v.words("cp_comm_type")
    methods = {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses"}
    if v.whole("context_parallel_size") == 1:
        return "ring"
    if len(set(kind)) > 1 or (kind and kind[0] not in methods):
        off = "the exchange of context parallelism is faster in truth"
        raise v.refused("hierarchical context parallelism has no sentence", "cp_comm_type", off=off)
    return methods[kind[0]] if kind else "ring"


def _order(v: Values) -> tuple[Role, ...]:
    return ("replica", "shard", "pp", "cp", "tp") if v.flag("use_tp_pp_dp_mapping") else ROLES


def _expert_degrees(v: Values) -> tuple[int, int]:
    if not experts(v):
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
    """Raises RefusedError for Megatron's default dispatcher, all-gather: planc costs only all-to-all."""
    if experts(v) and v.text("moe_token_dispatcher_type") == "allgather":
        raise v.refused(
            "gathering every token for the experts, Megatron-LM's default, has no sentence",
            "moe_token_dispatcher_type",
            instead="--set moe_token_dispatcher_type=alltoall, which gives the same result",
            off="the exchange is slower and takes more memory in truth",
        )


def _route(v: Values) -> Route:
    _dispatched(v)
    factor = v.maybe_number("moe_expert_capacity_factor")
    once = experts(v) > 0 and v.text("moe_token_dispatcher_type") == "flex"
    copies: Copies = "node" if once else "choice"  # DeepEP and HybridEP send a token once to each node
    return Route(copies=copies) if factor is None else Route(method="capacity", factor=factor, copies=copies)


def mixed_precision(v: Values) -> Precision:
    """Returns the dtypes of compute and of the gradient reduction."""
    compute = _compute(v)
    return Precision(compute=compute, reduce=compute if _narrow_grads(v) else "fp32")


def _compute(v: Values) -> Dtype:
    if not v.flag("fp16"):
        return "bf16" if v.flag("bf16") else "fp32"
    if v.flag("bf16"):
        raise v.apart("Megatron-LM asserts that one of fp16 and bf16 is set", "fp16", "bf16")
    return "fp16"


WHOLE_GRADS = "accumulate_allreduce_grads_in_fp32"
"""The flag of Megatron-LM for gradients in fp32, which bf16 turns on and fp16 does not."""


def _narrow_grads(v: Values) -> bool:
    """True if gradients are stored and reduced in the compute dtype, not in fp32."""
    v.is_given(WHOLE_GRADS)
    if _compute(v) == "fp32":
        return False
    if _compute(v) == "fp16" and v.system.known(WHOLE_GRADS):
        return not v.flag(WHOLE_GRADS)
    return v.flag("grad_reduce_in_bf16") or (
        v.flag("use_precision_aware_optimizer") and v.text("main_grads_dtype", "fp32", "bf16") == "bf16"
    )


def _stored(v: Values) -> tuple[tuple[Noun, str], ...]:
    found: list[tuple[Noun, str]] = [("grads", _compute(v))] if _narrow_grads(v) else []
    if not v.flag("use_precision_aware_optimizer"):
        return tuple(found)
    if v.text("main_params_dtype", "fp32", "fp16") != "fp32":
        why, off = "master parameters that keep the rest of their bits elsewhere", "they take less memory in truth"
        raise v.refused(why, "main_params_dtype", off=off)
    first, second = (v.text(n, "fp32", "fp16", "bf16", "fp8") for n in ("exp_avg_dtype", "exp_avg_sq_dtype"))
    if first != second or first in ("fp16", "fp8"):
        why, off = "planc keeps both moments in one dtype, fp32 or bf16", "they take less memory in truth"
        raise v.refused(why, "exp_avg_dtype", "exp_avg_sq_dtype", off=off)
    return (*found, ("optimizer", "bf16")) if first == "bf16" else tuple(found)


KERNELS = {"auto": "", "flash": "flash", "fused": "cudnn", "unfused": "unfused", "local": "unfused"}
"""Megatron-LM's attention backends, and planc's kernels."""


def _kernel(v: Values) -> str:
    return KERNELS[v.text("attention_backend", *KERNELS)]


def _recompute(v: Values) -> Recompute:
    if v.is_given("checkpoint_activations") and not v.is_given("recompute_granularity"):
        instead = "--set recompute_granularity=full --set recompute_method=uniform --set recompute_num_layers=1"
        why, off = "Megatron-LM itself refuses it: recompute_granularity", "the same as it was then, layer by layer"
        raise v.refused(why, "checkpoint_activations", instead=instead, off=off)
    if v.is_given("tuner_type") and v.text("tuner_type") != "full":
        off = "all parameters are trained: gradients, optimizer and time are less in truth"
        raise v.refused("adapters of low rank are not read from flags", "tuner_type", off=off)
    if v.is_given("seq_length") and v.spelled("seq_length") == "max_length":
        v.approximate("sequences are at most so long, and shorter in truth unless they are packed", "seq_length")
    granularity = v.text("recompute_granularity", "", "None", "none", "full", "selective")
    if v.flag("moe_layer_recompute"):
        if granularity in ("full", "selective"):
            why, off = (
                "recompute of experts together with another recompute",
                "memory is lower, and time higher in truth",
            )
            raise v.refused(why, "moe_layer_recompute", off=off)
        return Recompute(ops=existing(v.model(), *MODULES["moe"]))
    if granularity == "full":
        return _whole_layers(v)
    if granularity == "selective":
        modules = v.words("recompute_modules") or ("core_attn",)
        unknown = [m for m in modules if m not in MODULES]
        if unknown:
            off = "other activations are kept in truth"
            raise v.refused(f"no op of a plan is Megatron's `{unknown[0]}`", "recompute_modules", off=off)
        ops = dict.fromkeys(op for m in modules for op in MODULES[m])
        return Recompute(ops=existing(v.model(), *ops))
    if v.flag("recompute_activations"):
        return Recompute(ops=MODULES["core_attn"])
    return Recompute()


def _whole_layers(v: Values) -> Recompute:
    method, number = v.text("recompute_method", "", "None", "uniform", "block"), v.maybe_whole("recompute_num_layers")
    layers, pp = v.maybe_whole("num_layers", minimum=1) or 0, v.whole("pipeline_model_parallel_size")
    if method == "block" and number is not None and number * pp < layers:
        if layers % (number * pp):
            off = "every layer is recomputed: memory is higher, and time lower in truth"
            instead = "--set recompute_num_layers=1 --set recompute_method=uniform, every layer"
            why = "recomputing some layers of a stage has no sentence"
            raise v.refused(why, "recompute_num_layers", instead=instead, off=off)
        return Recompute(ops=("whole_blocks",), every=layers // (number * pp))
    if method == "uniform" and (number or 1) > 1:
        instead = "--set recompute_num_layers=1, or --ignore recompute_num_layers: every layer's input is kept then"
        why, off = "keeping the input of each few layers has no sentence", "memory is lower in truth"
        raise v.refused(why, "recompute_num_layers", instead=instead, off=off)
    return Recompute(ops=("whole_blocks",))


def _quantized(v: Values) -> tuple[Quantized, ...]:
    kept = _layers_in_bf16(v)
    if v.text("fp4", "", "None", "none", "e2m1") not in ("", "None", "none"):
        if v.text("fp4_recipe", "nvfp4", "custom") == "custom":
            raise v.refused("a recipe in code has no sentence", "fp4_recipe", off="the recipe's own costs are unknown")
        return (Quantized(which=linear_layers(v.model()), method=f"float4{kept}"),)
    if v.text("fp8", "", "None", "e4m3", "hybrid") in ("", "None"):
        return ()
    recipes = {"tensorwise": "tensorwise", "delayed": "tensorwise", "mxfp8": "tile = 32", "blockwise": "tile = 128"}
    recipe = v.text("fp8_recipe", *recipes, "custom")
    if recipe == "custom":
        raise v.refused("a recipe in code has no sentence", "fp8_recipe", off="the recipe's own costs are unknown")
    return (Quantized(which=linear_layers(v.model()), method=f"float8({recipes[recipe]}){kept}"),)


def _layers_in_bf16(v: Values) -> str:
    """Returns the clause `except layers ...` of `quantize` for first and last layers in bf16; "" for none."""
    if not v.flag("first_last_layers_bf16"):
        return ""
    layers = v.needed("num_layers")
    first, last = (v.whole(n, minimum=0) for n in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"))
    ranges = [f"0..{first - 1}"] if first else []
    ranges += [f"{layers - last}..{layers - 1}"] if last else []
    return f" except layers {', '.join(ranges)}" if ranges else ""


def framework_of(v: Values, name: str) -> str:
    """Returns `name` if the framework's default padded the vocabulary, to a multiple of 128 x tp; else `planc`."""
    padded = v.maybe_whole("padded_vocab_size", minimum=1) or 0
    multiple = VOCAB * v.whole("tensor_model_parallel_size")
    usual = v.whole("make_vocab_size_divisible_by") == VOCAB and not v.flag("no_pad_vocab_size")
    return name if usual and padded % multiple == 0 else OWN


def overlaps(v: Values) -> tuple[tuple[Role | Literal["ep"], str], ...]:
    """Returns the overlaps of transfers and compute, by axis. The gradient reduction and the parameter all-gather
    overlap only if flags say so."""
    found: list[tuple[Role | Literal["ep"], str]] = []
    reduced, gathered = v.flag("overlap_grad_reduce"), v.flag("overlap_param_gather")
    if not reduced and not v.flag("use_torch_fsdp2"):
        found += [("replica", "none"), ("shard", "none")]
    elif _zero(v) == 1 and not gathered:
        why = "overlap of the gradient reduction without that of the parameter all-gather"
        raise v.refused(
            why,
            "overlap_param_gather",
            instead="--set overlap_param_gather=true, or overlap_grad_reduce=false",
            off="the step is slower in truth, by the gathers that are exposed",
        )
    if v.flag("tp_comm_overlap") and v.whole("tensor_model_parallel_size") > 1:
        found.append(("tp", "async_matmul"))
    if v.flag("overlap_moe_expert_parallel_comm") and _expert_degrees(v)[0] > 1:
        found.append(("ep", "dual_batch"))
    return tuple(found)


def _fused_loss(v: Values) -> tuple[str, ...]:
    if not v.flag("cross_entropy_loss_fusion"):
        return ()
    if v.text("cross_entropy_fusion_impl", "native", "te", "linear") == "linear":
        why = "head and loss in one kernel have no sentence; `loss in 8 chunks` keeps no logits either"
        raise v.refused(why, "cross_entropy_fusion_impl", off="memory of logits is lower in truth")
    return ("loss",)


def _optimizer(v: Values) -> str:
    kind = v.text("optimizer", "adam", "sgd", "muon", "dist_muon", "lion")
    if kind in ("sgd", "lion"):
        off = "the state has a moment less for each parameter in truth"
        raise v.refused("planc's optimizers are AdamW and Muon", "optimizer", off=off)
    return "adamw" if kind == "adam" else "muon"


def _sequence_parallel(v: Values) -> bool:
    return v.flag("sequence_parallel") and v.whole("tensor_model_parallel_size") > 1


def _offloaded(v: Values) -> tuple[str, ...]:
    if not v.flag("optimizer_cpu_offload"):
        return ()
    if v.number("optimizer_offload_fraction") != 1.0:
        why, off = (
            "a part of the optimizer's state in host memory has no sentence",
            "more memory and less time in truth",
        )
        raise v.refused(why, "optimizer_offload_fraction", off=off)
    return ("optimizer",)


SETTINGS = {
    "cluster": lambda v: (v.devices(), v.options.cluster)[1],
    "devices": _devices,
    "model": model_of_sizes,
    "sequences": _sequences,
    "sequence_tokens": lambda v: v.needed("seq_length"),
    "microbatch": _microbatch,
    "pp": lambda v: v.whole("pipeline_model_parallel_size"),
    "replica": _replicas,
    "shard": lambda v: _data_parallel(v) // _replicas(v),
    "cp": lambda v: v.whole("context_parallel_size"),
    "tp": lambda v: v.whole("tensor_model_parallel_size"),
    "ep": lambda v: _expert_degrees(v)[0],
    "etp": lambda v: _expert_degrees(v)[1],
    "order": _order,
    "zero": _zero,
    "zero_over_cp": lambda v: _zero(v) > 0 and v.whole("context_parallel_size") > 1,
    "gather": _gather,
    "sp": _sequence_parallel,
    "cp_method": _context,
    "schedule": _schedule,
    "chunks": _chunks,
    "stages": _stages,
    "route": _route,
    "optimizer": _optimizer,
    "precision": mixed_precision,
    "stored": _stored,
    "kernel": _kernel,
    "recompute": _recompute,
    "compiled": lambda v: _fused_loss(v),
    "quantized": _quantized,
    "offloaded": _offloaded,
    "overlaps": overlaps,
    "framework": lambda v: framework_of(v, "megatron"),
}


def _shape_of(s: TrainingSetup) -> DecoderShape:
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
    """Returns the modules for `--recompute-modules`: all ops of each are recomputed. OMIT for the default."""
    if s.recompute.blocks or not s.recompute.ops or s.graph is None:
        return OMIT
    modules = {m: existing(s.graph, *named) for m, named in MODULES.items()}
    found = tuple(m for m, named in modules.items() if named and set(named) <= set(s.recompute.ops))
    return OMIT if found == ("core_attn",) else found or OMIT


def _written_blocks(s: TrainingSetup) -> object:
    if not s.recompute.blocks:
        return OMIT
    return s.shape.layers // (s.pp * s.recompute.every) if s.shape and s.recompute.every > 1 else 1


FLOAT8: dict[str, str] = {
    "tensorwise": "float8(tensorwise)",
    "mxfp8": "float8(tile = 32)",
    "blockwise": "float8(tile = 128)",
}
"""FP8 recipes, and what follows `as` in a plan."""


def _laid_out(s: TrainingSetup) -> tuple[int, ...]:
    """Returns the number of layers of each virtual stage for a layout; () if none is needed. An even split with MTP
    modules needs one, because Megatron's own split puts all of them on the last stage."""
    if s.stages or s.pp == 1 or s.shape is None or not s.shape.mtp_layers:
        return s.stages
    return even(s.shape.layers + s.shape.mtp_layers, s.pp * s.chunks)


def _dispatcher(s: TrainingSetup) -> str:
    if s.route.copies == "device":
        raise CannotSayError(
            "one copy of a token a device: Megatron's dispatchers send one a choice or a node", "route"
        )
    return "flex" if s.route.copies == "node" else "alltoall"


WRITES = {
    "num_layers": lambda s: _shape_of(s).layers,
    "hidden_size": lambda s: _shape_of(s).embed,
    "ffn_hidden_size": lambda s: unless(0, _shape_of(s).ffn or _shape_of(s).expert_ffn),
    "num_attention_heads": lambda s: _shape_of(s).heads,
    "group_query_attention": lambda s: when(_grouped(s)),
    "num_query_groups": lambda s: when(_grouped(s), _shape_of(s).kv_heads),
    "kv_channels": lambda s: when(_odd_heads(s), _shape_of(s).head_dim),
    "seq_length": lambda s: s.sequence_tokens,
    "max_position_embeddings": lambda s: _shape_of(s).positions or s.sequence_tokens,
    "position_embedding_type": lambda s: when(_shape_of(s).rotary, "rope"),
    "normalization": lambda s: when(_shape_of(s).rms_norm, "RMSNorm"),
    "swiglu": lambda s: when(_shape_of(s).gated),
    "disable_bias_linear": lambda s: when(not _shape_of(s).biased),
    "qk_layernorm": lambda s: when(_shape_of(s).query_norm),
    "add_qkv_bias": lambda s: when(_shape_of(s).query_bias),
    "untie_embeddings_and_output_weights": lambda s: when(not _shape_of(s).tied),
    "vocab_size": lambda s: _shape_of(s).vocab,
    "make_vocab_size_divisible_by": lambda s: when(_shape_of(s).vocab % (128 * s.tp) > 0, 1),
    "num_experts": lambda s: unless(0, _shape_of(s).experts),
    "moe_router_topk": lambda s: when(_shape_of(s).experts > 0, _shape_of(s).top_k),
    "moe_ffn_hidden_size": lambda s: unless(0, _shape_of(s).expert_ffn),
    "moe_shared_expert_intermediate_size": lambda s: unless(0, _shape_of(s).shared_ffn),
    "moe_layer_freq": lambda s: when(_shape_of(s).dense_layers > 0, _frequency(_shape_of(s))),
    "multi_latent_attention": lambda s: when(_shape_of(s).kv_lora > 0),
    "q_lora_rank": lambda s: unless(0, _shape_of(s).q_lora),
    "kv_lora_rank": lambda s: unless(0, _shape_of(s).kv_lora),
    "qk_head_dim": lambda s: unless(0, _shape_of(s).nope_dim),
    "qk_pos_emb_head_dim": lambda s: unless(0, _shape_of(s).rope_dim),
    "mtp_num_layers": lambda s: unless(0, _shape_of(s).mtp_layers),
    "moe_token_dispatcher_type": lambda s: when(_shape_of(s).experts > 0, _dispatcher(s)),
    "moe_expert_capacity_factor": lambda s: when(s.route.method == "capacity", s.route.factor),
    "micro_batch_size": lambda s: s.microbatch,
    "global_batch_size": lambda s: s.sequences,
    "tensor_model_parallel_size": lambda s: s.tp,
    "pipeline_model_parallel_size": lambda s: s.pp,
    "context_parallel_size": lambda s: unless(1, s.cp),
    "expert_model_parallel_size": lambda s: when(_shape_of(s).experts > 0, s.ep),
    "expert_tensor_parallel_size": lambda s: when(_shape_of(s).experts > 0, s.etp),
    "sequence_parallel": lambda s: when(s.sp),
    "cp_comm_type": lambda s: when(s.cp > 1, {"ring": "p2p", "ulysses": "a2a"}.get(s.cp_method, s.cp_method)),
    "use_tp_pp_dp_mapping": lambda s: when(_outermost_data(s)),
    "num_virtual_stages_per_pipeline_rank": lambda s: when(s.chunks > 1 and not _laid_out(s), s.chunks),
    "pipeline_model_parallel_layout": lambda s: when(
        bool(_laid_out(s)), layout_of_stages(_laid_out(s), _shape_of(s).mtp_layers)
    ),
    "num_distributed_optimizer_instances": lambda s: when(s.zero == 1 and s.replica > 1, s.replica),
    "use_distributed_optimizer": lambda s: when(s.zero > 0),
    "use_megatron_fsdp": lambda s: when(s.zero >= 2),
    "data_parallel_sharding_strategy": _written_zero,
    "overlap_grad_reduce": lambda s: when(
        ("shard", "none") not in s.overlaps and ("replica", "none") not in s.overlaps
    ),
    "overlap_param_gather": lambda s: when(s.zero > 0 and ("shard", "none") not in s.overlaps),
    "tp_comm_overlap": lambda s: when(("tp", "async_matmul") in s.overlaps),
    "overlap_moe_expert_parallel_comm": lambda s: when(("ep", "dual_batch") in s.overlaps),
    "bf16": lambda s: when(s.precision.compute == "bf16"),
    "fp16": lambda s: when(s.precision.compute == "fp16"),
    WHOLE_GRADS: lambda s: when(s.precision.compute == "fp16" and s.precision.reduce == "fp32"),
    "use_precision_aware_optimizer": lambda s: when(("optimizer", "bf16") in s.stored),
    "exp_avg_dtype": lambda s: when(("optimizer", "bf16") in s.stored, "bf16"),
    "exp_avg_sq_dtype": lambda s: when(("optimizer", "bf16") in s.stored, "bf16"),
    "fp8_format": lambda s: when(_narrow(s) in FLOAT8.values(), "hybrid"),
    "fp8_recipe": lambda s: next((recipe for recipe, said in FLOAT8.items() if said == _narrow(s)), OMIT),
    "fp4_format": lambda s: when(_narrow(s) == "float4", "e2m1"),
    "attention_backend": lambda s: next((b for b, k in KERNELS.items() if k and k == s.kernel), OMIT),
    "cross_entropy_loss_fusion": lambda s: when("loss" in s.compiled),
    "grad_reduce_in_bf16": lambda s: when(s.precision.reduce == "bf16"),
    "recompute_granularity": _written_granularity,
    "recompute_method": lambda s: when(s.recompute.blocks, "block" if s.recompute.every > 1 else "uniform"),
    "recompute_num_layers": _written_blocks,
    "recompute_modules": _written_modules,
    "optimizer": lambda s: when(s.optimizer == "muon", "muon"),
    "optimizer_cpu_offload": lambda s: when("optimizer" in s.offloaded),
}


def _fitted(wanted: Mapping[str, Any], given: Mapping[str, FieldValue]) -> Mapping[str, Any]:
    """Returns the flags `wanted` with the vocabulary of a script, where padding makes the plan's of it."""
    own, padded = str(given.get("vocab_size", "")), wanted.get("vocab_size", OMIT)
    if not own.isdecimal() or not isinstance(padded, int) or len(own) > 9 or "padded_vocab_size" in given:
        return wanted
    vocab, tp, name = int(own), int(wanted["tensor_model_parallel_size"]), "make_vocab_size_divisible_by"
    now = str(given.get(name, 128))
    steps = [int(now)] if now.isdecimal() and len(now) < 9 else []
    steps += [128, *(2**n for n in range(20, -1, -1)), *range(1, 257)]
    step = next((n for n in steps if n and -(-vocab // (n * tp)) * n * tp == padded), None)
    if step is None or not 0 < vocab <= padded:
        return wanted
    return {**wanted, "vocab_size": vocab, name: OMIT if step == 128 and name not in given else step}


def _narrow(s: TrainingSetup) -> str:
    """Returns the quantization of all linear layers, such as `float8(tensorwise)`; "" for none. Raises CannotSayError
    if only some layers are quantized."""
    if not s.quantized:
        return ""
    one = s.quantized[0]
    whole = s.graph is not None and one.which == linear_layers(s.graph)
    if len(s.quantized) > 1 or not whole or one.method not in (*FLOAT8.values(), "float4"):
        raise CannotSayError("all linear layers, by tensor or in tiles of 32 or 128, or none", "quantize")
    return one.method


def _frequency(shape: DecoderShape) -> str:
    return f"([0]*{shape.dense_layers}+[1]*{shape.layers - shape.dense_layers})"


def _grouped(s: TrainingSetup) -> bool:
    shape = _shape_of(s)
    return not shape.kv_lora and shape.kv_heads not in (0, shape.heads)


def _odd_heads(s: TrainingSetup) -> bool:
    shape = _shape_of(s)
    return not shape.kv_lora and shape.head_dim * shape.heads != shape.embed and shape.head_dim > 0


def _outermost_data(s: TrainingSetup) -> bool:
    used = [role for role in s.order if s.degree(role) > 1]
    return "pp" in used and any(role in used[: used.index("pp")] for role in ("shard", "replica"))


def _text(fields: Mapping[str, Any], s: TrainingSetup) -> str:
    """Returns a script that starts `pretrain_gpt.py` with these flags. Values that a plan does not have (data, learning
    rate) come from environment variables."""
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
    lines += ["  --ckpt-format fsdp_dtensor \\"] if s.zero >= 2 else []
    lines.append('  --data-path "${DATA_PATH:?}" --train-iters "${TRAIN_ITERS:?}" --lr "${LR:?}"')
    return "\n".join(lines) + "\n"


def _recognises(document: Document) -> bool:
    if document.format == "yaml":
        return any(name.startswith("MODEL_ARGS.--") for name in document.fields)
    degrees = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    return any(name in document.fields for name in degrees) or any("pretrain_" in w for w in document.program)


def _prepared(document: Document) -> Document:
    """Renames the flags of a `model_config.yaml` to field names; returns other documents unchanged."""
    if document.format != "yaml":
        return replace(document, fields=_of_deepspeed(document.fields)) if "deepspeed" in document.fields else document
    fields = {}
    for name, given in document.fields.items():
        found = _FLAG.fullmatch(name)
        fields[found[1].replace("-", "_") if found else name] = replace(given, value=listed(given.value))
    return replace(document, fields=fields)


def _of_deepspeed(fields: dict[str, Given]) -> dict[str, Given]:
    """Returns the flags of Megatron-DeepSpeed with Megatron-LM's names; several `--num-experts` are one number if they
    are equal."""
    found = {DEEPSPEED.get(name, name): given for name, given in fields.items()}
    if (several := found.get("num_experts")) and isinstance(several.value, tuple) and len({*several.value}) == 1:
        found["num_experts"] = replace(several, value=several.value[0])
    if (several := found.get("num_experts")) and several.value == "1":  # what it calls a dense model
        found = {name: given for name, given in found.items() if name not in ("num_experts", *DEEPSPEED.values())}
    if (ulysses := fields.get("ds_sequence_parallel_size")) is not None:
        found["cp_comm_type"] = replace(ulysses, value="a2a")
    return found


DEEPSPEED = {
    "moe_expert_parallel_size": "expert_model_parallel_size",
    "topk": "moe_router_topk",
    "moe_train_capacity_factor": "moe_expert_capacity_factor",
    "expert_interval": "moe_layer_freq",
}
"""Flags of Megatron-DeepSpeed for experts, and Megatron-LM's."""
_FLAG = re.compile(r"MODEL_ARGS\.--([\w-]+)")


def listed(value: FieldValue) -> FieldValue:
    """Returns the words of a value such as `[a b]`, several values of a flag in a YAML file; other values unchanged."""
    if isinstance(value, tuple) and len(value) == 1:
        value = f"[{value[0]}]"
    inside = isinstance(value, str) and re.fullmatch(r"\[([^\[\]*+]+)\]", value)
    return tuple(inside[1].replace(",", " ").split()) if inside else value


CANNOT = {
    "override": "single tensors are not laid out by flags",
    "gather": "parameters of Megatron-FSDP are gathered for each pass",
    "recompute": "whole layers, or its own modules whole",
    "quantize": "all linear layers, by tensor or in tiles of 32 or 128, or none",
    "attention.core": "its context parallelism is p2p, all_gather and a2a, with its own balance",
    "overlap": "only data parallelism, whole, and tensor parallelism with sequence parallelism",
    "store": "state divided over data-parallel ranks as ZeRO 1, 2 or 3 does",
    "shard": "heads, feed-forward and vocabulary over tensor parallelism together",
    "compute": "bf16 or fp16, with gradients in fp32 or kept in it too, or fp32",
    "route": "dropless, or a capacity by expert",
    "model": "its model is one of a GPT, of Llama's family or of DeepSeek's, by sizes",
}
TABLES = field_tables("megatron")
"""Its flags by what they are of; `tests/interop/facts/megatron.json` holds what its own parser says of each."""
SYSTEM = System(
    name="megatron",
    title="Megatron-LM",
    version=VERSION,
    formats=("flags", "yaml"),
    fields=tuple(chain.from_iterable(TABLES.values())),
    settings=SETTINGS,
    recognises=_recognises,
    batch_words=("global_batch_size", "micro_batch_size", "seq_length"),
    writes=WRITES,
    text=_text,
    fitted=_fitted,
    ending=".sh",
    prepared=_prepared,
    cannot=CANNOT,
    asserts=check_asserts,
)
