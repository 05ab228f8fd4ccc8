"""Explains syntax errors in the words of the language instead of the parser's terms."""

from __future__ import annotations

import re
from typing import Any

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.span import Source, Span
from planc.syntax.lines import Line
from planc.syntax.old_spellings import offered
from planc.syntax.suggest import nearest, spelling_fix

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

_KINDS_BY_TEXT = {")": "RPAR", "]": "RSQB"}

_FORMS: dict[str, tuple[str, ...]] = {
    "plan": ("plan NAME",),
    "layout": ("layout NAME over AXIS, ...", "layout NAME over AXIS as schedule = 1f1b"),
    "hardware": ("hardware NAME",),
    "serve": ('serve NAME of "train.plan"',),
    "on": ("on cuda: recompute blocks",),
    "import": ('import "acme.plan"',),
    "let": ("let NAME = 64",),
    "model": (
        "model NAME",
        "model NAME(layers = 4)",
        'model from "config.json"',
        'model from transformers "config.json"',
    ),
    "batch": ("batch SEQUENCES x TOKENS tokens microbatch 1",),
    "cluster": ("cluster 64 x h100_node", "cluster tpu_v5p(4x4x4)", "cluster 64 x h100_node over 3 leaves"),
    "mesh": ("mesh pp 4 > fsdp 16 > tp 8", "mesh pp 4 > fsdp ?, tp ?"),
    "view": ("view efsdp 16 > ep 8 of fsdp, tp for experts",),
    "shard": ("shard heads, ffn over tp", "shard sequence over tp in residual"),
    "replicate": ("replicate kv_heads over tp",),
    "store": (
        "store params, grads, optimizer over fsdp",
        "store params as bf16 over fsdp",
        "store params over fsdp on embed",
        "store params, grads, optimizer over efsdp for experts",
    ),
    "gather": ("gather params per step", "gather params per pass bucket 2 layers prefetch 4 layers"),
    "split": (
        "split layers over pp as 1f1b",
        "split layers over pp as 1f1b stages [embed + 7, 2 x 9 layers, 7 + head]",
    ),
    "route": ("route experts as dropless", "route experts as capacity(factor = 1.25)"),
    "attention.core": ("attention.core as flash", "attention.core as ring(balance = headtail)"),
    "optimizer": ("optimizer adamw", "optimizer muon"),
    "freeze": ("freeze embedding, norms", "freeze model except head"),
    "lora": ("lora rank 16 on heads", "lora rank 16 alpha 32 on heads, ffn"),
    "compute": ("compute bf16 reduce fp32",),
    "recompute": (
        "recompute blocks",
        "recompute selective",
        "recompute attention.core, ffn.swiglu",
        "recompute blocks every 2 layers",
    ),
    "quantize": ("quantize ffn as float8(rowwise)", "quantize ffn as float8(rowwise) except layers 0, 31"),
    "offload": ("offload optimizer to host",),
    "overlap": ("overlap tp as async_matmul",),
    "compile": ("compile blocks as inductor", "compile blocks, loss as inductor"),
    "loss": ("loss in 8 chunks",),
    "realise": ("realise as megatron",),
    "use": ("use fsdp over fsdp", "use pp over pp as 1f1b"),
    "override": ("override layers.*.attention.wq = replicated", "override output = vocab over tp and embed over fsdp"),
    "target": ("target xla",),
    "train": ("train for 15 T tokens",),
    "price": ("price 2.50 USD per device hour",),
    "expect": ("expect memory <= 72 GiB", "expect days <= 30", "expect no W0601"),
    "cache": ("cache 256 k tokens", "cache 256 k tokens as float8"),
    "requests": ("requests 64 x 1024 + 4096 tokens",),
    "sync": ("sync every 1 steps", "sync every 4 steps changed 3 %"),
    "sleep": ("sleep params, cache while training", "sleep optimizer, grads while serving"),
    "chip": ("chip h100(bf16 = 989 TFLOP/s, memory = 80 GiB, memory_bandwidth = 3350 GB/s)",),
    "link": ("link nvlink4(bandwidth = 450 GB/s, latency = 3 us)",),
    "node": ("node h100_node = 8 x h100 over nvlink4",),
    "network": ("network ib = leaf 32 at 400 GB/s",),
    "torus": ("torus tpu_v5p = v5p over ici (wrap = [4, 4, 4])",),
    "graph": ("graph pod of h100",),
    "fabric": ("fabric pod = rail(nodes = 8, chips = 72, link = nvlink, out = ib)",),
    "points": ("points gpu0, gpu1 as chip in node0", "points plx0, plx1 as switch"),
    "wire": ("wire gpu0, gpu1 to plx0 over pcie", "wire leaf0 to spine0 over ib x 4 at 50 %"),
    "measured": (
        "measured matmul of h100 in bf16 (4096x4096x4096 at 640 TFLOP/s, 8192x4096x4096 at 690 TFLOP/s)",
        "measured all_reduce over 8 of nvlink4 (1 MiB at 25 GB/s, 1 GiB at 240 GB/s)",
    ),
}
"""Each verb's forms, as a user would write them."""
_FORMS |= {"param": _FORMS["let"], "attention": _FORMS["attention.core"]}

_HYPHENATED = re.compile(r'"[^"\n]*"|(?<![\w.-])[A-Za-z][\w.]*(?:-[\w.]+)*-\w*[A-Za-z][\w.]*')
"""A name as other projects write it: llama3-8b."""


