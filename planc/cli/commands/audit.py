"""`planc audit FILE --target cuda|xla`: the program's collectives and memory against the plan's predictions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from planc.cli.common import add_set, add_target, print_json, refused
from planc.cli.progress import Progress
from planc.cli.views.table import table
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.ir.audit import AXES_WITHIN, FLOPS_WITHIN, Audit, AuditOptions, CompilerReport, Placed, Total
from planc.ir.installed import missing_framework

SHRUNK = 64
"""Number of ranks for `--world-scale` without a value."""
SHOWN = 8
"""Number of ranks that a mistake lists."""
CYCLES_WITHIN = 1.25
"""Estimated seconds of a compiled program, as a multiple of the predicted compute, above which the audit says so."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE")
    parser.add_argument(
        "--portability",
        metavar="MODULE",
        help="would this torch module stay one program on XLA? A family, FILE.py[:NAME] or a.b[:NAME]; no plan",
    )
    parser.add_argument(
        "--world-scale",
        nargs="?",
        type=_ranks,
        const=SHRUNK,
        metavar="N",
        help=f"trace with fewer data-parallel ranks: at most N devices ({SHRUNK})",
    )
    parser.add_argument("--topology", metavar="T", help="xla: the plan's TPUs, like v5p:4x4x4; without: as in the plan")
    allow = "run the code that `model from transformers` or `model from code` names: its module is what is traced"
    parser.add_argument("--allow-code", action="store_true", help=allow)
    parser.add_argument("--timeout-s", type=_seconds, metavar="S", help="xla: how long the compiler may take (900)")
    add_target(parser, required=False)
    add_set(parser)


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return float(text)


def run(options: argparse.Namespace) -> int:
    if options.portability is not None and options.file is None:
        from planc.cli import portability

        return portability.run(options.portability, options.format)
    if options.portability is not None or options.file is None:
        print("planc audit: a FILE, or --portability MODULE", file=sys.stderr)
        return 2
    try:
        with (
            Progress("audit") as progress,
            progress.during(f"compiling {options.file} for {options.target}") as show,
        ):
            found = _audited(options, show)
    except PlanError as error:
        status = refused(error.diagnostics, options.format)
        return 2 if any(d.code == "E1009" for d in error.diagnostics) else status  # no answer, and not "it differs"
    if options.format == "json":
        print_json(found.to_json())
    else:
        print("\n".join(lines(found)))
    return 0 if found.ok else 1


def _audited(options: argparse.Namespace, show: Callable[[str], None]) -> Audit:
    from planc.checks import check_plan
    from planc.driver import load, module_source, save_models, target_of
    from planc.lowering import lower_plan, lower_to_train

    given = dict(options.set)
    if options.allow_code:
        save_models(options.file, set=given)
    target = options.target or target_of(options.file, set=given)
    plan = load(options.file, set=given, target=target)
    source = module_source(options.file, set=given, target=target) if options.allow_code else None
    lowered = lower_to_train if source is None else lower_plan
    backend = lowered(check_plan(plan), target).backend
    if source is not None and target != "cuda":
        message = f"{plan.model.name} is read from code of torch, which the {target} target does not run"
        raise PlanError([Diagnostic("E0902", message, plan.mesh.cause.span)])
    asked = AuditOptions(options.world_scale, options.topology, options.timeout_s, source, show)
    if source is not None:
        from planc.driver.allowed_code import audited_module

        return audited_module(Path(options.file), given, asked, plan.mesh.cause.span)
    try:
        return backend.audit(plan, asked)
    except ModuleNotFoundError as error:
        raise missing_framework(error, target, plan.mesh.cause.span) from None


def lines(found: Audit) -> list[str]:
    """Return the audit as text: one line for each operation, axis, dtype and stage, then memory and the verdict."""
    ranks = f"{found.devices} devices" + (
        f", traced as {found.traced_devices}" if found.traced_devices != found.devices else ""
    )
    sent = found.compiler is not None
    heads = ("op", "axis", "dtype", "stage", "calls", "seen", "MiB", "seen", "")
    rows = [
        [
            r.op,
            r.axis,
            r.dtype,
            str(r.stage),
            str(r.predicted.count),
            str(r.observed.count),
            _mib(r.predicted),
            _mib(r.observed),
            "" if r.agrees or sent else "differs",
        ]
        for r in found.rows
    ]
    lines = [f"{found.plan} on {found.target}: {ranks}", *found.normalisations, ""]
    lines += [*table(heads, rows, left=3, left_last=True), ""] if rows else []
    lines += _of_axes(found)
    lines += [
        f"peak memory of stage {m.stage}: predicted {m.predicted_bytes / 2**30:.2f} GiB, "
        f"seen {m.observed_bytes / 2**30:.2f} GiB ({m.relative:+.1%})"
        for m in found.memory
    ]
    lines += _of_matmuls(found)
    lines += _of_host(found.compiler)
    lines += _of_overlap(found.compiler)
    lines += _of_buffers(found.compiler)
    lines += [f"not attributed: {name}" for name in found.unparsed]
    if found.compiler is not None:
        return [*lines, *_of_compiler(found, found.compiler)]
    different = sum(not r.agrees for r in found.rows)
    lines.append(f"{different} of {len(rows)} rows differ" if different else "every collective is as predicted")
    return [*lines, *_of_places(found.placed)]


