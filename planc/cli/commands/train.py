"""`planc train PRESET.toml --target cuda|xla`: trains with the bundled trainer."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.cli.common import add_target, print_json, refused
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.quoting import printable
from planc.diag.span import Span

if TYPE_CHECKING:
    from planc.ir.plan import Plan
    from planc.ir.target import Target
    from planc.trainer.receipt.receipt import Receipt
    from planc.trainer.run.train import Prepared


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET.toml")
    add_target(parser, required=True)
    runtimes = ("torch", "jax", "torch_xla")
    parser.add_argument("--runtime", choices=runtimes, help="what runs the program (torch; jax or torch_xla for xla)")
    parser.add_argument("--python", type=Path, metavar="PATH", help="of the environment with torch_xla")
    parser.add_argument("--steps", type=_steps, metavar="N", help="instead of the preset's number of steps")
    parser.add_argument("--receipt", metavar="PATH", help="write the receipt here")
    parser.add_argument("--single", action="store_true", help="one process without the plan's layout: the reference")
    parser.add_argument("--checkpoint", metavar="DIR", help="save in this folder rather than the preset's")
    parser.add_argument(
        "--resume", type=_steps, nargs="?", const=-1, metavar="STEP", help="go on from the newest checkpoint, or STEP"
    )
    parser.add_argument("--devices", type=_steps, metavar="N", help="fewer than the plan's, if the preset allows it")
    about = "predict for what `planc calibrate` wrote of this machine, rather than for the plan's"
    parser.add_argument("--machine", type=Path, metavar="FILE.plan", help=about)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would run, and trace its first step on fake devices"
    )


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps")
    return int(text)


def run(options: argparse.Namespace) -> int:
    from planc.lowering import RUNTIMES
    from planc.trainer.run.launch import PREEMPTED
    from planc.trainer.run.loop import PreemptedError
    from planc.trainer.run.train import TrainingError, prepare

    if options.runtime not in (None, *RUNTIMES[options.target]):
        runs_on = " or ".join(RUNTIMES[options.target])
        print(f"planc train: the {options.target} target runs on {runs_on}", file=sys.stderr)
        return 2
    if options.single and options.runtime == "torch_xla":
        print("planc train: the reference of torch_xla is --target cuda --single: the same module", file=sys.stderr)
        return 2
    if options.receipt is not None:
        _try_to_write(Path(options.receipt))
    try:
        ready = prepare(
            options.preset,
            options.target,
            steps=options.steps,
            single=options.single,
            checkpoint=options.checkpoint,
            resume=options.resume,
            runtime=options.runtime or "",
            python=options.python,
            dry=options.dry_run,
            devices=options.devices,
        )
        if options.dry_run:
            return _dry_run(ready, options)
        _announce(ready, options)
        receipt = _train(ready, options)
    except TrainingError as error:
        print(error.output, file=sys.stderr)
        return _refused(error.diagnostics, options)
    except PlanError as error:
        return _refused(error.diagnostics, options)
    except PreemptedError:
        print("asked to end: the state is saved, and --resume goes on from it", file=sys.stderr)
        return PREEMPTED
    if options.format == "json":
        print_json(receipt.to_json())
    else:
        _summary(receipt, ready.preset.plan, options)
    if options.receipt:
        from planc.trainer.receipt.crosscheck import otherwise_begun

        for said in otherwise_begun(receipt, Path(options.receipt)):
            print(f"note: {said}", file=sys.stderr)
    return 0


def _try_to_write(path: Path) -> None:
    """Raise OSError before the run if the receipt could not be written to `path` after it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def predicted_figures(plan: Plan, target: Target) -> dict[str, float]:
    """Return the predicted figures of `plan` on `target` for the receipt of a run: step time, memory, MFU and others.
    The unit is in each name."""
    from planc.driver import cost

    report = cost(plan, target=target)
    assert report.step is not None and report.memory is not None
    return {
        "step_time_s": report.step.time_s,
        "memory_gib": report.memory.per_device_gib.total,
        "exposed_comm_s": report.step.exposed_comm_s,
        "mfu": report.step.mfu,
        "tokens_per_s": report.step.tokens_per_s_per_device * plan.mesh.devices,
        **({"goodput": report.goodput.runtime} if report.goodput else {}),
    }


def on_machine(plan: Plan, file: Path | None) -> Plan:
    """Return `plan` with the numbers of the hardware file `file` for its machine; unchanged if `file` is None. Raises
    PlanError if the file cannot be used."""
    if file is None:
        return plan
    from dataclasses import replace

    from planc.calibration.probes import with_numbers
    from planc.cli.commands.calibrate import DP, plan_text
    from planc.language.build import build_file

    devices, name = plan.mesh.devices, plan.cluster.name
    batch = f"{devices} x 128 tokens microbatch 1"
    text = plan_text("machine", "llama_tiny", batch, f"dp {devices}", (DP,), name, devices, file.name)
    path = file.parent / "machine_of_a_run.plan"
    built = build_file(path, unsaved={path.resolve(): text})
    if built.plan is None:
        raise PlanError([replace(d, span=Span(str(file), 1, 1, 1, 1)) for d in built.diagnostics])
    return replace(plan, cluster=with_numbers(plan.cluster, built.plan.cluster))


