"""`planc init MODEL --cluster CLUSTER`: writes a commented plan that leaves the layout to `planc search`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

from planc.cli.common import print_json, refused
from planc.diag.diagnostic import has_errors
from planc.files import write_atomically
from planc.ir.plan import Plan
from planc.language.foreign_names import model_named

SEQUENCE = 4096
TOKENS = 4 * 2**20
"""Tokens of a step unless `--batch` says otherwise: about 4 million, as public runs of large models have."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `planc init` to `parser`."""
    parser.add_argument("model", metavar="MODEL", help="a model of the catalog, or a config.json")
    parser.add_argument("--cluster", required=True, help="the machine, such as `8 x h100_node` or `tpu_v5p(4x4x4)`")
    parser.add_argument("--batch", type=_positive, metavar="N", help="sequences of a step (about 4 million tokens)")
    parser.add_argument("--seq", type=_positive, default=SEQUENCE, metavar="N", help=f"tokens of one ({SEQUENCE})")
    parser.add_argument("-o", "--output", metavar="PLAN", help="write the plan there, not to standard output")


def run(options: argparse.Namespace) -> int:
    """Write the plan, and return the exit status."""
    from planc.language.build import build_file

    folder = Path(options.output).parent if options.output else Path()
    head = _head(options, folder)
    probe = [*head, f"batch 1 x {options.seq} tokens microbatch 1", "mesh d 1", "compute bf16 reduce fp32", ""]
    path = folder / "init.plan"
    built = build_file(path, unsaved={path.resolve(): "\n".join(probe)})
    plan = built.plan or built.mended
    if plan is None or has_errors(built.diagnostics):
        with redirect_stdout(sys.stdout if options.format == "json" else sys.stderr):
            return refused(built.diagnostics, options.format)
    text = "\n".join([*head, *_rest(plan, options), ""])
    if options.output:
        write_atomically(Path(options.output), text)
    if options.format == "json":
        print_json({"text": text, "output": options.output}, "planc.init/1")
    elif options.output:
        print(f"{options.output}: planc search {options.output} -o found")
    else:
        print(text, end="")
    return 0


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:16]) <= 10**12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _head(options: argparse.Namespace, folder: Path) -> list[str]:
    """Return the first sentences: header, model and cluster. A file is named from the plan's `folder`."""
    path = Path(options.model)
    file = path.suffix == ".json"
    named = path.resolve().parent.name if file else options.model
    name = re.sub(r"\W+", "_", named.lower()).strip("_") or "model"
    model = model_named(options.model, exact=True) or options.model  # as the hub names it, or the catalog
    words = f'from "{os.path.relpath(path, folder)}"' if file else model
    return [f"plan {name}", f"model     {' '.join(words.split())}", f"cluster   {' '.join(options.cluster.split())}"]


def _rest(plan: Plan, options: argparse.Namespace) -> list[str]:
    """Return the sentences after the cluster: batch, mesh with free sizes, what is divided over which axis."""
    compute = next(dtype for dtype in ("bf16", "fp16", "fp32") if dtype in plan.cluster.chip.flops_per_s)
    devices, experts = plan.cluster.devices, "experts" in plan.model.sizes
    data, inner = ("dp", "ep") if experts else ("fsdp", "tp")
    sequences = options.batch or max(devices, TOKENS // options.seq // devices * devices)
    shared = (
        ["shard     batch over dp, ep", "store     params, optimizer over dp, ep", "use       ep over ep"]
        if experts
        else [
            "use       ? over fsdp                  # ddp, zero1, zero2 or fsdp",
            "use       tp over tp",
            "use       sp over tp",
        ]
    )
    return [
        f"batch     {sequences} x {options.seq} tokens microbatch ?",
        f"mesh      pp ? > {data} ? > {inner} ?      # outermost first; {inner} stays inside a node where it is small",
        *shared,
        *(["route     experts as dropless"] if experts else []),
        "split     layers over pp as 1f1b      # `as ?` tries interleaved and zero-bubble schedules too",
        "optimizer adamw",
        f"compute   {compute} reduce fp32",
        "recompute ?                           # none, parts, or whole blocks",
        "# `?` is left to `planc search FILE`; a number or a name in its place is kept.",
    ]
