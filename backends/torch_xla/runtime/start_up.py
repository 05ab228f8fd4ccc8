"""Starts a program on torch_xla: environment, devices, initial state. The training loop is the trainer's.

This module imports no framework when it is loaded: torch_xla reads its environment during its import.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from planc.cache import cache_folder

if TYPE_CHECKING:
    from planc.backends.torch_xla.runtime.session import XlaSession
    from planc.ir.program_text import ProgramText
    from planc.ir.session import Initial, Session, Settings


def prepare_environment(devices: int) -> None:
    """Sets the environment variables that torch_xla reads during its import, unless the user has set them.

    Without a TPU, this process gets `devices` virtual CPU devices. Compiled programs are cached in planc's cache
    folder.
    """
    assert "torch_xla" not in sys.modules, "the environment must be set before torch_xla is imported"
    os.environ["XLA_NO_SPECIAL_SCALARS"] = "1"  # otherwise a number that is 0 or 1 in one step compiles another program
    if os.environ.setdefault("PJRT_DEVICE", _platform()) == "CPU":
        os.environ["CPU_NUM_DEVICES"] = str(devices)
    os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", str(cache_folder() / "torch_xla"))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _platform() -> str:
    has_tpu = any(name.startswith(("accel", "vfio")) for name in os.listdir("/dev"))
    return "TPU" if has_tpu else "CPU"


def start(program: ProgramText, settings: Settings, initial: Initial) -> XlaSession:
    """Starts the plan's program over all devices of this host, with parameters from `initial`."""
    assert os.environ.get("WORLD_SIZE", "1") == "1", "one process drives all devices of a host; hosts are not joined"
    from planc.backends.torch_xla.runtime.session import start as begin

    return begin(program, settings, initial)


def start_single(program: ProgramText, settings: Settings, initial: Initial) -> Session:
    """Raises AssertionError: `planc.trainer` refuses `--single` on torch_xla. The reference is `--target cuda
    --single`, with the same module."""
    raise AssertionError("planc.trainer.preset.runtime_limits refuses --single on torch_xla")
