"""`planc explain [CODE | model NAME]`: manual pages, the list of codes, a model's names."""

from __future__ import annotations

import argparse
import sys

from planc.catalog import build_model, model_names
from planc.checks import rules
from planc.commands.common import print_json
from planc.diag.registry import Rule


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
    facts = {
        "name": model.name,
        "family": model.family,
        "parameters": model.parameters,
        "sizes": model.sizes,
        "regions": list(model.regions),
        "ops": list(model.op_names()),
        "params": {p.name: list(model.shape(p)) for p in model.params},
    }
    if format == "json":
        print_json(facts)
        return 0
    print(f"{model.name}, family {model.family}, {model.parameters:,} parameters")
    print("sizes:   " + ", ".join(f"{k} {v}" for k, v in model.sizes.items()))
    print("regions: " + ", ".join(model.regions))
    print("ops:     " + ", ".join(model.op_names()))
    for p in model.params:
        print(f"  {p.name:<36} [{', '.join(' '.join(g) for g in p.shape_dims)}] = {list(model.shape(p))}")
    return 0
