"""Emits the functions that a model calls (hooks such as `linear` and `lookup`), and the look-up of specs by name."""

from __future__ import annotations

from itertools import chain
from math import prod

from planc.backends.common.source_writer import comment, fill, lines
from planc.backends.xla.analysis.copies import copies_summed_last
from planc.backends.xla.analysis.gathered_rows import gathered_rows
from planc.backends.xla.analysis.layouts import (
    activation_spec,
    casts,
    own_gradient,
    param_spec,
    repeated_over,
    rounds_before_gathers,
    spec_of,
    summed_first,
)
from planc.backends.xla.analysis.lookup import looked_up_by_columns, lookup_of
from planc.backends.xla.analysis.mesh_factors import atoms, parts
from planc.backends.xla.analysis.narrow_products import narrow_params, segments
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.analysis.saved_by_blocks import (
    every,
    names_activations,
    saved_activations,
    saved_without_replay,
)
from planc.backends.xla.emit.context_parallel import context_functions
from planc.backends.xla.emit.experts import expert_functions
from planc.backends.xla.emit.loss import chunked_loss
from planc.backends.xla.emit.narrow import layers_in_segments, narrow_functions
from planc.backends.xla.emit.pipeline import pipeline_functions, resting_function, shared_by_stages
from planc.backends.xla.emit.remat import layers_functions, remat_function
from planc.backends.xla.emit.specs import axis_text, entry, spec_text
from planc.backends.xla.emit.tables import exchanged
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

BY_NAME = '''
def shardings(mesh: Mesh, tree: Any, specs: dict[str, P] = PARAMS) -> Any:
    """A NamedSharding for every leaf of a parameter pytree, by the leaf's path.

    Layers may be single (`layers.3.norm`) or stacked along a leading dim (`layers.norm`, `layers.*.norm`).
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(path, leaf, specs)), tree
    )


def _pattern(name: str) -> str:
    """`layers.3.norm.weight` -> `layers.*.norm.weight`, the name in the tables."""
    return re.sub(r"^layers\\.((\\d+|\\*)\\.)?", "layers.*.", name)


def _placed(tree: Any, specs: dict[str, P]) -> Any:
    """The parameter-like pytree with the layouts `specs`; XLA inserts the collectives."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: with_sharding_constraint(leaf, _spec(path, leaf, specs)), tree
    )
'''
"""Looks specs up by name; the same text for every plan."""

SPEC = '''
def _spec(path: Any, leaf: Any, specs: dict[str, P]) -> P:
    """The leaf's spec; the dims of a stack before the parameter's own are <stack>."""
    spec = specs[_pattern(jax.tree_util.keystr(path, simple=True, separator="."))]
    return P(*<leading>, *spec)
'''

CONSTRAIN = '''
def constrain(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` in the compute dtype and in its layout; named so that `remat` can save it."""
    return checkpoint_name(with_sharding_constraint(x.astype(COMPUTE), <where>), name)
'''

CONSTRAIN_EXCHANGED = '''
def constrain(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` in the compute dtype and in its layout<said>.

    EXCHANGED states the layouts before and after it, for an all-to-all; otherwise XLA would all-gather.
    """
    made, read = EXCHANGED.get(name, ((), ()))
    for spec in made:
        x = with_sharding_constraint(x, spec)
    x = <rests>
    for spec in read:
        x = with_sharding_constraint(x, spec)
    return x
'''

CONSTRAIN_UNNAMED = '''
def constrain(name: str, x: jax.Array) -> jax.Array:
    """The activation `name` in the compute dtype and in its layout."""
    return with_sharding_constraint(x.astype(COMPUTE), <where>)
'''

WEIGHT = '''
def weight(name: str, w: jax.Array) -> jax.Array:
    """The parameter `name` in its layout of use<gathered>."""
    return with_sharding_constraint(w, USED[_pattern(name)])
'''

LINEAR = '''
def <linear>(name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in]: [..., out].

    With `out` (-1, D) the result is [..., heads, D]; if two dims are `contracted`, x is [..., heads, D].
    """
    i, o, used = _in_dims(x, weight(name, w), out, contracted)
    return jnp.einsum(f"...{i},{o}{i}->...{o}", x, used)
'''

