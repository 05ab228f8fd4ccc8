"""Sets timeouts of collectives, and reports a failed collective with its mesh axis and the ranks that do not respond.

torch reports that a peer closed its connection or did not respond, but names neither the collective nor the peer. The
collective is read from torch's flight recorder. To find the missing ranks, all ranks write a key to the store.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout

from planc.ir.session import CollectiveError

VARIABLE = "PLANC_TIMEOUT_S"
TIMEOUT_S = 600.0
ANSWER_S = 3.0
"""Time that the remaining ranks have to check in (s)."""
_c10d: Any = _distributed_c10d
"""torch's type stubs lack its flight recorder functions."""
GLOO = ("gloo/", "Timed out waiting", "Connection closed by peer", "caused pair closure", "Pair is not connected")
"""Texts in gloo's errors, which have no type of their own."""


def prepare() -> None:
    """Enables the flight recorder; call it before torch creates a process group."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "64")


def timeout() -> timedelta:
    """Returns the timeout of a collective: PLANC_TIMEOUT_S seconds, 600 by default."""
    return timedelta(seconds=float(os.environ.get(VARIABLE, TIMEOUT_S)))


def limit(meshes: tuple[Any, ...]) -> None:
    """Sets the timeout on all process groups of `meshes`, because torch creates groups with its own default."""
    for mesh in meshes:
        for name in mesh.mesh_dim_names:
            _set_pg_timeout(timeout(), mesh.get_group(name))


@contextmanager
def collectives_named(meshes: tuple[Any, ...]) -> Iterator[None]:
    """A context in which a failed collective raises CollectiveError with the collective, its axis in `meshes`, and the
    missing ranks."""
    try:
        yield
    except Exception as error:
        if not _of_collective(error):
            raise
        raise CollectiveError(
            f"rank {dist.get_rank()}: {_last(meshes)} failed; {_missing()} ({_first_line(error)})"
        ) from error


@contextmanager
def joining() -> Iterator[None]:
    """A context in which all processes initialise torch.distributed. Raises CollectiveError if they cannot connect."""
    try:
        yield
    except Exception as error:
        if not _of_collective(error):
            raise
        rank = os.environ.get("RANK", "0")
        raise CollectiveError(f"rank {rank}: the processes did not find each other ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    """Returns the first line of a torch error, without the advice that torch adds."""
    return next(iter(str(error).strip().splitlines()), "no reason given").partition(" This is typically caused by")[0]


def _of_collective(error: Exception) -> bool:
    causes: list[BaseException] = [error]
    while (before := causes[-1].__cause__) is not None:
        causes.append(before)
    return any(isinstance(e, dist.DistError) or any(word in str(e) for word in GLOO) for e in causes)


def _last(meshes: tuple[Any, ...]) -> str:
    """Returns a text for the last collective that this rank started, such as `all_gather over fsdp (ranks 0, 2)`."""
    entries = json.loads(_c10d._dump_fr_trace_json()).get("entries", [])
    if not entries:
        return "a collective"
    last = entries[-1]
    kind = str(last["profiling_name"]).partition(":")[2].split(" ")[0]
    groups = ((name, mesh.get_group(name)) for mesh in meshes for name in mesh.mesh_dim_names)
    over = next((g for g in groups if g[1].group_name == last["process_group"][0]), None)
    if over is None:
        return f"{kind} over all ranks"
    return f"{kind} over {over[0]} (ranks {', '.join(map(str, dist.get_process_group_ranks(over[1])))})"


def _missing() -> str:
    """Returns a message with the ranks that did not write their key to the store. If the store does not respond, this
    is rank 0, which hosts it."""
    world = range(dist.get_world_size())
    try:
        store = _get_default_store()
        store.set(f"planc/left/{dist.get_rank()}", "1")
        until = time.monotonic() + ANSWER_S
        missing = [r for r in world if not store.check([f"planc/left/{r}"])]
        while missing and time.monotonic() < until:
            time.sleep(0.1)
            missing = [r for r in missing if not store.check([f"planc/left/{r}"])]
        if dist.get_rank() == 0:
            time.sleep(ANSWER_S)  # it hosts the store that the others still use
    except (RuntimeError, dist.DistError):
        return "rank 0 does not answer"
    if not missing:
        return "all ranks are still there"
    return f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} did not answer"
