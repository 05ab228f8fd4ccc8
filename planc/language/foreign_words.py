"""Translates words of other systems (Megatron, DeepSpeed, Hugging Face, MaxText, torchtitan) to the plan language.

A line that the language refuses is compared with `WORDS`; where one fits, the diagnostic's help is the sentence to
write, and its fix writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import NamedTuple

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.span import Source, Span
from planc.language import library
from planc.language.foreign_names import model_named, node_named, slice_shape
from planc.syntax.old_words import OLD_LAYOUTS

REFUSED = ("E0101", "E0102", "E0103", "E0108")
"""Codes of lines whose words may be another system's."""
LONGEST = 160
"""Characters of a line that is looked at."""
DATA = ("dp", "fsdp", "data", "replica")


class Nearby(NamedTuple):
    """The axes of the plan's mesh and the number of devices of its cluster (0: unknown), as other sentences say."""

    axes: Sequence[str] = ()
    devices: int = 0


NOTHING = Nearby()

_Answer = str | Callable[[re.Match[str], Nearby], str]
"""An answer: a template with the groups of the match in lower case, or a function of the match. A sentence in
backquotes at its beginning takes the line's place; any other text is advice."""
_WRITTEN = re.compile(r"`([^`]+)`(?:, and a line `([^`]+)`)?(?:[,:;] [^`]*)?")
"""An answer whose sentences take the line's place."""
_REMOVED = ("no sentence", "nothing to write")
"""How an answer begins whose line says nothing that a plan can say."""


def _axis(name: str, use: str) -> str:
    return f"an axis of the mesh: `{name} \\1` in the `mesh` sentence, and a line `use {use}`"


def _mesh(found: re.Match[str], around: Nearby) -> str:
    return _mesh_of(re.findall(r"([a-z_]\w*?)[^\w?-]*(-1|\d+)", found[1], re.IGNORECASE), around)


def _made_mesh(found: re.Match[str], around: Nearby) -> str:
    """Answer `jax.make_mesh((2, 8), ("fsdp", "tp"))` and torch's `init_device_mesh`."""
    sizes, names = re.findall(r"-1|\d+", found[1]), re.findall(r"\w+", found[2])
    return _mesh_of(list(zip(names, sizes, strict=True)), around) if len(sizes) == len(names) else ""


def _mesh_of(axes: list[tuple[str, str]], around: Nearby) -> str:
    """Answer a mesh whose sizes may be -1: the devices that the other axes leave."""
    known = prod(int(size) for _, size in axes if size != "-1")
    rest = around.devices // known if known and around.devices % known == 0 else 0
    return "`mesh " + " > ".join(f"{name} {(rest or '?') if size == '-1' else size}" for name, size in axes) + "`"


def _zero(found: re.Match[str], around: Nearby) -> str:
    named = {"full_shard": "3", "shard_grad_op": "2", "no_shard": "0", "hybrid_shard": "h"}
    stage = found[1].lower()
    return _sharded(named.get(stage, stage), around)


def _sharded(stage: str, around: Nearby) -> str:
    layout = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "fsdp", "h": "hsdp"}[stage]
    data = next((a for a in around.axes if a in DATA), "dp")
    return f"`use {layout} over {'replica, fsdp' if layout == 'hsdp' else data}`"


def _cluster(found: re.Match[str], around: Nearby) -> str:
    """Answer `2 nodes h100`, `16 x H100` (devices), `h100 x 16`, `2 * h100_node` and `2 x p5.48xlarge`."""
    count, chip = int(found["n"] or found["m"]), (found["chip"] or found["named"]).lower()
    if named := node_named(chip):
        return f"`cluster {count} x {named}`"
    node, whole = next(iter(library.nodes_of(chip).items()), ("", 0))
    if not node:
        return ""
    nodes = count if found["nodes"] else ceil(count / whole)
    part = f"({count})" if not found["nodes"] and count < whole else ""
    if not part and not found["nodes"] and count % whole:
        return f"`{node}` has {whole} chips, and {count} are no whole nodes; `{node}(N)` uses N of each"
    return f"`cluster {nodes} x {node}{part}`"


def _devices(found: re.Match[str], around: Nearby) -> str:
    """Answer a cluster whose kind of device is not said."""
    count = int(found[1])
    nodes = count if found[2].lower().startswith(("node", "host")) else ceil(count / 8)
    return f"of which kind? `cluster {nodes} x h100_node` is {nodes} nodes of 8 H100"


