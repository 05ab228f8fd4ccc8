"""Emits matmuls in float8 and int8: the table of the parameters, and the functions.

Each of a matmul's three products (output, input gradient, weight gradient) casts both operands anew, scaled so that the
largest magnitude becomes the largest number of the dtype. float8 is that of torchao's linear layer (torchao 0.18,
`float8_linear.py`, `float8_utils.py`), which the cuda target emits: tensorwise with gradients in float8_e5m2, or
rowwise, all in float8_e4m3fn with power-of-two scales. Tensorwise scales are over all ranks, since the arrays of a
program are global.

Why not qwix (0.1.8): `quantize_model` takes a flax module and patches its `__call__` by rules on module paths, and an
emitted program is plain functions over a dict. Its public `dot_general` and `einsum` have no gradient;
`dot_general_qt`, which has one, is private and saves the quantized operands for the backward, where a plan may require
that a weight stays sharded and is gathered again.
"""

from __future__ import annotations

from planc.backends.common.source_writer import INDENT, causes, comment, fill, lines_of_tuple
from planc.backends.xla.analysis.narrow_products import narrow_params, params_of, recipe, segments
from planc.backends.xla.emit.remat import stacks
from planc.diag.quoting import python_string
from planc.ir.plan import Quantize
from planc.ir.sharding import Sharded

LINEAR = '''
def linear(name: str, x: jax.Array, w: jax.Array, out: tuple[int, ...] = (-1,), contracted: int = 1) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in]: [..., out]; quantized if NARROW says so.

    With `out` (-1, D) the result is [..., heads, D]; if two dims are `contracted`, x is [..., heads, D].
    """
    recipe = <recipe>
    product = {"": _wide_linear}.get(recipe, functools.partial(_narrow_linear, recipe))
    y = product(name, x.reshape(*x.shape[:-contracted], -1), w)
    return y.reshape(*y.shape[:-1], *out)
'''

ALWAYS = 'NARROW.get(_pattern(name), "")'
IN_LAYERS = "_recipe(name)"

RECIPE = '''
_KEPT_WIDE: ContextVar[tuple[str, ...]] = ContextVar("kept_wide", default=())


@contextmanager
def _keeping_wide(names: tuple[str, ...]) -> Iterator[None]:
    """Context for tracing layers: these parameters are multiplied in COMPUTE."""
    before = _KEPT_WIDE.set(names)
    try:
        yield
    finally:
        _KEPT_WIDE.reset(before)


def _recipe(name: str) -> str:
    """The recipe of a parameter in the current layer; "" for COMPUTE."""
    return (NARROW | dict.fromkeys(_KEPT_WIDE.get(), "")).get(_pattern(name), "")
'''

PRODUCTS = '''
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _narrow_linear(recipe: str, name: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """x [..., in] times the parameter `name`, w [out, in]: [..., out].

    Both operands of each matmul are cast to a narrow dtype, and the result is multiplied by their scales.
    A custom_vjp has no forward mode: jax.jvp and jax.jacfwd of the loss raise.
    """
    return _narrow_linear_forward(recipe, name, x, w)[0]


def _narrow_linear_forward(
    recipe: str, name: str, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    cast, _ = RECIPES[recipe]
    (rows, by_row), (columns, by_column) = cast(x, (-1,)), cast(_used(name, w), (1,))
    y = jnp.einsum("...i,oi->...o", rows, columns, preferred_element_type=<sums>)
    return (y * by_row * by_column[:, 0]).astype(COMPUTE), (x, w)


def _narrow_linear_backward(
    recipe: str, name: str, kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    (x, w), (cast, cast_gradient) = kept, RECIPES[recipe]
    (rows, by_row), (columns, by_column) = cast_gradient(dy, (-1,)), cast(_used(name, w), (0,))
    dx = jnp.einsum("...o,oi->...i", rows, columns, preferred_element_type=<sums>)
    dx = (dx * by_row * by_column[0]).astype(x.dtype)
    tokens = tuple(range(x.ndim - 1))
    (rows, by_row), (columns, by_column) = cast_gradient(dy, tokens), cast(x, tokens)
    dw = jnp.einsum("...o,...i->oi", rows, columns, preferred_element_type=<reduce>)
    <summed>
    dw = with_sharding_constraint(dw, GRADS[_pattern(name)]) * by_row.reshape(-1, 1) * by_column.reshape(-1)
    return dx, dw.astype(w.dtype)


_narrow_linear.defvjp(_narrow_linear_forward, _narrow_linear_backward)
'''

