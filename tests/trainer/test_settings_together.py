"""Settings of a preset and of the command line in every combination: what a run would be, and that it is so."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planc
from planc.cli import main
from planc.diag import PlanError
from planc.trainer.checkpoint import directory as folders
from planc.trainer.checkpoint.resume import NEWEST
from planc.trainer.preset.embed import embed
from planc.trainer.receipt.receipt import read_receipt
from planc.trainer.run import launch, worker
from planc.trainer.run.train import Prepared, prepare
from tests.trainer.moving import MovingRuntime
from tests.trainer.stand_in import lowering_to

PLAN = """plan together
model     llama_micro
batch     8 x 16 tokens microbatch 2
cluster   4 x cpu_local
mesh      dp 4
use       ddp over dp
compute   fp32
"""
PRESET = """[train]
steps = 5
lr = 1e-2
eval_batches = 0
[data]
source = "tokens"
path = "tokens.bin"
held_out = 0.1
[checkpoint]
folder = "{folder}"
every_steps = {every_steps}
elastic = "dp"
"""
STEPS, FEWER = 5, 4


@dataclass(frozen=True)
class Case:
    """`folder` and `every_steps` are the preset's, the others of the command line; 3 devices cannot be."""

    folder: str
    every_steps: int
    checkpoint: str
    devices: int | None
    steps: int | None
    resume: bool

    @property
    def used(self) -> str:
        """The folder that is saved in."""
        return self.checkpoint or self.folder

    @property
    def code(self) -> str:
        """The finding that refuses it."""
        if self.every_steps and not self.used:
            return "E1015"
        if self.devices == 3:
            return "E1033"
        return "E1015" if self.resume and not self.used else ""


CASES = [Case(*c) for c in product(("", "kept"), (0, 2), ("", "given"), (None, 2, 3), (None, FEWER), (False, True))]


@pytest.fixture(scope="module")
def presets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a preset for each folder and number of steps between saves."""
    root = tmp_path_factory.mktemp("together")
    np.random.default_rng(1).integers(0, 134, 4000).astype("uint16").tofile(root / "tokens.bin")
    (root / "p.plan").write_text(PLAN)
    for folder, every_steps in product(("", "kept"), (0, 2)):
        preset = root / f"{folder}{every_steps}.toml"
        preset.write_text(PRESET.format(folder=folder, every_steps=every_steps))
        embed(planc.load(root / "p.plan"), root / "p.plan", preset)
    (root / "p.plan").unlink()
    return root


def preset_of(root: Path, case: Case) -> Path:
    return root / f"{case.folder}{case.every_steps}.toml"


def prepared(root: Path, case: Case) -> Prepared:
    where = root / case.checkpoint if case.checkpoint else None
    resume = NEWEST if case.resume else None
    path = preset_of(root, case)
    return prepare(path, "cuda", steps=case.steps, checkpoint=where, devices=case.devices, resume=resume)


def test_a_run_that_is_prepared_is_the_one_that_was_asked_for(presets: Path) -> None:
    """All combinations, nothing started and nothing written."""
    before = sorted(presets.iterdir())
    for case in CASES:
        if case.code:
            with pytest.raises(PlanError) as raised:
                prepared(presets, case)
            assert raised.value.diagnostics[0].code == case.code, case
            continue
        ready = prepared(presets, case)
        assert ready.steps == (case.steps or STEPS)
        assert ready.processes == ready.preset.plan.mesh.devices == (case.devices or 4)
        assert ready.preset.checkpoints == (presets / case.used if case.used else None)
        assert ready.start is None
        assert ("N1028" in {note.code for note in ready.notes}) == case.resume
    assert sorted(presets.iterdir()) == before


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A launch is one worker of numpy in this process."""

    def run(argv: Sequence[str], _processes: int, **_options: Any) -> launch.Finished:
        return launch.Finished(worker.main([*argv[argv.index("planc.trainer.run.worker") + 1 :]]), ("",))

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(worker, "lower_plan", lowering_to(MovingRuntime()))
    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr("planc.trainer.run.dry_run.dry_run", lambda _plan, _target: (None, "not traced here"))
    yield
    signal.signal(signal.SIGTERM, before)


RUNS = [
    # folder, every_steps, --checkpoint, --devices, --steps, --resume; --receipt and --dry-run
    (Case("", 0, "", None, None, False), True, False),
    (Case("", 2, "given", 2, FEWER, False), True, False),
    (Case("kept", 0, "given", None, FEWER, True), False, False),
    (Case("kept", 2, "", 2, None, True), True, False),
    (Case("kept", 2, "given", 2, None, False), False, False),
    (Case("", 0, "given", 2, None, True), True, False),
    (Case("", 2, "given", 2, FEWER, True), True, True),
    (Case("kept", 2, "", None, None, False), False, True),
]
"""Every two of the settings meet in one of these."""
QUICK = (1, 6)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("case", "receipt", "dry"),
    [pytest.param(*r, marks=() if n in QUICK else pytest.mark.long) for n, r in enumerate(RUNS)],
)
def test_a_run_is_the_one_that_was_asked_for(
    case: Case, receipt: bool, dry: bool, presets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (preset_of(presets, case), presets / "tokens.bin"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.chdir(tmp_path)
    words = ["train", str(tmp_path / preset_of(presets, case).name), "--target", "cuda"]
    words += ["--checkpoint", str(tmp_path / case.checkpoint)] if case.checkpoint else []
    words += ["--devices", str(case.devices)] if case.devices else []
    words += ["--receipt", str(tmp_path / "r.json")] if receipt else []
    words += ["--dry-run"] if dry else []
    more = [*(["--steps", str(case.steps)] if case.steps else []), *(["--resume"] if case.resume else [])]
    assert main([*words, *more]) == (1 if dry else 0)  # the stand-in for the dry run traces nothing
    assert (tmp_path / "r.json").exists() == (receipt and not dry)
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} - {"runs"} == ({case.used} - {""} if not dry else set())
    if dry:
        return
    last = case.steps or STEPS
    if receipt:
        found = read_receipt(tmp_path / "r.json")
        assert len(found.losses) == last and found.mesh == {"dp": case.devices or 4}
    if case.used:
        expected = sorted({*range(case.every_steps, last, case.every_steps or last), last} - {0})
        assert [k.step for k in folders.stored_checkpoints(tmp_path / case.used)] == expected
        assert main([*words, "--resume"]) == 0
        assert folders.stored_checkpoints(tmp_path / case.used)[-1].step == STEPS
