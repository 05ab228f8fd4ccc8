"""Emits `attend` by splash attention, a Pallas kernel that never writes the scores to memory."""

from __future__ import annotations

from planc.backends.common.source_writer import beside, causes, fill
from planc.backends.xla.analysis.attention import (
    BLOCKS,
    KERNEL_OUTPUT,
    LANES,
    keeps_output,
    key_heads_of_others,
    narrow_keys,
    narrow_values,
    padded_rows,
    splash_block,
)
from planc.backends.xla.analysis.layouts import outermost_first
from planc.backends.xla.analysis.mesh_factors import atoms, parts
from planc.backends.xla.analysis.pipeline import pipelined
from planc.diag.quoting import python_string
from planc.ir.sharding import OpSharding, Sharded

ATTEND = '''
def attend(q: jax.Array, k: jax.Array, v: jax.Array<window>) -> jax.Array:
    """Causal attention: queries [B, S, heads, D], keys and values [B, S, kv_heads, D].<said>

    Splash attention, which stores no scores: each device runs it on its sequences and heads.
    """
    <cause>
    <mapped>
    <wide>
    return mapped(q, k, v)<narrowed>


def _splash(<arguments>) -> jax.Array:
    """`attend` on one device."""
    <fitted>
    rows, heads = q.shape[1:3]
    mask = splash_attention.<mask>
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention.BlockSizes(**BLOCK_SIZES),
        head_shards=1,
        q_seq_shards=1,
        <kept>
        interpret=jax.sharding.get_abstract_mesh().abstract_device.platform == "cpu",
    )
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * q.shape[-1] ** -0.5, k, v))
    return jnp.swapaxes(jax.vmap(kernel)(q, k, v), 1, 2)<cut>
'''

SEEN = " A row\n    attends to `window` rows, itself included; 0: all before it."
FILLED = """
length = q.shape[1]
# Padded to whole vectors of a TPU; causal rows ignore the padding.
q, k, v = (jnp.pad(x, ((0, 0), (0, -length % <lanes>), (0, 0), (0, 0))) for x in (q, k, v))
"""
OWN_KEYS = """
# The local key head of each of this rank's query heads.
mine = (jax.lax.axis_index(<axes>) * q.shape[2] + jnp.arange(q.shape[2])) // <group> % k.shape[2]
k, v = (jnp.take(x, mine, axis=2) for x in (k, v))
"""

WIDE = """
width = v.shape[-1]
# The kernel requires values as wide as keys.
v = jnp.pad(v, [(0, 0)] * 3 + [(0, k.shape[-1] - width)])
"""
NARROWED = "[..., :width]"
WIDE_KEYS = """
# The kernel requires keys as wide as values, and divides scores by the root of that width.
wider = [(0, 0)] * 3 + [(0, v.shape[-1] - k.shape[-1])]
q, k = jnp.pad(q * (v.shape[-1] / k.shape[-1]) ** 0.5, wider), jnp.pad(k, wider)
"""


def _mapped(sharded: Sharded, o: OpSharding, run: str) -> str:
    """Return the lines that define `mapped`: `run`, code for attention `o` on one device, in a shard_map."""
    plan = sharded.plan
    inside = plan.split if pipelined(plan) else None
    if inside is not None and all(a.size == 1 or a.name == inside.axis for a in atoms(plan)):
        return f"mapped = {run}  # a rank of the pipeline is one device"
    names = ", ".join(map(python_string, o.op.inputs))
    given = f"given = tuple(ACTIVATIONS[name] for name in ({names}))"
    lines = [given, f"out = ACTIVATIONS[{python_string(o.op.output)}]"]
    over = "axis_names=axes, " if inside is not None else ""
    if inside is not None:
        lines.append(f"axes = set(MESH) - {{{python_string(inside.axis)}}}  # the pipeline's axis is already manual")
    return "\n".join([*lines, f"mapped = jax.shard_map({run}, in_specs=given, out_specs=out, {over}check_vma=False)"])


def splash_constants(sharded: Sharded) -> list[str]:
    """Return the lines of `BLOCK` and `BLOCK_SIZES`, the kernel's block sizes."""
    chosen, chip = sharded.plan.attention, sharded.plan.cluster.chip.name
    of_chip = f"as MaxText has it for {chip}" if chip in BLOCKS else "as MaxText has it"
    said = chosen.cause.comment() if chosen is not None and chosen.block else of_chip
    return [
        *beside(f"BLOCK = {splash_block(sharded)}", f"block size of attention (rows and keys); {said}"),
        "BLOCK_SIZES: dict[str, Any] = {",
        '    **dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dq", "block_kv_dq"), BLOCK),',
        '    **dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), BLOCK),',
        "}",
    ]


def splash_function(sharded: Sharded, *, windows: bool) -> str:
    """Return the source of `attend` and its per-device function. `windows`: True if some attention has a window."""
    o, plan = sharded.attentions[0], sharded.plan
    filled = plan.batch.sequence_tokens != padded_rows(sharded)
    fitted = fill(FILLED, lanes=str(LANES)) if filled else ""
    if key_heads_of_others(o, sharded):
        fitted += "\n" + _own_keys(sharded, o)
    arguments = "q: jax.Array, k: jax.Array, v: jax.Array"
    return fill(
        ATTEND,
        window=", window: int = 0" if windows else "",
        said=SEEN if windows else "",
        cause="\n".join(causes([plan.attention.cause])) if plan.attention else "",
        mapped=_mapped(sharded, o, "functools.partial(_splash, window)" if windows else "_splash"),
        **filled_up(sharded),
        arguments=f"window: int, {arguments}" if windows else arguments,
        fitted=fitted.strip("\n"),
        mask="LocalMask((rows, rows), ((window or rows) - 1, 0), 0)" if windows else "CausalMask((rows, rows))",
        kept=f"residual_checkpoint_name={python_string(KERNEL_OUTPUT)}," if keeps_output(sharded) else "",
        cut="[:, :length]" if filled else "",
    )


def filled_up(sharded: Sharded) -> dict[str, str]:
    """Return the template parts that pad keys and values to one width, and that slice the output; "" if not needed."""
    found = sharded.attentions
    if any(narrow_values(sharded, o) for o in found):
        return {"wide": WIDE.strip("\n"), "narrowed": NARROWED}
    keys = any(narrow_keys(sharded, o) for o in found)
    return {"wide": WIDE_KEYS.strip("\n") if keys else "", "narrowed": ""}


def _own_keys(sharded: Sharded, o: OpSharding) -> str:
    axes = parts(sharded.plan, outermost_first(sharded.plan, "heads", o.layout["heads"]))
    sizes = sharded.model.sizes
    entry = python_string(axes[0]) if len(axes) == 1 else f"({', '.join(map(python_string, axes))})"
    return fill(OWN_KEYS, axes=entry, group=str(sizes["heads"] // sizes["kv_heads"])).strip("\n")