IN_DIMS = '''
def _in_dims(x: jax.Array, w: jax.Array, out: tuple[int, ...], contracted: int) -> tuple[str, str, jax.Array]:
    """The einsum letters of w's columns and rows, and w with a dim for each.

    Attention's heads are dims of the weight, so that activations need no reshape, which XLA may copy for.
    """
    return "ij"[:contracted], "op"[: len(out)], w.reshape(*out, *x.shape[-contracted:])
'''

LINEAR_GATHERED = '''
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def <linear>(name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in]: [..., out].

    With `out` (-1, D) the result is [..., heads, D]; if two dims are `contracted`, x is [..., heads, D].
    <why>
    A custom_vjp has no forward mode: jax.jvp and jax.jacfwd of the loss raise.
    """
    return _linear_forward(name, x, w, out, contracted)[0]


def _used(name: str, w: jax.Array) -> jax.Array:
    """<used>"""
    <rounded>
    return weight(name, <w>)


def _linear_forward(
    name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...], contracted: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    i, o, used = _in_dims(x, _used(name, w), out, contracted)
    return jnp.einsum(f"...{i},{o}{i}->...{o}", <rows>, used), (x, w)


def _flat(x: jax.Array, dims: int) -> jax.Array:
    """x with its last `dims` as one: heads as a dim of a weight's gradient would decide how it is summed."""
    return x.reshape(*x.shape[: x.ndim - dims], -1)


def _linear_backward(
    name: str, out: tuple[int, ...], contracted: int, kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    <gathered>
    i, o, used = _in_dims(x, _used(name, w), out, contracted)
    dx = jnp.einsum(f"...{o},{o}{i}->...{i}", dy, used)
    dw = <product>
    <summed>
    return dx, with_sharding_constraint(dw, GRADS[_pattern(name)]).astype(w.dtype)


<linear>.defvjp(_linear_forward, _linear_backward)
'''

WHOLE_ROWS = '''
def _whole_rows(x: jax.Array, specs: dict[str, P], name: str) -> jax.Array:
    """x with all rows of its sequences, if `specs` say so for the matmul with the parameter `name`."""
    return with_sharding_constraint(x, specs.get(_pattern(name), P(*[P.UNCONSTRAINED] * x.ndim)))
'''

LOOKUP = '''
def lookup(name: str, table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of the parameter `name`, table [V, E], at tokens [B, S]: [B, S, E]."""
    return weight(name, table)[tokens]
'''

LOOKUP_SETTLED = '''
def lookup(name: str, table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of the parameter `name`, table [V, E], at tokens [B, S]: [B, S, E].

    <why>
    """
    made = <spec>
    return with_sharding_constraint(weight(name, table)[tokens], made)
'''
LOOKED_UP_IN_PARTS = """Each rank of <axes> looks up the rows of its own shard.
The sum gets its layout before `constrain` shards it: otherwise XLA would gather the table, or permute
ranks."""
LOOKED_UP_WHOLE = """Each rank of <axes> looks up all rows, before `constrain` shards them.
Otherwise each would look up its own, and XLA would sum the table's gradient over these ranks too."""


SUMMED = "dw = with_sharding_constraint(dw, SUMMED[_pattern(name)])"
PRODUCT = 'jnp.einsum("...o,...i->oi", _flat(dy, len(out)), _flat(x, contracted), preferred_element_type=<reduce>)'
PRODUCT_OF_COPIES = 'jnp.einsum(f"c...{o},c...{i}->c{o}{i}", _apart(dy), _apart(x), preferred_element_type=<reduce>)'
SUMMED_LAST = """dw = dw.reshape(-1, *w.shape)
# First over the ranks that shard it, then over <axes>: at once this compiler all-reduces all of it.
dw = with_sharding_constraint(dw, P(<copies>, *GRADS[_pattern(name)])).sum(0)"""
ROUNDED = """# Cast before the all-gather: for a layer that waits for its input, XLA would cast after it.
w = jax.lax.optimization_barrier(w.astype(COMPUTE))"""

APART = '''
def _apart(x: jax.Array) -> jax.Array:
    """x [B, ...] split by the replicas of <axes>: [<count>, B / <count>, ...]."""
    <moved>
    apart = <parts>.reshape(<count>, -1, *x.shape[1:])
    return with_sharding_constraint(apart, P(<copies>, <others>, *[P.UNCONSTRAINED] * (x.ndim - 1)))
'''