def explain(error: Any, source: Source, line: Line, verb: str, *, guess: bool) -> Diagnostic:
    """Return the diagnostic for a malformed sentence: where it becomes wrong, and what is legal there. With `guess`,
    the keyword that is nearest in spelling is suggested.

    `error` is the exception of the parser library, and `verb` the verb of `line`.
    """
    if (hyphenated := _hyphenated(error, source, line)) is not None:
        return hyphenated
    place, found = _error_place(error, source, line)
    legal = _legal(error, verb)
    wanted = _joined_by_or(legal) if legal else "something else"
    if (unclosed := _unclosed(error, source, line)) is not None:
        return unclosed
    form = f"the sentence reads: {_form(verb, line.text)}"
    keywords = [w.strip("`") for w in legal if w.strip("`").isalpha()]
    others = [w for w in keywords if w != found.strip("`")] if guess else []
    near, fix = nearest(found.strip("`"), others, 1), spelling_fix(place, found.strip("`"), others)
    helped = f"did you mean `{near[0]}`?" if near else form
    return Diagnostic("E0102", f"expected {wanted}, found {found}", place, label="here", help=helped, fix=fix)


def _hyphenated(error: Any, source: Source, line: Line) -> Diagnostic | None:
    """Return a diagnostic about a name with hyphens (names have none) at the error or before it; None without one."""
    token = getattr(error, "token", None)
    rows = line.text.split("\n")
    at_end = token is not None and token.type == "$END"
    row, column = (len(rows), len(rows[-1]) + 1) if at_end else (error.line, error.column)
    for match in _HYPHENATED.finditer(rows[row - 1]):
        if match.group()[0] == '"' or not (at_end or match.start() < column <= match.end() + 2):
            continue
        number = line.number + row - 1
        place = Span(source.file, number, match.start() + 1, number, match.end() + 1)
        name = re.sub(r"[-.]", "_", match.group())
        return Diagnostic(
            "E0102",
            f"`{match.group()}` is not a name: letters, digits and `_` are",
            place,
            label="here",
            help=f"did you mean `{name}`?",
            fix=Fix(f"write `{name}`", (Edit(place, name),)),
        )
    return None


def _form(verb: str, text: str) -> str:
    """Return the form of the verb's sentence that shares most words with `text`; of several, the first."""
    written = set(re.findall(r"\w+|[^\w\s]", text))
    return max(_FORMS[verb], key=lambda form: len(written & set(re.findall(r"\w+|[^\w\s]", form))))


def _unclosed(error: Any, source: Source, line: Line) -> Diagnostic | None:
    """Return a diagnostic at a bracket that is still open at the end of the sentence; None if there is none."""
    token = getattr(error, "token", None)
    if token is None or token.type != "$END":
        return None
    opened: list[tuple[str, Span]] = []
    for index, text in enumerate(line.text.split("\n")):
        for match in re.finditer(r'"[^"\n]*"|[()\[\]]', text):
            at = Span(source.file, line.number + index, match.start() + 1, line.number + index, match.start() + 2)
            if match.group() in "([":
                opened.append((match.group(), at))
            elif match.group() in ")]" and opened:
                opened.pop()
    if not opened:
        return None
    bracket, at = opened[-1]
    closing = {"(": ")", "[": "]"}[bracket]
    end = _end_of_sentence(line, source)
    fits = _KINDS_BY_TEXT[closing] in (getattr(error, "accepts", None) or getattr(error, "expected", None) or ())
    return Diagnostic(
        "E0102",
        f"`{bracket}` is never closed",
        at,
        label="opened here",
        help=f"write `{closing}` where the list ends; an open bracket carries the sentence over the next lines",
        fix=Fix(f"write `{closing}`", (Edit(end, closing),), safe=True) if fits and len(opened) == 1 else None,
    )


def _end_of_sentence(line: Line, source: Source) -> Span:
    """Return the span just after the last word of a sentence; an open bracket may add blank lines after that word."""
    written = line.text.rstrip().split("\n")
    number, column = line.number + len(written) - 1, len(written[-1].rstrip()) + 1
    return Span(source.file, number, column, number, column)


def _error_place(error: Any, source: Source, line: Line) -> tuple[Span, str]:
    token = getattr(error, "token", None)
    if token is not None and token.type == "$END":
        end = _end_of_sentence(line, source)
        return Span(end.file, end.line, end.column, end.line, end.column + 1), "the end of the sentence"
    number = line.number + error.line - 1
    text = str(token) if token is not None else source.line(number)[error.column - 1 : error.column] or " "
    width = max(1, len(text.split("\n")[0]))
    shown = text if len(text) <= 40 else text[:37] + "..."
    return Span(source.file, number, error.column, number, error.column + width), f"`{shown}`"


def _legal(error: Any, verb: str) -> list[str]:
    expected = getattr(error, "accepts", None) or getattr(error, "expected", None)
    expected = expected or getattr(error, "allowed", None) or ()
    words = {_KINDS.get(name) or f"`{name.lower()}`" for name in expected if offered(verb, name)}
    return sorted(w for w in words if "__" not in w)


def _joined_by_or(words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    return ", ".join(words[:-1]) + " or " + words[-1] if len(words) <= 8 else ", ".join(words[:8]) + ", ..."
