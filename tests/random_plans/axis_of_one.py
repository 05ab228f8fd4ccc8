"""The law of an axis of one rank: with any sentences over it, in any valid plan, it changes no answer."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from planc.compare.diff import diff
from planc.compare.placement import place
from planc.diag.errors import PlanError
from planc.driver import Examined, examine, lower, search
from planc.ir.dims import DIMS
from planc.ir.model import Model
from planc.ir.plan import NOUNS, PASSES_KEYS
from planc.ir.target import NO_TARGET, TARGETS, AnyTarget
from planc.language.verbs.overlap import METHODS
from planc.pipeline.schedules import schedules
from tests.random_plans.pieces import Dice, Drawn
from tests.random_plans.promises import write

ONE = "lone"
"""The axis's name, which no drawn plan has."""
ADDED = {"W0212"}
"""The finding that a sentence stores over one rank: it names the axis, and is the only answer that may be new."""


def inserted(drawn: Drawn, seed: int, model: Model, size: int | str = 1) -> Drawn:
    """The plan with an axis of `size` ranks at some place of its mesh, and one to three sentences over it.

    A sentence is drawn only where it decides what no other one does: `shard batch over d` beside `use fsdp over f`
    takes the place of what `use` says at every size, and so does `store params over d for experts`.
    """
    dice = Dice(f"an axis of one {seed}")
    sentences = [_in_mesh(s, dice, size) for s in drawn.sentences]
    legal = [*_of_its_own(drawn.text, model, dice)]
    for sentence in dice.some(legal, 1, 3):
        if dice.chance(0.25) and (at := _joinable(sentences)):
            i = dice.choice(at)
            both = rf"{ONE}, \1" if dice.chance(0.5) else rf"\1, {ONE}"
            sentences[i] = re.sub(r" over (\w+)", rf" over {both}", sentences[i], count=1)
        if not _contradicts(sentence, sentences):
            sentences.append(sentence)
    if not any(f" {ONE}" in s and not s.startswith("mesh") for s in sentences):
        sentences.append(f"replicate heads over {ONE}")
    return replace(drawn, sentences=tuple(sentences))


def _in_mesh(sentence: str, dice: Dice, size: int | str) -> str:
    """The mesh sentence with the axis at some place; other sentences as they are."""
    if not sentence.startswith("mesh "):
        return sentence
    axes = sentence.removeprefix("mesh ").split(" > ")
    axes.insert(dice.randint(0, len(axes)), f"{ONE} {size}")
    return "mesh " + " > ".join(axes)


def _of_its_own(text: str, model: Model, dice: Dice) -> Iterator[str]:
    """Sentences over the axis that decide what no sentence of the plan's `text` does."""
    dims = [d for d in DIMS if d in model.sizes or d == "sequence"]
    said = set(re.findall(r"\w+", re.sub(r"model.*", "", text)))
    explicit = {w for line in re.findall(r"(?m)^shard (.*) over", text) for w in re.findall(r"\w+", line)}
    regions = [r for r in model.regions if r != "dispatch"]
    for dim in dims:
        if dim not in ("layers", "batch") and dim not in explicit:
            yield f"shard {dim} over {ONE} in {dice.choice(regions)}"
        if dim != "layers":
            yield f"replicate {dim} over {ONE}"
    layouts = {"tp": "heads ffn vocab", "vocab": "vocab", "ddp": "batch"}
    layouts |= {"ep": "experts", "etp": "expert_ffn"} if model.top_k else {}
    taken = {w for used in re.findall(r"(?m)^use (\w+)", text) for w in LAID_OUT.get(used, "").split()} | explicit
    for layout, divided in layouts.items():
        if taken.isdisjoint(divided.split()):
            yield f"use {layout} over {ONE}"
    if "store" not in said and not {"fsdp", "hsdp", "zero1", "zero2"} & set(re.findall(r"use (\w+)", text)):
        yield f"store {dice.choice(('params, grads, optimizer', *NOUNS))} over {ONE}"
        if "batch" not in taken:
            yield from (f"use {layout} over {ONE}" for layout in ("fsdp", "zero1", "zero2"))
    if "sequence" not in taken and "sequence" not in said:
        yield f"use sp over {ONE}"
        yield f"use ulysses over {ONE}"
        if not said & set(PASSES_KEYS):
            methods = ("", " as ring", " as all_gather")
            yield from (f"use cp over {ONE}{dice.choice(methods)}" for _ in range(4))
    if "split" not in said and not re.search(r"use pp", text):
        names = sorted(schedules().keys() - {"csv"})
        yield from (f"split layers over {ONE} as {dice.choice(names)}" for _ in range(4))
        yield f"split layers over {ONE} as interleaved_1f1b(chunks = {dice.choice((2, 3, 200))})"
    yield from (f"overlap {ONE} as {method}" for method in METHODS)


LAID_OUT = {
    "tp": "heads ffn vocab", "sp": "sequence", "cp": "sequence", "ulysses": "sequence heads", "ep": "experts",
    "etp": "expert_ffn", "vocab": "vocab", "ddp": "batch", "fsdp": "batch", "hsdp": "batch", "zero1": "batch",
    "zero2": "batch", "mine": "batch heads ffn vocab sequence experts expert_ffn",
}  # fmt: skip
"""Dims that a layout divides."""


