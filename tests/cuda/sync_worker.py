"""Syncs pairs of layouts, and loads what the trainer saved: each pair's ranks are forks of this process, which holds
their store.

`sync_worker.py NAME...` prints a row for each pair, `sync_worker.py --kills COUNT SEED` one for each sync in which a
rank is killed at a drawn moment, `sync_worker.py --drawn COUNT SEED` one for each drawn pair.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.analysis.fsdp_shard_dim import state_layout
from planc.backends.cuda.emit.sync import emit_sync
from planc.backends.cuda.runtime.start_up import start
from planc.checks import check_plan
from planc.ir.collective import DTYPE_BYTES
from planc.ir.session import Settings
from planc.lowering import lower_plan
from planc.sharding.transfers import WeightTransfer, transfer
from tests.plans import propagated
from tests.random_plans.forks import DIE_WITH_PARENT
from tests.seeded import initial
from tests.sharding.masks import local_indices
from tests.sync_cases import KILLED, Arrays, Served, readers_of, serve_of, served_tensors, trained_tensors
from tests.sync_draws import drawn
from tests.trainer.matrix import checkpoint, save

OLD = 0.5
"""The value of the generator's tensors before: no weight is this number in any dtype."""
Tensors = dict[str, torch.Tensor]


class Both:
    """Both sides of a pair: the module that planc writes, and what it must do."""

    def __init__(self, name: str, serve: Served | None = None) -> None:
        self.name, self.serve = name, serve or serve_of(name)
        trainer, generator = propagated(self.serve.trainer), propagated(self.serve.layout)
        self.module = ModuleType("emitted")
        text = emit_sync(
            trainer,
            generator,
            colocated=self.serve.colocated,
            dtype=self.serve.dtype,
            block=self.serve.block,
        )
        exec(compile(text, f"{name}.py", "exec"), self.module.__dict__)
        self.module.BUCKET_BYTES = 2**14  # type: ignore[attr-defined]  # several buckets of so small a model
        self.predicted: WeightTransfer = transfer(
            trainer, generator, state_layout(trainer), colocated=self.serve.colocated, wire_bytes=self.wire_bytes
        )
        self.sides = self.predicted.sides
        self.ranks = self.sides[1].first + self.sides[1].devices

    def wire_bytes(self, move: Any) -> float:
        if self.serve.dtype != "float8":
            return DTYPE_BYTES[self.serve.dtype]
        return 1 if self.serve.narrows(move.param) else DTYPE_BYTES[self.serve.layout.precision.compute]


def tensors_of(arrays: Arrays) -> Tensors:
    """Arrays as tensors of the same bytes."""
    return {
        name: torch.from_numpy(np.ascontiguousarray(a).view(np.uint8)).view(getattr(torch, a.dtype.name))
        for name, a in arrays.items()
    }


