"""Reads the names of ops in sentences. A prefix stands for all ops below it: `ffn` for every op named `ffn.*`.

Before version 0.2, a word could also be an op's kind, its region or the last component of its name, and
`attention.proj` stood for all projections of attention. Such words are reported as old spellings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planc.ir.model import Op
from planc.language.draft import Draft
from planc.sharding.recompute import names_op
from planc.syntax.old_spellings import old_spelling
from planc.syntax.tree import Word

WHY = "ops are named by their dotted names, or the beginning of one"


def read_op_names(
    words: list[Word], ops: Sequence[Op], what: str, draft: Draft, keywords: tuple[str, ...] = ()
) -> tuple[str, ...] | None:
    """Return the op names or prefixes that `words` mean, each once; None (reported) if a word matches none of `ops`.

    `keywords` are further legal words. `what` describes the legal words in the message ("an op of llama3_8b").
    """
    names = dict.fromkeys(op.name for op in ops)
    legal = list(dict.fromkeys([*keywords, *names, *beginnings(names)]))
    meant = {name for word in words for name in _names_under(word.text, names)}
    found: list[str | None] = []
    for word in words:
        before = {op.name for op in ops if _named_before(word.text, op)}
        if before and not (word.text in legal and before <= meant):
            now = covering(before, ops)
            draft.diagnostics.append(old_spelling(word.span, word.text, ", ".join(now), WHY))
            found += now
        else:
            found.append(draft.one_of(word, legal, what))
    return None if None in found else tuple(name for name in dict.fromkeys(found) if name)


def covering(chosen: Iterable[str], ops: Sequence[Op]) -> list[str]:
    """Return the shortest list of names and prefixes that matches all ops called `chosen` and no other of `ops`."""
    chosen = set(chosen)
    names = dict.fromkeys(op.name for op in ops)
    found: dict[str, None] = {}
    for name in (n for n in names if n in chosen):
        parts = name.split(".")
        tried = [".".join(parts[: i + 1]) for i in range(len(parts))]
        found[next(n for n in tried if _names_under(n, names) <= chosen and _ops_named_before(n, ops) <= chosen)] = None
    return list(found)


def beginnings(names: Iterable[str]) -> list[str]:
    """Return every proper prefix of the dotted `names`: `a` and `a.b` for `a.b.c`."""
    return [".".join(n.split(".")[: i + 1]) for n in names for i in range(n.count("."))]


def _names_under(word: str, names: Iterable[str]) -> set[str]:
    return {n for n in names if n == word or n.startswith(f"{word}.")}


def _ops_named_before(word: str, ops: Sequence[Op]) -> set[str]:
    return {op.name for op in ops if _named_before(word, op)}


def _named_before(word: str, op: Op) -> bool:
    """True if `word` was a name of this op before version 0.2."""
    if word == "attention.proj":
        return op.kind == "matmul" and op.region in ("projection", "attention")
    return names_op(word, op) or word in (op.kind, op.name.rsplit(".", 1)[-1], op.region)
