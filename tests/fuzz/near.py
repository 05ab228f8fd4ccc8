"""Plans that are nearly right: a good plan with one to three changes that mean something.

Damage at random mostly ends at the parser. These changes know the sentences, so a good share of the plans is checked,
costed and lowered.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache

from planc.catalog import model_names
from planc.checks import rules
from planc.language import library
from planc.language.verbs.expect import METRICS
from planc.pipeline.schedules import schedules
from tests.fuzz.inputs import NAMES, NUMBERS, ROOT, _number, _word, sentence

Lines = list[str]
AXES = ("a", "b2", "layers", "over", "x", "fsdp", "tp", "pp", "ep", "cp", "dp", "data", "class", "None", "e5")
FILES = ("import", "model from", "csv(", "?")
"""Sentences with these need other files, or are for the search."""


@cache
def bases() -> tuple[str, ...]:
    """Plans that are right, and need no other file."""
    plans = [f.read_text() for f in sorted((ROOT / "plans").rglob("*.plan")) if f.parent.name != "search"]
    texts = [*plans, *(rule.page.good for rule in rules().values() if rule.page.good)]
    return tuple(
        t for t in texts if re.search(r"^plan ", t, re.M) and "\nmesh " in t and not any(w in t for w in FILES)
    )


@cache
def sentences() -> dict[str, tuple[tuple[str, tuple[str, ...]], ...]]:
    """Sentences of the good plans by their verb, each with the axes of its plan."""
    found: dict[str, dict[tuple[str, tuple[str, ...]], None]] = {}
    for text in bases():
        axes = tuple(_axes(text.splitlines()))
        for line in text.splitlines():
            if re.match(r"[a-z.]+ .*[^,(\[]$", line) and not line.startswith("plan "):
                found.setdefault(line.split()[0], {})[(line, axes)] = None
    return {verb: tuple(lines) for verb, lines in found.items()}


def near(rng: random.Random) -> str:
    """A good plan with one to three changes."""
    lines = rng.choice(bases()).splitlines()
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        rng.choice(CHANGES)(rng, lines)
    return _written(rng, lines)


def _written(rng: random.Random, lines: Lines) -> str:
    """The text, now and then with other line ends, a mark or comments."""
    if rng.random() < 0.05:
        lines.insert(rng.randrange(len(lines) + 1), "# " + rng.choice(("", "é\U0001f600", "x" * 200, "plan y")))
    end = "\r\n" if rng.random() < 0.02 else "\n"
    return ("\ufeff" if rng.random() < 0.02 else "") + end.join(lines) + end * (rng.random() < 0.95)


def _axes(lines: Lines) -> list[str]:
    """The axes of the mesh and of views."""
    named = [line.partition(" of ")[0].split(None, 1)[1] for line in lines if re.match(r"(mesh|view)\s+\S", line)]
    return [factor.split()[0] for text in named for factor in text.split("#")[0].split(">") if factor.split()]


def _row(rng: random.Random, lines: Lines, verb: str = "") -> int | None:
    """The place of one sentence, of a verb where one is named; the header is none."""
    rows = [n for n, line in enumerate(lines) if line and not line.startswith(("#", "plan "))]
    rows = [n for n in rows if lines[n].startswith(verb)]
    return rng.choice(rows) if rows else None


def _mesh(rng: random.Random, lines: Lines) -> None:
    """Other sizes of the axes, mostly with as many devices in all."""
    row = _row(rng, lines, "mesh ")
    if row is None:
        return
    places = list(re.finditer(r"\b\d+\b(?=\s*(?:>|$|#))", lines[row]))
    if not places:
        return
    times = rng.choice((2, 2, 2, 3, 4, 8))
    grown = rng.choice(places)
    shrunk = rng.choice(places) if rng.random() < 0.6 else None
    sizes = {grown: int(grown[0]) * times}
    if shrunk is not None and shrunk is not grown and int(shrunk[0]) % times == 0:
        sizes[shrunk] = int(shrunk[0]) // times
    else:
        _cluster_times(lines, times, grow=rng.random() < 0.9)
    for place in sorted(sizes, key=lambda m: -m.start()):
        lines[row] = lines[row][: place.start()] + str(sizes[place]) + lines[row][place.end() :]


def _cluster_times(lines: Lines, times: int, *, grow: bool) -> None:
    for row, line in enumerate(lines):
        if grow and line.startswith("cluster "):
            lines[row] = re.sub(r"(?<=cluster )(\s*)(\d+)(?= x )", lambda m: f"{m[1]}{int(m[2]) * times}", line)


def _batch(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines, "batch ")
    if row is not None:
        which = rng.randrange(3)
        numbers = list(re.finditer(r"\d+", lines[row]))[which : which + 1]
        for place in numbers:
            near = rng.choice((int(place[0]) * 2, max(1, int(place[0]) // 2), int(place[0]) * 3, 1, 2, 64))
            lines[row] = lines[row][: place.start()] + str(near) + lines[row][place.end() :]


def _model(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines, "model ")
    if row is not None:
        sizes = rng.choice(("", "", "(layers = 4)", "(layers = 8)", "(layers = 16, vocab = 1000)", "(heads = 8)"))
        lines[row] = f"model {rng.choice(list(model_names()))}{sizes}"


def _machine(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines, "cluster ")
    if row is not None:
        lines[row] = re.sub(r"(?<= x )\s*\w+", " " + rng.choice(list(library.machines())), lines[row], count=1)


def _transplant(rng: random.Random, lines: Lines) -> None:
    """A sentence of another good plan, with this plan's axes, put in or in the place of one with its verb."""
    verb = rng.choice([v for v in sentences() if v not in ("model", "batch", "cluster", "mesh")])
    text, theirs = rng.choice(sentences()[verb])
    axes = _axes(lines)
    for axis in theirs if axes else ():
        text = re.sub(rf"\b{re.escape(axis)}\b(?!\()", axis if axis in axes else rng.choice(axes), text)
    row = _row(rng, lines, verb + " ")
    if row is not None and rng.random() < 0.7:
        lines[row] = text
    else:
        lines.insert(rng.randint(1, len(lines)), text)