def _slice(found: re.Match[str], around: Nearby) -> str:
    shape = slice_shape(found[1].lower(), int(found[2]))
    return f"`cluster {shape}`" if shape else ""


def _torus(found: re.Match[str], around: Nearby) -> str:
    torus = f"tpu_{found[1].lower()}"
    return f"`cluster {torus}({found[2]})`" if torus in library.machines() else ""


def _model(found: re.Match[str], around: Nearby) -> str:
    """Answer `model org/Name-8B` and `model llama 8b`, and a config whose quotes or `from` are missing."""
    if found[1].endswith(".json"):
        return f'`model from "{found[1]}"`'
    name = model_named(found[1])
    advice = "no model of that name is in the catalog: save its config.json beside the plan, and write "
    return f"`model {name}`" if name else advice + '`model from "config.json"`' if "/" in found[1] else ""


def _changed_model(found: re.Match[str], around: Nearby) -> str:
    changes = ", ".join(f"{name} = {size}" for name, size in re.findall(r"(\w+)\s*=\s*(\d+)", found[2]))
    return f"`model {found[1]}({changes})`"


LAYOUTS = OLD_LAYOUTS | {
    "zero": "zero1", "fsdp2": "fsdp", "fully_shard": "fsdp", "full_shard": "fsdp", "data_parallel": "ddp",
    "tensor": "tp", "tensor_parallel": "tp", "model_parallel": "tp", "megatron": "tp", "sequence_parallel": "sp",
    "pipeline": "pp", "pipeline_parallel": "pp", "context_parallel": "cp", "ring_attention": "cp",
    "expert_parallel": "ep",
}  # fmt: skip
"""Other names of the bundled layouts."""


def _use(found: re.Match[str], around: Nearby) -> str:
    """Answer `use tp`, without an axis, and a layout by another name."""
    name, over = found[1].lower(), found[2]
    layout = LAYOUTS.get(name, name)
    if layout not in library.layouts() or (over and layout == name):
        return ""
    like = [layout, "tp"] if layout in ("sp", "vocab") else [name, layout]
    data = DATA if layout in ("ddp", "fsdp", "zero1", "zero2") else ()
    axis = over or next((a for a in (*like, *data) if a in around.axes), "")
    return f"`use {layout} over {axis}`" if axis else ""


def _of_the_run(found: re.Match[str], around: Nearby) -> str:
    name = found[1].lower()
    what = "the learning rate" if name.startswith(("lr", "learning")) else f"`{name}`"
    return f"no sentence: {what} is a key of a preset, a file that names the plan and the run (`planc train`)"


def _lora(found: re.Match[str], around: Nearby) -> str:
    """Answer PEFT's keys: `r=16`, `lora_alpha=32`, `target_modules=q_proj,v_proj`."""
    given = found[0]
    rank = re.search(r"\br(?:ank)?\s*[=:]?\s*(\d+)", given)
    alpha = re.search(r"alpha\s*[=:]?\s*(\d+)", given)
    on = re.search(r"(?:target_modules\s*[=:]?|\bon\b)([^=:]*)$", given)
    parts = ", ".join(re.findall(r"[\w.]+", on[1])) if on else "heads, ffn"
    return f"`lora rank {rank[1]}{f' alpha {alpha[1]}' if alpha else ''} on {parts}`" if rank else ""


def _share(found: re.Match[str], around: Nearby) -> str:
    return f"`expect {found[1].lower()} {found[2]} {100 * float(found[3]):g} %`"


def _length(found: re.Match[str], around: Nearby) -> str:
    unit = found[2].upper().replace("K", "k")
    return f"`train for {found[1]} {unit} tokens`"


def _all_tokens(found: re.Match[str], around: Nearby) -> str:
    """Answer a batch that is said in tokens alone."""
    tokens = int(found[1]) * 1024 ** (1 + "km".index(found[2].lower()))
    sequences = tokens // 8192
    return f"`batch {sequences} x 8192 tokens microbatch 1`, for sequences of 8192 tokens" if sequences else ""


def _tokens(found: re.Match[str], around: Nearby) -> str:
    """Answer a batch with `8k` or `1M` tokens, or without `microbatch`."""
    sequences, tokens, unit, micro = found.groups()
    count = int(tokens) * {"k": 1024, "m": 1024**2}.get((unit or "").lower(), 1)
    return f"`batch {sequences} x {count} tokens microbatch {micro or 1}`"


