"""Rule E0301 (error): the number of key-value heads is not divisible by the ranks that shard them."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import divisors
from planc.checks.splits import divided, resize
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    for dim, axes, region in divided(plan):
        heads = plan.model.sizes.get("kv_heads", 1)
        ranks = plan.mesh.size(*axes)
        if dim != "kv_heads" or heads % ranks == 0 or plan.model.sizes["heads"] % ranks:
            continue
        cause = plan.cause_of_shard(dim, axes[0], region)
        legal = divisors(heads)
        yield Diagnostic(
            "E0301",
            f"{heads} key-value heads over {' x '.join(axes)} = {ranks} ranks: {heads / ranks:g} heads each",
            cause.span if cause else plan.mesh.cause.span,
            help=f"legal sizes of {axes[-1]}: {', '.join(map(str, legal))}; or `replicate kv_heads over"
            f" {', '.join(axes)}`, and every rank makes all keys",
            fix=resize(plan, axes[-1], legal) if len(axes) == 1 else None,
        )


RULE = Rule("E0301", check=check)
