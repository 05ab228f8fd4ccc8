"""Bytes and rooflines of a generator: weights, cache, activations, what fits, and both peaks of a shared device.

The engine that is counted is vLLM, whose allocation is documented and whose logs state each part; SGLang's differs in
the share that it leaves (`mem_fraction_static`). Published figures are in `tests/cost/caches.toml`. Times are
rooflines: no queue, no scheduler, no collective; AIConfigurator (NVIDIA) and Vidur (arXiv:2405.05465) simulate those.
"""

from __future__ import annotations

from collections.abc import Collection
from math import floor, prod

from planc.costing.compute.flops import model_flops_per_token
from planc.costing.machine.rates import dtype_s_per_flop, memory_bytes_per_s
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import EXPERTS, Param
from planc.ir.plan import Plan
from planc.ir.report import MemoryParts
from planc.ir.served import CacheSize, ServedMemory, ServedWeights, SharedPeaks, WindowCache
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_length, param_elements
from planc.sharding.redistribute import restrict
from planc.sharding.stage_assignment import copies_on, sections_on
from planc.sharding.transfers import narrows

GIB = 2.0**30
UTILISATION = 0.9
"""Share of a device's memory that the engine uses: vLLM's `gpu_memory_utilization` (vllm/config/cache.py)."""
BLOCK_TOKENS = 16
"""Tokens of a block of the cache: vLLM's `block_size` on CUDA (vllm/config/cache.py)."""
VISIBLE = 0.99
"""Share of a card's memory that CUDA reports: 79.15 to 79.25 of 80 GiB on A100 and H100, in the logs of
`tests/cost/caches.toml`."""
LARGE_BYTES = 70 * GIB
"""Memory from which vLLM takes its larger defaults, but on A100 (`get_batch_defaults` in vllm/engine/arg_utils.py)."""
PREFILL_TOKENS = {True: 8192, False: 2048}
"""`max_num_batched_tokens` of vLLM's server, the largest chunk of tokens in a pass, by whether the device is large."""
CONCURRENT = {True: 1024, False: 256}
"""`max_num_seqs` of vLLM's server, the requests that are sampled in one pass, by whether the device is large."""
SAMPLER_BYTES = 38.25
"""Bytes of an element of the logits, [requests, vocab], in the sampler that the engine profiles: logits in fp32, their
sort with indices, softmax and sum. From the `fitted` runs of `tests/cost/caches.toml`, whose activations are met within
0.8 %."""
ALONE_BYTES, TOGETHER_BYTES = 0.13 * GIB, 0.55 * GIB
"""Memory outside torch of a rank alone, and of one of several in a replica, with NCCL and the buffers of the engine's
own all-reduce: llm-d-planner, docs/empirical-vllm-memory-results.md."""
GRAPHS_BYTES = 1.03 * GIB
"""CUDA graphs, which vLLM took from outside its share until 0.21: the largest of those measurements."""
STATE_BYTES = 2
"""Bytes of an element of a recurrent state: vLLM's is in the model's dtype unless `mamba_ssm_cache_dtype` is set."""
BATCH = ("batch", "sequence", "slots", "experts")
"""Dims of an activation that count tokens."""


def element_bytes(plan: Plan, param: Param, dtype: str, block: int = 0) -> float:
    """Return the bytes of one element of `param` in a generator that holds its weights as `dtype`.

    float8 applies to the matrices of blocks. Embedding, head, norms, biases and routers stay in bf16, as in the
    published float8 checkpoints (`modules_to_not_convert` of Qwen3-*-FP8). Of float8, `block` x `block` elements share
    an fp32 scale; 0: one scale for a tensor, which is not counted.

    >>> element_bytes(plan, plan.model.param["output.weight"], "float8", 128)
    2
    """
    if dtype != "float8":
        return DTYPE_BYTES[dtype]
    if not narrows(param):
        return DTYPE_BYTES["bf16"]
    return DTYPE_BYTES["float8"] + (DTYPE_BYTES["fp32"] / block**2 if block else 0.0)


