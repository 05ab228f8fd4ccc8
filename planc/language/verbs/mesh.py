"""`mesh AXIS SIZE > AXIS SIZE ...`: the device mesh, outermost axis first. Between two axes, a comma instead of `>`
leaves their order to `planc search`."""

from __future__ import annotations

from planc.ir.mesh import Mesh
from planc.language.draft import Draft
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("mesh",)
ORDER = 3
MOST_AXES = 32


def read(sentence: Sentence, draft: Draft) -> None:
    sizes = read_factors(sentence, draft)
    if sizes is not None:
        draft.mesh = Mesh.of(sizes, draft.cause(sentence))


def read_factors(sentence: Sentence, draft: Draft) -> dict[str, int] | None:
    """Return the number of devices along each axis, outermost first, from `data 2 > tensor 8`. None (reported) if an
    axis is repeated or has no size, or if the order is left open."""
    written = sentence.factors()
    if len(written) > MOST_AXES:
        help = f"at most {MOST_AXES} axes; a mesh needs one for each way to divide the model"
        draft.report(
            "E0117", written[0].span.to(written[-1].span), f"{len(written):,} axes, too many to check", help=help
        )
        return None
    ordered = [_ordered(group, draft) for group in sentence.any_order()]
    sizes: dict[str, int] = {}
    for factor in written:
        size = _factor(factor, sizes, draft)
        if size is None:
            return None
        sizes[factor.words()[0].text] = size
    return sizes if all(ordered) else None


def _ordered(group: Node, draft: Draft) -> bool:
    """Report that commas between the axes leave their order open, and return False."""
    *names, last = [f"`{factor.words()[0].text}`" for factor in group.nodes("factor")]
    help = "`planc search FILE` finds one; or write `>` between the axes, the outermost first"
    draft.report("E0115", group.span, f"the order of {', '.join(names)} and {last} is left open", help=help)
    return False


def _factor(factor: Node, sizes: dict[str, int], draft: Draft) -> int | None:
    name, size = factor.parts
    assert isinstance(name, Word)
    if name.text in sizes:
        draft.report("E0108", name.span, f"axis `{name.text}` is in the mesh twice")
        return None
    if draft.free(size, f"the size of `{name.text}`"):
        return None
    return draft.integer(size)
