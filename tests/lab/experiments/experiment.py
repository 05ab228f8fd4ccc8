"""An experiment asks one question of a machine. planc's answer is written down before the machine's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from planc.diag.fast_dataclass import dataclass

Facts = dict[str, Any]
"""Figures by name, with their units in the names; JSON."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices that the experiments run on."""

    name: str
    """The framework's name of a device: `NVIDIA H100 80GB HBM3`; `CPU` where there is no accelerator."""
    node: str
    """The bundled hardware that a device is declared as: `h100_node`, `cpu_local`."""
    devices: int

    @property
    def is_accelerator(self) -> bool:
        return self.node != "cpu_local"

    @property
    def cluster(self) -> str:
        """The `cluster` of a plan on all devices."""
        return f"{self.node}({self.devices})" if self.is_accelerator else f"{self.devices} x {self.node}"


def plan_text(name: str, model: str, batch: str, sentences: Sequence[str], machine: Machine) -> str:
    """A plan on all devices of `machine`, in fp32 if no sentence says `compute`; `{devices}` in one is their number.

    >>> print(plan_text("p", "llama_tiny", "4 x 32 tokens microbatch 1", ["mesh fsdp {devices}"], CPU), end="")
    plan p
    model llama_tiny
    batch 4 x 32 tokens microbatch 1
    cluster 2 x cpu_local
    mesh fsdp 2
    compute fp32
    """
    compute = () if any(s.startswith("compute ") for s in sentences) else ("compute fp32",)
    lines = (f"plan {name}", f"model {model}", f"batch {batch}", f"cluster {machine.cluster}", *sentences, *compute)
    return "\n".join(line.replace("{devices}", str(machine.devices)) for line in lines) + "\n"


CPU = Machine(name="CPU", node="cpu_local", devices=2)
"""Two processes of this computer, where no accelerator is."""


class SkippedError(Exception):
    """An experiment needs what this machine lacks; the text says what."""


class Experiment(Protocol):
    """One question. Its answers are facts that can be written as JSON."""

    @property
    def name(self) -> str:
        """Its name in the state folder and on the page: letters, digits, `_`."""

    @property
    def title(self) -> str:
        """Its question, in a few words."""

    @property
    def minimum_s(self) -> float:
        """Seconds without which it is not begun."""

    def inputs(self, machine: Machine) -> str:
        """All that its answers on `machine` depend on besides planc: the texts of its plans, numbers of steps."""

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """planc's answer for `machine`; `folder` is empty and its own.

        Raises PlanError when planc refuses a plan, SkippedError when the machine lacks something that it may lack.
        """

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The answer of `machine`, in at most `timeout_s` seconds; `folder` is empty and its own.

        Raises MeasuringError when a process fails.
        """


def key(experiment: Experiment, machine: Machine, version: str) -> str:
    """A name of the question that `experiment` asks of `machine`: 16 hexadecimal digits of a SHA-256 over its inputs,
    the devices and planc's `version`. An answer to another question is not taken for one to this.
    """
    asked = "\n".join((version, machine.name, machine.cluster, experiment.name, experiment.inputs(machine)))
    return hashlib.sha256(asked.encode()).hexdigest()[:16]
