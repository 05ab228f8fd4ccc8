"""Translates words of other systems (Megatron, DeepSpeed, Hugging Face, MaxText, torchtitan) to the plan language.

A line that the language refuses is compared with `WORDS`; where one fits, the diagnostic's help is the sentence to
write, and its fix writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.span import Source, Span
from planc.language import library

REFUSED = ("E0101", "E0102", "E0103", "E0108")
"""Codes of lines whose words may be another system's."""
LONGEST = 160
"""Characters of a line that is looked at."""
DATA = ("dp", "fsdp", "data", "replica")

_Answer = str | Callable[[re.Match[str], Sequence[str]], str]
"""An answer: a template with the groups of the match, or a function of the match and the mesh's axes. A text in
backquotes is a sentence that takes the line's place; any other is advice."""


def _axis(name: str, use: str) -> str:
    return f"an axis of the mesh: `{name} \\1` in the `mesh` sentence, and a line `use {use}`"


def _mesh(found: re.Match[str], axes: Sequence[str]) -> str:
    return "`mesh " + " > ".join(" ".join(pair) for pair in re.findall(r"([a-z_]+)\W*?(\d+)", found[1])) + "`"


def _zero(found: re.Match[str], axes: Sequence[str]) -> str:
    named = {"full_shard": "3", "shard_grad_op": "2", "no_shard": "0", "hybrid_shard": "h"}
    return _sharded(named.get(found[1], found[1]), axes)


def _sharded(stage: str, axes: Sequence[str]) -> str:
    layout = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "fsdp", "h": "hsdp"}[stage]
    data = next((a for a in axes if a in DATA), "dp")
    return f"`use {layout} over {'replica, fsdp' if layout == 'hsdp' else data}`"


def _cluster(found: re.Match[str], axes: Sequence[str]) -> str:
    """Answer `2 nodes h100`, `16 x H100` (devices) and `h100 x 16`."""
    count, chip = int(found["n"] or found["m"]), (found["chip"] or found["named"]).lower()
    node, whole = next(iter(library.nodes_of(chip).items()), ("", 0))
    if not node:
        return ""
    nodes = count if found["nodes"] else ceil(count / whole)
    part = f"({count})" if not found["nodes"] and count < whole else ""
    if not part and not found["nodes"] and count % whole:
        return f"`{node}` has {whole} chips, and {count} are no whole nodes; `{node}(N)` uses N of each"
    return f"`cluster {nodes} x {node}{part}`"


def _tokens(found: re.Match[str], axes: Sequence[str]) -> str:
    """Answer a batch with `8k` or `1M` tokens, or without `microbatch`."""
    sequences, tokens, unit, micro = found.groups()
    count = int(tokens) * {"k": 1024, "m": 1024**2}.get((unit or "").lower(), 1)
    return f"`batch {sequences} x {count} tokens microbatch {micro or 1}`"


def _sequence(found: re.Match[str], axes: Sequence[str]) -> str:
    tokens = int(found[1]) * (1024 if found[2] else 1)
    return f"the tokens of the `batch` sentence: `batch SEQUENCES x {tokens} tokens microbatch 1`"


def _dtype(found: re.Match[str], axes: Sequence[str]) -> str:
    compute = "tf32" if "tf" in found[1] else "fp32" if "32" in found[1] else "bf16" if found[1][0] == "b" else "fp16"
    return f"`compute {compute} reduce fp32`"


