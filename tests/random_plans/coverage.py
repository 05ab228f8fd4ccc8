"""Which parts of the language random plans have reached: those of the grammar, and every word that a verb takes.

The list is the language's own: the parser's rules, and the tables that the verbs read their words by.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import get_args

from planc.catalog import build_model, config_types, families, model_names
from planc.catalog.parts.decoders import DECODERS
from planc.frameworks import NAMES
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import RATES
from planc.ir.model import EXPERTS, ROUTED
from planc.ir.plan import NOUNS, Priced
from planc.language import library
from planc.language.build import SERVED
from planc.language.options import Option
from planc.language.units import UNITS
from planc.language.verbs import (
    attention,
    compile,
    compute,
    expect,
    hardware,
    offload,
    overlap,
    quantize,
    readers,
    recompute,
    route,
    shard,
)
from planc.pipeline.schedules import schedules
from planc.syntax import parse_text
from planc.syntax.tables import parser
from planc.syntax.tree import Node, Word
from tests.random_plans.pieces import Drawn

OLD = "old_"
"""Rules of the grammar for old spellings: `planc fmt` rewrites them, and nobody draws them."""
SEARCHED = {"any_order"}
"""Rules for what `planc search` fills in: a promise on drawn plans leaves it open."""
SYNTAX = ("hardware", "plan", "layout", "on", "use", "chip", "link", "node", "network", "torus", "import")
"""Verbs that no reader of a plan's own sentences has."""
OF_SERVING = (*SERVED[-4:], "expect_tokens")
"""Verbs of serve plans, which are not drawn: tests/sharding and tests/cuda draw their pairs of layouts."""


@cache
def language() -> frozenset[str]:
    """Everything that a plan may say, as `VERB WORD` or `grammar RULE`."""
    found = {f"verb {v}" for v in (*readers(), *SYNTAX) if v not in OF_SERVING}
    found |= {f"grammar {r}" for r in _rules()}
    words = {
        "use": library.layouts(),
        "model": (*model_names(), *_size_names()),
        "model_from": tuple({*config_types()} - {*DECODERS}),  # those with a table of sizes, which are drawn
        "cluster": tuple(library.machines()),
        "shard": (*shard.SHARDED, *_regions()),
        "replicate": ("heads", "kv_heads", "ffn", "vocab", "sequence"),
        "store": (*NOUNS, "bf16", "fp32", "on embed", EXPERTS),
        "gather": ("pass", "microbatch", "step", "bucket", "prefetch"),
        "split": (*schedules(), "chunks", "embed", "head"),
        "optimizer": ("adamw", "muon"),
        "compute": (*compute.DTYPES, compute.TF32),
        "recompute": recompute.ALL,
        "route": tuple(_options(route.OPTIONS)),
        "attention": tuple(_options(attention.OPTIONS)),
        "quantize": tuple(_options(quantize.OPTIONS)),
        "offload": offload.STATE,
        "overlap": overlap.METHODS,
        "realise": NAMES,
        "compile": (*compile.REGIONS, *compile.METHODS),
        "target": ("cuda", "xla", "none"),
        "on": ("cuda", "xla"),
        "override": ("replicated",),
        "price": get_args(Priced),
        "expect": (*expect.METRICS, "<=", ">=", "<", ">"),
        "chip": (*hardware.CHIP, *RATES),
        "link": tuple(hardware.LINK),
        "network": tuple(hardware.LEVEL),
        "torus": tuple(hardware.TORUS),
    }
    found |= {f"{verb} {word}" for verb, legal in words.items() for word in legal}
    found |= {f"unit {unit}" for units in UNITS.values() for unit in units if unit}
    assert set(DTYPE_BYTES) >= {"bf16", "fp32"}
    return frozenset(found)


def _rules() -> set[str]:
    kinds = {str(rule.alias or rule.origin.name) for rule in parser().rules}
    inlined = {"atom", "expr", "term", "sentence", "size", "value", "arg", "stage", "verb", "group"}
    return {k for k in kinds if not k.startswith(("_", OLD))} - inlined - SEARCHED | {"stage"}


def _options(methods: Mapping[str, Mapping[str, Option]]) -> Iterator[str]:
    """Methods, their options, and the words of these."""
    for method, options in methods.items():
        yield method
        for name, option in options.items():
            yield name
            yield from option.words


@cache
def _size_names() -> tuple[str, ...]:
    """Sizes that a model can be given others of; `qk_head_dim` follows from two of them."""
    sizes = {s for f in families().values() for m in f.sizes for s in build_model(m).sizes}
    return tuple(sorted(sizes - {"qk_head_dim"}))


def _regions() -> tuple[str, ...]:
    """Regions of any family's blocks and ends, but for that of tokens on their way."""
    models = [build_model(next(iter(f.sizes))) for f in families().values()]
    return tuple(sorted({r for m in models for r in m.regions} - {ROUTED}))


def reached(drawn: Drawn) -> set[str]:
    """Parts of the language in a plan and its files."""
    found: set[str] = set()
    for name, text in {"x.plan": drawn.text, **drawn.files}.items():
        if name.endswith(".json"):
            found.add(f"model_from {json.loads(text)['model_type']}")
        elif name.endswith(".plan"):
            found |= _said(text)
    return found & language()


def _said(text: str) -> set[str]:
    tree = parse_text(text, "x.plan")
    found = {f"grammar {tree.header.node.kind}", f"verb {tree.header.verb}"} if tree.header else set()
    for sentence in tree.sentences:
        found |= {f"verb {sentence.verb}", *(f"grammar {k}" for k in _kinds(sentence.node))}
        words = list(sentence.node.all_words())
        found |= {f"{sentence.verb} {w.text}" for w in words}
        found |= {f"unit {w.text}" for w in words if w.kind == "UNIT"}
        if sentence.target:
            found |= {"verb on", "grammar on", f"on {sentence.target}"}
        if sentence.verb == "store" and sentence.node.words("NAME"):
            found.add(f"store on {sentence.node.words('NAME')[0].text}")
    return found


def _kinds(node: Node) -> Iterator[str]:
    yield node.kind
    for part in node.parts:
        if not isinstance(part, Word):
            yield from _kinds(part)


def summary(seen: Iterable[str]) -> str:
    """How much of the language was reached, and what was not."""
    missing = sorted(language() - set(seen))
    share = 1 - len(missing) / len(language())
    text = f"language: {len(language()) - len(missing)} of {len(language())} parts reached ({share:.1%})"
    return text + (f"; not reached: {', '.join(missing)}" if missing else "")