def _sequence(found: re.Match[str], around: Nearby) -> str:
    tokens = int(found[1]) * (1024 if found[2] else 1)
    return f"the tokens of the `batch` sentence: `batch SEQUENCES x {tokens} tokens microbatch 1`"


def _dtype(found: re.Match[str], around: Nearby) -> str:
    written = found[1].lower()
    compute = "tf32" if "tf" in written else "fp32" if "32" in written else "bf16" if written[0] in "bm" else "fp16"
    return f"`compute {compute} reduce fp32`"


_IS = r"[\s=:]+"
_ON = r"(?:true|yes|on|1|enabled?|full|all|block|blocks)"
CHIPS = r"[a-z]+\d+\w*"
WORDS: tuple[tuple[str, _Answer], ...] = (
    (r"mesh\W+((?:[a-z_]+\s*[=:*]?\s*(?:-1|\d+)(?:\s+x\s+|[\s,*>]*))+)[})\]]*$", _mesh),
    (
        r"(?:\w+\W+)?[\w.]*(?:make_mesh|device_mesh|devicemesh)\b.*?\(([-\d,\s]+)\)\W+(?:\w+\s*=\s*)?"
        r"\(([\w,\s]+)\)\)*$",
        _made_mesh,
    ),
    (
        r"(?:cluster\s+)?(?:(?P<n>\d+)\s*[x*]?\s*(?:(?P<nodes>nodes?)|gpus?)?(?:\s*(?:of|x))?\s*"
        r"(?P<chip>[a-z][\w.-]*?\d[\w.-]*?)s?(?:[-_]80gb|[-_]sxm\d?)?|(?P<named>[a-z][\w.-]*\d[\w.-]*)\s*[x*]\s*(?P<m>\d+))$",
        _cluster,
    ),
    (r"(?:cluster\s+)?(\d+)\s*x?\s*(gpus?|devices?|chips?|nodes?|hosts?|accelerators?)$", _devices),
    (r"(?:cluster\s+)?(?:tpu[-_ ]?)?(v\d\w*)[-_](\d+)$", _slice),
    (r"cluster\s+(?:tpu[-_ ]?)?(v?\d\w*?)\s*\(?(\d+(?:x\d+)+)\)?$", _torus),
    (r"model[\s=:]+([\w.-]+(?:/[\w.-]+)*\.json|[\w.-]+/[\w.-]+|[a-z]+ [\d.]+b)$", _model),
    (r"model[\s=:]+(\w+)((?:[\s,]+\w+\s*=\s*\d+)+)$", _changed_model),
    (r"use\s+(\w+)(?:\s+over\s+(\w+))?$", _use),
    (r"((?:shard|replicate|store|use|split)\s+(?:(?!\sover\s).)*?)\s+on\s+([\w,\s]+)$", "`\\1 over \\2`"),
    (
        r"(?:nodes|nnodes|num_nodes|gpus|num_gpus|world_size|nproc_per_node)" + _IS + r"(\d+)$",
        "`cluster N x NODE` says both, such as `cluster 2 x h100_node` (8 GPUs each); `h100_node(N)` uses N of a node",
    ),
    (
        rf"batch(?:_size)?{_IS}(\d+)\s*(?:sequences|seqs?|samples)?\s*(?:x|\*|of|,)\s*(?:seq(?:uence)?s?(?:_?len(?:gth)?)?{_IS})?"
        rf"(\d+)\s*([km]?)(?:\s*tokens?)?(?:\s*,?\s*micro_?batch(?:_size)?{_IS}(\d+))?$",
        _tokens,
    ),
    (r"batch[\s=:]+(\d+)\s*([km])(?:\s*tokens?)?$", _all_tokens),
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
        lambda found, around: _sharded("1", around),
    ),
    (
        rf"(?:dtype|precision|mixed_precision|torch_dtype|params_dtype|weight_dtype|param_dtype){_IS}(bf16|bfloat16|bf16[-_]mixed|fp16|float16|16[-_]mixed|fp32|float32|32)$",
        _dtype,
    ),
    (rf"(bf16|fp16|tf32)(?:{_IS}{_ON})?$", _dtype),
    (rf"compute{_IS}(bf16|bfloat16|fp16|float16|tf32|fp32|float32|mixed|half|mixed_precision|amp)$", _dtype),
    (r"recompute\s+every\s+(\d+)(?:\s+\w+)?$", "`recompute blocks every \\1 layers`"),
    (
        r"offload\s+(\w+(?:\s*,\s*\w+)*)\s+(?:to|on)\s+(?:cpu|ram|dram|memory|host_memory|cpu_memory)$",
        "`offload \\1 to host`",
    ),
    (
        r"(?:optimizer|optim)\s+(adamw|muon)\W+(?:lr|learning_rate|betas?|eps|weight_decay)\b.*$",
        "`optimizer \\1`; its numbers are keys of a preset",
    ),
    (
        r"(lr|lr_\w+|learning_rate|min_lr|warmup\w*|weight_decay|adam_\w+|betas?\d?|seed|epochs?|num_\w*epochs|max_steps"
        r"|train_iters|steps|clip_grad|grad_clip|clip_norm|max_grad_norm|save_interval|save_steps|eval_interval"
        r"|dataset\w*|data_path|tokenizer\w*)(?:[\s=:].*)?$",
        _of_the_run,
    ),
    (r"lora\b.*\br(?:ank)?\s*[=:].*$", _lora),
    (r"expect\s+(mfu|bubble|exposed_comm)\s*([<>]=?)\s*(0?\.\d+)$", _share),
    (r"train(?:ing)?\s+(?:for\s+)?([\d.]+)\s*([kmbt])(?:\s*tokens?)?$", _length),
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