_IS = r"[\s=:]+"
_ON = r"(?:true|yes|on|1|enabled?|full|all|block|blocks)"
CHIPS = r"[a-z]+\d+\w*"
WORDS: tuple[tuple[str, _Answer], ...] = (
    (r"mesh\W+((?:[a-z_]+\s*[=:*]?\s*\d+(?:\s+x\s+|[\s,*>]*))+)$", _mesh),
    (
        r"(?:cluster\s+)?(?:(?P<n>\d+)\s*x?\s*(?:(?P<nodes>nodes?)|gpus?)?(?:\s*(?:of|x))?\s*(?P<chip>[a-z]+\d+\w*?)s?"
        r"(?:[-_]80gb|[-_]sxm\d?)?|(?P<named>[a-z]+\d+\w*)\s*x\s*(?P<m>\d+))$",
        _cluster,
    ),
    (
        r"(?:nodes|nnodes|num_nodes|gpus|num_gpus|world_size|nproc_per_node)" + _IS + r"(\d+)$",
        "`cluster N x NODE` says both, such as `cluster 2 x h100_node` (8 GPUs each); `h100_node(N)` uses N of a node",
    ),
    (
        rf"batch\s+(\d+)\s*(?:x|\*|of)\s*(\d+)\s*([km]?)(?:\s*tokens?)?(?:\s*,?\s*micro_?batch(?:_size)?{_IS}(\d+))?$",
        _tokens,
    ),
    (
        r"(?:global_batch_size|gbs|train_batch_size|batch_size|batch)" + _IS + r"(\d+)$",
        "`batch SEQUENCES x TOKENS tokens microbatch N` says all, such as `batch \\1 x 8192 tokens microbatch 1`",
    ),
    (
        r"(?:micro_batch_size|mbs|train_micro_batch_size_per_gpu|per_device_(?:train_)?batch_size|local_batch_size)"
        + _IS
        + r"(\d+)$",
        "the end of the `batch` sentence: `... tokens microbatch \\1`, sequences of a rank at a time",
    ),
    (
        r"(?:seq_length|seq_len|sequence_length|max_seq_len|max_target_length|context_length)" + _IS + r"(\d+)(k?)$",
        _sequence,
    ),
    (
        r"(?:gradient_accumulation_steps|grad_accum|num_microbatches)" + _IS + r"(\d+)$",
        "follows from the `batch` sentence: sequences of a step = microbatch x data-parallel ranks x \\1",
    ),
    (
        r"(?:tensor_parallel\w*|tensor_model_parallel\w*|tp(?:_size|_degree)?|ici_tensor_parallelism|autotp_size)"
        + _IS
        + r"(\d+)$",
        _axis("tp", "tp over tp"),
    ),
    (
        r"(?:pipeline_parallel\w*|pipeline_model_parallel\w*|pp(?:_size|_degree)?|ici_pipeline_parallelism)"
        + _IS
        + r"(\d+)$",
        _axis("pp", "pp over pp as 1f1b"),
    ),
    (
        r"(?:context_parallel\w*|cp(?:_size|_degree)?|ici_context_parallelism)" + _IS + r"(\d+)$",
        _axis("cp", "cp over cp"),
    ),
    (
        r"(?:expert_parallel\w*|expert_model_parallel\w*|ep(?:_size|_degree)?|ici_expert_parallelism)"
        + _IS
        + r"(\d+)$",
        _axis("ep", "ep over ep"),
    ),
    (
        r"(?:data_parallel_shard_degree|fsdp(?:_size|_degree)?|ici_fsdp_parallelism)" + _IS + r"(\d+)$",
        _axis("fsdp", "fsdp over fsdp"),
    ),
    (r"(?:data_parallel\w*|dp(?:_size|_degree)?|ici_data_parallelism)" + _IS + r"(\d+)$", _axis("dp", "ddp over dp")),
    (r"(?:ulysses_sequence_parallel_size|sequence_parallel_size)" + _IS + r"(\d+)$", _axis("sp", "ulysses over sp")),
    (rf"(?:sequence_parallel|sp){_IS}{_ON}$", "`shard sequence over tp in residual`"),
    (
        rf"(?:use\s+)?(?:zero(?:_stage|_optimization)?|stage|ddp_sharding|sharding_strategy){_IS}(?:stage\s*)?([0-3]|full_shard|shard_grad_op|hybrid_shard|no_shard)$",
        _zero,
    ),
    (
        rf"(?:use_distributed_optimizer|distributed_optimizer)(?:{_IS}{_ON})?$",
        lambda found, axes: _sharded("1", axes),
    ),
    (
        rf"(?:dtype|precision|mixed_precision|torch_dtype|params_dtype|weight_dtype|param_dtype){_IS}(bf16|bfloat16|bf16[-_]mixed|fp16|float16|16[-_]mixed|fp32|float32|32)$",
        _dtype,
    ),
    (rf"(bf16|fp16|tf32)(?:{_IS}{_ON})?$", _dtype),
    (rf"compute{_IS}(bf16|bfloat16|fp16|float16|tf32|fp32|float32)$", _dtype),
    (
        rf"(?:(?:compute|dtype|precision|fp8_format|quantization){_IS}(?:fp8|float8|hybrid|e4m3)|fp8{_IS}(?:hybrid|e4m3|{_ON}))$",
        "`compute bf16 reduce fp32`, and a line `quantize ffn, attention as float8`",
    ),
    (
        rf"(?:activation_checkpoint(?:ing)?|gradient_checkpointing|recompute_granularity|remat|remat_policy|recompute(?:_activations)?){_IS}{_ON}$",
        "`recompute blocks`",
    ),
    (
        rf"(?:activation_checkpoint(?:ing)?|recompute_granularity|remat_policy|recompute){_IS}(?:selective|minimal|save_dot\w*)$",
        "`recompute selective`",
    ),
    (
        rf"(?:activation_checkpoint(?:ing)?|gradient_checkpointing|remat_policy|recompute){_IS}(?:false|off|no|0)$",
        "`recompute none`",
    ),
    (
        rf"(?:num_layers_per_virtual_pipeline_stage|virtual_pipeline\w*|vpp(?:_size)?){_IS}(\d+)$",
        "in `split`: `split layers over pp as interleaved_1f1b(chunks = N)`, N chunks of layers a rank",
    ),
    (
        rf"(?:pipeline_(?:parallel_)?schedule|schedule){_IS}(1f1b|gpipe|zbv|interleaved_1f1b)$",
        "the end of the `split` sentence: `split layers over pp as \\1`",
    ),
    (
        rf"(?:flash_attention|use_flash_attn|attn_implementation|flash_attn)(?:{_IS}(?:{_ON}|sdpa|flash\w*))?$",
        "nothing to write: attention is fused unless `attention.core` says otherwise",
    ),
    (rf"optimizer{_IS}(?:adam|adamw_torch|fused_?adam|adamw_\w+)$", "`optimizer adamw`"),
    (
        rf"(?:cpu_offload|offload_optimizer|optimizer_cpu_offload)(?:{_IS}(?:{_ON}|cpu\S*))?$",
        "`offload optimizer to host`",
    ),
    (rf"(?:use_)?torch_compile{_IS}{_ON}$|compile{_IS}{_ON}$", "`compile blocks`"),
    (
        rf"(?:moe_capacity_factor|capacity_factor|moe_expert_capacity_factor){_IS}([\d.]+)$",
        "`route experts as capacity(factor = \\1)`",
    ),
    (
        rf"(?:async_tensor_parallel|enable_async_tensor_parallel|tp_comm_overlap){_IS}{_ON}$",
        "`overlap tp as async_matmul`",
    ),
    (
        rf"(?:pack(?:ed|ing)?(?:{_IS}\w+)?|sample_packing.*|sequence_packing.*|document_mask\w*.*|segment_ids.*|varlen.*|cu_seqlens.*)$",
        "no sentence: planc's programs attend over whole sequences, so packed documents would see each other; the time "
        "of a plan is at least that of its sequences packed, where attention sees less",
    ),
    (
        r"(?:fuse(?:d)?_?(?:qkv|gate_up|wqkv).*|fuse\s+(?:qkv|gate_up).*|packed_qkv.*)$",
        "no sentence: queries, keys and values are three products, as checkpoints store them",
    ),
    (
        rf"(?:memory_budget|activation_memory_budget){_IS}[\d.]+$",
        "`recompute ?`, and `expect memory <= N GiB`: `planc search` finds what to run again for a budget",
    ),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), answer) for pattern, answer in WORDS)