def weights(sharded: Sharded, rank: int, dtype: str, block: int = 0) -> ServedWeights:
    """Return the bytes of the weights on a device of pipeline `rank`, in the layout of use of `sharded`, as `dtype`
    with a scale for each `block` x `block` elements (0: none).

    >>> f"{weights(sharded, 0, 'bf16').total / 2**30:.2f} GiB"  # 20 of 80 layers, over tp 8
    '4.23 GiB'
    """
    plan = sharded.plan
    held = sections_on(plan, rank)
    parts = dict.fromkeys(("embedding", "attention", "feed_forward", "experts", "head"), 0.0)
    for p in sharded.params:
        if copies := copies_on(plan, p.param, held):
            size = copies * param_elements(plan, p) * element_bytes(plan, p.param, dtype, block)
            parts[_part(plan, p.param)] += size
    return ServedWeights(**parts)


def _part(plan: Plan, param: Param) -> str:
    if not set(param.sections) & set(plan.model.blocks):
        return "embedding" if "first" in param.sections else "head"
    if param.region == EXPERTS:
        return "experts"
    mixes = ".attention" in param.name or ".mixer" in param.name
    return "attention" if mixes else "feed_forward"


def cache_size(sharded: Sharded, rank: int, dtype: str = "bf16", block_tokens: int = BLOCK_TOKENS) -> CacheSize:
    """Return the bytes of the cache of the layers on pipeline `rank`, on one device, with elements of `dtype`.

    Grouped keys and values are divided over the axes that divide the heads, and repeated where there are more ranks
    than key heads. Latent attention keeps `kv_lora` + `rope_dim` elements of a token, whole on every rank. A
    state-space layer keeps a state for each request. The sequence counts as whole.

    >>> cache_size(sharded, 0).token_bytes  # 20 layers, keys and values of 1 of 8 heads of 128
    10240.0
    """
    plan = sharded.plan
    held = sections_on(plan, rank)
    tokens, state, windows = 0.0, 0.0, dict[int, float]()
    for kind in plan.model.blocks:
        copies = held.get(kind, 0)
        for o in sharded.ops[kind] if copies else ():
            if o.op.kind == "attention":
                size = copies * _cached_elements(sharded, o) * DTYPE_BYTES[dtype]
                if o.op.window:
                    windows[o.op.window] = windows.get(o.op.window, 0.0) + size
                else:
                    tokens += size
            elif o.op.kind == "scan":
                state += copies * _state_elements(sharded, o) * STATE_BYTES
    kept = tuple(WindowCache(tokens=window, token_bytes=size) for window, size in windows.items())
    return CacheSize(block_tokens=block_tokens, token_bytes=tokens, windows=kept, state_bytes=state)


