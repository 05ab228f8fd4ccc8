"""Rules for the leaves of a user's tree: a pattern on a leaf's path, and the named dims of that leaf.

    "*/mlp/wi/kernel" = embed, ffn
    "*/attention/out/kernel" = heads * head_dim, embed as layers.*.attention.wo.weight  # a comment

A path is the keys and fields of a leaf, joined by slashes; `*` matches any text, slashes too. `_` is a dim for which
the model has no name; only storage may shard it. `layers` is the dim of a stack of layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from planc.diag import Diagnostic, PlanError, Span
from planc.diag.diagnostic import bounded, in_order
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import printable
from planc.files import read_text
from planc.syntax.suggest import nearest

if TYPE_CHECKING:
    from planc.ir.model import Model

MAX_BYTES = 200_000
MOST_RULES = 1_000
LAYERS = "layers"
"""The dim of a stack of layers, at any position."""
UNNAMED = "_"
IN_PYTHON = "rules"
"""The file name in diagnostics about rules that were given as a mapping."""

Groups = tuple[tuple[str, ...], ...]
"""For each array dim of a leaf, the named dims whose product it is; () for one without a name."""

_LINE = re.compile(r'\s*"(?P<pattern>[^"]*)"\s*=(?P<dims>[^#]*)(#.*)?')


@dataclass(frozen=True, kw_only=True)
class LeafRule:
    """A rule for leaves of a tree. `parameter` names the parameter of the plan's model whose layout the leaf takes; ""
    for any parameter with the dims `groups`."""

    pattern: str
    groups: Groups
    parameter: str
    span: Span

    def matches(self, path: str) -> bool:
        """True if the rule matches a leaf's `path`, like `params/layers/mlp/wi/kernel`.

        >>> rule = LeafRule(pattern="*/mlp/*/kernel", groups=(), parameter="", span=Span("", 1, 1, 1, 1))
        >>> rule.matches("params/layers/mlp/wi/kernel"), rule.matches("mlp/wi/kernel"), rule.matches("a/mlp/kernel")
        (True, False, False)
        """
        first, *others = self.pattern.split("*")
        if not others:
            return path == first
        *middle, last = others
        if len(path) < len(first) + len(last) or not path.startswith(first) or not path.endswith(last):
            return False
        at, end = len(first), len(path) - len(last)
        for part in middle:
            found = path.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


def read_rules(source: Mapping[str, str] | str | Path, model: Model) -> tuple[LeafRule, ...]:
    """Return the rules in a mapping from pattern to dims, or in a file.

    Args:
        source: the mapping, or the file's path.
        model: the plan's model, whose dims and parameters the rules name.

    Raises:
        PlanError: the file cannot be read or has no rules (E1221), or a dim or parameter is unknown (E1222).
    """
    found: list[LeafRule] = []
    wrong: list[Diagnostic] = []
    for pattern, dims, span in _given(source) if isinstance(source, Mapping) else _written(Path(source), wrong):
        _add(pattern, dims, span, model, found, wrong)
    if wrong:
        raise PlanError(bounded(in_order(wrong)))
    return tuple(found)


def _given(source: Mapping[str, str]) -> Iterator[tuple[str, str, Span]]:
    for row, (pattern, dims) in enumerate(source.items(), start=1):
        yield str(pattern), str(dims), Span(IN_PYTHON, row, 1, row, 1)


def _written(path: Path, wrong: list[Diagnostic]) -> Iterator[tuple[str, str, Span]]:
    """Yield the pattern, the dims and the place of each rule in the file at `path`; add diagnostics to `wrong`."""
    try:
        lines = read_text(path, MAX_BYTES).split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        wrong.append(
            Diagnostic("E1221", f"{printable(str(path))} cannot be read: {reason}", Span(str(path), 1, 1, 1, 1))
        )
        return
    for row, line in enumerate(lines, start=1):
        if not line.split("#")[0].strip():
            continue
        span = Span(str(path), row, 1, row, len(line) + 1)
        if match := _LINE.fullmatch(line):
            yield match["pattern"], match["dims"], span
        else:
            wrong.append(Diagnostic("E1221", f"no rule: {printable(line.strip())}", span, help=HOW))


HOW = 'a rule is `"*/mlp/wi/kernel" = embed, ffn`: a pattern on the path of leaves, and the dims of each of their axes'


def _add(pattern: str, dims: str, span: Span, model: Model, found: list[LeafRule], wrong: list[Diagnostic]) -> None:
    """Read a rule from `pattern` and `dims`, at `span` in a file. Append it to `found`, or a diagnostic to `wrong`."""
    if len(found) + len(wrong) >= MOST_RULES:
        if len(found) + len(wrong) == MOST_RULES:
            wrong.append(Diagnostic("E1221", f"there are more than {MOST_RULES:,} rules", span))
        return
    left, _, name = text.rpartition(" as ") if " as " in (text := " ".join(dims.split())) else (text, "", "")
    words = [[word.strip() for word in entry.split("*")] for entry in left.split(",")]
    if not pattern or not all(re.fullmatch(r"\w+", w) for entry in words for w in entry):
        wrong.append(Diagnostic("E1221", printable(f'no rule: "{pattern}" = {text}'), span, help=HOW))
        return
    known, before = named_dims(model), len(wrong)
    for word in (w for entry in words for w in entry if w not in (*known, UNNAMED)):
        wrong.append(_unknown(word, known, "dim", model, span))
    parameter = _full_name(name, model)
    if parameter and parameter not in model.param:
        wrong.append(_unknown(parameter, tuple(model.param), "parameter", model, span))
    if len(wrong) == before:
        groups = tuple(tuple(w for w in entry if w != UNNAMED) for entry in words)
        found.append(LeafRule(pattern=pattern, groups=groups, parameter=parameter, span=span))


def named_dims(model: Model) -> tuple[str, ...]:
    """Return the dims that a leaf of a tree for `model` may have: those of its parameters, and `layers`."""
    return tuple(dict.fromkeys([LAYERS, *(d for p in model.params for d in p.dims)]))


def _full_name(name: str, model: Model) -> str:
    """Return the parameter's name in `model`; the rule may leave out `.weight`."""
    return f"{name}.weight" if f"{name}.weight" in model.param else name


def _unknown(word: str, legal: tuple[str, ...], kind: str, model: Model, span: Span) -> Diagnostic:
    near = nearest(word, legal, 1)
    said = f"did you mean `{near[0]}`?" if near else f"{kind}s of {model.name}: {', '.join(legal)}"
    return Diagnostic("E1222", f"{model.name} has no {kind} {printable(word)}", span, help=said)
