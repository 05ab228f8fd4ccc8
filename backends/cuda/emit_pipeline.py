"""The pipeline's functions: stage_indices, split_stages, build_schedule."""

from __future__ import annotations

from dataclasses import dataclass

from planc.ir.plan import Split

from .roles import Roles
from .writing import because, call, fill, lines


@dataclass(frozen=True)
class Schedule:
    """torch's class for a schedule. `single`: one stage a rank, otherwise they go round the ranks."""

    name: str
    single: bool = False


SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule("ScheduleGPipe", single=True),
    "1f1b": Schedule("Schedule1F1B", single=True),
    "interleaved_1f1b": Schedule("ScheduleInterleaved1F1B"),
    "looped_bfs": Schedule("ScheduleLoopedBFS"),
}
"""torch's zero-bubble schedules are left out: under 2.13 DualPipeV cannot evaluate, and ZBV loses a
gradient of fully_shard when parameters are gathered per pass."""


def constants(roles: Roles) -> str:
    """MICROBATCHES and STAGES, if there is a pipeline."""
    if not roles.pipeline:
        return ""
    split = _split(roles)
    return lines(
        f"MICROBATCHES = {roles.plan.microbatches}",
        because(split.cause),
        "# (first layer, one past the last) of each virtual stage",
        call("STAGES = (", [f"({first}, {last})" for first, last in split.stages]),
    )


def split(roles: Roles) -> str:
    """stage_indices and split_stages, if there is a pipeline."""
    if not roles.pipeline:
        return ""
    ops = roles.sharded.ops
    first = list(dict.fromkeys(o.op.module for o in ops["first"] if o.op.params))
    last = list(dict.fromkeys(o.op.module for o in ops["last"] if o.op.params))
    axis = roles.name("pipeline")
    single = SCHEDULES[_split(roles).schedule].single
    return fill(
        SPLIT,
        axis=axis,
        doc="One a rank." if single else "They go round the ranks.",
        value="[rank]" if single else f'list(range(rank, len(STAGES), MESH["{axis}"]))',
        first=lines(*(f"stage.{m} = None" for m in first)),
        last=lines(*(f"stage.{m} = None" for m in last)),
    )


SPLIT = '''
def stage_indices(mesh: DeviceMesh) -> list[int]:
    """The virtual stages of this rank, in order. <doc>"""
    rank = mesh.get_local_rank("<axis>")
    return <value>


def split_stages(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """This rank's stages: copies of `model` without the rest. Cheap on the meta device."""
    stages = []
    for index in stage_indices(mesh):
        begin, end = STAGES[index]
        stage = copy.deepcopy(model)
        for name in list(stage.layers):
            if not begin <= int(name) < end:
                del stage.layers[name]
        if index > 0:
            <first>
        if index < len(STAGES) - 1:
            <last>
        stages.append(stage)
    return stages
'''


def schedule(roles: Roles) -> str:
    """build_schedule, if there is a pipeline."""
    if not roles.pipeline:
        return ""
    split = _split(roles)
    kind = SCHEDULES[split.schedule]
    return fill(
        '''
        def build_schedule(stages: list[nn.Module], mesh: DeviceMesh) -> <kind>:
            """The order of forwards and backwards. Activations go from stage to stage, point to point."""
            <cause>
            group = mesh.get_group("<axis>")
            device = next(stages[0].parameters()).device
            pipeline = [
                PipelineStage(stage, index, len(STAGES), device, group=group)
                for stage, index in zip(stages, stage_indices(mesh), strict=True)
            ]
            return <kind>(<held>, n_microbatches=MICROBATCHES, loss_fn=loss_fn)
        ''',
        kind=kind.name,
        cause=because(split.cause),
        axis=roles.name("pipeline"),
        held="pipeline[0]" if kind.single else "pipeline",
    )


def _split(roles: Roles) -> Split:
    assert roles.plan.split is not None
    return roles.plan.split
