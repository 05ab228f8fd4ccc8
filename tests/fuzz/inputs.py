"""Plans as nobody writes them: damaged ones, ones made of the grammar at random, and bytes.

The i-th input of a seed is always the same, so a run can stop and go on, and a finding can be repeated.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

from planc.catalog import model_names
from planc.checks import rules
from planc.ir.dims import DIMS
from planc.language import library
from planc.language.verbs.expect import METRICS
from planc.syntax.lines import VERBS

ROOT = Path(__file__).parents[2]
DEPTH = 12
"""Nesting of rules after which the shortest alternative is taken."""
NUMBERS = ("0", "1", "2", "3", "4", "8", "16", "64", "127", "4096", "1000000", "999999999999", "9" * 25)
ODD = (
    "?",
    "(",
    ")",
    "[",
    "]",
    '"',
    ",",
    ">",
    "=",
    "/ 0",
    "- 9",
    "1e400",
    "0x4",
    "\t",
    "\n",
    "#",
    "é",
    "\U0001f600",
    "\r",
)
NAMES = (
    *("fsdp", "tp", "pp", "ep", "cp", "dp", "x", "tokens", "none", "blocks", "host", "over", "core", "replicated"),
    *("residual", "attention", "ffn", "experts", "head", "embedding", "params", "grads", "optimizer", "embed"),
    *("attention.core", "ffn.swiglu", "adamw", "bf16", "fp32", "step", "pass", "microbatch", "cuda", "xla"),
    *("1f1b", "interleaved_1f1b", "gpipe", "zbv", "ring", "float8", "dropless", "capacity", "inductor", "chunks"),
)


def make(seed: int, index: int) -> bytes:
    """The index-th input of a seed."""
    rng = random.Random(f"{seed}:{index}")
    kind = index % 10
    if kind < 2:
        return damaged(rng).encode("utf-8", "surrogatepass")
    if kind < 5:
        return grown(rng).encode("utf-8", "surrogatepass")
    if kind < 7:
        return bitten(rng)
    return soup(rng).encode("utf-8", "surrogatepass") if kind < 9 else rng.randbytes(rng.randrange(200))


@cache
def good() -> tuple[str, ...]:
    """Plans to start from: those of the repository and the rules' examples."""
    files = [*(ROOT / "plans").rglob("*.plan"), *(ROOT / "tests").rglob("*.plan")]
    examples = [text for rule in rules().values() for text in (rule.page.bad, rule.page.good) if text]
    return (*(f.read_text() for f in sorted(files)), *examples)


@cache
def words() -> tuple[str, ...]:
    """Words that may stand where a word stood."""
    seen = {w for text in good() for w in text.split() if len(w) < 30}
    return tuple(sorted({*seen, *NAMES, *NUMBERS, *ODD, *VERBS, *DIMS, *METRICS, *library.layouts(), *model_names()}))


def damaged(rng: random.Random) -> str:
    """A good plan with a few words or lines changed, removed, doubled, or taken from another."""
    lines = rng.choice(good()).splitlines()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        row = rng.randrange(len(lines)) if lines else 0
        change = rng.randrange(8)
        if change == 0 and lines:
            del lines[row]
        elif change == 1 and lines:
            lines.insert(rng.randrange(len(lines) + 1), lines[row])
        elif change == 2:
            other = rng.choice(good()).splitlines()
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(other))
        elif change == 3:
            lines.insert(rng.randrange(len(lines) + 1), sentence(rng))
        elif change == 4 and lines:
            lines[row] = _word(rng, lines[row])
        elif lines:
            lines[row] = re.sub(r"\b\d+\b", lambda m: _number(rng, int(m[0])), lines[row], count=rng.randint(1, 2))
    return "\n".join(lines) + "\n" * rng.randrange(2)


