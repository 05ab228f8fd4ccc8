"""The smallest plan that still fails as a drawn one did: sentences dropped, then numbers reduced, while it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.random_plans.pieces import Drawn

Fails = Callable[[Drawn], bool]
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def shrink(drawn: Drawn, fails: Fails, tries: int = 300) -> Drawn:
    """A smaller plan for which `fails` is still true; at most `tries` are tested."""
    left = tries
    again = True
    while again and left > 0:
        again = False
        for smaller in candidates(drawn):
            left -= 1
            if left <= 0:
                break
            if fails(smaller):
                drawn, again = smaller, True
                break
    return drawn


def candidates(drawn: Drawn) -> Iterator[Drawn]:
    """Plans with a sentence less, an axis less, a file less, or a smaller number."""
    for i in reversed(range(len(drawn.sentences))):
        yield _with(drawn, i, "")
    for i, sentence in enumerate(drawn.sentences):
        for text in simpler(sentence):
            yield _with(drawn, i, text)


def simpler(sentence: str) -> Iterator[str]:
    """The sentence without one of its options, and with smaller numbers."""
    for pattern in (
        r"\([^()]*\)",
        r" except .*",
        r" every .*",
        r" stages \[.*",
        r" microbatch \d+",
        r" over \d+ leaves",
    ):
        if (shorter := re.sub(pattern, "", sentence, count=1)) != sentence:
            yield shorter
    for part in (r",[^,()\[\]]+(?=[,)\]]|$| over| as| in| per)", r" > \w+ \d+"):
        for found in re.finditer(part, sentence):
            yield sentence[: found.start()] + sentence[found.end() :]
    for found in NUMBER.finditer(sentence):
        number = int(found[0])
        for less in dict.fromkeys((1, 2, number // 2)):
            if 0 < less < number:
                yield f"{sentence[: found.start()]}{less}{sentence[found.end() :]}"


def _with(drawn: Drawn, place: int, text: str) -> Drawn:
    sentences = [*drawn.sentences]
    sentences[place : place + 1] = [text] if text else []
    named = " ".join(sentences)
    files = {n: t for n, t in drawn.files.items() if n in named}
    return replace(drawn, sentences=tuple(sentences), files=files)
