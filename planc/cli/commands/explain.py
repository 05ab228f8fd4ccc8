"""`planc explain [CODE | NAME | KIND NAME]`: the page of a code, verb, layout, model, chip or schedule; `--schema
[FORMAT]`: the JSON schema of an answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from planc.catalog import build_model, model_names
from planc.checks import rules
from planc.cli.common import did_you_mean, print_json
from planc.diag.registry import Rule
from planc.ir.model import Model, Run

PAGE = "planc.page/1"


def arguments(parser: argparse.ArgumentParser) -> None:
    about = "a code, or the name of a verb, layout, model, chip, node or schedule, after its kind where that is unclear"
    parser.add_argument("words", nargs="*", metavar="NAME", help=about)
    schema = "the JSON schema of a format, such as planc.report/1; without one, the formats"
    parser.add_argument("--schema", nargs="?", const="", metavar="FORMAT", help=schema)


def run(options: argparse.Namespace) -> int:
    from planc.cli.topics import topics, topics_of

    if options.schema is not None:
        return _schema(options.schema, options.format)
    if not options.words:
        return _list(options.format)
    kind, name = options.words if len(options.words) == 2 else ("", " ".join(options.words))
    if kind not in ("", "code", "model") and kind not in topics():
        return _unknown(kind, ("code", "model", *topics()), "a kind of name")
    rule = rules().get(name.upper()) if kind in ("", "code") else None
    if rule is not None:
        _show(options.format, {"kind": "code", **_of_rule(rule)}, rule.manual)
    elif kind in ("", "model") and name in model_names():
        model = build_model(name)
        _show(options.format, {"kind": "model", **_facts(model)}, "\n".join(_text(model)))
    elif found := topics_of(name, kind):
        _show(options.format, found[0].to_json(), "\n\n".join(topic.text for topic in found))
    else:
        from planc.cli import COMMANDS

        if not kind and name in COMMANDS:
            print(f"planc explain: `{name}` is a command: `planc {name} --help`", file=sys.stderr)
            return 2
        return _unknown(name, _names(kind), f"a {kind}" if kind else "a code, verb, layout, model, chip or schedule")
    return 0


def _show(format: str, facts: dict[str, Any], text: str) -> None:
    if format == "json":
        print_json(facts, PAGE)
    else:
        print(text)


def _schema(name: str, format: str) -> int:
    from planc.cli import schemas

    names = schemas.names()
    if name in names:
        print_json(schemas.schema(name))
    elif name:
        return _unknown(name, names, "a format")
    elif format == "json":
        print_json({"schemas": names}, "planc.schemas/1")
    else:
        print("\n".join(names))
    return 0


def _names(kind: str) -> list[str]:
    """Return all names of `kind`; "" returns the names of all kinds."""
    from planc.cli.topics import topics

    known: dict[str, Iterable[str]] = {"code": rules(), "model": model_names(), **topics()}
    return [name for k, names in known.items() if kind in ("", k) for name in names]


def _unknown(word: str, legal: Iterable[str], what: str) -> int:
    names = list(legal)
    shown = ", ".join(names) if len(names) < 80 else "`planc explain` lists the codes"
    print(f"planc explain: `{word}` is not {what}; {did_you_mean(word, names) or shown}", file=sys.stderr)
    return 2


def _of_rule(rule: Rule) -> dict[str, Any]:
    return {"code": rule.code, **{n: getattr(rule.page, n) for n in ("title", "reads", "why", "bad", "good")}}


def _list(format: str) -> int:
    if format == "json":
        entries = [
            {"kind": "code", "code": r.code, "severity": r.severity, "title": r.page.title} for r in rules().values()
        ]
        print(json.dumps([{"format": PAGE, **entry} for entry in entries], indent=2))
    else:
        for r in rules().values():
            print(f"{r.code}  {r.severity:<8} {r.page.title}")
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
        "layers": [{"kind": run.section, "layers": run.layers} for run in _layer_runs(model)],
        "regions": list(model.regions),
        "ops": list(model.op_names()),
        "sections": {section: [op.name for op in ops] for section, ops in model.ops.items()},
        "params": {p.name: list(model.shape(p)) for p in model.params},
    }


def _layer_runs(model: Model) -> tuple[Run, ...]:
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


MOST_RUNS = 12
"""Number of layer runs that are listed in order."""


def _layers(model: Model) -> str:
    """Return the kinds of block in layer order, as in `3 dense, 58 block` or `12 x (1 sliding, 1 block)`; or the number
    of layers of each kind if they alternate without a period."""
    said = [f"{run.layers} {run.section}" for run in _layer_runs(model)]
    period = next(n for n in range(1, len(said) + 1) if said[:n] * (len(said) // n) == said)
    times = len(said) // period
    if times == 1 and period > MOST_RUNS:
        counted = ", ".join(f"{model.layers_of(kind)} {kind}" for kind in model.blocks)
        return f"{counted}, in turn (--format json has each)"
    return f"{times} x ({', '.join(said[:period])})" if times > 1 else ", ".join(said)