def _cached_elements(sharded: Sharded, o: OpSharding) -> float:
    """Return the elements that attention `o` keeps of a token on one device."""
    plan, sizes = sharded.plan, sharded.model.sizes
    _, k, v = (sharded.model.tensor[name].dims for name in o.op.inputs[:3])
    if "qk_head_dim" in k:
        return sizes["kv_lora"] + sizes["rope_dim"]
    queries = local_length(plan, "heads", o.layout.get("heads", ()))
    heads = queries
    if "kv_heads" in k:
        heads = max(1, -(-queries * sizes["kv_heads"] // sizes["heads"]))
    return heads * (sizes[k[-1]] + sizes[v[-1]])


def _state_elements(sharded: Sharded, o: OpSharding) -> float:
    """Return the elements of the state of scan `o` on one device: the recurrence's, and the convolution's last rows."""
    sizes = sharded.model.sizes

    def local(*dims: str) -> float:
        return prod(local_length(sharded.plan, d, o.layout.get(d, ())) for d in dims)

    channels = local("ssm_heads", "ssm_head_dim") + 2 * local("ssm_groups", "ssm_state")
    recurrence = local("ssm_heads", "ssm_head_dim", "ssm_state")
    return recurrence + channels * (sizes["ssm_conv"] - 1)


def activations(sharded: Sharded, rank: int, prefill_tokens: int, requests: int) -> float:
    """Return the peak bytes of activations on a device of pipeline `rank`: of a pass over `prefill_tokens` tokens of a
    replica, or of the sampling of `requests` tokens, on the last stage.

    The head's logits are gathered whole, so that they do not shrink with tensor parallelism (vLLM's
    `LogitsProcessor`).

    >>> f"{activations(sharded, 3, 8192, 1024) / 2**30:.2f} GiB"  # 1024 x 128256 logits, and the hidden states
    '4.80 GiB'
    """
    plan, held = sharded.plan, sections_on(sharded.plan, rank)
    hidden = prefill_tokens * plan.model.sizes["embed"] * DTYPE_BYTES["bf16"]
    ops = [o for kind in plan.model.blocks if held.get(kind) for o in sharded.ops[kind]]
    largest = max((_op_bytes(sharded, o, prefill_tokens) for o in ops), default=0.0)
    sampler = requests * plan.model.sizes["vocab"] * SAMPLER_BYTES if "last" in held else 0.0
    return hidden + max(hidden + largest, sampler)


def _op_bytes(sharded: Sharded, o: OpSharding, tokens: int) -> float:
    """Return the bytes of the inputs and the output of op `o` for `tokens` tokens of a replica."""
    plan, model = sharded.plan, sharded.model
    total = 0.0
    for name in dict.fromkeys((*o.op.inputs, o.op.output)):
        dims = model.tensor[name].dims
        layout = restrict(o.layout, dims)
        rows = float(tokens)
        if "experts" in dims and "slots" in dims:
            rows *= model.top_k * _replicas_together(plan, o) / plan.mesh.size(*layout.get("experts", ()))
        widths = [local_length(plan, d, layout.get(d, ())) for d in dims if d not in BATCH]
        total += rows * prod(widths) * DTYPE_BYTES["bf16"]
    return total


def _replicas_together(plan: Plan, o: OpSharding) -> float:
    """Return the number of replicas whose tokens op `o` has together, in the layout of experts; below 1 before they are
    sent, where the sequence is divided."""
    return plan.data_parallel / plan.mesh.size(*o.layout.get("slots", ()))


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a generator is run. Tokens and counts are of one replica; None takes the engine's default for the device."""

    weights: str = "bf16"
    weights_block: int = 0
    cache: str = "bf16"
    utilisation: float = UTILISATION
    block_tokens: int = BLOCK_TOKENS
    prefill_tokens: int | None = None
    concurrent: int | None = None
    request_tokens: int | None = None
    """Tokens of one request at its end."""
    visible_bytes: float | None = None
    """Bytes of memory that CUDA reports; None: `VISIBLE` of the card's."""
    taken_bytes: float = 0.0
    """Bytes that others, such as a trainer, hold on the device. The engine's graphs and context fit beside them."""


def served_memory(sharded: Sharded, serving: Serving) -> ServedMemory:
    """Return the memory of the generator with the layouts `sharded`, run as `serving` says, on its fullest device.

    >>> found = served_memory(sharded, Serving(request_tokens=8192))
    >>> found.stage, found.tokens, found.requests  # the last stage has the sampler; each keeps 20 layers
    (3, 6469376, 789)
    """
    plan = sharded.plan
    chip = plan.cluster.chip
    capacity = chip.memory_bytes / chip.devices
    visible = VISIBLE * capacity if serving.visible_bytes is None else serving.visible_bytes
    large = capacity >= LARGE_BYTES and chip.name != "a100"
    others = plan.mesh.devices > plan.data_parallel
    found = []
    for rank in range(plan.pipeline):
        size = cache_size(sharded, rank, serving.cache, serving.block_tokens)
        held = weights(sharded, rank, serving.weights, serving.weights_block)
        prefill = serving.prefill_tokens or PREFILL_TOKENS[large]
        active = activations(sharded, rank, prefill, serving.concurrent or CONCURRENT[large])
        other = TOGETHER_BYTES if others else ALONE_BYTES
        outside = serving.taken_bytes + GRAPHS_BYTES + chip.runtime_bytes
        usable = max(0.0, min(serving.utilisation * visible, visible - outside))
        cache = max(0.0, usable - held.total - active - other)
        fit = None
        if serving.request_tokens and size.request_bytes(serving.request_tokens):
            fit = floor(cache / size.request_bytes(serving.request_tokens))
        memory = ServedMemory(
            stage=rank,
            capacity=capacity,
            usable=usable,
            weights=held,
            activations=active,
            other=other,
            cache=cache,
            size=size,
            tokens=tokens_in(size, cache),
            requests=fit,
            replicas=plan.data_parallel,
        )
        found.append(memory)
    return min(found, key=lambda m: m.tokens)


def tokens_in(size: CacheSize, cache_bytes: float) -> int:
    """Return the tokens that `cache_bytes` bytes hold, in whole blocks, as vLLM counts them ("GPU KV cache size"): a
    layer with a sliding window counts as one that keeps every token. 0 for a model without attention.

    >>> tokens_in(CacheSize(block_tokens=16, token_bytes=1000.0), 100_000.0)
    96
    """
    block = size.every_token_bytes * size.block_tokens
    return floor(cache_bytes / block) * size.block_tokens if block else 0


def shared_peaks(
    served: ServedMemory,
    trainer: MemoryParts,
    runtime_bytes: float,
    training: Collection[str],
    serving: Collection[str],
) -> SharedPeaks:
    """Return both peaks of a device on which a trainer and a generator take turns.

    Args:
        served: the generator's memory while it runs.
        trainer: the trainer's memory at its peak, by part (GiB); its total has the runtime's memory.
        runtime_bytes: bytes of the generator's own device context, which stays.
        training: parts of the generator (`params`, `cache`) that are freed while the trainer runs.
        serving: parts of the trainer (`params`, `grads`, `optimizer`) that are on the host while the generator runs.
            Its activations and buffers are freed, its communicators and its reserve stay.
    """
    stays = served.other + GRAPHS_BYTES + runtime_bytes
    awake = {"params": served.weights.total, "cache": served.cache}
    beside = stays + sum(size for part, size in awake.items() if part not in training)
    state = {"params": trainer.params, "grads": trainer.grads, "optimizer": trainer.optimizer}
    on_device = sum(size for part, size in state.items() if part not in serving)
    kept = (on_device + trainer.comm_buffers + trainer.reserve) * GIB
    return SharedPeaks(
        capacity=served.capacity,
        training=(trainer.total * GIB, beside),
        serving=(kept, served.weights.total + served.cache + served.activations + stays),
        host=sum(size for part, size in state.items() if part in serving) * GIB,
    )


@dataclass(frozen=True, kw_only=True)
class Rooflines:
    """Least seconds of a replica's passes: real ones are longer by collectives, launches and scheduling."""

    prefill_s: float
    """One pass over the prompts of all requests."""
    decode_s: float
    """One token of every request."""


def rooflines(sharded: Sharded, serving: Serving, requests: int, prompt_tokens: int, output_tokens: int) -> Rooflines:
    """Return the rooflines of a replica with `requests` requests of `prompt_tokens` and `output_tokens` tokens.

    Prefill: the forward's arithmetic at the chip's matmul rate in bf16. Decode: reading the weights, of experts those
    that the tokens select if routing is uniform, and the cache of half-finished requests, of the slowest stage.

    >>> times = rooflines(sharded, Serving(), 64, 1024, 4096)
    >>> f"{times.prefill_s:.2f} s, {times.decode_s * 1e3:.1f} ms"
    '0.29 s, 7.8 ms'
    """
    plan = sharded.plan
    chip, replica = plan.cluster.chip, plan.mesh.devices / plan.data_parallel
    flops = requests * prompt_tokens * model_flops_per_token(plan.model, prompt_tokens) / 3
    touched = 1.0
    experts = next((o for o in sharded.op.values() if o.op.region == EXPERTS), None)
    if experts is not None:
        rows = requests * _replicas_together(plan, experts)
        touched = 1 - (1 - plan.model.top_k / plan.model.sizes["experts"]) ** rows
    slowest = 0.0
    for rank in range(plan.pipeline):
        held = weights(sharded, rank, serving.weights, serving.weights_block)
        cache = requests * cache_size(sharded, rank, serving.cache).request_bytes(prompt_tokens + output_tokens // 2)
        read = held.total - held.embedding - (1 - touched) * held.experts + cache
        slowest = max(slowest, read / memory_bytes_per_s(chip))
    return Rooflines(
        prefill_s=flops / replica * dtype_s_per_flop(chip, "bf16"),
        decode_s=slowest * plan.pipeline,
    )
