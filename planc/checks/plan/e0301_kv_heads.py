"""E0301: fewer key-value heads than the axis has ranks, or no multiple of them."""

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


RULE = Rule(
    code="E0301",
    title="key-value heads do not divide",
    reads="plan",
    why="""With grouped-query attention a model has fewer key-value heads than query heads, and
`shard heads` divides both. torch's parallelize_module does not notice; the view of the keys fails
in the first forward, after the weights were loaded.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      tp 16
use       tp over tp
shard     sequence over tp in residual
compute   bf16 reduce fp32
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      fsdp 2 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
recompute blocks
""",
    check=check,
)
