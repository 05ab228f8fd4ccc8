"""Tests whether a plan file has words of old spellings. If it has none, `planc fmt` need not build the plan.

Some old spellings depend on the plan's model and on the layouts that it imports, so only building the plan finds them.
The test returns True in case of doubt.
"""

from __future__ import annotations

import re

from planc.diag.span import Source
from planc.syntax.lines import VERBS, logical_lines

OLD_LAYOUTS = {"dp": "ddp", "zero3": "fsdp"}
"""Layouts that had two names."""
PLAIN = frozenset({"blocks", "none", "whole_blocks", "every", "layers", "except"})
"""Words of a `recompute` or `quantize` sentence that never named an op."""
OTHER_KEYWORD = {"shard": "for", "replicate": "for", "store": "in", "use": "in"}
"""The keyword that another verb's sentence takes."""

_TARGET = re.compile(r"\s*on\s+\w+\s*:\s*")
_WORD = re.compile(r"[A-Za-z_][\w.]*")
_ARGUMENTS = re.compile(r"\([^()]*\)|\bas\s+\w+")
_COUNT_LAST = re.compile(r"x\s*\d+(?![\d\s]*layers)")


def may_hold_old_spellings(text: str) -> bool:
    """True if a sentence of `text`, the content of a plan file, may have an old spelling, judged by its words only.

    >>> may_hold_old_spellings("plan a\\nstore params over tp for ffn\\nrecompute attention.norm, ffn.norm")
    False
    >>> may_hold_old_spellings("plan a\\nrecompute norm")  # attention.norm, and which others depends on the model
    True
    """
    return any(_may_be_old(line.text) for line in logical_lines(Source.of("", text)))


def _may_be_old(sentence: str) -> bool:
    """True if the sentence has words of an old spelling, is an `import`, or has an unknown verb."""
    target = _TARGET.match(sentence)
    text = sentence[target.end() :] if target else sentence
    verb, rest = [*text.split(maxsplit=1), "", ""][:2]
    if verb in OTHER_KEYWORD:
        words = _WORD.findall(rest)
        return OTHER_KEYWORD[verb] in words or (verb == "use" and not OLD_LAYOUTS.keys().isdisjoint(words[:1]))
    if verb in ("recompute", "quantize"):
        return any(_may_name_an_old_op(word) for word in _WORD.findall(_ARGUMENTS.sub(" ", rest)))
    if verb == "split":
        return _COUNT_LAST.search(rest) is not None
    return verb not in VERBS or verb == "import"


def _may_name_an_old_op(word: str) -> bool:
    """True if `word` may name ops as before version 0.2: by kind, region or last component, without a dot."""
    return word == "attention.proj" or ("." not in word and word not in PLAIN)
