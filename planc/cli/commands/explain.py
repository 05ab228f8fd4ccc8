"""`planc explain [CODE | model NAME]`: manual pages, the list of codes, a model's names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from planc.catalog import build_model, model_names
from planc.checks import rules
from planc.cli.common import print_json
from planc.diag.registry import Rule
from planc.ir.model import Model, Run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="CODE", help="a code, or `model NAME`")


def run(options: argparse.Namespace) -> int:
    words = options.words
    if words[:1] == ["model"]:
        return _model(words[1:], options.format)
    if not words:
        return _list(options.format)
    rule = rules().get(words[0].upper())
    if rule is None:
        print(f"no rule has the code {words[0]}; `planc explain` lists them", file=sys.stderr)
        return 2
    if options.format == "json":
        print_json({n: getattr(rule, n) for n in ("code", "title", "reads", "why", "bad", "good")})
    else:
        print(page(rule))
    return 0


def page(rule: Rule) -> str:
    """A rule's manual page as Markdown: the same text is its page of the documentation."""
    parts = [f"# {rule.code}: {rule.title}", rule.why]
    if rule.bad:
        parts.append(f"## A plan with this mistake\n\n```plan bad={rule.code}\n{rule.bad}```")
    if rule.good:
        parts.append(f"## The same plan, mended\n\n```plan\n{rule.good}```")
    return "\n\n".join(parts)


def _list(format: str) -> int:
    if format == "json":
        print_json([{"code": r.code, "severity": r.severity, "title": r.title} for r in rules().values()])
    else:
        for r in rules().values():
            print(f"{r.code}  {r.severity:<8} {r.title}")
    return 0


def _model(names: list[str], format: str) -> int:
    if len(names) != 1 or names[0] not in model_names():
        print(f"models: {', '.join(model_names())}", file=sys.stderr)
        return 2
    model = build_model(names[0])
    if format == "json":
        print_json(_facts(model))
    else:
        print("\n".join(_text(model)))
    return 0


def _facts(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "family": model.family,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "sizes": model.sizes,
        "top_k": model.top_k,
        "tied": model.tied,
        "layers": [{"kind": run.section, "layers": run.layers} for run in _runs(model)],
        "regions": list(model.regions),
        "ops": list(model.op_names()),
        "sections": {section: [op.name for op in ops] for section, ops in model.ops.items()},
        "params": {p.name: list(model.shape(p)) for p in model.params},
    }


def _runs(model: Model) -> tuple[Run, ...]:
    return model.runs or (Run(section=model.blocks[0], layers=model.layers),)


def _text(model: Model) -> Iterator[str]:
    active = f", {model.active_parameters:,} of them used by a token" if model.top_k else ""
    yield f"{model.name}, family {model.family}, {model.parameters:,} parameters{active}"
    yield "sizes:   " + ", ".join(f"{k} {v}" for k, v in model.sizes.items())
    yield "layers:  " + _layers(model)
    if model.top_k:
        yield f"experts: a token goes to {model.top_k} of {model.sizes['experts']}"
    if model.tied:
        yield "tied:    the head uses the embedding's weight"
    yield "regions: " + ", ".join(model.regions)
    for section, ops in model.ops.items():
        named = [op.name + (f" (window {op.window})" if op.window else "") for op in ops]
        yield f"{'ops:' if section == 'first' else '':<9}{section}: {', '.join(named)}"
    width = max(len(p.name) for p in model.params)
    for p in model.params:
        dims = ", ".join(" ".join(group) for group in p.shape_dims)
        where = f"  in {', '.join(p.sections)}" if model.runs else ""
        yield f"  {p.name:<{width}} [{dims}] = {list(model.shape(p))}{where}"


def _layers(model: Model) -> str:
    """The kinds of block in order: `3 dense, 58 block`, `12 x (1 sliding, 1 block)`."""
    said = [f"{run.layers} {run.section}" for run in _runs(model)]
    period = next(n for n in range(1, len(said) + 1) if said[:n] * (len(said) // n) == said)
    times = len(said) // period
    return f"{times} x ({', '.join(said[:period])})" if times > 1 else ", ".join(said)
