"""One process of a run: `python -m planc.trainer.run.worker --preset P --target T --receipt R`.

The rank comes from RANK and WORLD_SIZE, as torchrun, Slurm's launch files and planc's launcher set them. The process
trains the compiled plan in the preset and reads no plan file. Only rank 0 reports and writes.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from planc.checks import check_plan
from planc.diag import Diagnostic, PlanError, Span
from planc.diag.quoting import printable
from planc.ir.installed import missing_framework
from planc.ir.plan import Plan
from planc.ir.session import CollectiveError
from planc.ir.target import Target
from planc.lowering import load_backend, lower_plan
from planc.trainer.checkpoint.compatible import course
from planc.trainer.checkpoint.directory import verify
from planc.trainer.checkpoint.resume import NEWEST, start_of
from planc.trainer.data.sources import source_of
from planc.trainer.preset.load import Preset, load_preset
from planc.trainer.preset.runtime_limits import beyond
from planc.trainer.receipt.receipt import CompileActivity, Measured, Receipt
from planc.trainer.receipt.routing import Picks, counted
from planc.trainer.run import launch
from planc.trainer.run.elastic import fitted, here
from planc.trainer.run.first_gradients import first_gradient_norms
from planc.trainer.run.heartbeat import HeartbeatSender
from planc.trainer.run.loop import Facts, History, NotFiniteError, PreemptedError, train
from planc.trainer.telemetry.events import say
from planc.trainer.telemetry.profiler import Profile
from planc.trainer.telemetry.reporter import EVENTS, Watching, metrics_path
from planc.version import __version__

if TYPE_CHECKING:
    from planc.ir.session import Initial, Session, Settings
    from planc.trainer.checkpoint.manager import Keeper
    from planc.trainer.data.stream import BatchSource
    from planc.trainer.telemetry.goodput import MeasuredGoodput


@dataclass(frozen=True)
class WorkerArguments:
    """Arguments of a worker process. With `single`, the unsharded model is trained in one process."""

    preset: Path
    target: Target
    steps: int | None
    receipt: Path
    single: bool = False
    checkpoint: Path | None = None
    """The folder for checkpoints, instead of the preset's."""
    resume: int | None = None
    """The step from which to resume, or NEWEST; None: start from scratch."""
    chosen: str = ""
    """The name of the checkpoint that the launcher selected and verified."""
    metrics: Path | None = None
    """The metrics file; None: that of the preset, else in the folder of the checkpoints, else beside the receipt."""
    runtime: str = ""
    """One of the target's; empty: its first."""
    devices: int | None = None
    """Fewer devices than the plan's, if the preset allows it; None: the plan's, or those that the launcher started."""

    def arguments(self) -> list[str]:
        """Return the command line of these arguments, with absolute paths."""
        steps = [] if self.steps is None else ["--steps", str(self.steps)]
        single = ["--single"] if self.single else []
        paths = ["--preset", str(self.preset.absolute()), "--receipt", str(self.receipt.absolute())]
        folder = [] if self.checkpoint is None else ["--checkpoint", str(self.checkpoint.absolute())]
        resume = [] if self.resume is None else ["--resume", str(self.resume)]
        chosen = ["--chosen", self.chosen] if self.chosen else []
        metrics = [] if self.metrics is None else ["--metrics", str(self.metrics.absolute())]
        metrics += [] if self.devices is None else ["--devices", str(self.devices)]
        runtime = ["--runtime", self.runtime] if self.runtime else []
        return [*paths, "--target", self.target, *runtime, *steps, *single, *folder, *resume, *chosen, *metrics]


