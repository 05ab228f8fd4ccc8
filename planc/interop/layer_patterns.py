"""Parses Megatron-LM's patterns for layers with experts, `([0]*3+[1]*58)`, and for layers of stages, `Et*3|t*4mL`."""

from __future__ import annotations

import re

MOST = 100_000
"""Maximum number of items of a pattern."""
MOST_LEVELS = 20
"""Maximum nesting of the brackets of a layout."""
_REPEAT = re.compile(r"\(([EtmL|]*)\)(?:\*(\d{1,5}))?|([EtmL|])\*(\d{1,5})")


def layers_of_pattern(text: str, layers: int) -> list[int] | None:
    """Returns, for each of the `layers`, 1 if it has experts and 0 if not. `text` is a number N (layers 0, N, 2 N, ...
    have experts) or a sum of repeated lists. None if `text` is no pattern of `layers` layers.

    >>> layers_of_pattern("([0]*1+[1]*2)", 3)
    [0, 1, 1]
    """
    text = re.sub(r"\s", "", text)
    if text.isdecimal() and len(text) < 9 and int(text):
        return [int(layer % int(text) == 0) for layer in range(layers)]
    tokens = re.findall(r"\[[01](?:,[01])*\]|\d+|[()+*]", text)
    if "".join(tokens) != text:
        return None
    try:
        pattern, rest = _sum(tokens, 0)
    except (IndexError, ValueError, RecursionError):
        return None
    return pattern if rest == len(tokens) and len(pattern) == layers else None


def _sum(tokens: list[str], at: int) -> tuple[list[int], int]:
    found, at = _repeated(tokens, at)
    while at < len(tokens) and tokens[at] == "+":
        more, at = _repeated(tokens, at + 1)
        found += more
        if len(found) > MOST:
            raise ValueError
    return found, at


def _repeated(tokens: list[str], at: int) -> tuple[list[int], int]:
    if tokens[at] == "(":
        found, at = _sum(tokens, at + 1)
        if tokens[at] != ")":
            raise ValueError
    elif tokens[at].startswith("["):
        found = [int(bit) for bit in tokens[at][1:-1].split(",")]
    else:
        raise ValueError
    at += 1
    while at + 1 < len(tokens) and tokens[at] == "*":
        if len(tokens[at + 1]) > 6 or len(found) * int(tokens[at + 1]) > MOST:
            raise ValueError
        found, at = found * int(tokens[at + 1]), at + 2
    return found, at


def stages_of_layout(text: str) -> tuple[int, ...] | None:
    """Returns the number of layers of each virtual stage, in order. An MTP module (`m`) counts as a layer. None unless
    the layout `text` has the embedding (`E`) first, then all layers (`t`), then MTP modules, and the loss (`L`) last.

    >>> stages_of_layout("Et*3|(tt|)*2t,mL")
    (3, 2, 2, 2)
    """
    text = re.sub(r"[\s,]", "", text)
    for _ in range(MOST_LEVELS):  # the innermost brackets, all at once
        repeats = [len(found[1] or found[3] or "") * int(found[2] or found[4] or 1) for found in _REPEAT.finditer(text)]
        if len(text) + sum(repeats) > MOST:
            return None
        if not repeats:
            break
        text = _REPEAT.sub(lambda found: (found[1] or found[3] or "") * int(found[2] or found[4] or 1), text)
    if not re.fullmatch(r"E[t|]*[m|]*L", text):
        return None
    return tuple(stage.count("t") + stage.count("m") for stage in text.split("|"))


def even(layers: int, stages: int) -> tuple[int, ...]:
    """Returns the number of layers of each stage. If `stages` does not divide `layers`, the first stages have one more.

    >>> even(7, 3)
    (3, 2, 2)
    """
    each, rest = divmod(layers, stages)
    return tuple(each + (stage < rest) for stage in range(stages))


def layout_of_stages(stages: tuple[int, ...], ahead: int = 0) -> str:
    """Returns Megatron-LM's layout string for `stages`, the number of layers of each virtual stage. The last `ahead` of
    the layers are MTP modules.

    >>> layout_of_stages((3, 2, 0))
    'Et*3|t*2|L'
    >>> layout_of_stages((4, 2), ahead=1)
    'Et*4|t*1m*1L'
    """
    words: list[str] = []
    for layers in reversed(stages):
        modules = min(ahead, layers)
        ahead -= modules
        plain = f"t*{layers - modules}" if layers > modules else ""
        words.insert(0, plain + (f"m*{modules}" if modules else ""))
    return f"E{'|'.join(words)}L"
