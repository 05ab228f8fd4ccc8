"""`view AXIS SIZE > ... of AXES for REGIONS`: factorizes the mesh axes AXES (the same ranks) in another way for parts
of the model, such as the experts."""

from __future__ import annotations

from math import prod

from planc.ir.mesh import Mesh, View, are_neighbours, strided
from planc.ir.model import EXPERTS
from planc.language.draft import Draft
from planc.language.verbs.mesh import read_factors
from planc.syntax.tree import Sentence

VERBS = ("view",)
ORDER = 4
REGIONS = (EXPERTS,)
"""Regions in which tokens are redistributed, so that other axes can apply."""


def read(sentence: Sentence, draft: Draft) -> None:
    sizes = read_factors(sentence, draft)
    draft.refused |= set(sizes or ())
    covered = draft.axes(sentence.names(0))
    mesh, model = draft.mesh, draft.model
    if model is None:
        return
    legal = [r for r in REGIONS if r in model.regions]
    regions = [draft.one_of(w, legal, f"a region of {model.name} that a view is for") for w in sentence.names(1)]
    if sizes is None or covered is None or None in regions or mesh is None:
        return
    draft.refused -= set(mesh.every)
    if not _is_new_axis(sentence, sizes, mesh, draft) or not _neighbours(sentence, covered, mesh, draft):
        return
    size = mesh.size(*covered)
    if prod(sizes.values()) != size:
        _wrong_product(sentence, sizes, covered, mesh, draft)
        return
    innermost = min(mesh.axis(name).stride for name in covered)
    view = View(
        axes=strided(sizes, innermost),
        of=covered,
        regions=tuple(r for r in regions if r),
        cause=draft.cause(sentence),
    )
    draft.refused -= set(sizes)
    draft.mesh = Mesh(axes=mesh.axes, views=(*mesh.views, view), cause=mesh.cause)


def _is_new_axis(sentence: Sentence, sizes: dict[str, int], mesh: Mesh, draft: Draft) -> bool:
    for name in sizes:
        if name in mesh.every:
            draft.report(
                "E0209",
                sentence.span,
                f"the view's axis `{name}` is an axis of the mesh already",
                help=f"give it a name of its own, such as `e{name}`",
            )
            return False
    if mesh.views:
        draft.report("E0209", sentence.span, "the experts have a view already", help="keep one of them")
        return False
    return True


def _neighbours(sentence: Sentence, covered: tuple[str, ...], mesh: Mesh, draft: Draft) -> bool:
    if are_neighbours(mesh.sizes, covered):
        return True
    names = [a.name for a in mesh.axes if a.size > 1 or a.name in covered]
    draft.report(
        "E0209",
        sentence.span,
        f"{', '.join(covered)} are not neighbours of the mesh in this order: {' > '.join(names)}",
        help="a view divides ranks that lie side by side; order the mesh so",
    )
    return False


def _wrong_product(
    sentence: Sentence, sizes: dict[str, int], covered: tuple[str, ...], mesh: Mesh, draft: Draft
) -> None:
    given = " x ".join(f"{name} {n}" for name, n in sizes.items())
    wanted = " x ".join(f"{name} {mesh.sizes[name]}" for name in covered)
    product, size = prod(sizes.values()), mesh.size(*covered)
    first, *others = sizes
    rest = prod(sizes[o] for o in others)
    even = size % rest == 0
    draft.report(
        "E0209",
        sentence.span,
        f"the view has {given} = {product} ranks, and it stands for {wanted} = {size}",
        help=f"`{first} {size // rest}` makes it {size}" if even else f"sizes whose product is {size}",
    )
