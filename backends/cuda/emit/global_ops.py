"""Emits the functions over all ranks: mean_over_batch, clip_grad_norm, data_rank."""

from __future__ import annotations

from planc.backends.common.source_writer import fill, lines
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.emit import ranks, tied
from planc.diag.quoting import python_string


def mean_over_batch(roles: AxisRoles) -> str:
    """Emits mean_over_batch, which averages the loss over data ranks and, in a pipeline, takes it from the last stage;
    "" for one data rank and no pipeline."""
    if not (roles.data or roles.pipeline):
        return ""
    return fill(
        '''
        def mean_over_batch(loss: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
            """The mean over all data ranks, the same on every rank."""
            <pipeline>
            <data>
            return loss
        ''',
        pipeline=_sum_of_stages(roles, "Only the last stage has a loss; the others add zero.", "loss"),
        data=MEAN if roles.data else "",
    )


MEAN = """\
for axis in DATA_AXES:
    dist.all_reduce(loss, group=mesh.get_group(axis))
    loss /= MESH[axis]"""


def _sum_of_stages(roles: AxisRoles, why: str, value: str) -> str:
    if not roles.pipeline:
        return ""
    return f"# {why}\ndist.all_reduce({value}, group=mesh.get_group({python_string(roles.name('pipeline'))}))"


def sums_left(roles: AxisRoles) -> bool:
    """True if gradients are partial over the tensor axes after the backward. FSDP leaves none: it reduces them."""
    tensor = set(roles.tensor)
    return not roles.uses_fsdp and any(tensor & {*p.grad_partial} for p in roles.sharded.params if not p.param.frozen)


def sum_gradients(roles: AxisRoles) -> str:
    """Emits sum_gradients, which all-reduces partial gradients; "" if the backward leaves none."""
    return SUM_GRADIENTS.strip() if sums_left(roles) else ""


SUM_GRADIENTS = '''
def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """All-reduce partial gradients of DTensor once per step; otherwise each consumer would do it again."""
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)
'''


def total_norm(roles: AxisRoles) -> str:
    """Emits total_norm, the gradient norm in fp32; "" if gradients are fp32, for which torch has a function."""
    return "" if roles.state_dtype == "fp32" else TOTAL_NORM.strip()


TOTAL_NORM = '''
def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The L2 norm of all gradients in fp32; torch's `get_total_norm` would round it to their dtype."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms))
'''


def clip(roles: AxisRoles) -> str:
    """Emits clip_grad_norm, which clips the gradient norm over all ranks."""
    mixed = _mixed(roles)
    divided = roles.uses_fsdp or bool(roles.tensor)
    pipeline = lines(
        "norm = norm**2",
        _sum_of_stages(roles, "Each stage has the norm of its own layers.", "norm"),
        "norm = norm**0.5",
    )
    return fill(
        '''
        def clip_grad_norm(<argument>, mesh: DeviceMesh, max_norm: float) -> torch.Tensor:
            """Scale gradients to a global L2 norm of at most `max_norm`; returns the norm before."""
            parameters = <parameters>
            <copies>
            <norm>
            <pipeline>
            <scale>
            return norm
        ''',
        argument="stages: list[nn.Module]" if roles.pipeline else "model: nn.Module",
        parameters="[p for stage in stages for p in stage.parameters()]"
        if roles.pipeline
        else "list(model.parameters())",
        copies=tied.left_out_of_the_norm(roles, by_mesh=mixed),
        norm=_norm(roles, mixed=mixed, divided=divided),
        pipeline=pipeline if roles.pipeline else "",
        scale=MIXED_SCALE if mixed else "torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)",
    )


def _norm(roles: AxisRoles, *, mixed: bool, divided: bool) -> str:
    """Emits code for the gradient norm; a tied weight counts once. `mixed` is True if parameters are on several meshes,
    `divided` if they are DTensors."""
    tied = bool(roles.modules_of_both_ends)
    total = "torch.nn.utils.get_total_norm" if roles.state_dtype == "fp32" else "total_norm"
    if mixed:
        return fill(MIXED_NORM, total=total, counted="p not in copies and " if tied else "")
    counted = "counted" if tied else "parameters"
    whole = ".full_tensor()" if divided else ""
    return f"norm = {total}([p.grad for p in {counted} if p.grad is not None]){whole}"


MIXED_NORM = """\
# Parameters are on several meshes: compute one norm per mesh.
groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
for parameter in parameters:
    groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
norms = []
for group in groups.values():
    norm = <total>([p.grad for p in group if <counted>p.grad is not None])
    norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
norm = torch.linalg.vector_norm(torch.stack(norms))"""

MIXED_SCALE = """\
for group in groups.values():
    torch.nn.utils.clip_grads_with_norm_(group, max_norm, norm)"""


def _mixed(roles: AxisRoles) -> bool:
    """True if not all parameters are on one mesh, as with tensor parallelism of some modules only."""
    tensor = set(roles.tensor)
    mixed = bool(tensor) and not all(tensor & {*p.axes(), *p.grad_partial} for p in roles.sharded.params)
    return mixed or len(roles.tensor_parts) > 1 or roles.experts.apart


def data_rank(roles: AxisRoles) -> str:
    """Emits data_rank, which returns the slice of the global batch that a rank trains on."""
    mesh, axes = roles.plan.mesh, roles.plan.data_axes
    return fill(
        '''
        def data_rank(mesh: DeviceMesh) -> tuple[int, int]:
            """(index, count) of the slice of the global batch that this rank trains on<rest>."""
            <laid>
            <rank>
            return <index>, <count>
        ''',
        rest="" if axes else ": all of it",
        laid=ranks.laid(mesh, mesh.in_order(mesh.sizes)) if axes else "",
        rank="rank = mesh.get_rank()" if axes else "",
        index=ranks.place(mesh, axes) or "0",
        count=str(mesh.size(*axes)),
    )
