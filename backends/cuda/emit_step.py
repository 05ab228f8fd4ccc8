"""The functions of one training step: loss_fn, build_step, build_evaluate, clip_grad_norm, data_rank."""

from __future__ import annotations

from .roles import Keeping, Roles
from .styles import Styler
from .writing import because, comment, lines


def loss(roles: Roles, styler: Styler) -> str:
    """loss_fn. Over a divided vocab the logits are a DTensor."""
    vocab = "V / tp" if styler.loss_parallel else "V"
    return lines(
        "def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:",
        f'    """Mean cross entropy in fp32. logits [B, S, {vocab}], targets [B, S]."""',
        "    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))",
    )


def step(roles: Roles, styler: Styler) -> str:
    """build_step: forward and backward of all microbatches."""
    return _pipelined_step(roles, styler) if roles.pipeline else _plain_step(roles, styler)


def evaluate(roles: Roles, styler: Styler) -> str:
    """build_evaluate: the mean loss without gradients."""
    return _pipelined_evaluate(roles, styler) if roles.pipeline else _plain_evaluate(roles, styler)


def _plain_step(roles: Roles, styler: Styler) -> str:
    policy = _policy(roles)
    several = roles.plan.microbatches > 1
    return lines(
        "def build_step(model: nn.Module, mesh: DeviceMesh) -> Step:",
        '    """step(tokens, targets) -> loss: one forward and backward; the gradients are left in .grad.',
        "\n    Both are this data rank's [sequences, S] int64. The loss is the mean over the global batch.",
        '    """',
        "\n    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:",
        "        inputs = tokens.split(MICROBATCH_SEQUENCES)",
        "        labels = targets.split(MICROBATCH_SEQUENCES)",
        "        total = torch.zeros((), device=tokens.device)",
        "        for index in range(len(inputs)):",
        *((["            last = index == len(inputs) - 1"] + policy) if policy and several else []),
        *_forward(styler, backward=True),
        _returned(roles, "total"),
        "\n    return step",
    )


def _forward(styler: Styler, *, backward: bool) -> list[str]:
    """One microbatch; loss_parallel also covers the backward of the loss."""
    body = [
        "loss = loss_fn(model(inputs[index]), labels[index]) / len(inputs)",
        *(["loss.backward()"] if backward else []),
    ]
    value = "loss.detach().full_tensor()" if styler.loss_parallel else "loss.detach()"
    total = f"            total += {value}"
    if not styler.loss_parallel:
        return [*(f"            {line}" for line in body), total]
    cause = because(styler.sharded.plan.cause_of_shard("vocab", styler.roles.tensor[0], "head"), indent=3)
    said = comment("loss over the divided vocab: all-reduces of the maximum, the sum and the target's logit", 3)
    return [said, cause, "            with loss_parallel():", *(f"                {line}" for line in body), total]


def _policy(roles: Roles) -> list[str]:
    """When gradients are reduced and gathered parameters let go, over the microbatches of a step."""
    if not roles.uses_fsdp:
        return []
    plan = roles.plan
    keeping = Keeping.of(plan)
    found = []
    if not keeping.scatter_each_microbatch:
        found += [
            comment("Gradients are kept whole and reduced once, with the last microbatch.", 3),
            "            model.set_requires_gradient_sync(last)",
        ]
    elif roles.replicate:
        found += [
            comment("Reduce-scatter each microbatch; all-reduce their sum with the last one.", 3),
            "            model.set_requires_all_reduce(last)",
        ]
    if keeping.gather_per == "step":
        found += [
            because(plan.gather.cause if plan.gather else None, "Parameters stay gathered to the end of the step", 3),
            "            model.set_reshard_after_backward(last)",
        ]
    return found


def _plain_evaluate(roles: Roles, styler: Styler) -> str:
    return lines(
        "def build_evaluate(model: nn.Module, mesh: DeviceMesh) -> Step:",
        '    """evaluate(tokens, targets) -> loss, as of `step`, without gradients."""',
        "\n    @torch.no_grad()",
        "    def evaluate(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:",
        "        inputs = tokens.split(MICROBATCH_SEQUENCES)",
        "        labels = targets.split(MICROBATCH_SEQUENCES)",
        "        total = torch.zeros((), device=tokens.device)",
        "        for index in range(len(inputs)):",
        *_forward(styler, backward=False),
        *_let_go(roles, "model.modules()"),
        _returned(roles, "total"),
        "\n    return evaluate",
    )


def _let_go(roles: Roles, modules: str) -> list[str]:
    """A forward without backward leaves parameters gathered; they would be stale after an update."""
    if not roles.uses_fsdp:
        return []
    return [
        comment("No backward has let the gathered parameters go, and an update would not reach them.", 2),
        f"        for module in {modules}:",
        "            if isinstance(module, FSDPModule):",
        "                module.reshard()",
    ]


def _pipelined_step(roles: Roles, styler: Styler) -> str:
    return lines(
        "def build_step(stages: list[nn.Module], mesh: DeviceMesh) -> Step:",
        '    """step(tokens, targets) -> loss: one forward and backward; the gradients are left in .grad.',
        "\n    Both are this data rank's [sequences, S] int64; every rank of the pipeline is given them. The loss",
        "    is the mean over the global batch. The schedule reduces gradients once, after the last microbatch.",
        '    """',
        "    schedule = build_schedule(stages, mesh)",
        "\n    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:",
        *_run_schedule(roles, styler, "step"),
        "\n    return step",
    )