def main(arguments: list[str] | None = None) -> int:
    """Run one rank of a training run. `arguments` is the command line; None: `sys.argv`.

    Returns the exit status: 0 on success, 1 with diagnostics on stderr on failure, `launch.PREEMPTED` after preemption,
    130 after an interrupt.
    """
    try:
        started = time.perf_counter()
        request = _request(arguments)
        receipt = work(request, started)
        if receipt is not None:
            receipt.write(request.receipt)
        return 0
    except PlanError as error:
        for found in error.diagnostics:
            print(f"{found.severity}[{found.code}]: {printable(found.message)}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(printable(f"error[E1012]: {where}{error.strerror or error}"), file=sys.stderr)
        return 1
    except CollectiveError as error:
        print(printable(f"error[E1012]: {error}"), file=sys.stderr)
        return 1
    except MemoryError:
        print("error[E1012]: not enough memory", file=sys.stderr)
        return 1
    except PreemptedError:
        return launch.PREEMPTED
    except KeyboardInterrupt:
        return 130


def work(request: WorkerArguments, started: float) -> Receipt | None:
    """Train as `request` says. Return the receipt on rank 0, None on other ranks.

    `started` is the value of `time.perf_counter()` when the process began. Raises PreemptedError after the state is
    saved, and PlanError if the run is invalid or a loss is not finite.
    """
    began = time.time() - (time.perf_counter() - started)
    heartbeat = _heartbeat()
    loaded = load_preset(request.preset, request.checkpoint)
    preset = _fitted(loaded, request)
    source = source_of(preset)
    checkpoint = _resume_checkpoint(preset, request, source)
    session = _start_session(preset, request)
    run = RankRun(request, loaded, preset, session)
    try:
        history = run.open(source, checkpoint, began)
        start_s = time.perf_counter() - started
        history = run.train(history, heartbeat)
        return run.receipt(history, start_s) if session.rank == 0 else None
    except PreemptedError:
        run.reason = "preempted"
        raise
    except NotFiniteError as error:
        message = f"{error}: a lower lr or a warm-up may help"
        raise PlanError([Diagnostic("E1011", message, _span(preset))]) from None
    finally:
        run.close()


class RankRun:
    """The state of a run on one rank: session, checkpoints, reports, and tokens per expert."""

    def __init__(self, request: WorkerArguments, loaded: Preset, preset: Preset, session: Session) -> None:
        """Set up the run. `loaded` is the preset as read from disk; `preset` is adapted to the available devices."""
        watch = preset.parts.watch
        self._request, self._loaded, self._preset, self._session = request, loaded, preset, session
        metrics = request.metrics or metrics_path(preset, request.target, request.receipt)
        self._reporter = Watching(preset, request.target, session.rank, metrics)
        self._profile = Profile(session, watch.profile_steps, preset.path.parent / watch.profile)
        self._picks = Picks(session, preset.plan, preset.train.steps)
        self._checkpoints: Keeper | None = None
        self._first_gradient_norms: dict[str, float] | None = None
        self.reason = "failed"
        """The reason for the end of the run, for the metrics file."""

    def open(self, source: BatchSource, checkpoint: Path | None, began: float) -> History:
        """Start the run: resume from `checkpoint` (None: from scratch) and start reporting. Return the history so far.
        `began` is the UNIX time at which the process began."""
        history = History()
        if self._preset.checkpoints:
            from planc.trainer.checkpoint.manager import Keeper

            self._checkpoints = Keeper(
                self._preset, self._request.target, self._session, source.sha256, self._reporter.tell
            )
            self._checkpoints.check_start(checkpoint, newest=self._request.resume == NEWEST)
            history = self._checkpoints.resume(checkpoint) if checkpoint else history
            source = source.going_on(*self._checkpoints.shown)
        self._source = source
        self._reporter.open(began, history.steps)
        return history

    def train(self, history: History, heartbeat: Callable[[str], None]) -> History:
        """Train from the end of `history` to the requested step and save the final state. Returns the longer history.

        `heartbeat` is called with the name of each phase of the loop at its start.
        """
        plan, settings = self._preset.plan, self._preset.train
        history = train(
            self._session,
            self._source,
            settings,
            steps=self._request.steps or settings.steps,
            facts=_facts(plan, 1 if self._request.single else plan.mesh.devices),
            tell=self._reporter.tell,
            history=history,
            after_step=self._after_step,
            now=heartbeat,
            profile=self._profile,
        )
        if self._checkpoints:
            self._checkpoints.finish(history)
        self.reason = "done"
        return history

    def _after_step(self, step: int, history: History) -> None:
        norm = history.grad_norms[0]
        if step == 1 and norm is not None:
            self._first_gradient_norms = first_gradient_norms(self._session, self._preset.train, norm)
        self._picks.take(step)
        if self._checkpoints:
            self._checkpoints.after_step(step, history)

    def receipt(self, history: History, start_s: float) -> Receipt:
        """Return the receipt of the finished run. `start_s` is the time (s) that its start took."""
        goodput = self._reporter.goodput()
        measured = _measured(self._preset.plan, history, start_s, goodput).model_copy(
            update={"first_gradient_norms": self._first_gradient_norms or None, "routing": self._picks.found or None}
        )
        single = self._request.single
        return _receipt(
            self._preset,
            self._request.target,
            self._session,
            self._source,
            history,
            measured,
            features=("undivided",) if single else _shrunk_axes(self._loaded.plan, self._preset.plan),
            goodput=goodput.share if goodput else None,
        )

    def close(self) -> None:
        """Write pending output and release the devices. Must be called however the run ends."""
        self._profile.close()
        if self._checkpoints:
            self._checkpoints.close()
        self._reporter.close(self.reason)
        self._session.close()


def _span(preset: Preset) -> Span:
    return Span(str(preset.path), 1, 1, 1, 1)


def _fitted(preset: Preset, request: WorkerArguments) -> Preset:
    """Return the preset adapted to the available devices. With torch, each process has one device. Raises PlanError
    (E1033)."""
    if request.single:
        return preset
    return fitted(preset, request.devices or (None if load_backend(request.target).one_process else here()))


def _heartbeat() -> Callable[[str], None]:
    """Return the function that sends a heartbeat to planc's launcher; it does nothing under other launchers."""
    if EVENTS not in os.environ:
        return lambda _doing: None
    return HeartbeatSender(say).now


def _resume_checkpoint(preset: Preset, request: WorkerArguments, source: BatchSource) -> Path | None:
    """Return the checkpoint from which to resume; None to start from scratch. Raises PlanError."""
    if preset.checkpoints is None or not request.chosen:
        return start_of(preset, request.resume, source.sha256).path
    path = preset.checkpoints / request.chosen
    verify(path, share=(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))))
    return path