USED = '''
def _used(name: str, w: jax.Array) -> jax.Array:
    """The weight in the compute dtype, in its layout of use."""
    return weight(name, w.astype(COMPUTE))
'''

CASTS = {
    "float8_rowwise": '''
def _float8_rowwise(x: jax.Array, summed: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """x in float8, and its inverse scales, shared along the contracted dims `summed`."""
    largest = jnp.max(jnp.abs(x), axis=summed, keepdims=True).astype(jnp.float32)
    scale = float(jnp.finfo(jnp.float8_e4m3fn).max) / jnp.maximum(largest, 1e-12)
    power = jnp.ldexp(jnp.full_like(scale, 0.5), jnp.frexp(scale)[1])  # next lower power of two: exact
    return (x.astype(jnp.float32) * power).astype(jnp.float8_e4m3fn), 1 / power
''',
    "float8_tensorwise": '''
def _float8_tensorwise(
    x: jax.Array, summed: tuple[int, ...], dtype: Any = jnp.float8_e4m3fn
) -> tuple[jax.Array, jax.Array]:
    """x in float8, and its inverse scale, one for the tensor."""
    largest = jnp.max(jnp.abs(x), keepdims=True).astype(jnp.float32)
    scale = float(jnp.finfo(dtype).max) / jnp.maximum(largest, 1e-12)
    return (x.astype(jnp.float32) * scale).astype(dtype), 1 / scale
''',
    "int8_rowwise": '''
def _int8_rowwise(x: jax.Array, summed: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """x in int8, and its inverse scales, shared along the contracted dims `summed`."""
    largest = jnp.max(jnp.abs(x), axis=summed, keepdims=True).astype(jnp.float32)
    scale = jnp.iinfo(jnp.int8).max / jnp.maximum(largest, 1e-12)
    return jnp.round(x.astype(jnp.float32) * scale).astype(jnp.int8), 1 / scale
''',
}
"""The cast functions, by recipe."""

PAIRS = {
    "float8_rowwise": "(_float8_rowwise, _float8_rowwise)",
    "float8_tensorwise": "(_float8_tensorwise, functools.partial(_float8_tensorwise, dtype=jnp.float8_e5m2))",
    "int8_rowwise": "(_int8_rowwise, _int8_rowwise)",
}

LAYERS = '''
def layers(block: Callable[..., Any], x: Any, stack: Any) -> Any:
    """x after `block(x, one layer's parameters)` for each layer of the stack."""

    for begin, end, names in <segments>:
        part = jax.tree.map(lambda w, begin=begin, end=end: w[begin:end], stack)
        x, _ = jax.lax.scan(remat(_layer(block, names), alone=end - begin == 1), x, part)
    return x


def _layer(block: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """A layer that multiplies by the named parameters in COMPUTE; a new function, as JAX caches traces."""

    def one(x: Any, layer: Any) -> tuple[Any, None]:
        with _keeping_wide(names):
            # A layer waits for its x: otherwise weights outside loops are gathered before all microbatches.
            return block(*jax.lax.optimization_barrier((x, layer))), None

    return one
'''

OF_STACK = '''
def _segments(stack: Any) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    """The segments of a stack of layers, by the parameters that they have."""
    paths = jax.tree_util.tree_leaves_with_path(stack)
    names = {_pattern(jax.tree_util.keystr(path, simple=True, separator=".")) for path, _ in paths}
    return next(found for name, found in SEGMENTS.items() if name in names)
'''