def _of_matmuls(found: Audit) -> list[str]:
    """Return lines about the FLOPs of matmuls, with the largest matmuls where these are not as predicted."""
    lines = []
    for m in found.matmuls:
        predicted, observed = m.predicted_flops / 1e12, m.observed_flops / 1e12
        seen = f"predicted {predicted:.4g} TFLOP, seen {observed:.4g} TFLOP ({m.relative:+.1%})"
        off = "" if m.agrees else f": off by more than {FLOPS_WITHIN:.0%}"
        lines.append(f"matmuls of stage {m.stage}: {seen}{off}")
        if not m.agrees:
            lines += [f"  {one.flops / 1e12:.4g} TFLOP: {one.result} by {one.operation}" for one in m.largest]
    return lines


def _of_places(placed: Placed) -> list[str]:
    """Return lines about ranks whose collectives or shards are not those of their mesh coordinates."""
    wrong = [
        f"other {what} than by their places in the mesh: ranks {', '.join(map(str, ranks[:SHOWN]))}"
        + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
        for what, ranks in placed.otherwise.items()
    ]
    return wrong or [f"rows and shards are those of each rank's place in the mesh ({placed.ranks} ranks asked)"]


def _of_host(report: CompilerReport | None) -> list[str]:
    """Return lines about host memory: the bytes stored there, and the bytes transferred in a step."""
    found = []
    for h in report.host if report else ():
        what, predicted, seen = h.what, h.predicted_bytes / 2**30, h.observed_bytes / 2**30
        line = (
            f"{what if 'host' in what else f'{what} on the host'}: predicted {predicted:.2f} GiB, seen {seen:.2f} GiB"
        )
        waits = "" if what == "resting" else f", {h.asynchronous_bytes / 2**30:.2f} GiB of it asynchronous"
        found.append(line + waits)
    return found


def _of_overlap(report: CompilerReport | None) -> list[str]:
    """Return lines about asynchronous collectives of the compiled program, with their predicted exposed seconds."""
    if report is None or not report.overlap:
        return []
    heads = ("op", "axis", "sent MiB", "asynchronous", "cycles meanwhile", "predicted ms", "exposed ms")
    rows = [
        [
            o.op,
            o.axis,
            f"{o.sent_bytes / 2**20:.1f}",
            f"{o.asynchronous_bytes / o.sent_bytes:.0%}" if o.sent_bytes else "",
            f"{o.cycles_meanwhile:,}",
            f"{1e3 * o.predicted_s:.2f}",
            f"{1e3 * o.exposed_s:.2f}",
        ]
        for o in report.overlap
    ]
    sent, moved = (sum(getattr(o, name) for o in report.overlap) for name in ("sent_bytes", "asynchronous_bytes"))
    share = f"{moved / sent:.0%} of the bytes" if sent else "nothing"
    said = f"what the compiled program does not wait for ({share}), beside the cost model's seconds:"
    return ["", said, *table(heads, rows, left=2)]


def _of_buffers(report: CompilerReport | None) -> list[str]:
    """Return lines about the largest buffers at the memory peak, and the tensors in them."""
    if report is None or not report.buffers:
        return []
    heads = ("MiB", "buffer", "tensor", "sentence")
    rows = [
        [f"{b.bytes / 2**20:.1f}", f"{b.dtype} {list(b.shape)}", b.tensor or b.operation, b.sentence]
        for b in report.buffers
    ]
    said = f"the largest buffers at the fullest moment, {report.live_bytes / 2**30:.2f} GiB by the program's order:"
    return ["", said, *table(heads, rows, left=4), ""]


def _of_axes(found: Audit) -> list[str]:
    """Return lines with the bytes by axis, if a compiler chose the collectives."""
    if not found.wire:
        return []
    heads = ("axis", "sent MiB", "seen", "off")
    judged = found.judged
    rows = [
        [
            w.axis,
            f"{w.predicted_bytes / 2**20:.1f}",
            f"{w.observed_bytes / 2**20:.1f}",
            f"{w.relative:+.1%}" if w in judged else "small",
        ]
        for w in found.wire
    ]
    return [*table(heads, rows, left=1), ""]


def _of_compiler(found: Audit, report: CompilerReport) -> list[str]:
    """Return lines about the compiled program: if it fits or is refused, the estimate of cycles, and the verdict."""
    expected = "as predicted" if report.fits == report.predicted_to_fit else "which is not as predicted"
    verdict = f"{report.topology}: the program {'fits' if report.fits else 'does not fit'}, {expected}"
    lines = [verdict, *([f"the compiler: {report.message.splitlines()[0]}"] if report.message else [])]
    if report.cycles:
        lines.append(f"the compiler's own estimate: {report.cycles:,} cycles a step without transfers; no time")
    if report.cycles_s > CYCLES_WITHIN * report.compute_s > 0:
        said = f"{report.cycles_s:.3g} s at {report.clock_hz / 1e9:g} GHz, where {report.compute_s:.3g} s are predicted"
        lines.append(f"which is {said}: the program computes more than the plan asks for, or slower")
    lines.append(f"compiled in {report.compile_s:.0f} s")
    off = [w.axis for w in found.judged if abs(w.relative) > AXES_WITHIN]
    if off:
        return [*lines, f"bytes over {', '.join(off)} are off by more than {AXES_WITHIN:.0%}"]
    return [*lines, f"bytes over every axis are within {AXES_WITHIN:.0%}"] if found.wire else lines


def _mib(total: Total) -> str:
    return f"{total.bytes / 2**20:.3f}"