def first_values(preset: Preset) -> Initial:
    """Return the initial parameters of `preset`: sampled from its seed, or read from the folder in `weights`.

    Raises PlanError if the weights do not fit the model.
    """
    model, folder = preset.plan.model, preset.train.weights
    if folder:
        from planc.trainer.checkpoint.hugging_face import imported

        return imported(model, preset.path.parent / folder, Span(str(preset.path), 1, 1, 1, 1), preset.train.seed)
    from planc.trainer.run.initial_weights import initial

    return initial(model, preset.train.seed)


def _start_session(preset: Preset, request: WorkerArguments) -> Session:
    """Return a started session. The environment is prepared first, before a framework is imported."""
    plan, target, span = preset.plan, request.target, _span(preset)
    program = lower_plan(check_plan(plan), target, request.runtime, "installed")
    if refused := beyond(request.runtime, preset, request.single, span):
        raise PlanError(refused)
    try:
        runtime = program.backend.runtime()
        runtime.prepare_environment(1 if request.single else plan.mesh.devices)
        start = runtime.start_single if request.single else runtime.start
        return start(program, _settings(preset), first_values(preset))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("planc"):
            raise
        raise missing_framework(error, target, span) from None


def _shrunk_axes(planned: Plan, trained: Plan) -> tuple[str, ...]:
    """Return a feature for the receipt for each axis that `elastic` has reduced, such as `elastic.fsdp.8-4`."""
    now = trained.mesh.sizes
    return tuple(f"elastic.{name}.{size}-{now[name]}" for name, size in planned.mesh.sizes.items() if now[name] != size)


