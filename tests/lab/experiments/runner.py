"""Experiments one after the other, in a slice of time; what one slice leaves the next one takes up."""

from __future__ import annotations

import platform
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planc.diag.errors import PlanError
from planc.trainer.measure.coordinator import MeasuringError
from planc.trainer.run.devices import cuda_devices
from planc.version import __version__
from tests.lab.experiments.experiment import CPU, Experiment, Machine, SkippedError, key
from tests.lab.experiments.records import Record, read

TRIES = 2
"""Slices in which an experiment may run out of time; after that it has failed."""
MARGIN_S = 5.0
"""Seconds of a slice that are kept for ending what runs and writing it down."""
PACKAGES = ("torch", "triton", "torchao", "jax", "jaxlib", "numpy")


NODES = {"GH200": "gh200_node", "H200": "h200_node", "H100": "h100_node", "H800": "h800_node", "H20": "h20_node"}
NODES |= {"GB300": "gb300_nvl72", "GB200": "gb200_nvl72", "B300": "b300_node", "B200": "b200_node"}
NODES |= {"A100": "a100_node", "A800": "a800_node", "L40S": "l40s_node", "V100-SXM2-32GB": "v100_node"}
NODES |= {"MI300X": "mi300x_node", "MI325X": "mi325x_node", "MI355X": "mi355x_node"}
NODES |= {"RTX 4090": "rtx4090_node", "RTX PRO 6000": "rtx_pro_6000_node"}
"""Device names with the bundled machine of each; the first that occurs in the name counts."""


def find_machine() -> Machine | None:
    """This machine's CUDA devices, or two processes of its CPU where it has none; None for a device that no bundled
    hardware file describes."""
    name, devices = cuda_devices()
    if not devices:
        return CPU
    node = next((node for words, node in NODES.items() if words in name), None)
    return Machine(name=name, node=node, devices=devices) if node else None


def versions() -> dict[str, str]:
    """The versions of what the experiments run on; packages that are absent are left out."""
    found = {"planc": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def predict(experiment: Experiment, machine: Machine) -> Record:
    """planc's answer to `experiment` on `machine`: a record with its prediction, or with the refusal."""
    with tempfile.TemporaryDirectory(prefix="planc-experiment-") as folder:
        facts, status, why = None, "predicted", ""
        try:
            facts = experiment.predict(machine, Path(folder))
        except SkippedError as error:
            status, why = "skipped", str(error)
        except PlanError as error:
            status = "refused"
            why = "; ".join(f"{d.code}: {d.message}" for d in error.diagnostics)
    return Record(
        name=experiment.name,
        title=experiment.title,
        key=key(experiment, machine, __version__),
        status=status,
        machine={"name": machine.name, "cluster": machine.cluster, "devices": machine.devices},
        versions=versions(),
        predicted=facts,
        why=why,
    )


def run(
    experiments: Iterable[Experiment],
    machine: Machine,
    state: Path,
    seconds: float,
    tell: Callable[[str], None] = lambda _text: None,
) -> list[Record]:
    """Take the experiments that the folder `state` has no answer of on `machine`, in their order, for at most
    `seconds`.

    Each one's prediction is written before it is measured, its answer after it. One that needs more time than is left
    is passed over. `tell` hears what is being measured. Returns the records of all, those passed over with their
    prediction alone where they have one. Raises OSError where `state` cannot be written.
    """
    ends_s = time.monotonic() + seconds - MARGIN_S
    found = []
    for experiment in experiments:
        record = read(state, experiment.name, key(experiment, machine, __version__))
        if record is None or record.status == "skipped":  # which may be there by now
            record = predict(experiment, machine)
            record.write(state)
        left_s = ends_s - time.monotonic()
        if record.status in ("predicted", "postponed") and left_s >= experiment.minimum_s:
            tell(experiment.title)
            record = measured(experiment, machine, record, left_s)
            record.write(state)
        found.append(record)
    return found


def _reason(error: Exception) -> str:
    """The text of a failure; of one that nobody foresaw where it happened, too."""
    if isinstance(error, MeasuringError):
        return str(error)
    return "".join(traceback.format_exception(error))[-2000:]


def measured(experiment: Experiment, machine: Machine, record: Record, timeout_s: float) -> Record:
    """`record` with what `machine` answers to `experiment` within `timeout_s` seconds, or with why it does not."""
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planc-experiment-") as folder:
        try:
            facts = experiment.measure(machine, Path(folder), timeout_s)
        except Exception as error:  # the experiments after it are asked all the same
            took_s = time.monotonic() - start_s
            late = took_s >= timeout_s
            times = record.postponed + late
            status = "postponed" if late and times < TRIES else "failed"
            why = f"not done after {took_s:.0f} s" if late else _reason(error)
            update = {"status": status, "why": why, "seconds": took_s, "postponed": times}
            return record.model_copy(update=update)
    update = {"status": "measured", "measured": facts, "seconds": time.monotonic() - start_s, "why": ""}
    return record.model_copy(update=update)
