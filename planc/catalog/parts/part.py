"""Building blocks of a model (parts), and their assembly to a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from planc.catalog.parts.sizes import Size, dims_of
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Model, Op, Param, Run, Section, Tensor

HIDDEN = ("batch", "sequence", "embed")
"""The dims of the residual stream."""
BLOCK: Section = "block"
"""The only kind of block, or the most frequent one."""
SLIDING: Section = "sliding"
"""The kind of block whose attention has a window."""
DENSE: Section = "dense"
"""The kind of block without experts, of a family that has them."""
MTP: Section = "mtp"
"""The kind of block of an MTP module."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A building block of a model, such as attention or an MLP: its parameters, tensors and ops, in order."""

    params: tuple[Param, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    ops: tuple[Op, ...] = ()

    def __add__(self, other: Part) -> Part:
        return Part(params=self.params + other.params, tensors=self.tensors + other.tensors, ops=self.ops + other.ops)


def assemble(
    *,
    name: str,
    family: str,
    size: Size,
    changes: Mapping[str, int] | None,
    first: Part,
    blocks: Mapping[Section, Part],
    last: Part,
    kinds: Sequence[Section] = (),
    mtp: Part | None = None,
) -> Model:
    """Return the model with embedding `first`, layers from `blocks`, and head `last`.

    `blocks` maps each kind of block to its ops; `kinds` names each layer's kind, () if all layers are of one kind.
    `mtp` is the module for multi-token prediction, used if the size `mtp_layers` is above 0. Parameters and tensors of
    the same name are shared. Raises ValueError, with a message for the user, for invalid sizes.
    """
    sizes = dims_of(size, changes)
    if size.top_k > sizes.get("experts", size.top_k):
        raise ValueError(f"{name} sends a token to {size.top_k} experts, and there are {sizes['experts']}")
    if sizes.get("experts", 0) % size.routing.groups:
        raise ValueError(f"{name} picks from {size.routing.groups} groups, and {sizes['experts']} experts are not even")
    ahead = sizes.get("mtp_layers", 0)
    if ahead:
        if mtp is None:
            raise ValueError(f"{name} has no modules for further tokens (mtp_layers)")
        blocks = {**blocks, MTP: mtp}
        kinds = (*(kinds or (BLOCK,) * sizes["layers"]), *(MTP,) * ahead)
    sections = {"first": first, **_present(blocks, kinds), "last": last}
    return Model(
        name=name,
        family=family,
        sizes=sizes,
        rope_theta=size.rope_theta,
        rope_scaling=size.rope_scaling,
        norm_eps=size.norm_eps,
        tied=size.tied,
        top_k=size.top_k,
        routing=size.routing,
        runs=_runs_of_kinds(kinds),
        params=_params(sections),
        tensors=_tensors(sections.values()),
        ops={section: part.ops for section, part in sections.items()},
    )


def _present(blocks: Mapping[Section, Part], kinds: Sequence[Section]) -> dict[Section, Part]:
    """Return the kinds of block that some layer has. A single kind is renamed to `block`."""
    present = [kind for kind in blocks if not kinds or kind in kinds]
    return {kind: blocks[kind] for kind in present} if len(present) > 1 else {BLOCK: blocks[present[0]]}


def _params(sections: Mapping[Section, Part]) -> tuple[Param, ...]:
    found: dict[str, Param] = {}
    for section, part in sections.items():
        for param in part.params:
            known = found.get(param.name)
            if known is None:
                found[param.name] = replace(param, section=section)
            else:
                assert replace(known, section="", also=()) == param, param.name
                found[param.name] = replace(known, also=(*known.also, section))
    return tuple(found.values())


def _tensors(parts: Iterable[Part]) -> tuple[Tensor, ...]:
    found: dict[str, Tensor] = {}
    for part in parts:
        for tensor in part.tensors:
            known = found.setdefault(tensor.name, tensor)
            assert known == tensor, tensor.name
    return tuple(found.values())


def _runs_of_kinds(kinds: Sequence[Section]) -> tuple[Run, ...]:
    """Return runs of consecutive layers of the same kind; () if all layers are of one kind."""
    if len(set(kinds)) < 2:
        return ()
    runs: list[Run] = []
    for kind in kinds:
        if runs and runs[-1].section == kind:
            runs[-1] = replace(runs[-1], layers=runs[-1].layers + 1)
        else:
            runs.append(Run(section=kind, layers=1))
    return tuple(runs)