def _pipelined_evaluate(roles: Roles, styler: Styler) -> str:
    return lines(
        "def build_evaluate(stages: list[nn.Module], mesh: DeviceMesh) -> Step:",
        '    """evaluate(tokens, targets) -> loss, as of `step`, without gradients."""',
        "    schedule = build_schedule(stages, mesh)",
        "\n    @torch.no_grad()",
        "    def evaluate(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:",
        *_run_schedule(roles, styler, "eval", _let_go(roles, "[m for stage in stages for m in stage.modules()]")),
        "\n    return evaluate",
    )


def _run_schedule(roles: Roles, styler: Styler, method: str, after: list[str] | None = None) -> list[str]:
    """Only the first stage is given tokens, only the last one targets."""
    run = f"schedule.{method}(*inputs, target=labels, losses=losses, return_outputs=False)"
    within = (
        ["        with loss_parallel():", f"            {run}"] if styler.loss_parallel else [f"        {run}"]
    )
    value = "[loss.detach().full_tensor() for loss in losses]" if styler.loss_parallel else "losses"
    return [
        "        held = stage_indices(mesh)",
        "        inputs = (tokens,) if 0 in held else ()",
        "        labels, losses = (targets, []) if len(STAGES) - 1 in held else (None, None)",
        *within,
        *(after or []),
        "        total = torch.zeros((), device=tokens.device)",
        "        if losses is not None:",
        f"            total += torch.stack({value}).mean().detach()",
        _returned(roles, "total"),
    ]


def _returned(roles: Roles, value: str) -> str:
    averaged = roles.data or roles.pipeline
    return f"        return mean_over_batch({value}, mesh)" if averaged else f"        return {value}"


def mean_over_batch(roles: Roles) -> list[str]:
    """The loss is known to the last stage, for its own data rank: make it everyone's."""
    if not (roles.data or roles.pipeline):
        return []
    data = [
        "    for axis in DATA_AXES:",
        "        dist.all_reduce(loss, group=mesh.get_group(axis))",
        "        loss /= MESH[axis]",
    ]
    return [
        lines(
            "def mean_over_batch(loss: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:",
            '    """The mean over all data ranks, the same on every rank."""',
            *_sum_of_stages(roles, "Only the last stage has a loss; the others add zero.", "loss"),
            *(data if roles.data else []),
            "    return loss",
        )
    ]


def _sum_of_stages(roles: Roles, why: str, value: str) -> list[str]:
    if not roles.pipeline:
        return []
    name = roles.name("pipeline")
    return [comment(why, 1), f'    dist.all_reduce({value}, group=mesh.get_group("{name}"))']


def clip(roles: Roles, styler: Styler) -> str:
    """clip_grad_norm over everything that divides state: the data, tensor and pipeline axes."""
    head, parameters = (
        ("model: nn.Module", "list(model.parameters())")
        if not roles.pipeline
        else ("stages: list[nn.Module]", "[p for stage in stages for p in stage.parameters()]")
    )
    pipeline = [
        "    norm = norm**2",
        *_sum_of_stages(roles, "Each stage knows the norm of its own layers.", "norm"),
        "    norm = norm**0.5",
    ]
    return lines(
        f"def clip_grad_norm({head}, mesh: DeviceMesh, max_norm: float) -> torch.Tensor:",
        '    """Scale all gradients so that their global L2 norm is at most `max_norm`; the norm before that."""',
        f"    parameters = {parameters}",
        *(_mixed_norm() if _mixed(roles) else _norm(roles)),
        *(pipeline if roles.pipeline else []),
        *(
            ["    for group in groups.values():", f"        {CLIP.format('group')}"]
            if _mixed(roles)
            else [f"    {CLIP.format('parameters')}"]
        ),
        "    return norm",
    )


CLIP = "torch.nn.utils.clip_grads_with_norm_({}, max_norm, norm)"
TOTAL = "torch.nn.utils.get_total_norm([p.grad for p in {} if p.grad is not None])"


def _norm(roles: Roles) -> list[str]:
    """The norm of this rank's parameters, which are all on one mesh."""
    divided = roles.uses_fsdp or roles.tensor
    return [f"    norm = {TOTAL.format('parameters')}" + (".full_tensor()" if divided else "")]


def _mixed_norm() -> list[str]:
    """DTensors of one mesh reduce together; parameters that tensor parallelism leaves alone lie on another."""
    return [
        comment("What tensor parallelism leaves alone lies on a smaller mesh: one norm a mesh.", 1),
        "    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}",
        "    for parameter in parameters:",
        '        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)',
        "    norms = []",
        "    for group in groups.values():",
        f"        norm = {TOTAL.format('group')}",
        "        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)",
        "    norm = torch.linalg.vector_norm(torch.stack(norms))",
    ]


def _mixed(roles: Roles) -> bool:
    """Whether some parameters are DTensors over the tensor axis and others are not."""
    if not roles.tensor:
        return False
    styled = [
        bool(set(p.axes()) & set(roles.tensor)) or bool(set(p.grad_partial) & set(roles.tensor))
        for p in roles.sharded.params
    ]
    return not all(styled)


def data_rank(roles: Roles) -> str:
    """data_rank: which slice of the global batch belongs to this rank."""
    if not roles.data:
        return lines(
            "def data_rank(mesh: DeviceMesh) -> tuple[int, int]:",
            '    """(index, count) of the slice of the global batch that this rank trains on: all of it."""',
            "    return 0, 1",
        )
    return lines(
        "def data_rank(mesh: DeviceMesh) -> tuple[int, int]:",
        '    """(index, count) of the slice of the global batch that this rank trains on."""',
        "    index, count = 0, 1",
        "    for axis in DATA_AXES:",
        "        index = index * MESH[axis] + mesh.get_local_rank(axis)",
        "        count *= MESH[axis]",
        "    return index, count",
    )
