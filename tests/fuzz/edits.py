"""Inputs as lists of edits of a good file: small to keep, easy to shrink, and read by people.

An edit changes one value of a tree (`set`, `delete`, `rename`, `copy`, `again`), or a piece of the text that the tree
is written as (`text`). One whose place is gone does nothing, so any part of a list is an input too.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Edit = dict[str, Any]
Path = list[Any]

TEXTS = (
    *(
        "",
        " ",
        "x",
        "fsdp",
        "tp",
        "cuda",
        "xla",
        "none",
        "null",
        "true",
        "nan",
        "inf",
        "-1",
        "1e400",
        "../x",
        "/etc/passwd",
    ),
    *(
        "a\nb",
        'x"""',
        "\x1b]0;x\x07",
        "\u202e",
        "\0",
        "é",
        "\U0001f600",
        "\ud800",
        "a" * 300,
        "{}",
        "%s",
        "${HOME}",
        "\\",
    ),
    *(
        "layers.*.attention.wq.weight",
        "**",
        "float32",
        "F32",
        "bf16",
        "step-00000007",
        "adamw",
        "llama",
        "silu",
        "9" * 30,
    ),
)
NUMBERS = (
    *(
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        16,
        64,
        127,
        128,
        1024,
        4096,
        -1,
        -8,
        255,
        2**31,
        2**32 + 1,
        2**53 + 1,
        2**63,
        2**64,
        10**12,
    ),
    *(
        10**15,
        10**18,
        10**30,
        10**400,
        0.5,
        1e-9,
        1e-320,
        1e308,
        -0.0,
        0.1,
        1.5,
        float("nan"),
        float("inf"),
        -float("inf"),
    ),
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [1],
    [[]],
    {"x": 1},
    [None],
    ["a", "a"],
    [0, 0, 0],
    [-1],
    [10**18],
)
PIECES = (
    "[",
    "{",
    '"',
    "}",
    "]",
    ",",
    ":",
    "\\u0000",
    "'",
    "'''",
    "=",
    "#",
    "\n",
    "\r",
    "\x00",
    "[[",
    "NaN",
    "1e999",
    "é",
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[Path]:
    """Every place in a tree but its top."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield [*at, key]
        yield from places(value, (*at, key))


def value_at(tree: Any, at: Path) -> Any:
    """The value at a place. Raises KeyError, IndexError or TypeError where there is none."""
    for key in at:
        tree = tree[key]
    return tree


def edited(tree: Any, edits: list[Edit]) -> Any:
    """A copy of `tree` with the edits of values, as far as their places are there."""
    found = copy.deepcopy(tree)
    for edit in edits:
        try:
            DOES.get(edit["do"], _nothing)(found, edit)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            continue
    return found


def _nothing(tree: Any, edit: Edit) -> None:
    del tree, edit


def _set(tree: Any, edit: Edit) -> None:
    inner, key = value_at(tree, edit["at"][:-1]), edit["at"][-1]
    if isinstance(inner, dict) and not isinstance(key, str):
        raise TypeError("JSON has texts as keys")
    inner[key] = copy.deepcopy(edit["to"])


def _delete(tree: Any, edit: Edit) -> None:
    del value_at(tree, edit["at"][:-1])[edit["at"][-1]]


def _rename(tree: Any, edit: Edit) -> None:
    inner = value_at(tree, edit["at"][:-1])
    inner[edit["to"]] = inner.pop(edit["at"][-1])


def _copy(tree: Any, edit: Edit) -> None:
    _set(tree, {"at": edit["at"], "to": value_at(tree, edit["from"])})


def _again(tree: Any, edit: Edit) -> None:
    inner = value_at(tree, edit["at"][:-1])
    inner.insert(edit["at"][-1], copy.deepcopy(inner[edit["at"][-1]]))


DOES: Mapping[str, Callable[[Any, Edit], None]] = {
    "set": _set, "delete": _delete, "rename": _rename, "copy": _copy, "again": _again,
}  # fmt: skip


def made(rng: random.Random, tree: Any, under: Path | None = None) -> list[Edit]:
    """One to four edits of `tree`, of what is at `under` where that is given."""
    start = tuple(under or ())
    top = value_at(tree, list(start))
    found = [_one(rng, top, list(places(top))) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4)))]
    for edit in found:
        for name in ("at", "from"):
            if name in edit:
                edit[name] = [*start, *edit[name]]
    return found


def _one(rng: random.Random, tree: Any, all_places: list[Path]) -> Edit:
    at = _chosen(rng, all_places)
    does = rng.choice(("set", "set", "set", "set", "near", "near", "near", "delete", "rename", "copy", "copy", "again"))
    if does == "near":
        return {"do": "set", "at": at, "to": near(rng, value_at(tree, at))}
    if does == "set":
        return {"do": "set", "at": at, "to": odd(rng)}
    if does == "rename":
        return {"do": "rename", "at": at, "to": rng.choice(TEXTS)}
    if does == "copy":
        return {"do": "copy", "at": at, "from": _like(rng, tree, at, all_places)}
    return {"do": does, "at": at}


def _chosen(rng: random.Random, all_places: list[Path]) -> Path:
    """A place; those near the top more often than their share, for there are few."""
    top = [p for p in all_places if len(p) <= 2]
    return list(rng.choice(top if rng.random() < 0.4 else all_places))


def _like(rng: random.Random, tree: Any, at: Path, all_places: list[Path]) -> Path:
    """A place with a value of the same type, if one is soon found."""
    kind = type(value_at(tree, at))
    tried = [rng.choice(all_places) for _ in range(20)]
    return list(next((p for p in tried if p != at and type(value_at(tree, p)) is kind), tried[0]))


def near(rng: random.Random, value: Any) -> Any:
    """A value like `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((value + 1, value - 1, value * 2, value // 2, -value, value * 1.0, 0, 1, str(value)))
    if isinstance(value, str) and value:
        place = rng.randrange(len(value))
        return (
            value[:place] + rng.choice(("", "x", value[place] * 2, value[place].swapcase(), "\n")) + value[place + 1 :]
        )
    if isinstance(value, list) and value:
        return rng.choice((value[1:], value[:-1], value[::-1], value * 2, [value]))
    return odd(rng)


def odd(rng: random.Random) -> Any:
    """A value of no kind in particular."""
    return rng.choice(rng.choice((TEXTS, NUMBERS, NUMBERS, OTHERS)))


def damage(rng: random.Random) -> Edit:
    """An edit of the text: somewhere some characters become others, now and then very many."""
    times = rng.choice((1, 1, 1, 2, 5, 100_000))
    place, cut = round(rng.random(), 6), rng.choice((0, 0, 1, 3, 20))
    return {"do": "text", "at": place, "cut": cut, "to": rng.choice(PIECES), "times": times}


def damaged(text: str, edits: list[Edit]) -> str:
    """`text` with the edits of texts."""
    for edit in edits:
        if edit["do"] == "text":
            start = int(edit["at"] * len(text))
            text = text[:start] + edit["to"] * edit["times"] + text[start + edit["cut"] :]
    return text


def as_bytes(text: str) -> bytes:
    """The text as UTF-8, where it can be."""
    return text.encode("utf-8", "surrogatepass")


def as_input(edits: list[Edit]) -> bytes:
    """The edits as an input of a kind."""
    return b"[" + b",\n".join(json.dumps(edit).encode() for edit in edits) + b"]\n"
