"""Emits the functions of expert parallelism: build_expert_mesh, apply_ep, and their helpers.

Tokens are sorted by expert, sent to the ranks that hold their experts, computed there and sent back. Only what the plan
uses is emitted.
"""

from __future__ import annotations

from planc.backends.common.source_writer import because, call, fill, lines, tuple_of
from planc.backends.common.specialise import specialise
from planc.backends.cuda.analysis.expert_mesh import TorchExpertAxes
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.emit import ranks
from planc.backends.cuda.program.facts import TorchFacts
from planc.diag.quoting import python_string
from planc.ir.base import Cause
from planc.ir.model import EXPERTS
from planc.ir.sharding import ParamSharding


def functions(roles: AxisRoles) -> str:
    """Emits the functions of expert parallelism that the plan uses, apply_ep last; "" if it uses none."""
    experts = roles.experts
    needed = [*(["expert_modules"] if experts.apart or experts.styled else []), *["ExpertParallel"] * experts.styled]
    parts = [
        _mesh(roles) if experts.own_mesh else "",
        *specialise("planc.backends.cuda.program", "experts", _facts(roles), needed, width=120),
        _apply(roles) if experts.styled else "",
    ]
    return "\n\n\n".join(p.strip() for p in parts if p)


def _facts(roles: AxisRoles) -> TorchFacts:
    """Returns what the plan of `roles` decides about the routing of rows to experts."""
    experts, mesh, factor = roles.experts, roles.plan.mesh, roles.plan.route.factor
    holders = mesh.size(*experts.exchange)
    return TorchFacts(
        experts=experts.module,
        own_expert_axes=experts.apart,
        capacity=experts.capacity,
        slots_factor=int(factor) if factor == int(factor) else factor,
        exchange=experts.name(experts.exchange) if experts.exchange else "",
        sharing=experts.name(experts.tensor) if experts.tensor else "",
        gathers_rows=experts.gathers,
        holders=holders,
        senders=holders * (mesh.size(*experts.tensor) if experts.gathers else 1),
        dispatch=_exchange_sentence(experts),
    )


def _mesh(roles: AxisRoles) -> str:
    """Emits build_expert_mesh, which builds the device mesh of the experts' axes."""
    experts, mesh = roles.experts, roles.plan.mesh
    order = tuple(a for f in experts.factors for a in f.axes)
    return fill(
        BUILD_MESH,
        cause=because(_view_cause(roles)),
        sizes=call("EXPERT_MESH = {", [f"{python_string(f.name)}: {f.size}" for f in experts.factors]),
        laid=ranks.laid(mesh, experts.axes) if order != experts.axes else "",
        ranks=ranks.arranged(mesh, experts.axes, order),
    )


def _view_cause(roles: AxisRoles) -> Cause | None:
    view = roles.plan.view_of(EXPERTS)
    if view is not None:
        return view.cause
    exchange = roles.experts.exchange
    return roles.plan.cause_of_shard("experts", exchange[0], EXPERTS) if exchange else None


BUILD_MESH = '''
<cause>
<sizes>


def build_expert_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The same ranks as `mesh`, by the experts' axes. Process groups of `mesh` are reused."""
    <laid>
    ranks = <ranks>.reshape(tuple(EXPERT_MESH.values()))
    known = {tuple(dist.get_process_group_ranks(group)): group for group in mesh.get_all_groups()}
    groups = []
    for dim, size in enumerate(EXPERT_MESH.values()):
        every = ranks.movedim(dim, -1).reshape(-1, size).tolist()
        mine = next(tuple(members) for members in every if dist.get_rank() in members)
        groups.append(known[mine] if mine in known else dist.new_subgroups_by_enumeration(every)[0])
    return DeviceMesh.from_group(groups, mesh.device_type, ranks, mesh_dim_names=tuple(EXPERT_MESH))
'''


def _exchange_sentence(experts: TorchExpertAxes) -> str:
    """Emits sentences for the docstring of ExpertParallel, one for each step of its dispatch."""
    parts = [
        "each row takes a slot of its expert or is dropped" if experts.capacity else "",
        "an all-to-all sends rows to the ranks that hold their experts" if experts.exchange else "",
        "tensor-parallel ranks of an expert all-gather its rows" if experts.gathers else "",
        "tensor-parallel ranks of an expert compute partial sums of each row"
        if experts.tensor and not experts.gathers
        else "",
    ]
    return "\n    ".join(f"{p[0].upper()}{p[1:]}." for p in parts if p)


