"""Checks the assertions that Megatron-LM and Megatron-Core make before training, to find contradictory settings.

The conditions are those of validate_args in megatron/training/arguments.py, of TransformerConfig.__post_init__ in
megatron/core/transformer/transformer_config.py, of megatron/core/parallel_state.py and of the MoE layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.interop.systems.published import experts
from planc.interop.values import RefusedError, Values

Claim = tuple[bool, str, tuple[str, ...]]
"""(True if it is violated, Megatron-LM's message, the fields it is about)"""


def check_asserts(v: Values) -> None:
    """Records E1307 for each violated assertion, except those about fields that `--ignore` leaves out."""
    looked_at = set(v.looked_at)
    for claims in (_of_pipeline, _of_recomputation, _of_data_parallel, _of_tensor_parallel, _of_experts):
        try:
            for broken, message, names in claims(v):
                if broken and not set(names) & set(v.options.ignored):
                    v.apart(f"Megatron-LM stops: {message}", *names)
        except RefusedError:  # a value that cannot be read is a finding already
            continue
    v.looked_at = looked_at


def _of_pipeline(v: Values) -> Iterator[Claim]:
    pp, layers = v.whole("pipeline_model_parallel_size"), v.maybe_whole("num_layers", minimum=1) or 0
    each = "num_layers_per_virtual_pipeline_stage"
    virtual = (each, "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size")
    given = [name for name in virtual if v.has(name) and (v.maybe_whole(name) or 0) > (name != each)]
    yield bool(given) and pp == 1, "virtual stages need a pipeline of several ranks", (*given, _PP)
    yield len(given) > 1, "one of the two says how many virtual stages there are", tuple(given)
    placed = ("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    counted = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    if any(v.raw(name) not in (None, "", "None") for name in placed) or any(map(v.flag, counted)):
        return
    chunks = next((v.whole(name) for name in given if name != each), 1)
    message = f"{layers} layers are no multiple of {pp} stages" + (f" x {chunks} virtual ones" if chunks > 1 else "")
    yield pp > 1 and layers % (pp * chunks) > 0, message, ("num_layers", _PP)


_PP, _TP = "pipeline_model_parallel_size", "tensor_model_parallel_size"


def _of_recomputation(v: Values) -> Iterator[Claim]:
    kind, method = v.text("recompute_granularity"), v.text("recompute_method")
    number = v.maybe_whole("recompute_num_layers")
    has_method = method not in ("", "None")
    yield kind == "full" and not has_method, "full recomputation needs a recompute_method", (_GRANULARITY, _METHOD)
    yield kind == "full" and number is None, "full recomputation needs recompute_num_layers", (_GRANULARITY, _NUMBER)
    yield kind == "selective" and has_method, "selective recomputation has no method", (_METHOD, _GRANULARITY)
    yield kind == "selective" and number is not None, "selective recomputation has no layers", (_NUMBER, _GRANULARITY)


_GRANULARITY, _METHOD, _NUMBER = "recompute_granularity", "recompute_method", "recompute_num_layers"


def _of_data_parallel(v: Values) -> Iterator[Claim]:
    divided, gathered = v.flag("use_distributed_optimizer"), v.flag("overlap_param_gather")
    keeps = divided or v.flag("use_megatron_fsdp") or v.text("optimizer") == "dist_muon"
    message = "overlap_param_gather works with the distributed optimizer alone"
    yield gathered and not keeps, message, ("overlap_param_gather", "use_distributed_optimizer")
    message = "overlap_param_gather needs overlap_grad_reduce"
    yield gathered and not v.flag("overlap_grad_reduce"), message, ("overlap_param_gather", "overlap_grad_reduce")
    if v.flag("use_torch_fsdp2"):
        message = "use_torch_fsdp2 works without pipeline, experts' parallelism and distributed optimizer"
        inner = v.whole(_PP) * v.whole("expert_model_parallel_size")
        yield inner > 1 or divided, message, ("use_torch_fsdp2",)


def _of_tensor_parallel(v: Values) -> Iterator[Claim]:
    tp, cp, sp = v.whole(_TP), v.whole("context_parallel_size"), v.flag("sequence_parallel")
    overlapped = v.flag("tp_comm_overlap") and (tp > 1 or v.system.name == "megatron")  # Bridge turns it off at 1
    message = "tp_comm_overlap works with sequence parallelism alone"
    yield overlapped and not (sp and tp > 1), message, ("tp_comm_overlap", "sequence_parallel")
    tokens = v.maybe_whole("seq_length", minimum=1) or 0
    message = f"{tokens} tokens are no multiple of 2 x context parallelism {cp}"
    yield cp > 1 and tokens % (2 * cp) > 0, message, ("seq_length", "context_parallel_size")
    heads = v.maybe_whole("num_attention_heads", minimum=1) or 0
    message = f"{heads} heads are no multiple of tensor parallelism {tp}"
    yield heads % tp > 0, message, (_TP, "num_attention_heads")
    routed = experts(v)
    message = "experts with tensor parallelism need sequence parallelism"
    yield routed > 0 and tp > 1 and not sp, message, ("sequence_parallel", _TP)


def _of_experts(v: Values) -> Iterator[Claim]:
    ep, routed = v.whole("expert_model_parallel_size"), experts(v)
    message = f"{routed} experts are no multiple of expert parallelism {ep}"
    yield ep > 1 and (not routed or routed % ep > 0), message, ("expert_model_parallel_size", "num_experts")
    if v.flag("overlap_moe_expert_parallel_comm"):
        full = v.text("recompute_granularity") == "full"
        alltoall = v.text("moe_token_dispatcher_type") in ("alltoall", "flex")
        message = "the overlap works with expert parallelism by alltoall or flex, in bf16, without full recomputation"
        wrong = ep == 1 or full or not alltoall or not v.flag("bf16")
        yield wrong, message, ("overlap_moe_expert_parallel_comm",)
    instances = v.whole("num_distributed_optimizer_instances")
    if not routed or instances == 1 or not v.options.devices:
        return
    etp = v.maybe_whole("expert_tensor_parallel_size", minimum=1) or v.whole(_TP)
    inner = ep * etp * v.whole(_PP)
    ranks = v.devices() // inner
    message = (
        f"the experts' data-parallel ranks, {v.devices()} devices / (expert {ep} x expert tensor {etp} x pipeline"
        f" {v.whole(_PP)}) = {ranks}, are no multiple of {instances} instances of the distributed optimizer"
    )
    yield ranks % instances > 0, message, ("num_distributed_optimizer_instances", "expert_model_parallel_size")
