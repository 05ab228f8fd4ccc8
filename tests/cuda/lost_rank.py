"""Run by every rank: trains a layout in which the last rank stops answering at the third step."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.runtime.start_up import prepare_environment, start
from planc.checks import check_plan
from planc.ir.session import CollectiveError, Settings
from planc.lowering import lower_plan
from planc.trainer.run.launch import leave
from tests.cuda.cases import case
from tests.cuda.worker import LR, STEPS, initial
from tests.seeded import batches

PATIENCE_S = 60.0


def main(name: str, folder: Path) -> None:
    """Ranks that stop leave a file in `folder`; the lost one sleeps until all others have."""
    torch.set_num_threads(1)
    prepare_environment(1)
    plan = case(name)
    session = start(lower_plan(check_plan(plan), "cuda"), Settings(), initial)
    for number, (tokens, targets) in enumerate(batches(plan, STEPS), start=1):
        if number == 3 and session.rank == session.world - 1:
            print("STOPS", flush=True)
            limit = time.monotonic() + PATIENCE_S
            while len(list(folder.iterdir())) < session.world - 1 and time.monotonic() < limit:
                time.sleep(0.1)
            leave(0)
        try:
            session.step(tokens, targets, LR)
        except RuntimeError as error:
            print("SAID", error, flush=True)
            for ask in (lambda: list(session.parameters()), lambda: session.any(True)):
                try:
                    ask()
                except CollectiveError as second:
                    print("ALSO", second, flush=True)
            (folder / str(session.rank)).touch()
            os._exit(0)  # a launcher that ended the others here would hide what they say


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    leave(0)