def model_functions(sharded: Sharded) -> list[str]:
    """Return the source of the functions that a model calls (hooks), one text each."""
    plan = sharded.plan
    names = bool(saved_activations(sharded) or saved_without_replay(sharded))
    return [
        *_constrain(sharded),
        _weight(plan),
        *_linear(sharded),
        *_apart(sharded),
        _lookup(sharded),
        *chunked_loss(sharded),
        *expert_functions(sharded, names=names),
        remat_function(sharded),
        *_layers(sharded),
        *context_functions(sharded, named=names_activations(sharded)),
    ]


def spec_function(plan: Plan) -> str:
    """Return the source of `_spec`, which returns the layout of a leaf: one layer's parameter, or a stack of layers."""
    stack, leading = "whole", "[None] * (leaf.ndim - len(spec))"
    if pipelined(plan):
        stack, leading = "as STACK says", "STACK[: leaf.ndim - len(spec)]"
    return fill(SPEC, stack=stack, leading=leading)


def _constrain(sharded: Sharded) -> list[str]:
    plan, named = sharded.plan, names_activations(sharded)
    where = "_resting(name)" if pipelined(plan) else "ACTIVATIONS[name]"
    others = [resting_function(sharded)] if pipelined(plan) else []
    if exchanged(sharded):
        rests = f"with_sharding_constraint(x.astype(COMPUTE), {where})"
        rests = f"checkpoint_name({rests}, name)" if named else rests
        said = "; named so that `remat` can save it" if named else ""
        return [fill(CONSTRAIN_EXCHANGED, rests=rests, said=said), *others]
    return [fill(CONSTRAIN if named else CONSTRAIN_UNNAMED, where=where), *others]


def _weight(plan: Plan) -> str:
    axes = ", ".join(plan.store("params"))
    return fill(WEIGHT, gathered=f": all-gather over {axes}" if plan.gathers_each_pass() else "")


def _lookup(sharded: Sharded) -> str:
    """Return the source of `lookup`, which gathers the table or looks up by columns. If its output is sharded
    afterwards (`constrain`), `lookup` first constrains it to the layout of a vocab-sharded table's partial sums, or of
    whole rows if each rank looks up all rows."""
    o = lookup_of(sharded)
    if o is not None and (table := looked_up_by_columns(sharded)):
        columns = parts(sharded.plan, sharded.plan.mesh.in_order(table.stored["params"]))
        why = (
            f"Each rank of {' and '.join(columns)} looks up all tokens in its own columns; an all-to-all hands each\n"
            "rank the rows of its tokens. That sends less than gathering the table and summing its gradient."
        )
        settled = fill(LOOKUP_SETTLED, why=why, spec=spec_text(activation_spec(sharded, o.op.output)))
        # Rows become those of all tokens, in columns; the layout that the template gives them makes each rank's own.
        rows = (
            "    everyone = with_sharding_constraint(tokens, P())\n"
            "    rows = weight(name, table)[everyone].astype(COMPUTE)\n"
            f"    columns = with_sharding_constraint(rows, P(None, None, {axis_text(columns)}))\n"
        )
        head, last = settled.rsplit("    return ", 1)
        assert "weight(name, table)[tokens]" in last
        return f"{head}{rows}    return {last.replace('weight(name, table)[tokens]', 'columns')}"
    if o is None or o.settle is None or all(s.kind == "all_reduce" for s in o.settle.steps):
        return LOOKUP
    dims = sharded.model.tensor[o.op.output].dims
    inside = spec_of(sharded.plan, dims, o.settle.before)
    spec = spec_text(inside)
    if pipelined(sharded.plan):
        before = spec_text(shared_by_stages(sharded, dims, inside))
        spec = f"{{True: {before}, False: {spec}}}[_outside()]"
    axes = " and ".join(parts(sharded.plan, o.partial or repeated_over(o)))
    return fill(LOOKUP_SETTLED, why=fill(LOOKED_UP_IN_PARTS if o.partial else LOOKED_UP_WHOLE, axes=axes), spec=spec)


def _layers(sharded: Sharded) -> list[str]:
    plan = sharded.plan
    if not pipelined(plan) and not segments(plan):
        return layers_functions(sharded, "layers")
    groups = layers_functions(sharded, "_in_groups") if every(sharded) > 1 else []
    return [*(pipeline_functions(sharded) if pipelined(plan) else layers_in_segments(sharded)), *groups]


