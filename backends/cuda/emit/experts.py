"""Emits the functions of expert parallelism: build_expert_mesh, apply_ep, and their helpers.

Tokens are sorted by expert, sent to the ranks that hold their experts, computed there and sent back. Only what the plan
uses is emitted.
"""

from __future__ import annotations

from planc.backends.common.source_writer import because, call, fill, lines, tuple_of
from planc.backends.cuda.analysis.expert_mesh import TorchExpertAxes
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.emit import ranks
from planc.diag.quoting import python_string
from planc.ir.base import Cause
from planc.ir.model import EXPERTS
from planc.ir.sharding import ParamSharding


def functions(roles: AxisRoles) -> str:
    """Emits the functions of expert parallelism that the plan uses, apply_ep last; "" if it uses none."""
    experts = roles.experts
    sorts = not experts.capacity and bool(experts.exchange or experts.gathers)
    parts = [
        _mesh(roles) if experts.own_mesh else "",
        fill(MODULES, module=python_string(experts.module)) if experts.apart or experts.styled else "",
        SIZES if sorts else "",
        UNSORTED if sorts else "",
        TAKEN if experts.capacity else "",
        _expert_parallel_class(roles) if experts.styled else "",
        _apply(roles) if experts.styled else "",
    ]
    return "\n\n\n".join(p.strip() for p in parts if p)


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

MODULES = '''
def expert_modules(model: nn.Module) -> list[nn.Module]:
    """The experts module of each MoE block."""
    return [module for path, module in model.named_modules() if path.endswith(<module>)]
'''

SIZES = '''
def sizes(counts: torch.Tensor) -> list:
    """Row counts as Python ints, to allocate buffers. This synchronises with the device."""
    return counts.tolist()
'''

TAKEN = '''
class Taken(torch.autograd.Function):
    """`rows[places]`. Its backward saves no tensor that a recompute of the forward would have to produce."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.places, ctx.total = places, len(rows)
        return rows[places]

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.new_zeros(ctx.total, *grad.shape[1:]).index_copy_(0, ctx.places, grad), None
'''

UNSORTED = '''
class Unsorted(torch.autograd.Function):
    """Scatters `rows` back to the `total` places that they were taken from in this `order`.

    Its backward saves no tensor that a recompute of the forward would have to produce.
    """

    @staticmethod
    def forward(ctx, rows: torch.Tensor, order: torch.Tensor, total: int) -> torch.Tensor:
        ctx.order = order
        return rows.new_zeros(total, *rows.shape[1:]).index_copy_(0, order, rows)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad[ctx.order], None, None
'''


def _expert_parallel_class(roles: AxisRoles) -> str:
    """Emits ExpertParallel, the hooks around an experts module."""
    experts = roles.experts
    there, each, back = _capacity(experts) if experts.capacity else _dropless(experts)
    return fill(
        EXPERT_PARALLEL,
        what=_exchange_sentence(experts),
        arguments=", mesh: DeviceMesh" if experts.apart else "",
        group=f"self.group = mesh.get_group({python_string(experts.name(experts.exchange))})"
        if experts.exchange
        else "",
        sharing=f"self.sharing = mesh[{python_string(experts.name(experts.tensor))}]" if experts.tensor else "",
        there=lines(*there),
        each=each,
        back=_returning(lines(*back)),
    )


def _returning(text: str) -> str:
    """Returns the code `text` with its last assignment to `rows` turned into a return statement. Appends `return rows`
    if `text` is empty."""
    before, _, after = f"\n{text}".rpartition("\nrows = ")
    return lines(before.lstrip("\n"), f"return {after}") if text else "return rows"


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
    return lines(*(f"{p[0].upper()}{p[1:]}." for p in parts if p))


EXPERT_PARALLEL = '''
class ExpertParallel:
    """Dispatches rows to their experts and combines the results.

    <what>

    Hooks around a module that takes rows [R, D] sorted by expert, the router weight of each row [R], and
    the number of rows of each expert, and returns rows [R, D].
    """

    def __init__(self, module: nn.Module<arguments>) -> None:
        <group>
        <sharing>
        module.register_forward_pre_hook(self.dispatch)
        module.register_forward_hook(self.combine)

    def dispatch(self, module: nn.Module, inputs: tuple) -> tuple:
        """Send the rows of local tokens to the ranks of their experts."""
        rows, weights, counts = inputs
        <there>
        return rows, weights, <each>

    def combine(self, module: nn.Module, inputs: tuple, rows: torch.Tensor) -> torch.Tensor:
        """Send the experts' outputs back to the ranks of the tokens."""
        <back>
'''

Body = tuple[list[str], str, list[str]]
"""The lines of dispatch, the expression for the number of rows of each local expert, and the lines of combine."""


def _dropless(experts: TorchExpertAxes) -> Body:
    """Emits dropless routing: every row is sent, so the sizes of the all-to-all are known only at run time."""
    if experts.gathers:
        counted = [EXCHANGE_COUNTS, EXCHANGE] if experts.exchange else ["arrived = counts[None]"]
        there = [*counted, GATHER_COUNTS, PAD, GATHER, ORDER, SORT]
        return there, EACH, [UNSORT, SCATTER, "rows = rows[: self.length]", *_return_rows(experts)]
    same, total = ([SAME], [SUM]) if experts.tensor else ([], [])
    if not experts.exchange:
        return same, "counts", total
    there = [EXCHANGE_COUNTS, EXCHANGE, *same, ORDER_OF_ARRIVED, SORT]
    return there, EACH, [UNSORT, *total, *_return_rows(experts)]


def _return_rows(experts: TorchExpertAxes) -> list[str]:
    return [RETURN] if experts.exchange else []


EACH = "[sum(rows) for rows in zip(*here, strict=True)]"