def _around(source: Source) -> Nearby:
    """Return what the `mesh` and the `cluster` sentence in the text of `source` say, as far as they can be read."""
    lines = [line[:LONGEST] for line in source.lines]
    mesh, cluster = (next((line for line in lines if line.startswith(v)), "") for v in ("mesh ", "cluster "))
    nodes = re.match(r"cluster\s+(\d+)\s*x\s*(\w+)\s*(?:#|$)", cluster)
    devices = int(nodes[1]) * library.chips_of(nodes[2]) if nodes else 0
    return Nearby(re.findall(r"[A-Za-z_]\w*", mesh)[1:], devices)


def translation(line: str, around: Nearby = NOTHING) -> str:
    """Return what to write in place of `line`: the sentence in backquotes first, or advice; "" if no word is known.

    >>> translation("zero_stage 3", Nearby(["dp", "tp"]))
    '`use fsdp over dp`'
    >>> translation("cluster 16 x H100")
    '`cluster 2 x h100_node`'
    """
    plain = line.partition("#")[0].strip().lstrip("-").rstrip(",;").replace("'", "").replace('"', "")
    first, *rest = plain.split(maxsplit=1) or [""]
    words = " ".join([first.replace("-", "_").rsplit(".", 1)[-1], *rest])
    for pattern, answer in _COMPILED:
        if found := pattern.match(words):
            text = pattern.sub(answer, words.lower(), 1) if isinstance(answer, str) else answer(found, around)
            if text:
                return text
    renamed = plain
    for pattern, unit in UNITS:
        renamed = pattern.sub(unit, renamed)
    return f"`{' '.join(renamed.split())}`" if renamed != plain else ""


def in_own_words(found: Iterable[Diagnostic], sources: Iterable[Source]) -> Iterator[Diagnostic]:
    """Yield the diagnostics `found`, those about a line in words of another system with the sentence to write.

    `sources` are the files read."""
    texts = {s.file: s for s in sources}
    around = {file: _around(source) for file, source in texts.items()}
    for d in found:
        source = texts.get(d.span.file)
        line = source.line(d.span.line) if source and d.code in REFUSED else ""
        said = translation(line, around[source.file]) if source and 0 < len(line) <= LONGEST else ""
        written = _WRITTEN.fullmatch(said)
        if not said or (written and written[1].split() == line.split()):
            yield d
            continue
        whole = Span(d.span.file, d.span.line, 1, d.span.line, len(line) + 1)
        fix = None
        if written:
            fix = Fix(f"write `{written[1]}`", (Edit(whole, "\n".join(filter(None, written.groups()))),))
        elif said.startswith(_REMOVED):
            fix = Fix("remove this line", (Edit(replace(whole, end_line=d.span.line + 1, end_column=1), ""),))
        message = d.message if d.code != "E0102" else f"`{line.strip()}` is no sentence of the language"
        yield replace(d, message=message, help=f"write {said}" if written else said, fix=fix)
