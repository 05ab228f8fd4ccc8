"""Emits fine-tuning: with_update, apply_lora and apply_freeze."""

from __future__ import annotations

from planc.backends.common.source_writer import because, call, fill, lines
from planc.backends.cuda.analysis.module_placements import relative
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.diag.quoting import python_string
from planc.ir.model import EXPERTS


def functions(roles: AxisRoles) -> str:
    """Emits with_update and apply_lora if the plan has LoRA, and apply_freeze if the plan freezes parameters."""
    parts = (_lora(roles) if roles.plan.lora else "", _freeze(roles) if roles.sharded.model.has_frozen else "")
    return "\n\n\n".join(p for p in parts if p)


def constants(roles: AxisRoles) -> str:
    """Emits LORA_RANK and LORA_SCALE, with the plan's sentence above them; "" without LoRA."""
    lora = roles.plan.lora
    if lora is None:
        return ""
    scale = f"{lora.alpha} / LORA_RANK"
    return lines(because(lora.cause), f"LORA_RANK = {lora.rank}", f"LORA_SCALE = {scale}")


def _lora(roles: AxisRoles) -> str:
    assert roles.plan.lora is not None
    model = roles.sharded.model
    paths = dict.fromkeys(relative(op.module) for kind in model.blocks for op in model.ops[kind] if op.update)
    biased = any(f"{op.module}.bias" in model.param for kind in model.blocks for op in model.ops[kind] if op.update)
    bias = "None if layer.bias is None else part(layer.bias)" if roles.tensor else "layer.bias"
    text = fill(
        LORA,
        sum="x W^T + bias" if biased else "x W^T",
        bias=f", {bias}" if biased else "",
        parts=PARTS if roles.tensor else WHOLE,
        cause=because(roles.plan.lora.cause),
        paths=call("updated = {", [python_string(path) for path in paths], depth=1),
    )
    return f"{PART.strip()}\n\n\n{text}" if roles.tensor else text


PARTS = "weight, a, b = (part(p) for p in (layer.weight, layer.lora_a, layer.lora_b))"
WHOLE = "weight, a, b = layer.weight, layer.lora_a, layer.lora_b"

PART = '''
def part(parameter: torch.Tensor) -> torch.Tensor:
    """The local part of a parameter. The gradient of a replicated one is a partial sum over the ranks."""
    if not isinstance(parameter, DTensor):
        return parameter
    sums = [Partial() if at.is_replicate() else at for at in parameter.placements]
    return parameter.to_local(grad_placements=sums)
'''

LORA = '''
def with_update(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """<sum> + LORA_SCALE x A^T B^T. W [out, in] is frozen; A [rank, in] and B [out, rank] are trainable."""
    <parts>
    update = F.linear(F.linear(x, a) * LORA_SCALE, b)
    return F.linear(x, weight<bias>) + update


def apply_lora(model: nn.Module) -> None:
    """Add LoRA to these weights of each block: A is initialised at random, B to zero."""
    <cause>
    <paths>
    for block in model.layers.values():
        for path, layer in block.named_modules():
            if path in updated:
                out, given = layer.weight.shape
                layer.lora_a = nn.Parameter(layer.weight.new_empty(LORA_RANK, given).normal_(std=0.02))
                layer.lora_b = nn.Parameter(layer.weight.new_zeros(out, LORA_RANK))
                layer.forward = partial(with_update, layer)
'''


def _freeze(roles: AxisRoles) -> str:
    model, plan = roles.sharded.model, roles.plan
    trained = [p.name for p in model.params if not p.frozen]
    frozen = [p.name for p in model.params if p.frozen]
    few, name = (trained, "trained") if len(trained) < len(frozen) else (frozen, "frozen")
    found = [s.cause for s in (plan.freeze, plan.lora) if s is not None]
    return fill(
        FREEZE,
        causes=lines(*(because(cause) for cause in found)),
        names=call(f"{name} = {{", [python_string(n) for n in few], depth=1),
        wanted=f"pattern in {name}" if few is trained else f"pattern not in {name}",
    )


FREEZE = '''
def apply_freeze(model: nn.Module) -> None:
    """Freeze parameters: they have no gradients, and are neither reduced nor updated."""
    <causes>
    <names>
    for name, parameter in model.named_parameters():
        pattern = f"layers.*.{name.split('.', 2)[2]}" if name.startswith("layers.") else name
        parameter.requires_grad_(<wanted>)
'''


def backward_prefetch(roles: AxisRoles) -> str:
    """Emits code that stops the first FSDP group with a backward from prefetching a frozen group; "" if every group has
    a backward."""
    sections = roles.sharded.ops
    goes = {s: any(o.op.has_backward for o in ops) for s, ops in sections.items()}
    if all(goes.values()):
        return ""
    if any(goes[kind] for kind in roles.sharded.model.blocks):
        first = "first, *_ = model.layers.values()"
        if not roles.experts.apart or all(o.op.region != EXPERTS for o in sections[roles.sharded.model.kinds[0]]):
            return lines(NOTHING_BEFORE, first, fill(GATHERS_ITSELF, group="first"))
        return lines(NOTHING_BEFORE, first, "(experts,) = expert_modules(first)", fill(GATHERS_ITSELF, group="experts"))
    last = next(o.op.module for o in sections["last"] if o.op.params)
    return lines(NOTHING_BEFORE, fill(GATHERS_ITSELF, group=f"model.{last}"))


NOTHING_BEFORE = "# The groups before this one have no backward: do not prefetch them."
GATHERS_ITSELF = "<group>.set_modules_to_backward_prefetch([<group>])"
