"""Curves of matmuls, memory, attention and collectives, and the hardware file that is fitted to them."""

from __future__ import annotations

from pathlib import Path

from planc.calibration.probes import MeasuredProbe, predicted_s, probes
from planc.diag.fast_dataclass import dataclass
from planc.driver import load
from planc.ir.hardware import Cluster
from planc.ir.probe import Probe
from planc.ir.target import Target
from planc.trainer.measure.coordinator import measure
from tests.lab.experiments.experiment import Facts, Machine


@dataclass(frozen=True, kw_only=True)
class MachineCurves:
    """The probes of `planc calibrate`, each beside the seconds that the bundled hardware file gives it."""

    name: str
    title: str
    target: Target = "cuda"
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    window_s: float = 0.1
    minimum_s: float = 90.0

    def inputs(self, machine: Machine) -> str:
        """The probes of `machine`, their target and window (s)."""
        return repr((self.target, self.window_s, [p.to_json() for p in self._probes(machine)]))

    def _probes(self, machine: Machine) -> list[Probe]:
        return probes(machine.devices, self.dtypes, large=machine.is_accelerator)

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """Seconds of each probe by the bundled hardware file of `machine`; a plan on it is written to `folder`."""
        cluster = _cluster(machine, folder)
        return {"probes": [{**p.to_json(), "s": predicted_s(p, cluster)} for p in self._probes(machine)]}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """Seconds of each probe on `machine`, and the numbers that are fitted to them, in at most `timeout_s` seconds.

        A plan is written to `folder`. Raises MeasuringError when a process fails.
        """
        wanted = self._probes(machine)
        took = measure(self.target, machine.devices, wanted, window_s=self.window_s, timeout_s=timeout_s)
        return {
            "probes": [{**m.probe.to_json(), "s": m.seconds} for m in took.probes],
            "fitted": _fitted(_cluster(machine, folder), took.probes),
        }


def _fitted(cluster: Cluster, measured: tuple[MeasuredProbe, ...]) -> dict[str, float]:
    """The numbers of a hardware file, by name, that these probes give."""
    from planc.calibration.fit_machine import calibrate

    found = calibrate(cluster, measured)
    return {p.name: value for p, value in zip(found.parameters, found.values, strict=True)}


def _cluster(machine: Machine, folder: Path) -> Cluster:
    """The bundled hardware that the machine is declared as."""
    path = folder / "machine.plan"
    mesh = f"mesh dp {machine.devices}\nuse ddp over dp\ncompute fp32\n"
    batch = f"batch {machine.devices} x 16 tokens microbatch 1\n"
    path.write_text(f"plan machine\nmodel llama_micro\n{batch}cluster {machine.cluster}\n{mesh}")
    return load(path).cluster
