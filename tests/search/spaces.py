"""Spaces drawn at random, and what `planc check` says of every plan in them: axes, layouts, schedules and microbatches
that are free, 1, absent or refused."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from pathlib import Path

from planc.driver import examine
from planc.ir.target import AnyTarget
from planc.picture.units import seconds
from planc.searching import Found
from planc.searching.space import DATA_PARALLEL, LOSS_CHUNKS, MOST_MICROBATCH, Space
from tests.random_plans.pieces import Dice

MODELS = ("llama3_8b(layers = 4)", "llama3_8b(layers = 6)", "gpt3_6_7b(layers = 4)", "mixtral_8x7b(layers = 2)")
CLUSTERS = {"1 x h100_node": 8, "1 x a100_node": 8, "1 x h100_node(4)": 4, "2 x h100_node(2)": 4, "tpu_v5p(2x2x2)": 8}
MOST = 400
"""Plans of a space at most: each is checked."""


def draw(seed: int) -> str:
    """The text of a space: one with at most about MOST plans."""
    for attempt in itertools.count():
        text = _draw(Dice(f"space {seed} {attempt}"))
        if _rough_size(text) <= MOST:
            return text
    raise AssertionError


def _draw(dice: Dice) -> str:
    model, cluster = dice.choice(MODELS), dice.choice(sorted(CLUSTERS))
    devices, experts = CLUSTERS[cluster], model.startswith("mixtral")
    roles = [r for r, share in (("pp", 0.4), ("cp", 0.4), ("tp", 0.5), ("ep", 0.7 * experts)) if dice.chance(share)]
    data = dice.choice(("dp", "fsdp", "fsdp", "hsdp", ""))
    roles += {"hsdp": ["replica", "fsdp"], "": []}.get(data, [data])
    roles = roles or ["fsdp"]
    dice.shuffle(roles)
    sizes = {role: dice.choice(("?", "?", "?", "1", "2")) for role in roles}
    if "?" not in sizes.values():
        sizes[roles[0]] = "?"
    micro = dice.choice(("1", "1", "2", "?"))
    lines = [
        f"model {model}",
        f"batch {dice.choice((8, 16, 24, 32))} x {dice.choice((128, 2048))} tokens microbatch {micro}",
        f"cluster {cluster}",
        "mesh " + dice.choice((" > ", " > ", ", ")).join(f"{r} {s}" for r, s in sizes.items()),
        dice.choice(("compute bf16 reduce fp32", "compute fp32")),
    ]
    lines += _over(dice, sizes, devices)
    lines += dice.some(_options(dice, sizes), 0, 2)
    return "\n".join(("plan space", *lines)) + "\n"


def _over(dice: Dice, sizes: dict[str, str], devices: int) -> Iterator[str]:
    """Sentences that divide over each axis."""
    if "replica" in sizes:
        yield dice.choice(("use ? over replica, fsdp", "use hsdp over replica, fsdp"))
    elif "fsdp" in sizes:
        yield dice.choice(("use fsdp over fsdp", "use ? over fsdp"))
    elif "dp" in sizes:
        yield f"use {dice.choice(('ddp', 'zero1', '?'))} over dp"
    if "tp" in sizes:
        yield "use tp over tp"
        if dice.chance(0.5) and "cp" not in sizes:
            yield "use sp over tp"
    if "cp" in sizes:
        yield dice.choice(("use cp over cp", "use cp over cp as ring", "use ulysses over cp"))
    if "ep" in sizes:
        yield from ("use ep over ep", "shard sequence over ep in residual")
    if "pp" in sizes:
        ways = ("?", "1f1b", "gpipe", "interleaved_1f1b(chunks = 2)", "zbv", "dualpipe", "interleaved_1f1b(chunks = 7)")
        yield f"split layers over pp as {dice.choice(ways)}"


def _options(dice: Dice, sizes: dict[str, str]) -> list[str]:
    """Sentences beside the layouts, some of which a target, a chip or a framework refuses."""
    frameworks = ("megatron", "torchtitan", "maxtext", "deepspeed")
    found = [dice.choice(("recompute ?", "recompute blocks")), f"realise as {dice.choice(frameworks)}"]
    found += [f"realise as {dice.choice(frameworks)}\ntarget {dice.choice(('cuda', 'xla'))}"]
    found += [f"overlap {dice.choice(sorted(sizes))} as {dice.choice(('none', 'async_matmul'))}"]
    found += [
        "loss in ? chunks",
        "quantize attention as float8(rowwise)",
        f"target {dice.choice(('cuda', 'xla', 'none'))}",
    ]
    return found


def _rough_size(text: str) -> int:
    free = text.count(" ?")
    words = 4 ** len(re.findall(r"use \?", text)) * (5 if "recompute ?" in text else 1)
    words *= len(LOSS_CHUNKS) if "loss in ?" in text else 1
    return words * (30 if "as ?" in text else 1) * (6 if "microbatch ?" in text else 1) * 3 ** min(free, 4)


class Outcome:
    """Every plan of a space, as `planc check` answers for a target."""

    def __init__(self, path: Path, target: AnyTarget, room_gib: float) -> None:
        self.fitting: list[tuple[float, float, str]] = []
        """Seconds a sequence, GiB and text of the plans without an error that fit."""
        self.codes: Counter[str] = Counter()
        """Codes of the others, each by its first finding."""
        self.lowered = 0
        folder = path.with_name("plans")
        folder.mkdir(exist_ok=True)
        for text in filled(path):
            one = folder / path.name
            one.write_text(text)
            report = examine(one, target=target, targets=()).report
            left_out = {"W0907"} if report.framework else set()  # planc's own program has what a framework lacks
            wrong = [
                d.code
                for d in report.diagnostics
                if d.code in left_out or (d.severity == "error" and d.code != "E0501")
            ]
            if wrong or report.step is None or report.memory is None:
                self.codes[wrong[0]] += 1
                continue
            self.lowered += 1
            gib = report.memory.per_device_gib.total
            if gib <= room_gib:
                assert report.global_batch is not None
                self.fitting.append((rounded(report.step.time_s / report.global_batch), rounded(gib), text))
        self.fitting.sort()


def first_rows(fitting: list[tuple[float, float, str]], top: int) -> list[tuple[float, float, str]]:
    """The layouts of `fitting` (seconds a sequence, GiB, text; sorted) in the first `top` rows of an answer: a row has
    those that are printed with the same digits."""
    found: dict[object, list[tuple[float, float, str]]] = {}
    for s, gib, text in fitting:
        sequences = int(re.findall(r"(?m)^batch +(\d+)", text)[0])
        printed = sequences, seconds(s * sequences), f"{gib:.1f}"
        if printed in found or len(found) < top:
            found.setdefault(printed, []).append((s, gib, text))
    return sorted(itertools.chain(*found.values()))


def in_rows(found: Found) -> list[tuple[float, float, str]]:
    """Every layout in the rows of an answer, as `first_rows` has them."""
    every = (one for c in found.best for one in (c, *c.same))
    return sorted((rounded(c.s_per_sequence), rounded(c.memory_gib), c.text) for c in every)


def rounded(number: float) -> float:
    """Without its last digits: a search adds in another order."""
    return float(f"{number:.12g}")


def filled(path: Path) -> Iterator[str]:
    """Every plan that the file at `path` stands for: each `?` replaced by each of its values, whatever comes of it."""
    text = path.read_text()
    space = cache(lambda: Space(path))  # for the words that a schedule and a recomputation may be
    cluster = re.findall(r"(?m)^cluster (.*)$", text)[0]
    (mesh,) = re.findall(r"(?m)^mesh (.*)$", text)
    names = [part.split()[0] for part in re.split(" > |, ", mesh)]
    written = [part.split()[1] for part in re.split(" > |, ", mesh)]
    ways = [[int(w)] if w != "?" else [1, 2, 4, 8] for w in written]
    seen = set()
    for sizes in itertools.product(*ways):
        if prod(sizes) != CLUSTERS[cluster]:
            continue
        orders = itertools.permutations(range(len(names))) if ", " in mesh else [tuple(range(len(names)))]
        for order in orders:
            if (key := tuple((names[i], sizes[i]) for i in order if sizes[i] > 1)) in seen:
                continue
            seen.add(key)
            laid = " > ".join(f"{names[i]} {sizes[i]}" for i in order)
            yield from _words(text.replace(f"mesh {mesh}", f"mesh {laid}"), dict(zip(names, sizes, strict=True)), space)


def _words(text: str, sizes: dict[str, int], space: Callable[[], Space]) -> Iterator[str]:
    """With each choice of the other free words."""
    free = re.findall(r"microbatch \?|use \? over [\w, ]+|recompute \?|loss in \?|as \?", text)
    choices: list[list[str]] = []
    for place in free:
        if place.startswith("microbatch"):
            choices.append([str(n) for n in range(1, MOST_MICROBATCH + 1)])
        elif place.startswith("use"):
            choices.append([*DATA_PARALLEL[1 + place.count(",")]])
        elif place.startswith("recompute"):
            (hole,) = (f for f in space().free if f.kind == "recompute")
            choices.append(sorted({v.values[hole.span] for v in space().variants}))
        elif place.startswith("loss"):
            choices.append([*LOSS_CHUNKS])
        else:
            choices.append([p.text for p in space().pipelines(sizes["pp"]) if p is not None])
    for chosen in itertools.product(*choices):
        made = text
        for place, word in zip(free, chosen, strict=True):
            made = made.replace(place, place.replace("?", word), 1)
        yield made