def _train(ready: Prepared, options: argparse.Namespace) -> Receipt:
    from planc.trainer.run.train import train
    from planc.trainer.telemetry.events import EventTable

    stream = sys.stderr if options.format == "json" else sys.stdout
    return train(
        options.preset,
        options.target,
        steps=options.steps,
        receipt=options.receipt,
        single=options.single,
        checkpoint=options.checkpoint,
        resume=options.resume,
        runtime=options.runtime or "",
        python=options.python,
        devices=options.devices,
        predicted=None
        if options.single
        else predicted_figures(on_machine(ready.preset.plan, options.machine), options.target),
        on_event=EventTable(stream, ready.preset.train.log_every),
    )


def _dry_run(ready: Prepared, options: argparse.Namespace) -> int:
    """Print the settings, and trace the first step on fake devices. Return 1 if that fails."""
    from planc.trainer.run.dry_run import dry_run

    if options.single or options.runtime == "torch_xla":
        _announce(ready, options)
        return 0
    if options.format != "json":
        _announce(ready, options)
    found, wrote = dry_run(ready.preset.plan, ready.target)
    if found is None:
        print(wrote, file=sys.stderr)
        last = next((line for line in reversed(wrote.splitlines()) if line.strip()), "it wrote nothing")
        span = Span(str(ready.preset.path), 1, 1, 1, 1)
        return _refused((Diagnostic("E1012", f"the first step does not run on fake devices: {last}", span),), options)
    if options.format == "json":
        _announce(ready, options, traced=found.to_json())
    else:
        print("\n".join(found.lines()))
    return 0


def _announce(ready: Prepared, options: argparse.Namespace, traced: dict[str, Any] | None = None) -> None:
    """Print the settings of the run; to standard error if standard output is JSON. `traced` is the dry run's result."""
    plan, stream = ready.preset.plan, sys.stderr if options.format == "json" and not options.dry_run else sys.stdout
    facts = {
        "plan": plan.name,
        "plan_sha256": plan.sha256,
        "target": ready.target,
        "steps": ready.steps,
        "processes": ready.processes,
        "resumes_from": ready.start.name if ready.start else None,
        "devices": 1 if options.single else plan.mesh.devices,
        "notes": [d.to_json() for d in ready.notes],
        "predicted": None if options.single else predicted_figures(on_machine(plan, options.machine), ready.target),
        "traced": traced,
    }
    if options.format == "json" and options.dry_run:
        print_json(facts, "planc.dry_run/1")
        return
    mesh = "one process" if options.single else " > ".join(f"{n} {s}" for n, s in plan.mesh.sizes.items())
    processes = f"{ready.processes} process{'es' if ready.processes > 1 else ''}"
    print(
        f"{plan.name} on {ready.target}: {mesh}, {processes}, {_steps_of(ready)}; MFU is of {_peak(plan)} a device",
        file=stream,
        flush=True,
    )
    for note in ready.notes:
        print(f"{note.severity}[{note.code}]: {printable(note.message)}", file=stream, flush=True)


def _peak(plan: Plan) -> str:
    from planc.costing.machine.rates import peak_flops_per_s, rated_dtype
    from planc.ir.report import peak_text

    chip, dtype = plan.cluster.chip, plan.precision.multiplied
    return peak_text(peak_flops_per_s(chip, dtype) / chip.devices / 1e12, rated_dtype(chip, dtype))


def _steps_of(ready: Prepared) -> str:
    return f"{ready.steps} steps" + (f", on from {ready.start.name}" if ready.start else "")


def _summary(receipt: Receipt, plan: Plan, options: argparse.Namespace) -> None:
    measured = receipt.measured
    losses = [loss for loss in receipt.losses if loss is not None]
    line = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else "every step was skipped"
    if measured.heldout_loss_first is not None and measured.heldout_loss_last is not None:
        line += f", held out {measured.heldout_loss_first:.4f} -> {measured.heldout_loss_last:.4f}"
    print(f"{line}; {measured.step_time_s * 1e3:.0f} ms a step, {measured.tokens_per_s:,.0f} tokens/s")
    hosted = plan.cluster.chip.hosts_itself
    if hosted and options.machine is None and receipt.predicted is not None:
        print(
            f"not predicted: nobody has measured this machine; `planc calibrate --target {options.target} --devices"
            f" {plan.mesh.devices} -o FILE.plan` does, then `--machine FILE.plan`"
        )
    else:
        print("\n".join(_predicted_and_measured(receipt, hosted=hosted)))
    if options.receipt:
        print(f"receipt: {options.receipt}")


def _predicted_and_measured(receipt: Receipt, *, hosted: bool) -> list[str]:
    """Return lines with predicted and measured figures. Memory is left out if devices are `hosted` by CPU processes,
    which hold more than the predicted tensors."""
    told = receipt.predicted
    if told is None:
        return []
    rows = [
        ("step", f"{told['step_time_s'] * 1e3:.1f} ms", f"{receipt.step_time_s * 1e3:.1f} ms"),
        ("tokens/s", f"{told['tokens_per_s']:,.0f}", f"{receipt.measured.tokens_per_s:,.0f}"),
    ]
    if receipt.peak_memory_gib is not None and not hosted:
        rows.append(("memory", f"{told['memory_gib']:.2f} GiB", f"{receipt.peak_memory_gib:.2f} GiB"))
    if receipt.goodput is not None and "goodput" in told:
        rows.append(("goodput", f"{told['goodput']:.1%}", f"{receipt.goodput:.1%}"))
    return [f"{'':<10}{'predicted':>14}{'measured':>14}", *(f"{name:<10}{a:>14}{b:>14}" for name, a, b in rows)]


def _refused(diagnostics: tuple[Diagnostic, ...], options: argparse.Namespace) -> int:
    return refused(diagnostics, options.format) or 1
