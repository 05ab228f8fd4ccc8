"""Rule E0404 (error): the pipeline's mesh axis also shards something else, or is no axis of the mesh itself."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import remove
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    split = plan.pipelined
    if split is None:
        return
    if all(axis.name != split.axis for axis in plan.mesh.axes):
        yield Diagnostic(
            "E0404",
            f"axis `{split.axis}` is of a view, and layers are split over an axis of the mesh",
            split.cause.span,
            help="a view divides the ranks of the mesh's axes once more, for some parameters: these ranks hold the "
            "same layers",
        )
        return
    uses = [(s.axes, s.cause) for s in plan.shards] + [(s.axes, s.cause) for s in plan.stores]
    for axes, cause in uses:
        if split.axis in axes:
            yield Diagnostic(
                "E0404",
                f"axis `{split.axis}` splits the layers and cannot divide anything else",
                cause.span,
                related=(Related(split.cause.span, "the layers are split here"),),
                fix=remove(cause),
                help="ranks along a pipeline hold different layers and have no tensor in common to divide",
            )
            return


RULE = Rule("E0404", check=check)