def _delete(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines)
    if row is not None and (not re.match("model|batch|cluster|mesh", lines[row]) or rng.random() < 0.1):
        del lines[row]


def _again(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines)
    if row is not None:
        lines.insert(rng.randint(1, len(lines)), lines[row])


def _swap(rng: random.Random, lines: Lines) -> None:
    one, other = _row(rng, lines), _row(rng, lines)
    if one is not None and other is not None:
        lines[one], lines[other] = lines[other], lines[one]


def _schedule(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines, "split ")
    if row is None:
        return _stages(rng, lines)
    options = rng.choice(("", "", "(chunks = 2)", "(chunks = 4)", "(stages_per_rank = 2)", "(repeats = 2)"))
    lines[row] = re.sub(r"(?<= as )\s*\S+(\([^)]*\))?", rng.choice(list(schedules())) + options, lines[row], count=1)
    return None


def _stages(rng: random.Random, lines: Lines) -> None:
    """A pipeline over one of the axes."""
    if axes := _axes(lines):
        lines.append(f"split layers over {rng.choice(axes)} as {rng.choice(list(schedules()))}")


def _names(rng: random.Random, lines: Lines) -> None:
    """A name put into a list of names, or taken out of it."""
    row = _row(rng, lines, rng.choice(("recompute", "quantize", "offload", "store", "shard", "compile", "use")))
    if row is None:
        return
    if ", " in lines[row] and rng.random() < 0.5:
        lines[row] = re.sub(r"[\w.]+, ", "", lines[row], count=1)
    else:
        head, _, tail = lines[row].partition(" ")
        lines[row] = f"{head} {rng.choice(NAMES)}, {tail.strip()}"


def _rename(rng: random.Random, lines: Lines) -> None:
    """An axis with another name, everywhere."""
    if axes := _axes(lines):
        old, new = rng.choice(axes), rng.choice(AXES)
        for row, line in enumerate(lines):
            lines[row] = re.sub(rf"(?<!use )\b{re.escape(old)}\b(?!\()", new, line)


def _let(rng: random.Random, lines: Lines) -> None:
    """A number by a name, or as a sum."""
    row = _row(rng, lines)
    found = list(re.finditer(r"(?<![\w.])\d+(?![\w.])", lines[row])) if row is not None else []
    if row is None or not found:
        return
    place = rng.choice(found)
    written = rng.choice(("n", "n * 1", "(n + 0)", "n / 1", "2 * n", "n - 1", "n / 2"))
    lines[row] = lines[row][: place.start()] + written + lines[row][place.end() :]
    if rng.random() < 0.9:
        lines.insert(1, f"let n = {place[0]}")


def _expect(rng: random.Random, lines: Lines) -> None:
    units = ("", " s", " GiB", " %", " ms")
    bound = f"{rng.choice(('<=', '>='))} {rng.choice(NUMBERS)}{rng.choice(units)}"
    codes = [code for code in rules() if code[0] in "WN"]
    wanted = (f"expect {rng.choice(list(METRICS))} {bound}", f"expect no {rng.choice(codes)}")
    lines.append(rng.choice(wanted))


def _on(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines)
    if row is not None:
        lines[row] = f"on {rng.choice(('cuda', 'xla', 'xla', 'cuda', 'none'))}: {lines[row].strip()}"


def _override(rng: random.Random, lines: Lines) -> None:
    axes = _axes(lines) or ["x"]
    pattern = rng.choice(("layers.*.attention.wq", "**", "*norm*", "output", "layers.[0-3].*", "tok_embeddings.weight"))
    dims = ("embed", "heads", "kv_heads", "ffn", "vocab", "experts", "head_dim")
    placed = rng.choice(("replicated", f"{rng.choice(dims)} over {rng.choice(axes)}"))
    lines.append(f"override {pattern} = {placed}")


def _edge(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines)
    if row is not None:
        lines[row] = re.sub(r"\b\d+\b", lambda m: _number(rng, int(m[0])), lines[row], count=1)


def _extreme(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines)
    if row is not None:
        lines[row] = re.sub(r"\b\d+\b", lambda m: rng.choice(NUMBERS), lines[row], count=1)


def _other_word(rng: random.Random, lines: Lines) -> None:
    row = _row(rng, lines)
    if row is not None:
        lines[row] = _word(rng, lines[row])


def _sentence(rng: random.Random, lines: Lines) -> None:
    lines.insert(rng.randint(1, len(lines)), sentence(rng))


def _target(rng: random.Random, lines: Lines) -> None:
    lines.append(f"target {rng.choice(('cuda', 'xla', 'none'))}")


CHANGES: tuple[Callable[[random.Random, Lines], None], ...] = (
    *(
        _mesh,
        _mesh,
        _mesh,
        _batch,
        _batch,
        _model,
        _model,
        _machine,
        _transplant,
        _transplant,
        _transplant,
        _transplant,
    ),
    *(_delete, _again, _swap, _schedule, _schedule, _stages, _names, _rename, _let, _expect, _on, _override, _override),
    *(_edge, _edge, _extreme, _other_word, _sentence, _target),
)