def _joinable(sentences: list[str]) -> list[int]:
    """Places of sentences that may name one more axis."""
    return [
        i for i, s in enumerate(sentences) if re.match(r"(on \w+: )?(shard|store) .* over ", s) and f" {ONE}" not in s
    ]


def _contradicts(sentence: str, sentences: list[str]) -> bool:
    """True if one of the sentences over the axis that are there decides the same."""

    def decides(s: str) -> set[str]:
        words = re.findall(r"\w+", s.split(" over ")[0])
        if words[0] == "use":
            kept = NOUNS if words[1] in ("fsdp", "zero1", "zero2") else ()
            return {*LAID_OUT.get(words[1], words[1]).split(), *kept} | ({"attention"} if words[1] == "cp" else set())
        return {*words} - {"shard", "store", "replicate", "overlap"} if words[0] != "overlap" else {"overlap"}

    mine = decides(sentence)
    return any(f" {ONE}" in s and mine & decides(s) for s in sentences if not s.startswith("mesh"))


def answers(examined: Examined) -> dict[str, Any]:
    """The answer of `check` for a plan: figures, rows, targets and codes, without places and texts."""
    report = examined.report
    data = json.loads(json.dumps(report.to_json()))
    kept = ("target", "framework", "microbatches", "limits", "memory", "step", "goodput", "run", "uncertainty")
    rows = [{k: v for k, v in row.items() if k != "cause"} for row in data["collectives"] or ()]
    targets = {t.target: (t.lowers, sorted(r.code for r in t.refusals)) for t in report.targets}
    codes = sorted(d.code for d in report.diagnostics if d.code not in ADDED)
    return {**{name: data[name] for name in kept}, "rows": rows, "targets": targets, "codes": codes}


def program(path: Path, target: Any, runtime: str = "") -> list[str]:
    """The lines of a plan's program without comments and the axis's name; the codes where it is refused."""
    try:
        text = lower(path, target, runtime=runtime).text
    except PlanError as error:
        return sorted(d.code for d in error.diagnostics)
    tree = ast.parse(text)
    tree.body = tree.body[1:]
    return ast.unparse(tree).replace(f", '{ONE}': 1", "").replace(f"'{ONE}': 1, ", "").splitlines()


def unchanged(one: Path, other: Path, *, thorough: bool) -> None:
    """`other`, which is `one` with the axis, has the same answers of check, cost, lower, diff and place."""
    asked: tuple[AnyTarget | None, ...] = (None, NO_TARGET, *TARGETS) if thorough else (None,)
    for target in asked:
        was, now = examine(one, target=target), examine(other, target=target)
        for name, value in answers(was).items():
            assert answers(now)[name] == value, f"{target}: {name}"
        if was.costed is None or now.costed is None or target is not None:
            continue
        changes = [c for c in diff(was.costed, now.costed, names=("a", "b")).changes if c.part != "plan"]
        assert not changes, f"diff: {changes[:3]}"
        if thorough:
            assert _placed(was) == _placed(now), "place"
    for target in TARGETS if thorough else ():
        assert program(one, target) == program(other, target), f"the program for {target}"


def _placed(examined: Examined) -> Any:
    try:
        found, _ = place(examined.costed)
    except ValueError as error:
        return str(error)
    data = found.to_json()
    return {k: data[k] for k in ("target", "orders", "levels", "device_order")}, found.today.step_s, found.best.step_s


def never_slower(path: Path, drawn: Drawn, seed: int, model: Model) -> None:
    """A search with a free axis beside one of the plan's is no slower than without it.

    And the plan with that axis of one rank is found where nothing else is free, at its own cost.
    """
    own = search(_written(path, "own", drawn), top=1)
    fixed = search(_written(path, "fixed", inserted(drawn, seed, model, "?")), top=1)
    assert [c.time_s for c in own.best] == [c.time_s for c in fixed.best], "the plan beside an axis of one rank"
    assert [c.memory_gib for c in own.best] == [c.memory_gib for c in fixed.best], "its memory"
    open_ = replace(drawn, sentences=tuple(re.sub(r"^(mesh \w+) \d+", r"\1 ?", s) for s in drawn.sentences))
    alone = search(_written(path, "alone", open_), top=1)
    beside = search(_written(path, "beside", inserted(open_, seed, model, "?")), top=1)
    if alone.best and alone.target == beside.target:
        assert beside.best and beside.best[0].time_s <= alone.best[0].time_s * (1 + 1e-9), "slower with a free axis"


def _written(path: Path, name: str, drawn: Drawn) -> Path:
    return write(replace(drawn, name=name), path)


def hold(seed: int, drawn: Drawn, folder: Path, *, thorough: bool) -> bool:
    """Check the law on a drawn plan: True if it held, False for a plan that is not read. Raises AssertionError where
    it does not hold."""
    one = write(drawn, folder / "without")
    plan = examine(one, targets=()).plan
    if plan is None:
        return False
    other = write(inserted(drawn, seed, plan.model), folder / "with")
    unchanged(one, other, thorough=thorough)
    if thorough and examine(one, targets=()).report.step is not None:
        with suppress(PlanError):  # a pipeline of other sizes than its stages are written for
            never_slower(folder / "searched", drawn, seed, plan.model)
    return True
