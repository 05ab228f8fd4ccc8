"""Finds the legal continuations of an unfinished sentence, from the parser's state: keywords, and texts that complete
the sentence after a name."""

from __future__ import annotations

from collections import deque
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.syntax.lines import HEADERS
from planc.syntax.old_spellings import offered
from planc.syntax.parse import MAX_SENTENCE
from planc.syntax.tables import parser

MARK = "Qqqqqqqq"
"""A name that no plan has. Letters alone, so that it may also stand for a unit."""

_NEVER_NEEDED = {"PLUS", "MINUS", "STAR", "SLASH", "COMMA", "MORETHAN"}
"""Signs that only make a sentence longer; so does an opening bracket where a number would do."""

MOST_STATES = 400
"""Limit of parser states visited in the search for an ending."""

SAMPLES = {"INT": "1", "NAME": "a", "STRING": '"a"', "CODE": "E0101", "CMP": "<=", "SHAPE": "1x1", "UNIT": "s"}
"""A sample of each kind of word."""


@dataclass(frozen=True, slots=True)
class Follow:
    """The legal continuations of an unfinished sentence: `keywords` that may come next and, where a name may come next,
    the texts that complete the sentence after the name (`endings`)."""

    keywords: tuple[str, ...]
    endings: tuple[str, ...]
    code: bool
    """True if the code of a diagnostic may come next."""


def follow(before: str) -> Follow | None:
    """Return the continuations of `before`, the start of a sentence; None if it has a mistake or is too long."""
    from lark.exceptions import UnexpectedInput

    verb = before.split(maxsplit=1)[:1]
    if not verb or len(before) > MAX_SENTENCE:
        return None
    try:
        state: Any = parser().parse_interactive(before, start="header" if verb[0] in HEADERS else "sentence")
        state.exhaust_lexer()
    except UnexpectedInput:
        return None
    accepted = {t for t in state.accepts() if offered(verb[0], t)}
    words = {t: _sample_text(t) for t in accepted}
    keywords = sorted(w for t, w in words.items() if _is_keyword(t))
    return Follow(tuple(keywords), tuple(_endings(state, accepted, verb[0])), "CODE" in accepted)


def _sample_text(terminal: str) -> str:
    """Return a text for a `terminal` of the grammar: the keyword or sign itself, or a sample such as a name or a
    number; "" if there is none."""
    from lark.lexer import PatternStr

    if terminal in SAMPLES or terminal == "$END":
        return SAMPLES.get(terminal, "")
    pattern = parser().get_terminal(terminal).pattern
    return str(pattern.value) if isinstance(pattern, PatternStr) else ""


def _is_keyword(terminal: str) -> bool:
    return _sample_text(terminal).isalpha() and terminal not in SAMPLES


def _endings(state: Any, accepted: set[str], verb: str) -> list[str]:
    """Return texts that complete the sentence after a name: the shortest one, and for each keyword or `=` that may
    follow the name, the shortest one that begins with it."""
    found: list[str] = []
    for terminal in ("NAME", "GLOB", "UNIT"):
        if terminal not in accepted:
            continue
        named = _parser_after(state, terminal, MARK)
        after = sorted(t for t in named.accepts() if t == "EQUAL" or (_is_keyword(t) and offered(verb, t)))
        ways = [(named, ""), *((_parser_after(named, t, _sample_text(t)), f" {_sample_text(t)}") for t in after)]
        found += [f"{first} {rest}".rstrip() for way, first in ways if (rest := _shortest(way)) is not None]
    return list(dict.fromkeys(found))


def _parser_after(state: Any, terminal: str, text: str) -> Any:
    from lark import Token

    further = state.copy()
    further.feed_token(Token(terminal, text))
    return further


def _shortest(state: Any) -> str | None:
    """Return the shortest text, in words, that completes the sentence from the parser's `state`. None if a
    breadth-first search of MOST_STATES parser states finds none."""
    seen: set[tuple[int, ...]] = set()
    queue = deque([(state, "")])
    while queue and len(seen) < MOST_STATES:
        here, text = queue.popleft()
        accepted = here.accepts()
        if "$END" in accepted:
            return text.strip()
        for terminal in sorted(accepted - _NEVER_NEEDED - ({"LPAR"} if "INT" in accepted else set())):
            word = _sample_text(terminal)
            further = _parser_after(here, terminal, word) if word else None
            stack = tuple(further.parser_state.state_stack) if further else ()
            if further is not None and stack not in seen:
                seen.add(stack)
                queue.append((further, f"{text} {word}"))
    return None
