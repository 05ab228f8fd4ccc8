"""Ranks and their places in the plan's mesh, as source text: the emitted file asks nobody else where a rank is."""

from __future__ import annotations

from collections.abc import Sequence

from planc.ir.mesh import Mesh


def laid(mesh: Mesh, axes: Sequence[str]) -> str:
    """The comment that says how ranks lie over `axes`, outermost first."""
    return f"# Ranks lie as {' > '.join(f'{a} {mesh.size(a)}' for a in axes)}."


def arranged(mesh: Mesh, axes: Sequence[str], order: Sequence[str]) -> str:
    """All ranks of `mesh` as a tensor with a dimension for each of `axes`, every axis of more than one rank, in the
    `order` given."""
    ranks = f"torch.arange({mesh.devices})"
    if list(order) == list(axes):
        return ranks
    sizes = ", ".join(str(mesh.size(a)) for a in axes)
    return f"{ranks}.view({sizes}).permute({', '.join(str([*axes].index(a)) for a in order)})"


def place(mesh: Mesh, axes: Sequence[str]) -> str:
    """The place of the rank `rank` over one axis or more, as `Mesh.place_of` finds it."""
    terms, follow = [], mesh.size(*axes)
    for name in axes:
        axis = mesh.axis(name)
        follow //= axis.size
        term = f"rank // {axis.stride}" if axis.stride > 1 else "rank"
        term += f" % {axis.size}" if axis.stride * axis.size < mesh.devices else ""
        terms.append(f"{f'({term})' if ' ' in term else term} * {follow}" if follow > 1 else term)
    return " + ".join(terms)
