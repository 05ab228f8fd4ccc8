"""`override GLOB = replicated | DIM over AXES [and ...]`: the layout of parameters whose names match, in place of the
layout by `shard` sentences."""

from __future__ import annotations

from fnmatch import fnmatchcase

from planc.ir.model import Model
from planc.ir.plan import Override
from planc.language.draft import Draft, NameLookup
from planc.syntax.suggest import nearest, spelling_fix
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("override",)
ORDER = 5


def read(sentence: Sentence, draft: Draft) -> None:
    glob = sentence.node.words("GLOB", "NAME")[0]
    if draft.model is None or not _matches_something(glob, draft):
        return
    layout: dict[str, tuple[str, ...]] = {}
    for placement in sentence.node.nodes("placement"):
        found = _placement(placement, glob, draft)
        if found is None:
            return
        layout |= found
        if _outside_view(sentence, glob, found, draft):
            return
    draft.overrides.append(Override(glob=glob.text, layout=layout, cause=draft.cause(sentence)))


def _matching(glob: str, model: Model) -> list[str]:
    names = [p.name for p in model.params]
    return [n for n in names if fnmatchcase(n, glob) or fnmatchcase(n.removesuffix(".weight"), glob)]


def _matches_something(glob: Word, draft: Draft) -> bool:
    assert draft.model is not None
    legal = [p.name.removesuffix(".weight") for p in draft.model.params]
    draft.lookups.append(NameLookup(glob, tuple(legal), f"a parameter of {draft.model.name}"))
    if _matching(glob.text, draft.model):
        return True
    near = nearest(glob.text, legal)
    draft.report(
        "E0701",
        glob.span,
        f"`{glob.text}` matches 0 of {len(legal)} parameters of {draft.model.name}",
        label="matches nothing",
        help=f"nearest: {', '.join(near)}" if near else f"parameters: {', '.join(legal)}",
        fix=spelling_fix(glob.span, glob.text, legal),
    )
    return False


def _outside_view(sentence: Sentence, glob: Word, layout: dict[str, tuple[str, ...]], draft: Draft) -> bool:
    """True (reported) if the override uses an axis that does not exist for the parameter. In the experts, the axes of a
    view (another factorization of some mesh axes) may replace these mesh axes."""
    assert draft.model is not None
    for name in _matching(glob.text, draft.model) if draft.mesh is not None and draft.mesh.views else ():
        assert draft.mesh is not None
        param, view = draft.model.param[name], draft.mesh.views[0]
        named = (a for d in param.dims for a in layout.get(d, ()))
        axis = next((a for a in named if not draft.mesh.exists(a, param.region)), None)
        if axis is not None:
            inside = axis in view.names
            where = f"is for {', '.join(view.regions)}" if inside else f"has {', '.join(view.names)} instead"
            draft.report(
                "E0209",
                sentence.span,
                f"`{axis}` does not exist where {name} is used: the view {where}",
                help=f"axes there: {', '.join(a for a in draft.mesh.every if draft.mesh.exists(a, param.region))}",
            )
            return True
    return False


def _placement(placement: Node, glob: Word, draft: Draft) -> dict[str, tuple[str, ...]] | None:
    assert draft.model is not None
    word = placement.words()[0]
    names = placement.node("names")
    if names is None:
        return {} if draft.one_of(word, ("replicated",), "a placement") else None
    dims = {d for n in _matching(glob.text, draft.model) for d in draft.model.param[n].dims}
    dim = draft.one_of(word, sorted(dims), f"a dim of `{glob.text}`")
    axes = draft.axes(names.words())
    return None if dim is None or axes is None else {dim: axes}
