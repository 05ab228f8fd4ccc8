"""Emits the pipeline's functions: stage_indices, split_stages, build_schedule."""

from __future__ import annotations

from planc.backends.common.source_writer import because, call, fill, lines
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.schedules import SCHEDULES, TorchSchedule, in_a_v
from planc.backends.cuda.emit import loss
from planc.backends.cuda.versions import stages_on_one_rank
from planc.diag.quoting import python_string
from planc.ir.plan import Split
from planc.sharding.stage_assignment import virtual_stages

HELD = {
    "one": ("One per rank.", "[rank]"),
    "loop": ("Stages are assigned to ranks in a loop.", "list(range(rank, len(STAGES), MESH[<axis>]))"),
    "v": ("Stages are assigned to ranks in a V.", "[rank, len(STAGES) - 1 - rank]"),
}
"""For each assignment of stages to ranks, a description and an expression for a rank's virtual stages."""


def constants(roles: AxisRoles) -> str:
    """Emits MICROBATCHES and STAGES (the layers of each virtual stage); "" without a pipeline."""
    if not roles.pipeline:
        return ""
    split = _split(roles)
    return lines(
        f"MICROBATCHES = {roles.plan.microbatches}",
        because(split.cause),
        "# (first layer, one past the last) of each virtual stage",
        call("STAGES = (", [f"({first}, {last})" for first, last in split.stages]),
    )


def split(roles: AxisRoles) -> str:
    """Emits stage_indices and split_stages, which build a rank's pipeline stages; "" without a pipeline."""
    if not roles.pipeline:
        return ""
    ops = roles.sharded.ops
    first = list(dict.fromkeys(o.op.module for o in ops["first"] if o.op.params))
    last = list(dict.fromkeys(o.op.module for o in ops["last"] if o.op.params))
    shared = roles.modules_of_both_ends
    first = [m for m in first if m not in shared]
    axis = roles.name("pipeline")
    doc, value = HELD[SCHEDULES[_split(roles).schedule].layout]
    return fill(
        SPLIT,
        axis=python_string(axis),
        doc=doc,
        value=value.replace("<axis>", python_string(axis)),
        first=_without("if index > 0:", first),
        between=_without(BETWEEN, list(shared)),
        last=lines(*(f"stage.{m} = None" for m in last)),
    )


SPLIT = '''
def stage_indices(mesh: DeviceMesh) -> list[int]:
    """The virtual stages of this rank, in order. <doc>"""
    rank = mesh.get_local_rank(<axis>)
    return <value>


def split_stages(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """This rank's stages: copies of `model` without the other layers. Cheap on the meta device."""
    stages = []
    for index in stage_indices(mesh):
        begin, end = STAGES[index]
        stage = copy.deepcopy(model)
        for name in list(stage.layers):
            if not begin <= int(name) < end:
                del stage.layers[name]
        <first>
        if index < len(STAGES) - 1:
            <last>
        <between>
        stages.append(stage)
    return stages
'''

BETWEEN = "if 0 < index < len(STAGES) - 1:  # tied embeddings: the first and the last stage have a copy"


def _without(condition: str, modules: list[str]) -> str:
    """Emits code that sets `modules` of a stage to None under the statement `condition`; "" without modules."""
    gone = lines(*(f"stage.{m} = None" for m in modules))
    return fill("<condition>\n    <gone>", condition=condition, gone=gone) if modules else ""


def schedule(roles: AxisRoles) -> str:
    """Emits build_schedule, which builds torch's pipeline schedule; "" without a pipeline."""
    if not roles.pipeline:
        return ""
    split = _split(roles)
    kind = SCHEDULES[split.schedule]
    alone = in_a_v(roles.plan) and not stages_on_one_rank.DIFFERENCE.is_in(roles.torch)
    build = fill(
        '''
        def build_schedule(stages: list[nn.Module], mesh: DeviceMesh) -> <kind>:
            """The order of forwards and backwards. Stages exchange activations by point-to-point sends."""
            <cause>
            group = mesh.get_group(<axis>)
            device = next(stages[0].parameters()).device
            pipeline = [
                <kind_of_stage>(stage, index, len(STAGES), device, group=group)
                for stage, index in zip(stages, stage_indices(mesh), strict=True)
            ]
            <built>
        ''',
        kind_of_stage="Stage" if alone else "PipelineStage",
        kind=kind.name,
        cause=because(split.cause),
        axis=python_string(roles.name("pipeline")),
        built=_gathered_once(roles, kind) or f"return {_new(roles, kind)}",
    )
    return f"{OTHER_RANKS.strip()}\n\n\n{build}" if alone else build


def _new(roles: AxisRoles, kind: TorchSchedule) -> str:
    held = "pipeline[0]" if kind.single else "pipeline"
    return f"{kind.name}({held}, n_microbatches=MICROBATCHES, loss_fn={loss.of_a_schedule(roles)})"


def _gathered_once(roles: AxisRoles, kind: TorchSchedule) -> str:
    """Emits code that builds a schedule in which every stage is gathered once a step; "" if torch's schedule does so by
    itself."""
    most = max(len(virtual_stages(roles.plan, rank)) for rank in range(roles.plan.pipeline))
    if not roles.uses_fsdp or most <= GATHERED_STAGES:
        return ""
    return fill(GATHERED_ONCE, new=_new(roles, kind), most=str(GATHERED_STAGES))


GATHERED_STAGES = 3
"""Number of virtual stages per rank that torch's schedules keep gathered (`_add_unshard_reshard` in
torch.distributed.pipelining.schedules, torch 2.11 to 2.15)."""

GATHERED_ONCE = """
schedule = <new>
# torch keeps <most> stages gathered: it would free the others and gather them again. Here each stage is gathered
# once, and all are freed at the end.
for rank, actions in schedule.pipeline_order_with_comms.items():
    gathers = {a: i for i, a in reversed([*enumerate(actions)]) if a.computation_type.name == "UNSHARD"}
    ends = {a: i for i, a in enumerate(actions) if a.computation_type.name == "RESHARD"}
    kept = {**gathers, **ends}
    schedule.pipeline_order_with_comms[rank] = [a for i, a in enumerate(actions) if kept.get(a, i) == i]
return schedule
"""

OTHER_RANKS = '''
class Stage(PipelineStage):
    """A stage that does not send to its own rank when it connects to its neighbours: gloo cannot."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        ops = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.group_peer != self.group_rank]
'''


def _split(roles: AxisRoles) -> Split:
    assert roles.plan.split is not None
    return roles.plan.split
