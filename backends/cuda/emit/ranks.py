"""Emits expressions for a rank's coordinates in the plan's mesh, which do not need torch's mesh."""

from __future__ import annotations

from collections.abc import Sequence

from planc.ir.mesh import Mesh


def laid(mesh: Mesh, axes: Sequence[str]) -> str:
    """Returns a comment with the order of ranks over `axes` of `mesh`, outermost first."""
    return f"# Ranks are ordered as {' > '.join(f'{a} {mesh.size(a)}' for a in axes)}."


def arranged(mesh: Mesh, axes: Sequence[str], order: Sequence[str]) -> str:
    """Returns an expression for a tensor of the numbers of all ranks in `mesh`, with one dim per axis. `axes` are the
    axes with more than one rank; `order` is the order of the dims."""
    ranks = f"torch.arange({mesh.devices})"
    if list(order) == list(axes):
        return ranks
    sizes = ", ".join(str(mesh.size(a)) for a in axes)
    return f"{ranks}.view({sizes}).permute({', '.join(str([*axes].index(a)) for a in order)})"


def place(mesh: Mesh, axes: Sequence[str]) -> str:
    """Returns an expression for the coordinate of `rank` over `axes` of `mesh`; several axes count as one."""
    terms, follow = [], mesh.size(*axes)
    for name in axes:
        axis = mesh.axis(name)
        follow //= axis.size
        term = f"rank // {axis.stride}" if axis.stride > 1 else "rank"
        term += f" % {axis.size}" if axis.stride * axis.size < mesh.devices else ""
        terms.append(f"{f'({term})' if ' ' in term else term} * {follow}" if follow > 1 else term)
    return " + ".join(terms)
