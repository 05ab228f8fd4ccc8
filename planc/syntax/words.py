"""The parser's words turned into the words of the language."""

from __future__ import annotations

from typing import Any

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.span import Source, Span
from planc.syntax.lines import Line
from planc.syntax.near import nearest

_KINDS = {
    "NAME": "a name",
    "INT": "a number",
    "FLOAT": "a number",
    "METHOD": "a name",
    "UNIT": "a unit",
    "SHAPE": "a shape such as 4x4x4",
    "GLOB": "a parameter path such as layers.*.attention.wq",
    "CODE": "a code such as W0601",
    "CMP": "`<=` or `>=`",
    "FREE": "`?`",
    "STRING": "a quoted path",
    "COMMA": "`,`",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "MORETHAN": "`>`",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "STAR": "`*`",
    "SLASH": "`/`",
    "__ANON_0": "`..`",
    "$END": "the end of the sentence",
}

_FORMS = {
    "plan": "plan NAME",
    "layout": "layout NAME over AXIS, ...",
    "hardware": "hardware NAME",
    "param": "param NAME = 64",
    "model": "model NAME",
    "batch": "batch SEQUENCES x TOKENS tokens microbatch 1",
    "cluster": "cluster 64 x h100_node",
    "mesh": "mesh pp 4 > fsdp 16 > tp 8",
    "shard": "shard heads, ffn over tp",
    "replicate": "replicate kv_heads over tp",
    "store": "store params, grads, optimizer over fsdp",
    "gather": "gather params per step",
    "split": "split layers over pp as 1f1b",
    "optimizer": "optimizer adamw",
    "compute": "compute bf16 reduce fp32",
    "recompute": "recompute blocks",
    "use": "use fsdp over fsdp",
    "override": "override layers.*.attention.wq = replicated",
    "expect": "expect memory <= 72 GiB",
    "chip": "chip h100(bf16 = 989 TFLOP/s, memory = 80 GiB, memory_bandwidth = 3350 GB/s)",
    "link": "link nvlink4(bandwidth = 450 GB/s, latency = 3 us)",
    "node": "node h100_node = 8 x h100 over nvlink4",
    "network": "network ib = leaf 32 at 400 GB/s",
    "torus": "torus tpu_v5p = v5p over ici (wrap = [4, 4, 4])",
}


def explain(error: Any, source: Source, line: Line, verb: str) -> Diagnostic:
    """A malformed sentence: where it stops making sense, and what could stand there."""
    place, found = _place(error, source, line)
    legal = _legal(error)
    wanted = _either(legal) if legal else "something else"
    form = f"the sentence reads: {_FORMS[verb]}" if verb in _FORMS else ""
    keywords = [w.strip("`") for w in legal if w.strip("`").isalpha()]
    near = nearest(found.strip("`"), keywords, 1)
    fix = Fix(f"write `{near[0]}`", (Edit(place, near[0]),)) if near else None
    helped = f"did you mean `{near[0]}`?" if near else form
    return Diagnostic("E0102", f"expected {wanted}, found {found}", place, label="here", help=helped, fix=fix)


def _place(error: Any, source: Source, line: Line) -> tuple[Span, str]:
    token = getattr(error, "token", None)
    whole = line.span(source)
    if token is not None and token.type == "$END":
        end = Span(source.file, whole.end_line, whole.end_column, whole.end_line, whole.end_column + 1)
        return end, "the end of the sentence"
    number = line.number + error.line - 1
    text = str(token) if token is not None else _character(source, number, error.column)
    width = max(1, len(text.split("\n")[0]))
    shown = text if len(text) <= 40 else text[:37] + "..."
    return Span(source.file, number, error.column, number, error.column + width), f"`{shown}`"


def _character(source: Source, number: int, column: int) -> str:
    return source.line(number)[column - 1 : column] or " "


def _legal(error: Any) -> list[str]:
    expected = getattr(error, "accepts", None) or getattr(error, "expected", None)
    expected = expected or getattr(error, "allowed", None) or ()
    words = {_KINDS.get(name) or f"`{name.lower()}`" for name in expected}
    return sorted(w for w in words if "__" not in w)


def _either(words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    return ", ".join(words[:-1]) + " or " + words[-1] if len(words) <= 8 else ", ".join(words[:8]) + ", ..."