def _apply(roles: AxisRoles) -> str:
    """Emits apply_ep: shards the experts and wraps them in ExpertParallel."""
    experts = roles.experts
    dims = ", ".join(map(python_string, experts.divided_dims))
    return fill(
        APPLY,
        mesh=", mesh: DeviceMesh" if experts.apart else "",
        cause=because(roles.plan.route.cause or _view_cause(roles)),
        weights=_weights(experts) if dims else "",
        own="# src_data_rank=None: each rank takes its shard from its own copy." if dims else "",
        divide=fill(DIVIDE, dims=dims) if dims else "",
        arguments=", mesh" if experts.apart else "",
    )


APPLY = '''
def apply_ep(model: nn.Module<mesh>) -> None:
    """Apply expert parallelism: shard the experts, and dispatch tokens to them."""
    <cause>
    <weights>
    <own>
    for experts in expert_modules(model):
        <divide>
        ExpertParallel(experts<arguments>)
'''

DIVIDE = """
for path, placements in weights.items():
    holder, _, name = path.rpartition(".")
    whole = getattr(experts.get_submodule(holder), name)
    part = distribute_tensor(whole, mesh[<dims>], placements, src_data_rank=None)
    experts.get_submodule(holder).register_parameter(name, nn.Parameter(part))
"""


def _weights(experts: TorchExpertAxes) -> str:
    prefix = f"layers.*.{experts.module}."
    rows = [
        f"{python_string(p.param.name.removeprefix(prefix))}: {tuple_of(_placements(experts, p))}"
        for p in experts.params
    ]
    return call("weights = {", rows, depth=1)


def _placements(experts: TorchExpertAxes, p: ParamSharding) -> list[str]:
    """Returns the source of a parameter's placements over the expert-parallel and tensor-parallel mesh dimensions."""
    found = []
    for axes in (experts.exchange, experts.tensor):
        dim = next((dim for dim, used in enumerate(p.compute) if set(used) & set(axes)), None)
        if axes:
            found.append("Replicate()" if dim is None else f"Shard({dim})")
    return found


def fsdp(roles: AxisRoles, *, policy: list[str], placed: bool, again: bool) -> str:
    """Emits fully_shard of the experts, before that of their blocks; "" if experts and block are one FSDP group.

    `policy` are the arguments of the mixed-precision policy, `placed` is True if some parameters are sharded on another
    dim than 0, and `again` is the value of reshard_after_forward.
    """
    experts = roles.experts
    if not experts.apart or not roles.uses_fsdp:
        return ""
    dims = ", ".join(map(python_string, experts.stored_dims))
    arguments = [f'"mesh": {"expert_mesh" if experts.own_mesh else "mesh"}[{dims}]']
    arguments += ['"mp_policy": expert_policy'] if policy else []
    arguments += ['"shard_placement_fn": placement'] if placed else []
    arguments += [f'"reshard_after_forward": {again}']
    return fill(
        FSDP,
        policy=_policy(policy) if policy else "",
        cause=because(roles.plan.cause_of_store("optimizer", EXPERTS) if experts.shard else None),
        config=call("expert_config = {", arguments, depth=1),
        mean=_gradient_mean(roles),
    )


def _policy(dtypes: list[str]) -> str:
    made = call("expert_policy = MixedPrecisionPolicy(", [*dtypes, "cast_forward_inputs=False"], depth=1)
    return lines("# Rows are in the compute dtype already; router weights stay in fp32.", made)


FSDP = """
<policy>
<cause>
<config>
for experts in expert_modules(model):
    fully_shard(experts, **expert_config)
    <mean>
"""


def _gradient_mean(roles: AxisRoles) -> str:
    """Emits the call that makes fully_shard divide expert gradients by the number of data ranks; "" if fully_shard does
    so by default because the expert mesh has as many ranks."""
    experts, mesh = roles.experts, roles.plan.mesh
    ranks = mesh.size(*roles.shard, *roles.replicate)
    if ranks == mesh.size(*experts.shard, *experts.replicate):
        return ""
    said = "# The expert mesh has another size than the data ranks, over which gradients are averaged."
    return lines(said, f"experts.set_gradient_divide_factor({ranks})", SUMMED if experts.shard else "")


SUMMED = """
# Sum, then divide: gloo has no pre-multiplied sum. Over one rank torch 2.13 would divide twice.
experts.set_force_sum_reduction_for_comms(True)""".strip()
