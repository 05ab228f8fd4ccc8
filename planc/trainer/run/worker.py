"""One process of a run: `python -m planc.trainer.run.worker --preset P --target T --receipt R`.

Its rank comes from RANK and WORLD_SIZE, as torchrun, Slurm's launch files and planc's own launcher
set them. It trains the compiled plan in the preset and reads no plan file. Rank 0 tells and writes.
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

from planc import __version__
from planc.diag import Diagnostic, PlanError, Span
from planc.ir.plan import Plan
from planc.ir.program import Target, missing_framework
from planc.lowering import load_backend, lower_plan
from planc.trainer.checkpoint.compatible import course
from planc.trainer.checkpoint.directory import verify
from planc.trainer.checkpoint.resume import NEWEST, start_of
from planc.trainer.data.sources import source_of
from planc.trainer.preset.load import Preset, load_preset
from planc.trainer.preset.runtime_limits import beyond
from planc.trainer.receipt.receipt import Compile, Measured, Receipt
from planc.trainer.receipt.routing import Picks, counted
from planc.trainer.run import launch
from planc.trainer.run.elastic import fitted, here
from planc.trainer.run.first_gradients import first_gradient_norms
from planc.trainer.run.heartbeat import HeartbeatSender
from planc.trainer.run.loop import Facts, History, NotFiniteError, PreemptedError, train
from planc.trainer.telemetry.events import say
from planc.trainer.telemetry.profiler import Profile
from planc.trainer.telemetry.reporter import EVENTS, Watching, metrics_path

if TYPE_CHECKING:
    from planc.ir.session import Initial, Session, Settings
    from planc.trainer.checkpoint.manager import Keeper
    from planc.trainer.data.stream import Source
    from planc.trainer.telemetry.goodput import MeasuredGoodput


@dataclass(frozen=True)
class Request:
    """Arguments of one worker. `single` trains the same model undivided in one process."""

    preset: Path
    target: Target
    steps: int | None
    receipt: Path
    single: bool = False
    checkpoint: Path | None = None
    """The folder to save in, rather than the preset's."""
    resume: int | None = None
    """The step to go on from, or NEWEST; None: from the beginning."""
    chosen: str = ""
    """The checkpoint that the launcher chose and verified, by its name in the folder."""
    metrics: Path | None = None
    """The metrics file; None: that of the preset, else in the folder of the checkpoints, else beside the receipt."""
    runtime: str = ""
    """One of the target's; empty: its first."""
    devices: int | None = None
    """Fewer than the plan's, where the preset allows it; None: the plan's, or as many as a launcher has started."""

    def arguments(self) -> list[str]:
        """The command line that says the same; paths are made absolute for the child."""
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
    """Train; 0 if it ended well, 1 with the findings on stderr if not."""
    started = time.perf_counter()
    request = _request(arguments)
    try:
        receipt = work(request, started)
    except PlanError as error:
        for found in error.diagnostics:
            print(f"{found.severity}[{found.code}]: {found.message}", file=sys.stderr)
        return 1
    except PreemptedError:
        return launch.PREEMPTED
    except KeyboardInterrupt:
        return 130
    if receipt is not None:
        receipt.write(request.receipt)
    return 0


def work(request: Request, started: float) -> Receipt | None:
    """Train as asked: the receipt on rank 0, None on the others. Raises PreemptedError once all is saved."""
    now, began = _pulse(), time.time() - (time.perf_counter() - started)
    preset = _fitted(load_preset(request.preset, request.checkpoint), request)
    span = Span(str(request.preset), 1, 1, 1, 1)
    source = source_of(preset)
    path = _from(preset, request, source)
    session = _start(preset, request, span)
    path_of_metrics = request.metrics or metrics_path(preset, request.target, request.receipt)
    watching = Watching(preset, request.target, session.rank, path_of_metrics)
    profile = Profile(session, preset.parts.watch.profile_steps, preset.path.parent / preset.parts.watch.profile)
    keeper: Keeper | None = None
    why = "failed"
    try:
        if preset.checkpoints:
            from planc.trainer.checkpoint.manager import Keeper

            keeper = Keeper(preset, request.target, session, source.sha256, watching.tell)
        history = keeper.resume(path) if keeper and path else History()
        if keeper:
            source = source.going_on(*keeper.shown)
        watching.open(began, history.steps)
        start_s = time.perf_counter() - started
        first: dict[str, float] = {}
        picks = Picks(session, preset.plan, preset.train.steps)

        def after_step(step: int, history: History) -> None:
            if step == 1 and (norm := history.grad_norms[0]) is not None:
                first.update(first_gradient_norms(session, preset.train, norm) or {})
            picks.take(step)
            if keeper:
                keeper.after_step(step, history)

        history = train(
            session,
            source,
            preset.train,
            steps=request.steps or preset.train.steps,
            facts=_facts(preset.plan, 1 if request.single else preset.plan.mesh.devices),
            tell=watching.tell,
            history=history,
            after_step=after_step,
            now=now,
            profile=profile,
        )
        if keeper:
            keeper.finish(history)
        why = "done"
        goodput = watching.goodput()
        if session.rank != 0:
            return None
        found = _receipt(preset, request, session, source, history, start_s, goodput)
        measured = found.measured.model_copy(
            update={"first_gradient_norms": first or None, "routing": picks.found or None}
        )
        return found.model_copy(update={"measured": measured})
    except PreemptedError:
        why = "preempted"
        raise
    except NotFiniteError as error:
        raise PlanError([Diagnostic("E1011", f"{error}: a lower lr or a warm-up may help", span)]) from None
    finally:
        profile.close()
        if keeper:
            keeper.close()
        watching.close(why)
        session.close()


