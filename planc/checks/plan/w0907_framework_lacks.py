"""Rule W0907 (warning): the framework in `realise as` does not support another sentence of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.frameworks import OWN, policy_of
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each sentence of `plan` that the framework in `realise as` does not support."""
    if plan.realise is None or plan.framework == OWN:
        return
    from planc.frameworks.runs import lacks

    title = policy_of(plan.framework).title
    for lack in lacks(plan, plan.framework):
        yield Diagnostic(
            "W0907",
            f"{title} {lack.why}",
            lack.cause.span,
            help=f"({lack.row.source}); a search leaves such layouts out, `planc export` refuses them",
            related=(Related(plan.realise.cause.span, "the framework"),),
        )


RULE = Rule("W0907", check=check, of_batch=True)
