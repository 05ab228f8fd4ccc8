"""Emits the functions that route tokens to experts: `experts` and its helpers.

Each rank assigns its tokens to slots of the experts, sends the slots to the ranks that hold these experts, and receives
the outputs. All of it is per-rank code in a shard_map: XLA infers no collective.
"""

from __future__ import annotations

import re

from planc.backends.common.source_writer import INDENT, WIDTH, beside, causes, comment
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.emit.specs import axes_text, entry
from planc.backends.xla.program.facts import JaxFacts
from planc.diag.quoting import python_string
from planc.ir.sharding import Sharded

PICKS = (
    ('"grad_norm"})`; donates the old state.', '"grad_norm", "picks"})`; donates the old state.'),
    (
        """[sequences, sequence_tokens]. `params`: arrays or shapes.
""",
        """[sequences, sequence_tokens]. `params`: arrays or shapes.
    `loss_fn` returns the loss, and picks [routed layers, ranks, X] as `experts` counts them.
""",
    ),
    ("loss, grads = _accumulate(loss_fn, ", "loss, grads, picks = _accumulate(loss_fn, "),
    (
        """        return {"params": params, "optimizer": moments}, {"loss": loss, "grad_norm": norm}
""",
        """        metrics = {"loss": loss, "grad_norm": norm, "picks": jnp.sum(picks, axis=1)}  # [routed layers, X]
        return {"params": params, "optimizer": moments}, metrics
""",
    ),
    (
        "    state = state_shardings(mesh, params, optimizer)\n",
        """    state = state_shardings(mesh, params, optimizer)
    metrics = dict.fromkeys(("loss", "grad_norm", "picks"), whole)
""",
    ),
    ("""out_shardings=(state, {"loss": whole, "grad_norm": whole}),""", "out_shardings=(state, metrics),"),
    (", *batch), batches))", ", *batch)[0], batches))"),
    ("targets: jax.Array) -> tuple[jax.Array, Any]:", "targets: jax.Array) -> tuple[Any, ...]:"),
    (
        "The mean loss of the global batch and its gradients, fp32, accumulated",
        "Mean loss, its gradients, fp32, and picks of the global batch, accumulated",
    ),
    ("loss, grads = jax.value_and_grad(loss_fn)(", "(loss, picks), grads = jax.value_and_grad(loss_fn, has_aux=True)("),
    ("def one(total: Any, batch: Any) -> tuple[Any, None]:", "def one(total: Any, batch: Any) -> tuple[Any, Any]:"),
    (", total, (loss, grads)), None", ", total, (loss, grads)), picks"),
    ("total, _ = jax.lax.scan(one, zeros, batches)", "total, picks = jax.lax.scan(one, zeros, batches)"),
    (
        "    return jax.tree.map(lambda x: x / batches[0].shape[0], total)",
        """    loss, grads = jax.tree.map(lambda x: x / batches[0].shape[0], total)
    return loss, grads, picks.sum(0)""",
    ),
)
"""Edits of the step for a loss function that also returns expert counts [routed layers, ranks, X]."""


def with_picks(text: str) -> str:
    """Return `text`, source of a function of the step, edited for a loss function that also returns expert counts."""
    for plain, told in PICKS:
        text = text.replace(plain, told)
    return re.sub(r"(?m)( return _accumulate\(.*\))$", r"\1[:2]", text)


def expert_tables(sharded: Sharded) -> list[str]:
    """Return the lines of the tables of experts' layouts (`EXPERTS`), gathers and gradient sums; [] without experts."""
    experts = XlaExpertAxes(sharded)
    if not experts.ops:
        return []
    said = "as stored" if experts.in_use else "as used"
    out = [*beside(f"EXPERTS_TOKENS = {axes_text(experts.tokens)}", "axes that shard the tokens in expert routing")]
    out += [*comment(f"Layout of experts' weights in use: {said}."), *causes([experts.cause]), "EXPERTS = {"]
    out += [line for p in experts.params for line in entry(p.param.name, experts.resting(p))] + ["}"]
    if experts.in_use:
        out += [*comment("The dim on which each is all-gathered, and the axes."), "EXPERTS_GATHERED = {"]
        out += [_row(p.param.name, _dim_and_axes(*experts.gathered(p))) for p in experts.params] + ["}"]
    if experts.in_use or _casts(experts):
        out += [*comment("The axes over which each is replicated, and its gradient summed."), "EXPERTS_REPEATED = {"]
        out += [_row(p.param.name, axes_text(experts.repeated(p))) for p in experts.params] + ["}"]
    return out


def expert_functions(sharded: Sharded, *, names: bool) -> list[str]:
    """Return the source of `named`, `experts` and its helpers; [] without experts. `names` is True if the program saves
    some activation by its name."""
    experts = XlaExpertAxes(sharded)
    if not experts.ops:
        return []
    rule = ["_of_experts_forward", "_of_experts_backward"] if experts.has_kernel else []
    entries = ["named", "experts", "unpicked", *rule]
    functions = specialise("planc.backends.xla.program", "experts", _facts(experts, names), entries, WIDTH)
    if experts.has_kernel:
        # The rule for gradients is the kernel's: without it the function has JAX's.
        at = next(i for i, text in enumerate(functions) if text.startswith("def _of_experts("))
        ends = "_of_experts.defvjp(_of_experts_forward, _of_experts_backward)"
        functions[at : at + 3] = [f"@jax.custom_vjp\n{functions[at]}", *functions[at + 1 : at + 3], ends]
    return functions


def _facts(experts: XlaExpertAxes, names: bool) -> JaxFacts:
    """Return what the plan of `experts` decides about their functions."""
    plan, factor = experts.plan, experts.plan.route.factor
    same = _size(experts, tuple(a for a in experts.dividing if a not in experts.tokens))
    holders = _size(experts, experts.exchange)
    return JaxFacts(
        names_activations=names,
        capacity=(int(factor) if factor == int(factor) else factor) if experts.capacity else 0,
        stages=pipelined(plan),
        kernel=experts.has_kernel,
        combined=experts.combine.output,
        routed=experts.ops[0].op.inputs[0],
        expert_axes=experts.dividing,
        sequence=experts.sequence,
        exchange=experts.exchange,
        sharing=experts.tensor,
        gathers_rows=experts.gathers,
        holders=holders,
        senders=holders * (_size(experts, experts.tensor) if experts.gathers else 1),
        token_ranks=_size(experts, experts.tokens),
        same_tokens=same if pipelined(plan) or experts.has_kernel else 1,
        ragged=experts.ragged,
        gathers_weights=experts.in_use,
        casts=_casts(experts),
        compute=plan.precision.compute,
        reduce=plan.precision.reduce,
        one_each=experts.alone,
        weight_axes=", ".join(dict.fromkeys(a for p in experts.params for a in experts.gathered(p)[1])),
    )


def _casts(experts: XlaExpertAxes) -> bool:
    return experts.plan.precision.compute != "fp32"


def _size(experts: XlaExpertAxes, axes: tuple[str, ...]) -> int:
    sizes = {a.name: a.size for a in atoms(experts.plan)}
    total = 1
    for axis in axes:
        total *= sizes[axis]
    return total


def _dim_and_axes(dim: int, axes: tuple[str, ...]) -> str:
    return f"({dim}, {axes_text(axes)})"


def _row(name: str, value: str) -> str:
    return f"{INDENT}{python_string(name)}: {value},"