def _linear(sharded: Sharded) -> list[str]:
    plan = sharded.plan
    reduce = {"fp32": "jnp.float32", "bf16": "jnp.bfloat16"}[plan.precision.reduce]
    summed = SUMMED if summed_first(sharded) else ""
    narrow = narrow_functions(sharded, used=own_gradient(plan), summed=bool(summed))
    name = "_wide_linear" if narrow else "linear"
    if not own_gradient(plan):
        return [fill(LINEAR, linear=name), IN_DIMS, *narrow]
    cast = f"in {plan.precision.compute}" if casts(plan) else ""
    gathered = plan.gathers_each_pass()
    if gathered:
        why = "The backward all-gathers the weight again, so that no gathered weight outlives a pass"
        why += f", and\nsums its gradient over the ranks in {plan.precision.reduce}."
    else:
        why = f"The weight's gradient is summed over the ranks in {plan.precision.reduce}."
    used = "The weight " + ", ".join(s for s in ("gathered" if gathered else "", cast) if s) + "."
    product = PRODUCT
    if copies := copies_summed_last(sharded):
        axes = parts(plan, copies)
        summed, product = fill(SUMMED_LAST, axes=" and ".join(axes), copies=axis_text(axes)), PRODUCT_OF_COPIES
    waits = rounds_before_gathers(plan)
    inputs, results = gathered_rows(sharded)
    gathered_again = fill(
        LINEAR_GATHERED,
        linear=name,
        why=why,
        used=used,
        rounded=ROUNDED if waits else "",
        w="w" if waits else "w.astype(COMPUTE)",
        product=fill(product, reduce=reduce),
        summed=summed,
        rows="_whole_rows(x, INPUTS, name)" if inputs else "x",
        gathered=lines(
            "x = _whole_rows(x, INPUTS, name)" if inputs else "",
            "dy = _whole_rows(dy, RESULTS, name)" if results else "",
        ),
    )
    return [gathered_again, IN_DIMS, *([WHOLE_ROWS] if inputs or results else []), *narrow]


def _apart(sharded: Sharded) -> list[str]:
    """Return the source of `_apart`, which splits the sequences by replica for gradients that are summed over replicas
    last; [] if the program has no such sums."""
    plan = sharded.plan
    copies = parts(plan, copies_summed_last(sharded))
    if not copies:
        return []
    size = {a.name: a.size for a in atoms(plan)}
    batch = parts(plan, plan.mesh.in_order(plan.data_axes))
    others = tuple(a for a in batch if a not in copies)
    order = [batch.index(a) for a in (*copies, *others)]
    sizes = ", ".join(str(size[a]) for a in batch)
    moved = f"parts = jnp.moveaxis(x.reshape({sizes}, -1, *x.shape[1:]), {tuple(order)}, {tuple(range(len(batch)))})"
    moves = order != sorted(order)
    return [
        fill(
            APART,
            axes=" and ".join(copies),
            count=str(prod(size[a] for a in copies)),
            moved=moved if moves else "",
            parts="parts" if moves else "x",
            copies=axis_text(copies),
            others=axis_text(others),
        )
    ]


def summed_table(sharded: Sharded) -> list[str]:
    """Return the lines of `SUMMED`: the layouts in which gradients are summed before they get their layout in `GRADS`;
    [] if no sum needs a layout of its own."""
    stated = own_gradient(sharded.plan) or narrow_params(sharded)
    if copies_summed_last(sharded) or not (stated and (found := summed_first(sharded))):
        return []
    said = (
        "Layouts in which these gradients are summed. XLA's partitioner computes wrong sums, or splits matmuls, "
        "between a matmul's layout and GRADS, so each first gets the layout of its weight in use."
    )
    rows = chain.from_iterable(entry(p.param.name, param_spec(sharded.plan, p, "used")) for p in found)
    return [*comment(said), "SUMMED = GRADS | {", *rows, "}"]


def rows_tables(sharded: Sharded) -> list[str]:
    """Return the lines of `INPUTS` and `RESULTS`: the layouts with whole rows that matmuls state; [] if none does."""
    inputs, results = gathered_rows(sharded)
    said = {
        "INPUTS": "Inputs of matmuls with all rows, by the weight: stated, so that its products share one all-gather.",
        "RESULTS": "Gradients of results with all rows, likewise.",
    }
    tables = [(name, found) for name, found in zip(said, (inputs, results), strict=True) if found]
    return [
        line
        for name, found in tables
        for line in (
            *comment(said[name]),
            f"{name} = {{",
            *(row for param, spec in found.items() for row in entry(param, spec)),
            "}",
        )
    ]