UNITS = (
    (
        re.compile(r"(\d+(?:\.\d+)?)\s*(?:gbit/s|gbps|gb/s(?=\s*ethernet))", re.IGNORECASE),
        lambda m: f"{float(m[1]) / 8:g} GB/s",
    ),
    (re.compile(r"(\d+(?:\.\d+)?)\s*([tp])flops\b", re.IGNORECASE), lambda m: f"{m[1]} {m[2].upper()}FLOP/s"),
)
"""Units of other systems, and what the language calls them."""


def _axes(source: Source) -> list[str]:
    """Return the axes of the `mesh` sentence in the text of `source`, as far as it can be read; [] without one."""
    mesh = next((line for line in source.lines if line.startswith("mesh ")), "")
    return re.findall(r"[A-Za-z_]\w*", mesh[:LONGEST])[1:]


def translation(line: str, axes: Sequence[str] = ()) -> str:
    """Return what to write in place of `line`: the sentence in backquotes first, or advice; "" if no word is known.

    `axes` are those of the plan's mesh.

    >>> translation("zero_stage 3", ["dp", "tp"])
    '`use fsdp over dp`'
    >>> translation("cluster 16 x H100")
    '`cluster 2 x h100_node`'
    """
    plain = line.partition("#")[0].strip().lstrip("-").rstrip(",;").replace("'", "").replace('"', "")
    first, *rest = plain.split(maxsplit=1) or [""]
    words = " ".join([first.replace("-", "_").rsplit(".", 1)[-1], *rest])
    for pattern, answer in _COMPILED:
        if found := pattern.match(words.lower()):
            return found.expand(answer) if isinstance(answer, str) else answer(found, axes)
    renamed = plain
    for pattern, unit in UNITS:
        renamed = pattern.sub(unit, renamed)
    return f"`{' '.join(renamed.split())}`" if renamed != plain else ""


def in_own_words(found: Iterable[Diagnostic], sources: Iterable[Source]) -> Iterator[Diagnostic]:
    """Yield the diagnostics `found`, those about a line in words of another system with the sentence to write.

    `sources` are the files read."""
    texts = {s.file: s for s in sources}
    axes = {file: _axes(source) for file, source in texts.items()}
    for d in found:
        source = texts.get(d.span.file)
        line = source.line(d.span.line) if source and d.code in REFUSED else ""
        said = translation(line, axes[source.file]) if source and 0 < len(line) <= LONGEST else ""
        if not said or said.strip("`").split() == line.split():
            yield d
            continue
        fix = None
        if said.startswith("`") and said.count("`") == 2:
            whole = Span(d.span.file, d.span.line, 1, d.span.line, len(line) + 1)
            fix = Fix(f"write {said}", (Edit(whole, said.strip("`")),))
        yield replace(d, help=f"write {said}" if said.startswith("`") else said, fix=fix)