EXCHANGE_COUNTS = """
# Number of rows that each rank sends to each local expert.
arrived = torch.empty_like(counts)
dist.all_to_all_single(arrived, counts, group=self.group)
arrived, counts = (c.view(self.group.size(), -1) for c in (arrived, counts))
here, sent = sizes(torch.stack((arrived, counts)))
self.received, self.sent = [sum(rows) for rows in here], [sum(rows) for rows in sent]""".strip()

EXCHANGE = """
# Send each row and its router weight to the rank that holds its expert.
rows, weights = (
    fc.all_to_all_single_autograd(t, self.received, self.sent, self.group) for t in (rows, weights)
)""".strip()

RETURN = "rows = fc.all_to_all_single_autograd(rows, self.sent, self.received, self.group)"

ORDER_OF_ARRIVED = """
# Reorder from sender-major to expert-major.
expert = torch.arange(arrived.shape[1], device=rows.device).repeat(len(here))
self.total = len(rows)
self.order = expert.repeat_interleave(arrived.flatten(), output_size=self.total).argsort(stable=True)""".strip()

SORT = "rows, weights = rows[self.order], weights[self.order]"

UNSORT = "rows = Unsorted.apply(rows, self.order, self.total)"

GATHER_COUNTS = """
# Tensor-parallel ranks of an expert have different rows, padded to the longest for the all-gather.
every = arrived.new_empty(self.sharing.size() * len(arrived), arrived.shape[1])
dist.all_gather_single(every, arrived, group=self.sharing.get_group())
every = every.unflatten(0, (-1, len(arrived)))
shared = sizes(every)
lengths = [sum(map(sum, parts)) for parts in shared]
here, self.length = [rows for parts in shared for rows in parts], len(rows)""".strip()

PAD = """
empty = max(lengths) - len(rows)
rows, weights = F.pad(rows, (0, 0, 0, empty)), F.pad(weights, (0, empty))""".strip()

GATHER = """
rows, weights = (
    DTensor.from_local(t, self.sharing, [Shard(0)], run_check=False)
    .redistribute(placements=[Replicate()])
    .to_local(grad_placements=[Partial()])
    for t in (rows, weights)
)""".strip()

SCATTER = """
rows = DTensor.from_local(rows, self.sharing, [Partial()], run_check=False)
rows = rows.redistribute(placements=[Shard(0)]).to_local()""".strip()

SAME = """
# Tensor-parallel ranks of an expert have the same rows, whose gradients are partial sums over these ranks.
rows, weights = (
    DTensor.from_local(t, self.sharing, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
    for t in (rows, weights)
)""".strip()

SUM = """
rows = DTensor.from_local(rows, self.sharing, [Partial()], run_check=False)
rows = rows.redistribute(placements=[Replicate()]).to_local()""".strip()

ORDER = """
# Sort by expert over all ranks. Padding sorts last and is cut off.
expert = torch.arange(arrived.shape[1], device=rows.device).repeat(len(arrived))
placed = [
    F.pad(expert.repeat_interleave(counted.flatten(), output_size=n), (0, max(lengths) - n), value=len(expert))
    for counted, n in zip(every, lengths, strict=True)
]
self.total = len(rows)
self.order = torch.cat(placed).argsort(stable=True)[: sum(lengths)]""".strip()


def _capacity(experts: TorchExpertAxes) -> Body:
    """Emits capacity routing: each expert has the same number of slots on every rank, so sizes are static."""
    mesh = experts.roles.plan.mesh
    holders = mesh.size(*experts.exchange)
    senders = holders * (mesh.size(*experts.tensor) if experts.gathers else 1)
    there = [fill(PLACES, factor=f"{experts.roles.plan.route.factor:g}")]
    back = [TAKE]
    if experts.exchange:
        there.append(EXCHANGE_EVEN)
        back.insert(0, RETURN_EVEN)
    if experts.tensor:
        there.append(GATHER if experts.gathers else SAME)
        back.insert(0, SCATTER if experts.gathers else SUM)
    if senders > 1:
        there.append(fill(BY_EXPERT, senders=str(senders)))
        back.insert(0, fill(BY_SENDER, senders=str(senders)))
    rows = "self.places" if senders == 1 else f"{senders} * self.places"
    return there, f"[{rows}] * {'len(counts)' if holders == 1 else f'(len(counts) // {holders})'}", back


PLACES = """
# Each expert has this many slots for the tokens of a rank; its first rows take them.
self.places = math.ceil(len(rows) * <factor> / len(counts))
expert = torch.arange(len(counts), device=rows.device).repeat_interleave(counts, output_size=len(rows))
place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[expert]
total = len(counts) * self.places
# A dropped row goes to an extra last slot, which is cut off.
self.taken = torch.where(place < self.places, expert * self.places + place, total)
rows, weights = (
    t.new_zeros(total + 1, *t.shape[1:]).index_copy(0, self.taken, t)[:-1] for t in (rows, weights)
)
""".strip()

EXCHANGE_EVEN = "rows, weights = (fc.all_to_all_single_autograd(t, None, None, self.group) for t in (rows, weights))"

RETURN_EVEN = "rows = fc.all_to_all_single_autograd(rows, None, None, self.group)"

BY_EXPERT = """
# [senders, local experts, slots] to [local experts, senders, slots].
rows, weights = (t.unflatten(0, (<senders>, -1, self.places)).transpose(0, 1).flatten(0, 2) for t in (rows, weights))
""".strip()

BY_SENDER = "rows = rows.unflatten(0, (-1, <senders>, self.places)).transpose(0, 1).flatten(0, 2)"

TAKE = "rows = Taken.apply(F.pad(rows, (0, 0, 0, 1)), self.taken)"


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