def parts(both: Both, side: int, rank: int, whole: Tensors) -> Tensors:
    """The tensors of one rank of a side, sliced from the whole ones by index masks."""
    found: Tensors = {}
    number = rank - both.sides[side].first
    if number not in range(both.sides[side].devices):
        return found
    for moved in both.module.TRANSFERS:
        held = (moved.source, moved.target)[side]
        indices = local_indices(held, number)
        if indices is None:
            continue
        for layer in moved.layers:
            name = moved.name.replace("*", str(layer))
            found[name] = whole[name][np.ix_(*indices)].clone()
            if f"{name}_scale_inv" in whole:
                scales = whole[f"{name}_scale_inv"]
                block = both.serve.block
                rows, columns = (np.unique(i // block if block else i * 0) for i in indices[-2:])
                found[f"{name}_scale_inv"] = scales[np.ix_(*indices[:-2], rows, columns)].clone()
    return found


def trained(both: Both, rank: int, folder: Path) -> Tensors:
    """The parameters of the trainer's rank. Of its program, which saves a checkpoint too, if that is on all ranks;
    else sliced by masks."""
    if not both.serve.colocated:
        return parts(both, 0, rank, tensors_of(trained_tensors(both.serve.trainer.model)))
    return saved(both, folder)


def saved(both: Both, folder: Path) -> Tensors:
    """The parameters of this rank of the trainer's program, after all its ranks have saved them in `folder`."""
    program = lower_plan(check_plan(both.serve.trainer), "cuda", version="installed")
    session = start(program, Settings(), initial)
    save(session, both.serve.trainer, "cuda", folder)
    return {name: p for module in session._modules for name, p in module.named_parameters()}


def engine_of(both: Both, weights: Tensors) -> Tensors:
    """Parameters of an engine that hold copies of a rank's weights, those that it fuses one after the other."""
    theirs: dict[str, list[torch.Tensor]] = {}
    for name, tensor in weights.items():
        layer = name.split(".")[1]
        ours = name.replace(f".{layer}.", ".*.", 1) if name.startswith("layers.") else name
        fused = both.module.NAMES[ours.removesuffix("_scale_inv")][1].replace("*", layer)
        theirs.setdefault(fused + ("_scale_inv" if name.endswith("_scale_inv") else ""), []).append(tensor)
    return {name: torch.cat(held, max(0, held[0].ndim - 2)) for name, held in theirs.items()}


def loaded(both: Both, rank: int, folder: Path, expected: Tensors) -> dict[str, Any]:
    """Load the trainer's checkpoint as this rank, into the parameters of an engine where they have names there: which
    tensors are wrong, the bytes read, and those of its parts."""
    _, side = both.sides
    group = None if both.serve.colocated else dist.new_group(range(side.first, both.ranks))
    if not expected:
        return {"wrong": [], "read": 0, "needed": 0}
    generator, readers = blank(expected), readers_of(both.module)
    if hasattr(both.module, "engine_views"):
        generator = both.module.engine_views(engine_of(both, generator), rank - side.first)
    both.module.load(checkpoint(folder), generator, group)
    needed = sum(4 * t.numel() for name, t in expected.items() if not name.endswith("_scale_inv"))
    wrong = [n for n in expected if not alike({n: generator[n]}, expected)]
    return {"wrong": wrong, "read": readers[0].read_bytes, "needed": needed}


class Counted:
    """Counts bytes and pieces that a rank really hands to the network."""

    def __init__(self, module: ModuleType) -> None:
        self.sent: dict[int, int] = {}
        self.pieces = 0
        packed, made = module.Exchange.packed, module.Exchange.op

        def count_pieces(transfer: Any, messages: Any) -> torch.Tensor:
            self.pieces += len(messages)
            return packed(transfer, messages)

        def count_bytes(transfer: Any, function: Any, buffer: torch.Tensor, peer: int) -> dist.P2POp:
            if function is dist.isend:
                self.sent[peer] = self.sent.get(peer, 0) + buffer.numel()
            found: dist.P2POp = made(transfer, function, buffer, peer)
            return found

        module.Exchange.packed = count_pieces
        module.Exchange.op = count_bytes


def forks(count: int, port: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of `work` on each rank: None of a rank that was killed, the error of one that failed."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(count):
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                try:
                    store = dist.TCPStore("localhost", port, is_master=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
                    prefix = dist.PrefixStore(os.path.basename(folder), store)  # type: ignore[attr-defined]
                    dist.init_process_group(
                        "gloo", store=prefix, rank=rank, world_size=count, timeout=timedelta(seconds=60)
                    )
                    found = work(rank)
                except BaseException:
                    found = traceback.format_exc()
                Path(folder, str(rank)).write_text(json.dumps(found))
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        files = [Path(folder, str(rank)) for rank in range(count)]
        return [json.loads(f.read_text()) if f.exists() else None for f in files]


def store_port() -> int:
    """The port of a store in a process of its own: this one forks, and so has no threads."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        os.write(writer, str(store.port).encode())
        signal.pause()
    return int(os.read(reader, 16))


def blank(expected: Tensors) -> Tensors:
    return {name: torch.full(t.shape, OLD).to(t.dtype) for name, t in expected.items()}


def synced(name: str, port: int) -> dict[str, Any]:
    """Sync a pair, load its checkpoint, and compare what the generator has, what was sent, and what was predicted."""
    both = Both(name)
    whole = tensors_of(served_tensors(both.serve))
    with tempfile.TemporaryDirectory() as folder:
        if not both.serve.colocated:
            kept = forks(both.sides[0].devices, port, lambda _: len(saved(both, Path(folder))))
            assert all(isinstance(tensors, int) for tensors in kept), kept
        return _synced(both, whole, Path(folder), port)


def _synced(both: Both, whole: Tensors, folder: Path, port: int) -> dict[str, Any]:
    name = both.name

    def work(rank: int) -> Any:
        expected = parts(both, 1, rank, whole)
        generator, trainer = blank(expected), trained(both, rank, folder)
        counted = Counted(both.module)
        both.module.sync(trainer, generator, 1)
        wrong = [n for n in expected if not alike({n: generator[n]}, expected)]
        load = loaded(both, rank, folder, expected)
        with suppress(RuntimeError):  # a rank that has left already needs nothing any more
            dist.barrier()
        return {"wrong": wrong, "tensors": len(expected), "sent": counted.sent, "pieces": counted.pieces, "load": load}

    ranks = forks(both.ranks, port, work)
    if any(not isinstance(r, dict) for r in ranks):
        return {"name": name, "failed": [r for r in ranks if not isinstance(r, dict)]}
    sent = [sum(r["sent"].values()) for r in ranks]
    loads = [both.predicted.loads.get(rank) for rank in range(both.ranks)]
    return {
        "name": name,
        "ranks": both.ranks,
        "tensors": sum(r["tensors"] for r in ranks),
        "wrong": sorted({n for r in ranks for n in r["wrong"]}),
        "load_wrong": sorted({n for r in ranks for n in r["load"]["wrong"]}),
        "read": [r["load"]["read"] for r in ranks],
        "needed": [r["load"]["needed"] for r in ranks],
        "predicted_read": both.predicted.load_bytes,
        "sent": sent,
        "predicted": [round(load.near_out + load.far_out) if load else 0 for load in loads],
        "pieces": sum(r["pieces"] for r in ranks),
        "predicted_pieces": both.predicted.pieces,
        "deepest": both.predicted.deepest,
        "bytes": round(both.predicted.sent_bytes),
    }


def drawn_synced(count: int, seed: int, port: int) -> int:
    """Sync so many drawn pairs on one set of eight ranks, a group of them a pair; print a row for each, and return how
    many were wrong. The trainer's shards are cut by masks."""
    pairs = [Both((serve := drawn(n)).name, serve) for n in range(seed, seed + count)]

    def work(rank: int) -> Any:
        return [sync_in_group(both, rank, number) for number, both in enumerate(pairs)]

    ranks, failed = forks(8, port, work), 0
    if any(not isinstance(r, list) for r in ranks):
        print(*(r for r in ranks if not isinstance(r, list)), sep="\n")
        return count
    for number, both in enumerate(pairs):
        rows = [r[number] for r in ranks[: both.ranks]]
        loads = [both.predicted.loads.get(rank) for rank in range(both.ranks)]
        row = {
            "name": both.name,
            "wrong": sorted({n for r in rows for n in r["wrong"]}),
            "sent": [r["sent"] for r in rows],
            "predicted": [round(load.near_out + load.far_out) if load else 0 for load in loads],
            "pieces": [sum(r["pieces"] for r in rows), both.predicted.pieces],
        }
        failed += bool(row["wrong"] or row["sent"] != row["predicted"] or len({*row["pieces"]}) > 1)
        print("ROW", json.dumps(row), flush=True)
    print(f"{count} drawn pairs synced, {failed} wrong")
    return failed


def sync_in_group(both: Both, rank: int, number: int) -> dict[str, Any] | None:
    """Sync a pair on its ranks, the first of all; None on the others."""
    group = dist.new_group(range(both.ranks))
    if rank >= both.ranks:
        return None
    expected = parts(both, 1, rank, tensors_of(served_tensors(both.serve)))
    trainer = parts(both, 0, rank, tensors_of(trained_tensors(both.serve.trainer.model)))
    generator, counted = blank(expected), Counted(both.module)
    both.module.sync(trainer, generator, number, group)
    dist.destroy_process_group(group)
    wrong = [n for n in expected if not alike({n: generator[n]}, expected)]
    return {"wrong": wrong, "sent": sum(counted.sent.values()), "pieces": counted.pieces}


def kill_at(module: ModuleType, moment: int) -> list[int]:
    """Let this process end at the `moment`-th of the events of a sync (0: never); return their count."""
    seen = [0]

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            seen[0] += 1
            if seen[0] == moment:
                os._exit(9)
            found = function(*arguments, **named)
            seen[0] += 1
            if seen[0] == moment:
                os._exit(9)
            return found

        return call

    for owner, name in ((module.Exchange, "own"), (module.Exchange, "packed"), (module.Exchange, "room")):
        setattr(owner, name, watched(getattr(owner, name)))
    dist.all_reduce = watched(dist.all_reduce)
    dist.batch_isend_irecv = watched(dist.batch_isend_irecv)
    dist.Store.compare_set = watched(dist.Store.compare_set)  # type: ignore[attr-defined,method-assign]
    return seen


def killed(name: str, victim: int, share: float, port: int) -> dict[str, Any]:
    """Sync a pair while rank `victim` is killed after this share of its events; what the other ranks have then."""
    both = Both(name)
    whole, wide = tensors_of(served_tensors(both.serve)), tensors_of(trained_tensors(both.serve.trainer.model))

    def work(rank: int, moment: int = 0) -> Any:
        expected, generator, trainer = parts(both, 1, rank, whole), {}, parts(both, 0, rank, wide)
        before = blank(expected)
        generator = {n: t.clone() for n, t in before.items()}
        seen = kill_at(both.module, moment)
        with suppress(RuntimeError):
            both.module.sync(trainer, generator, 1)
        has = [word for word, t in (("old", before), ("new", expected)) if alike(generator, t)]
        return {"has": ("none" if not generator else (has or ["mixed"])[0]), "events": seen[0]}

    def to_the_end(rank: int) -> Any:
        found = work(rank)
        with suppress(RuntimeError):  # a rank that has left already needs nothing any more
            dist.barrier()
        return found

    events = forks(both.ranks, port, to_the_end)[victim]["events"]
    moment = 1 + int(share * events)
    ranks = forks(both.ranks, port, lambda rank: work(rank, moment if rank == victim else 0))
    living = [r["has"] if isinstance(r, dict) else r for i, r in enumerate(ranks) if i != victim]
    return {
        "name": f"kill-{name}-{victim}-{share:.3f}",
        "moment": moment,
        "events": events,
        "died": ranks[victim] is None,
        "ranks": living,
    }


def alike(one: Tensors, other: Tensors) -> bool:
    return all(torch.equal(t.view(torch.uint8), other[name].view(torch.uint8)) for name, t in one.items())


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    port = store_port()
    if arguments[0] == "--kills":
        draw = Random(int(arguments[2]))
        for _ in range(int(arguments[1])):
            name = draw.choice(KILLED)
            victim = draw.randrange(Both(name).ranks)
            print("ROW", json.dumps(killed(name, victim, draw.random(), port)), flush=True)
        return
    if arguments[0] == "--drawn":
        sys.exit(drawn_synced(int(arguments[1]), int(arguments[2]), port) > 0)
    for name in arguments:
        print("ROW", json.dumps(synced(name, port)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
