"""Emits the functions for a tied embedding in a pipeline, whose first and last stage each have a copy of the weight."""

from __future__ import annotations

from planc.backends.common.source_writer import fill, lines, tuple_of
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.schedules import in_a_v
from planc.diag.quoting import python_string


def functions(roles: AxisRoles) -> str:
    """Emits the functions that sum the gradients of the two copies of a tied weight; "" if there is only one copy."""
    if not roles.modules_of_both_ends:
        return ""
    names = [python_string(f"{module}.weight") for module in roles.modules_of_both_ends]
    weights, firsts = (tuple_of([f"{s}.get_parameter({name})" for name in names]) for s in ("stage", "stages[0]"))
    copies = fill(HEAD_COPIES, weights=weights)
    if in_a_v(roles.plan):
        return "\n\n\n".join((copies, fill(SUM_ON_ONE_RANK, firsts=firsts)))
    between = roles.plan.pipeline > 2
    group = "ends.get_group()" if between else f"mesh.get_group({python_string(roles.name('pipeline'))})"
    sums = fill(SUM_OVER_RANKS, weights=weights, group=group, made="ends = ends_mesh(mesh)" if between else "")
    return "\n\n\n".join((copies, *([_ends_mesh(roles)] if between else []), sums))


def left_out_of_the_norm(roles: AxisRoles, *, by_mesh: bool) -> str:
    """Emits code that leaves the last stage's copy of a tied weight out of the gradient norm. `by_mesh` is True if the
    program computes one norm per mesh."""
    if not roles.modules_of_both_ends:
        return ""
    copies = "copies = set(head_copies(stages, mesh))  # the first stage counts them"
    return copies if by_mesh else lines(copies, "counted = [p for p in parameters if p not in copies]")


HEAD_COPIES = '''
def head_copies(stages: list[nn.Module], mesh: DeviceMesh) -> list[nn.Parameter]:
    """The last stage's copies of tied weights: the head uses the embedding's weight."""
    held = zip(stage_indices(mesh), stages, strict=True)
    last = [stage for index, stage in held if index == len(STAGES) - 1]
    return [weight for stage in last for weight in <weights>]
'''

SUM_ON_ONE_RANK = '''
def sum_shared_gradients(stages: list[nn.Module], mesh: DeviceMesh) -> None:
    """Sum the gradients of both copies of the tied weight, once a step."""
    for last in head_copies(stages, mesh):
        for first in <firsts>:
            first.grad += last.grad
            last.grad.copy_(first.grad)
'''


def _ends_mesh(roles: AxisRoles) -> str:
    return fill(
        ENDS_MESH,
        dim=str([f.role for f in roles.factors].index("pipeline")),
        size=str(roles.plan.pipeline),
        name=python_string(roles.ends_name),
    )


ENDS_MESH = '''
@cache
def ends_mesh(mesh: DeviceMesh) -> DeviceMesh | None:
    """The mesh of the first and the last stage's ranks; None on the others."""
    ranks = mesh.mesh.movedim(<dim>, -1).reshape(-1, <size>)[:, [0, -1]]
    group, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), group_desc=<name>)
    return group and DeviceMesh.from_group(group, mesh.device_type, mesh_dim_names=(<name>,))
'''

SUM_OVER_RANKS = '''
def sum_shared_gradients(stages: list[nn.Module], mesh: DeviceMesh) -> None:
    """All-reduce the gradients of the tied weight between the first and the last stage, once a step."""
    <made>
    for index, stage in zip(stage_indices(mesh), stages, strict=True):
        for weight in <weights> if index in (0, len(STAGES) - 1) else ():
            if isinstance(weight.grad, DTensor):  # an embedding's gradient may have all rows on every rank
                weight.grad = weight.grad.redistribute(placements=weight.placements)
            grad = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
            dist.all_reduce(grad, group=<group>)
'''
