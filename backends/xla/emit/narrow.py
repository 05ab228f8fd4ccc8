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

from planc.backends.common.source_writer import INDENT, WIDTH, causes, comment, lines_of_tuple
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.narrow_products import narrow_params, params_of, recipe, segments
from planc.backends.xla.emit.remat import stacks
from planc.backends.xla.program.facts import JaxFacts
from planc.diag.quoting import python_string
from planc.ir.plan import Quantize
from planc.ir.sharding import Sharded

PAIRS = {
    "float8_rowwise": "(_float8_rowwise, _float8_rowwise)",
    "float8_tensorwise": "(_float8_tensorwise, functools.partial(_float8_tensorwise, dtype=jnp.float8_e5m2))",
    "int8_rowwise": "(_int8_rowwise, _int8_rowwise)",
}


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


def narrow_functions(sharded: Sharded, *, used: bool, summed: bool) -> list[str]:
    """Return the source of the low-precision matmuls; [] if no parameter is quantized.

    `used` is True if the program already defines `_used`. `summed` is True if the layout of a weight's gradient is
    set before the sum.
    """
    recipes = dict.fromkeys(map(_name, narrow_params(sharded).values()))
    if not recipes:
        return []
    pairs = "\n".join(f"{INDENT}{python_string(name)}: {PAIRS[name]}," for name in recipes)
    said = "# (cast of inputs and weights, cast of output gradients) of each recipe."
    plan = sharded.plan
    facts = JaxFacts(some_layers_wide=bool(segments(plan)), reduce=plan.precision.reduce, sums_stated=summed)
    entries = ["linear", *(["_multiplying_in_compute"] if facts.some_layers_wide else [])]
    functions = specialise("planc.backends.xla.program", "narrow", facts, entries, WIDTH)
    return [
        *(text for text in functions if not (used and text.startswith("def _used("))),
        *specialise("planc.backends.xla.program", "narrow", facts, [f"_{name}" for name in recipes], WIDTH),
        f"{said}\nRECIPES = {{\n{pairs}\n}}",
    ]


def layers_in_segments(sharded: Sharded) -> list[str]:
    """Return the source of `layers` for a model in which some layers keep matmuls in the compute dtype."""
    facts = JaxFacts(several_stacks=len(stacks(sharded)) > 1)
    return specialise("planc.backends.xla.program", "segments", facts, ["layers"], WIDTH)