def _number(rng: random.Random, number: int) -> str:
    """A number near the one that stood there, or an odd one."""
    near = (number * 2, number // 2, number + 1, number - 1, number * 3, 1)
    return str(max(0, rng.choice(near))) if rng.random() < 0.9 else rng.choice(NUMBERS)


def _word(rng: random.Random, line: str) -> str:
    pieces = line.split(" ")
    place = rng.randrange(len(pieces))
    pieces[place] = rng.choice(words()) if rng.random() < 0.8 else ""
    return " ".join(pieces)


def bitten(rng: random.Random) -> bytes:
    """A good plan with some bytes changed, put in or left out."""
    data = bytearray(rng.choice(good()).encode())
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(data) + 1)
        change = rng.randrange(3)
        if change == 0:
            data[place:place] = _bytes(rng, rng.randint(1, 4))
        elif change == 1:
            del data[place : place + rng.randint(1, 20)]
        elif place < len(data):
            data[place : place + 1] = _bytes(rng, 1)
    return bytes(data)


def _bytes(rng: random.Random, count: int) -> bytes:
    """Mostly characters of the language; any bytes now and then, which are seldom text."""
    if rng.random() < 0.1:
        return rng.randbytes(count)
    return "".join(rng.choice('0123456789abcxyz_.,>=+-*/()[]?%#" \n\t') for _ in range(count)).encode()


def grown(rng: random.Random) -> str:
    """A header and sentences made of the grammar, often after a good plan's first lines."""
    head = rng.choice(good()).splitlines()[: rng.randint(1, 8)] if rng.random() < 0.4 else ["plan x"]
    return "\n".join([*head, *(sentence(rng) for _ in range(rng.randint(1, 8)))]) + "\n"


def soup(rng: random.Random) -> str:
    """A few lines of words in no order."""
    lines = [" ".join(rng.choice(words()) for _ in range(rng.randint(1, 9))) for _ in range(rng.randint(1, 4))]
    return "\n".join(["plan x"] * rng.randrange(2) + lines)


def sentence(rng: random.Random) -> str:
    """One sentence of the grammar."""
    return " ".join(_expand(rng, "sentence", 0))


@cache
def _grammar() -> dict[str, list[list[tuple[bool, str]]]]:
    """Each rule's alternatives: (is a terminal, its name) in order."""
    from planc.syntax.tables import parser

    found: dict[str, list[list[tuple[bool, str]]]] = {}
    for rule in parser().rules:
        symbols = [(bool(s.is_term), str(s.name)) for s in rule.expansion]
        found.setdefault(str(rule.origin.name), []).append(symbols)
    return found


@cache
def _keywords() -> dict[str, str]:
    """Terminals that stand for one text."""
    from planc.syntax.tables import parser

    return {str(t.name): str(t.pattern.value) for t in parser().terminals if type(t.pattern).__name__ == "PatternStr"}


def _expand(rng: random.Random, name: str, depth: int) -> list[str]:
    ways = _grammar()[name]
    way = min(ways, key=lambda w: sum(not term for term, _ in w)) if depth > DEPTH else rng.choice(ways)
    out: list[str] = []
    for term, symbol in way:
        out += [_terminal(rng, symbol)] if term else _expand(rng, symbol, depth + 1)
    return out


def _terminal(rng: random.Random, name: str) -> str:
    if name in _keywords():
        return _keywords()[name]
    legal: dict[str, tuple[str, ...]] = {
        "INT": NUMBERS,
        "FLOAT": ("0.5", "1.25", "1e3", "2.0e-3"),
        "SHAPE": ("4x4x4", "2x2", "16x16", "0x4"),
        "UNIT": ("GiB", "GB/s", "TFLOP/s", "us", "%", "s", "furlong"),
        "CODE": ("W0601", "E0501", "N9999"),
        "CMP": ("<=", ">=", "<", ">"),
        "STRING": ('"acme.plan"', '"../x.plan"', '""', '"config.json"'),
        "GLOB": ("layers.*.attention.wq", "**", "output", "*norm*", "layers.[0-9].x"),
        "METHOD": ("1f1b", "2x"),
    }
    return rng.choice(legal.get(name) or (NAMES + tuple(library.layouts()) if rng.random() < 0.7 else words()))