def _fitted(preset: Preset, request: Request) -> Preset:
    """On the devices that are there: a process each with torch. Raises PlanError (E1033)."""
    if request.single:
        return preset
    return fitted(preset, request.devices or (None if load_backend(request.target).one_process else here()))


def _pulse() -> Callable[[str], None]:
    """Tells planc's launcher that this rank gets on; elsewhere nobody listens."""
    if EVENTS not in os.environ:
        return lambda _doing: None
    return HeartbeatSender(say).now


def _from(preset: Preset, request: Request, source: Source) -> Path | None:
    """The checkpoint to go on from; None for the beginning. Raises PlanError."""
    if preset.checkpoints is None or not request.chosen:
        return start_of(preset, request.resume, source.sha256).path
    path = preset.checkpoints / request.chosen
    verify(path, share=(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))))
    return path


def first_values(preset: Preset) -> Initial:
    """The initial parameters. Raises PlanError for weights that are not the model's."""
    model, folder = preset.plan.model, preset.train.weights
    if folder:
        from planc.trainer.checkpoint.hugging_face import imported

        return imported(model, preset.path.parent / folder, Span(str(preset.path), 1, 1, 1, 1))
    from planc.trainer.run.initial_weights import initial

    return initial(model, preset.train.seed)


def _start(preset: Preset, request: Request, span: Span) -> Session:
    """The session. The environment is prepared before anything loads a framework."""
    plan, target = preset.plan, request.target
    program = lower_plan(plan, target, request.runtime)
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


def _shrunk(preset: Preset) -> tuple[str, ...]:
    """What `elastic` has changed, for the receipt."""
    before, now = load_preset(preset.path).plan.mesh.sizes, preset.plan.mesh.sizes
    return tuple(f"elastic.{name}.{size}-{now[name]}" for name, size in before.items() if now[name] != size)


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
    from planc.cost.compute.flops import model_flops_per_token
    from planc.cost.machine.rates import peak_flops_per_s

    chip, tokens = plan.cluster.chip, plan.batch.tokens
    peak = peak_flops_per_s(chip, plan.precision.compute) / chip.devices * devices
    return Facts(tokens, model_flops_per_token(plan.model, plan.batch.sequence_tokens) * tokens, peak)


def _receipt(
    preset: Preset,
    request: Request,
    session: Session,
    source: Source,
    history: History,
    start_s: float,
    goodput: MeasuredGoodput | None,
) -> Receipt:
    from planc.trainer.run.initial_weights import init_sha256

    plan = preset.plan
    facts = session.compile_facts()
    return Receipt(
        plan_sha256=plan.sha256,
        target=request.target,
        runtime=session.runtime,
        versions={"planc": __version__, "python": sys.version.split()[0], **session.versions},
        mesh=plan.mesh.sizes,
        seed=preset.train.seed,
        init_sha256=init_sha256(plan.model, first_values(preset)),
        data_sha256=source.sha256,
        tokens_per_step=plan.batch.tokens,
        dtype=plan.precision.compute,
        course=course(preset),
        features=(*session.features, *(("undivided",) if request.single else _shrunk(preset))),
        losses=tuple(history.losses),
        grad_norms=tuple(history.grad_norms),
        step_time_s=history.step_time_s,
        peak_memory_gib=session.peak_memory_gib(),
        compile=Compile(**facts.to_json()),
        routing_flips=None,
        collectives=None,
        predicted=None,
        measured=_measured(plan, history, start_s, goodput),
        goodput=goodput.share if goodput else None,
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


def _request(arguments: list[str] | None) -> Request:
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
    return Request(**vars(given))


if __name__ == "__main__":
    launch.leave(main())