def _settings(preset: Preset) -> Settings:
    from planc.ir.session import Settings

    t = preset.train
    return Settings(
        seed=t.seed,
        betas=t.betas,
        eps=t.eps,
        weight_decay=t.weight_decay,
        optimizer=t.optimizer,
        momentum=t.momentum,
        decay_groups=tuple(t.decay_groups.items()),
        clip_norm=t.clip_norm,
        skip_not_finite=t.on_nan == "skip",
        deterministic=t.deterministic,
        balance_loss=t.balance_loss,
        count_routing=counted(preset.plan, t.steps),
    )


def _facts(plan: Plan, devices: int) -> Facts:
    from planc.costing.compute.flops import model_flops_per_token
    from planc.costing.machine.rates import peak_flops_per_s

    chip, tokens = plan.cluster.chip, plan.batch.tokens
    peak = peak_flops_per_s(chip, plan.precision.multiplied) / chip.devices * devices
    return Facts(tokens, model_flops_per_token(plan.model, plan.batch.sequence_tokens) * tokens, peak)


def _receipt(
    preset: Preset,
    target: Target,
    session: Session,
    source: BatchSource,
    history: History,
    measured: Measured,
    *,
    features: tuple[str, ...],
    goodput: float | None,
) -> Receipt:
    from planc.trainer.run.initial_weights import init_sha256

    plan = preset.plan
    facts = session.compile_facts()
    return Receipt(
        plan_sha256=plan.sha256,
        target=target,
        runtime=session.runtime,
        versions={"planc": __version__, "python": sys.version.split()[0], **session.versions},
        mesh=plan.mesh.sizes,
        seed=preset.train.seed,
        init_sha256=init_sha256(plan.model, first_values(preset)),
        data_sha256=source.sha256,
        tokens_per_step=plan.batch.tokens,
        dtype=plan.precision.compute,
        course=course(preset),
        features=(*session.features, *features),
        losses=tuple(history.losses),
        grad_norms=tuple(history.grad_norms),
        step_time_s=history.step_time_s,
        peak_memory_gib=session.peak_memory_gib(),
        compile=CompileActivity(**facts.to_json()),
        routing_flips=None,
        collectives=None,
        predicted=None,
        measured=measured,
        goodput=goodput,
    )


def _measured(plan: Plan, history: History, start_s: float, goodput: MeasuredGoodput | None) -> Measured:
    held_out = list(history.held_out.values())
    return Measured(
        steps=len(history.losses),
        heldout_loss_first=held_out[0] if held_out else None,
        heldout_loss_last=held_out[-1] if held_out else None,
        heldout_bits_per_byte=held_out[-1] / log(2) if held_out else None,
        heldout_losses=history.held_out,
        first_step_s=history.seconds[0],
        step_time_s=history.step_time_s,
        tokens_per_s=plan.batch.tokens / history.step_time_s,
        goodput_s=asdict(goodput) if goodput else None,
        start_s=start_s,
    )


def _request(arguments: list[str] | None) -> WorkerArguments:
    parser = ArgumentParser(prog="python -m planc.trainer.run.worker", description="One process of a run.")
    parser.add_argument("--preset", type=Path, required=True)
    parser.add_argument("--target", choices=get_args(Target), required=True)
    parser.add_argument("--runtime", default="", help="one of the target's")
    parser.add_argument("--steps", type=int, help="rather than the preset's")
    parser.add_argument("--receipt", type=Path, required=True)
    parser.add_argument("--single", action="store_true", help="the model undivided in one process")
    parser.add_argument("--checkpoint", type=Path, help="save in this folder rather than the preset's")
    parser.add_argument("--resume", type=int, nargs="?", const=NEWEST, help="go on from this step; the newest")
    parser.add_argument("--devices", type=int, help="train on so many devices, if the preset allows fewer")
    parser.add_argument("--metrics", type=Path, help="write the metrics into this file")
    parser.add_argument("--chosen", default="", help="go on from this checkpoint of the folder")
    given = parser.parse_args(arguments)
    return WorkerArguments(**vars(given))


if __name__ == "__main__":
    launch.leave(main())
