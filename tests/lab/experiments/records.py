"""Records of experiments, a JSON file each in the state folder: written before it is measured, and after."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from planc.files import read_json, write_atomically
from tests.lab.experiments.experiment import Facts

MAX_BYTES = 4_000_000
Status = Literal["predicted", "measured", "refused", "failed", "postponed", "skipped"]


class Record(BaseModel):
    """An experiment's answers. `postponed`: it was begun, and the time was up; `skipped`: the machine lacks something
    that it may lack."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["planc.experiment/1"] = "planc.experiment/1"
    name: str
    title: str
    key: str
    """The question (`experiment.key`)."""
    status: Status
    machine: dict[str, str | int]
    versions: dict[str, str]
    predicted: Facts | None = None
    measured: Facts | None = None
    why: str = ""
    """Reason of a refusal or a failure."""
    seconds: float = 0.0
    """Duration of the measurement (s)."""
    postponed: int = 0
    """How often the time was up before it was done."""

    @property
    def reason(self) -> str:
        """The last line of `why`: of a failed process the error that ended it."""
        return self.why.strip().rpartition("\n")[2][:300]

    @property
    def is_final(self) -> bool:
        return self.status in ("measured", "refused", "failed")

    def write(self, folder: Path) -> None:
        """Write it into the state `folder`, whole or not at all."""
        write_atomically(path_of(folder, self.name), self.model_dump_json(indent=1) + "\n")


def path_of(folder: Path, name: str) -> Path:
    """The file of the experiment `name` in the state `folder`."""
    return folder / f"{name}.json"


def read(folder: Path, name: str, key: str) -> Record | None:
    """The record of the experiment `name` with this `key`; None where there is none, or one of another question."""
    try:
        found = Record.model_validate(read_json(path_of(folder, name), MAX_BYTES))
    except (OSError, ValueError, ValidationError):
        return None
    return found if found.key == key and found.name == name else None
