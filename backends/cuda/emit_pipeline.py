"""The pipeline's functions: stage_indices, split_stages, build_schedule."""

from __future__ import annotations

from dataclasses import dataclass

from .roles import Roles
from .writing import because, call, comment, lines


@dataclass(frozen=True)
class Schedule:
    """torch's class for a schedule. `single`: one stage a rank; `turns`: stages r and 2P - 1 - r."""

    name: str
    single: bool = False
    turns: bool = False


SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule("ScheduleGPipe", single=True),
    "1f1b": Schedule("Schedule1F1B", single=True),
    "interleaved_1f1b": Schedule("ScheduleInterleaved1F1B"),
    "looped_bfs": Schedule("ScheduleLoopedBFS"),
    "interleaved_zero_bubble": Schedule("ScheduleInterleavedZeroBubble"),
    "zbv_zero_bubble": Schedule("ScheduleZBVZeroBubble", turns=True),
    "dualpipe_v": Schedule("ScheduleDualPipeV", turns=True),
}


def constants(roles: Roles) -> list[str]:
    """STAGES: the layers of each virtual stage."""
    split = roles.plan.split
    assert split is not None
    return [
        because(split.cause),
        comment("(first layer, one past the last) of each virtual stage"),
        call("STAGES = (", [f"({first}, {last})" for first, last in split.stages]),
    ]


def split(roles: Roles) -> list[str]:
    """stage_indices and split_stages, if there is a pipeline."""
    if not roles.pipeline:
        return []
    return [_stage_indices(roles), _split_stages(roles)]


def _stage_indices(roles: Roles) -> str:
    split, name = roles.plan.split, roles.name("pipeline")
    assert split is not None
    schedule = SCHEDULES[split.schedule]
    if schedule.turns:
        doc, value = "The stages turn at the last rank: r, then 2P - 1 - r.", "[rank, len(STAGES) - 1 - rank]"
    elif schedule.single:
        doc, value = "One stage a rank.", "[rank]"
    else:
        doc, value = "The stages go round the ranks.", f'list(range(rank, len(STAGES), MESH["{name}"]))'
    return lines(
        "def stage_indices(mesh: DeviceMesh) -> list[int]:",
        f'    """The virtual stages of this rank, in order. {doc}"""',
        f'    rank = mesh.get_local_rank("{name}")',
        f"    return {value}",
    )


def _split_stages(roles: Roles) -> str:
    ops = roles.sharded.ops
    first = list(dict.fromkeys(o.op.module for o in ops["first"] if o.op.params))
    last = list(dict.fromkeys(o.op.module for o in ops["last"] if o.op.params))
    return lines(
        "def split_stages(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:",
        '    """This rank\'s stages: copies of `model` (cheap on the meta device) with the rest taken out."""',
        "    stages = []",
        "    for index in stage_indices(mesh):",
        "        begin, end = STAGES[index]",
        "        stage = copy.deepcopy(model)",
        "        for name in list(stage.layers):",
        "            if not begin <= int(name) < end:",
        "                del stage.layers[name]",
        "        if index > 0:",
        *(f"            stage.{m} = None" for m in first),
        "        if index < len(STAGES) - 1:",
        *(f"            stage.{m} = None" for m in last),
        "        stages.append(stage)",
        "    return stages",
    )


def schedule(roles: Roles) -> list[str]:
    """build_schedule, if there is a pipeline."""
    if not roles.pipeline:
        return []
    split, name = roles.plan.split, roles.name("pipeline")
    assert split is not None
    kind = SCHEDULES[split.schedule]
    stages = "pipeline[0]" if kind.single else "pipeline"
    return [
        lines(
            f"def build_schedule(stages: list[nn.Module], mesh: DeviceMesh) -> {kind.name}:",
            '    """The order of forwards and backwards; activations go point to point between the stages."""',
            because(split.cause, indent=1),
            f'    group = mesh.get_group("{name}")',
            "    device = next(stages[0].parameters()).device",
            "    pipeline = [",
            "        PipelineStage(stage, index, len(STAGES), device, group=group)",
            "        for stage, index in zip(stages, stage_indices(mesh), strict=True)",
            "    ]",
            f"    return {kind.name}({stages}, n_microbatches=MICROBATCHES, loss_fn=loss_fn)",
        )
    ]
