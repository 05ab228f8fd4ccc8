"""The kinds of input that are fuzzed, one file each: how an input is made, and what planc is made to do with it."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Parts = Literal["lines", "items"]


@dataclass(frozen=True)
class Kind:
    """One kind of input.

    `make` gives the bytes of the index-th input of a seed. `run` gives them to planc, in an empty folder, and returns
    labels that say how far they came; it raises when planc does, or when a promise is broken. `index` varies what is
    asked of planc. `warm` loads what the runs need, once, before a worker is forked. `parts` says what a failing input
    is made smaller by: the lines of a text, or the items of a JSON list.
    """

    name: str
    suffix: str
    parts: Parts
    goal: int
    """Number of inputs of the long form."""
    make: Callable[[int, int], bytes]
    run: Callable[[bytes, Path, int], tuple[str, ...]]
    warm: Callable[[], None] = lambda: None
    deep: tuple[str, ...] = ()
    """Labels of inputs that came far: the quick test wants to see each of them."""


def kinds() -> dict[str, Kind]:
    """Every kind by its name."""
    found = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return {module.KIND.name: module.KIND for module in found}


def split(kind: Kind, data: bytes) -> list[bytes]:
    """The parts that an input is made of."""
    if kind.parts == "lines":
        return data.splitlines(keepends=True)
    items: list[object] = json.loads(data)
    return [json.dumps(item).encode() for item in items]


def joined(kind: Kind, parts: list[bytes]) -> bytes:
    """The input that is made of `parts`."""
    return b"".join(parts) if kind.parts == "lines" else b"[" + b",\n".join(parts) + b"]\n"


def corpus(kind: Kind) -> Iterator[Path]:
    """Inputs that once failed, made small."""
    folder = Path(__file__).parents[1] / "corpus" / kind.name
    yield from sorted(folder.glob(f"*{kind.suffix}"))