def narrow_tables(sharded: Sharded) -> list[str]:
    """Return the lines of `NARROW`, the recipe of each quantized parameter, and of `SEGMENTS` if some layers stay in
    the compute dtype; [] if no parameter is quantized."""
    found = narrow_params(sharded)
    if not found:
        return []
    plan = sharded.plan
    out = [
        *comment("Quantized parameters, with their recipes."),
        *causes(q.cause for q in plan.quantize),
    ]
    out += ["NARROW = {", *(f"{INDENT}{python_string(n)}: {python_string(_name(q))}," for n, q in found.items()), "}"]
    if not segments(plan):
        return out
    out += comment("Parameters that some layers multiply in COMPUTE.")
    for sentence, name in _sets(sharded).items():
        out += lines_of_tuple(f"{name} = ", [python_string(n) for n in params_of(sharded, plan.quantize[sentence])])
    out += comment("Runs of layers: first index in its stack, one past the last, parameters multiplied in COMPUTE.")
    return [*out, *_segments_table(sharded)]


def _name(sentence: Quantize) -> str:
    name = recipe(sentence)
    assert name is not None, sentence
    return name


def _sets(sharded: Sharded) -> dict[int, str]:
    """Return the names of the emitted tuples of parameters that stay in the compute dtype in some layers, by the index
    of the plan's `quantize` sentence."""
    spare = [n for n, q in enumerate(sharded.plan.quantize) if q.kept_layers and params_of(sharded, q)]
    return {n: "WIDE" if len(spare) == 1 else f"WIDE_{at}" for at, n in enumerate(spare)}


def _segments_table(sharded: Sharded) -> list[str]:
    of_stacks = {name: _text(sharded, *stack) for name, stack in stacks(sharded).items()}
    if len(of_stacks) == 1:
        return [line for rows in of_stacks.values() for line in lines_of_tuple("SEGMENTS = ", rows)]
    out = ["SEGMENTS = {"]
    for name, rows in of_stacks.items():
        out += [INDENT + line for line in lines_of_tuple(f"{python_string(name)}: ", rows, ",")]
    return [*out, "}"]


def _text(sharded: Sharded, first: int, layers: int) -> list[str]:
    """Return code for the segments (layers quantized alike) of a stack of `layers` layers, from layer `first` on."""
    plan, sets = sharded.plan, _sets(sharded)
    rows = []
    for begin, end, wide in segments(plan):
        begin, end = max(begin, first) - first, min(end, first + layers) - first
        names = [sets[plan.quantize.index(q)] for q in wide if plan.quantize.index(q) in sets]
        if begin < end:
            rows.append(f"({begin}, {end}, {' + '.join(names) or '()'})")
    return rows


def narrow_functions(sharded: Sharded, *, used: bool, reduce: str, summed: str) -> list[str]:
    """Return the source of the low-precision matmuls; [] if no parameter is quantized.

    `used` is True if the program already defines `_used`. `reduce` is code for the dtype of the gradient sums; `summed`
    is the line that sets a weight gradient's layout before the sum, or "".
    """
    recipes = dict.fromkeys(map(_name, narrow_params(sharded).values()))
    if not recipes:
        return []
    pairs = "\n".join(f"{INDENT}{python_string(name)}: {PAIRS[name]}," for name in recipes)
    said = "# (cast of inputs and weights, cast of output gradients) of each recipe."
    kept = bool(segments(sharded.plan))
    return [
        *([RECIPE] if kept else []),
        fill(LINEAR, recipe=IN_LAYERS if kept else ALWAYS),
        *([] if used else [USED]),
        fill(PRODUCTS, reduce=reduce, summed=summed, sums="COMPUTE"),
        *(CASTS[name] for name in recipes),
        f"{said}\nRECIPES = {{\n{pairs}\n}}",
    ]


def layers_in_segments(sharded: Sharded) -> list[str]:
    """Return the source of `layers` for a model in which some layers keep matmuls in the compute dtype."""
    several = len(stacks(sharded)) > 1
    return [fill(LAYERS, segments="_segments(stack)" if several else "SEGMENTS"), *([OF_STACK] if several else [])]
