"""`planc embed PLAN PRESET.toml`: writes the compiled plan into a training preset."""

from __future__ import annotations

import argparse

from planc.cli.common import add_set, print_json, refused
from planc.diag.errors import PlanError
from planc.driver import load


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN")
    parser.add_argument("preset", metavar="PRESET.toml")
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from planc.trainer.preset.embed import embed

    try:
        plan = load(options.plan, set=dict(options.set))
        changed = embed(plan, options.plan, options.preset)
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    if options.format == "json":
        facts = {"preset": options.preset, "plan": plan.name, "plan_sha256": plan.sha256, "changed": changed}
        print_json(facts, "planc.embed/1")
    else:
        print(f"{options.preset}: {plan.name} {plan.sha256[:12]} {'embedded' if changed else 'is there already'}")
    return 0
