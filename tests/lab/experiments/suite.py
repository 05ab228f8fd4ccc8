"""The experiments, in the order of what they are worth: what is cut for want of time is at the end."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from planc.driver import cost
from tests.lab.experiments.beside_hand_written import BesideHandWritten
from tests.lab.experiments.data_loading import DataLoading
from tests.lab.experiments.experiment import Experiment, Machine, plan_text
from tests.lab.experiments.faults import KilledInSave, StoppedRank
from tests.lab.experiments.layouts_ranked import LayoutsRanked
from tests.lab.experiments.machine_curves import MachineCurves
from tests.lab.experiments.overlap import Overlap
from tests.lab.experiments.ranks_agree import RanksAgree
from tests.lab.experiments.save_stall import SaveStall
from tests.lab.experiments.stacks_agree import StacksAgree
from tests.lab.experiments.training_steps import TrainingSteps

FSDP = ("mesh fsdp {devices}", "use fsdp over fsdp")
BF16, FLASH, COMPILED = "compute bf16 reduce fp32", "attention.core as flash", "compile blocks as inductor"
FLOAT8 = "quantize ffn, attention as float8({recipe}) except layers 0"
SMALL = "llama3_8b(layers = 16, embed = 2048, heads = 32, head_dim = 64, ffn = 8192)"
"""About 1.5 billion parameters."""
HALF = SMALL.replace("layers = 16", "layers = 4")
"""About 0.7 billion, 0.5 of them in the embedding and the output."""
SAVED = "llama_tiny(layers = 12, embed = 1024, heads = 16, kv_heads = 8, ffn = 4096)"
"""About 0.2 billion: a checkpoint of 2 GB."""
LARGE = "llama3_8b(layers = {layers})"
LAYERS = range(1, 33)
FITTING, BEYOND = 0.95, 1.1
"""Shares of a device's memory: a plan that takes no more than the first must run, one that takes more than the second
must not. Between them an error of 5 % of the prediction decides. An H100 of 80 GiB gives torch 79.1, of which its
context takes half a GiB: the 1.5 GiB that planc counts for the runtime are both."""


def experiments(machine: Machine) -> tuple[Experiment, ...]:
    """Those for `machine`. Without an accelerator the same questions are asked of small models: no figure of theirs
    says anything about an accelerator, but every experiment can be run from end to end."""
    return tuple(_of_accelerator(machine) if machine.is_accelerator else _of_cpu(machine))


def _of_accelerator(machine: Machine) -> Iterator[Experiment]:
    batch, half = (f"{8 * machine.devices} x 4096 tokens microbatch {n}" for n in (4, 2))

    def small(name: str, title: str, *sentences: str, batch: str = batch) -> TrainingSteps:
        plan = (*FSDP, BF16, FLASH, *sentences)
        return TrainingSteps(name=name, title=title, model=SMALL, batch=batch, sentences=plan)

    yield small("small", "1.5 B, compiled, nothing recomputed", COMPILED)
    yield BesideHandWritten(
        name="by_hand", title="0.7 B, beside the same written by hand with torch", model=HALF,
        batch=f"{8 * machine.devices} x 4096 tokens microbatch 2", sentences=(*FSDP, BF16, FLASH, COMPILED),
        minimum_s=150.0,
    )  # fmt: skip
    yield BesideHandWritten(
        name="torchtitan", title="0.7 B, beside torchtitan", model=HALF, other="torchtitan",
        batch=f"{8 * machine.devices} x 4096 tokens microbatch 2", sentences=(*FSDP, BF16, FLASH, COMPILED),
        minimum_s=150.0,
    )  # fmt: skip
    if machine.devices > 1:
        yield from _of_several(machine, SMALL, (BF16, FLASH))
    yield from _slices(machine)
    yield MachineCurves(name="curves", title="matmul, memory and attention by size")
    yield small("small_eager", "1.5 B, not compiled")
    yield small("small_blocks", "1.5 B, blocks recomputed", COMPILED, "recompute blocks")
    yield small("small_attention", "1.5 B, attention recomputed", "recompute attention.core")
    yield small("small_keep_attention", "1.5 B, all but attention recomputed", "recompute blocks except attention.core")
    yield small("small_half", "1.5 B, half the microbatch", COMPILED, batch=half)
    for recipe in ("rowwise", "tensorwise"):
        yield small(f"float8_{recipe}", f"1.5 B, float8 {recipe}", COMPILED, FLOAT8.replace("{recipe}", recipe))
    yield TrainingSteps(
        name="small_xla", title="1.5 B, JAX", model=SMALL, batch=batch, target="xla",
        sentences=(*FSDP, BF16, "recompute blocks"), minimum_s=120.0,
    )  # fmt: skip
    yield StacksAgree(
        name="agreement", title="torch and JAX in bf16, 20 steps", model="llama_tiny",
        batch=f"{8 * machine.devices} x 128 tokens microbatch 4", sentences=(*FSDP, BF16),
    )  # fmt: skip
    yield from _ranks(machine, "llama_tiny(embed = 512, ffn = 1376)", ((BF16, FLASH), ()))
    yield TrainingSteps(
        name="long", title="0.7 B, 32,768 tokens a sequence", model=HALF,
        batch=f"{2 * machine.devices} x 32768 tokens microbatch 1",
        sentences=(*FSDP, BF16, FLASH, COMPILED, "recompute blocks"),
    )  # fmt: skip
    for name, model in (("mixtral", "mixtral_8x7b(layers = 2)"), ("qwen3_moe", "qwen3_30b_a3b(layers = 4)")):
        yield TrainingSteps(
            name=name, title=f"experts: {model}", model=model, batch=half,
            sentences=(*FSDP, BF16, FLASH, "recompute blocks"),
        )  # fmt: skip
    yield small("offload", "1.5 B, params and optimizer on the host", "offload params, optimizer to host")
    yield SaveStall(name="saves", title="what training waits for a checkpoint", model=SAVED, runs=3)
    yield from _faults("llama_tiny(embed = 512, ffn = 1376)")
    yield DataLoading(
        name="data", title="tokens that a loader gives, and that 1.5 B take", model=SMALL, batch=batch,
        sentences=(*FSDP, BF16, FLASH, COMPILED),
    )  # fmt: skip
    yield small("muon", "1.5 B, Muon", "optimizer muon")


def _of_cpu(machine: Machine) -> Iterator[Experiment]:
    batch, half = (f"{8 * machine.devices} x 64 tokens microbatch {n}" for n in (4, 2))

    def tiny(name: str, title: str, *sentences: str, batch: str = batch) -> TrainingSteps:
        return TrainingSteps(
            name=name, title=title, model="llama_tiny", batch=batch, sentences=(*FSDP, *sentences),
            steps=3, minimum_s=20.0,
        )  # fmt: skip

    yield tiny("small", "3 M, nothing recomputed")
    yield BesideHandWritten(
        name="by_hand", title="3 M, beside the same written by hand with torch", model="llama_tiny", batch=batch,
        sentences=FSDP, pairs=10, minimum_s=40.0,
    )  # fmt: skip
    yield BesideHandWritten(
        name="torchtitan", title="3 M, beside torchtitan", model="llama_tiny", other="torchtitan", batch=batch,
        sentences=FSDP, pairs=10, minimum_s=40.0,
    )  # fmt: skip
    yield from _of_several(machine, "llama_tiny", ())
    yield MachineCurves(name="curves", title="matmul, memory and attention by size", window_s=0.01, minimum_s=60.0)
    yield tiny("small_blocks", "3 M, blocks recomputed", "recompute blocks")
    yield tiny("small_attention", "3 M, attention recomputed", "recompute attention.core")
    yield tiny("small_keep_attention", "3 M, all but attention recomputed", "recompute blocks except attention.core")
    yield tiny("small_half", "3 M, half the microbatch", batch=half)
    yield TrainingSteps(
        name="small_xla", title="3 M, JAX", model="llama_tiny", batch=batch, target="xla", sentences=FSDP,
        steps=3, minimum_s=30.0,
    )  # fmt: skip
    yield StacksAgree(
        name="agreement", title="torch and JAX in bf16, 5 steps", model="llama_tiny",
        batch=f"{4 * machine.devices} x 128 tokens microbatch 2", sentences=(*FSDP, BF16), steps=5, minimum_s=60.0,
    )  # fmt: skip
    yield from _ranks(machine, "llama_micro", ((), (BF16,)))
    yield tiny(
        "long", "3 M, 512 tokens a sequence", "recompute blocks", batch=f"{machine.devices} x 512 tokens microbatch 1"
    )
    for name, model in (("mixtral", "mixtral_micro"), ("qwen3_moe", "qwen3_moe_micro")):
        yield TrainingSteps(
            name=name, title=f"experts: {model}", model=model, batch=half, sentences=FSDP, steps=3, minimum_s=20.0
        )
    yield tiny("offload", "3 M, params and optimizer on the host", "offload params, optimizer to host")
    yield SaveStall(name="saves", title="what training waits for a checkpoint", model="llama_tiny", runs=2)
    yield from _faults("llama_micro(vocab = 256)")
    yield DataLoading(
        name="data", title="tokens that a loader gives, and that 3 M take", model="llama_tiny", batch=batch,
        sentences=FSDP, batches=5,
    )  # fmt: skip
    yield tiny("muon", "3 M, Muon", "optimizer muon")


def _ranks(machine: Machine, model: str, precisions: tuple[tuple[str, ...], ...]) -> Iterator[RanksAgree]:
    """One layout of each kind over several ranks: of their own devices where there are two, else all on one."""
    shared = machine.devices == 1 or not machine.is_accelerator
    ranks = 2 if shared else machine.devices - machine.devices % 2
    where = "on one device" if shared else "on devices of their own"
    layouts = {
        "fsdp": ("mesh fsdp {devices}", "use fsdp over fsdp"),
        "tp": ("mesh tp 2", "use tp over tp", "use sp over tp"),
        "pp": ("mesh pp 2", "split layers over pp as 1f1b"),
    }
    if ranks > 2:
        around = f"fsdp {ranks // 2}"
        layouts["tp"] = (f"mesh {around} > tp 2", "use fsdp over fsdp", "use tp over tp", "use sp over tp")
        layouts["pp"] = (f"mesh pp 2 > {around}", "use fsdp over fsdp", "split layers over pp as 1f1b")
    for name, sentences in layouts.items():
        yield RanksAgree(
            name=f"ranks_{name}", title=f"{name} over {ranks} ranks {where}, beside one process", model=model,
            batch=f"{4 * ranks} x 64 tokens microbatch 2", sentences=sentences, precisions=precisions, ranks=ranks,
            shared=shared,
        )  # fmt: skip
    if machine.is_accelerator and shared:
        yield RanksAgree(
            name="ranks_nccl", title="one rank with NCCL, beside plain torch", model=model,
            batch="8 x 64 tokens microbatch 2", sentences=layouts["fsdp"], precisions=precisions, ranks=1, shared=False,
        )  # fmt: skip


def _of_several(machine: Machine, model: str, more: tuple[str, ...]) -> Iterator[Experiment]:
    """Questions that one device cannot answer."""
    tokens = 4096 if machine.is_accelerator else 64
    batch = f"{8 * machine.devices} x {tokens} tokens microbatch 2"
    yield Overlap(
        name="overlap", title="communication that nothing covers, and the calls of NCCL", model=model, batch=batch,
        sentences=(*FSDP, *more),
    )  # fmt: skip
    yield LayoutsRanked(
        name="ranked", title="the first five layouts of a search", model=model,
        batch=f"{8 * machine.devices} x {tokens} tokens microbatch ?",
        sentences=("mesh fsdp ? > tp ?", "use ? over fsdp", "use tp over tp", "use sp over tp", "recompute ?", *more),
    )  # fmt: skip


def _faults(model: str) -> Iterator[Experiment]:
    yield KilledInSave(name="killed", title="killed while it saves, and taken up again", model=model)
    yield StoppedRank(name="hang", title="a rank that stops", model=model)


def _slices(machine: Machine) -> Iterator[TrainingSteps]:
    """The most layers of Llama 3 8B that planc says fit, which must run, and the fewest that are well beyond the
    device's memory, which must not."""
    fitting, beyond = slice_sizes(machine)
    for name, layers, what in (("large", fitting, "the most that fit"), ("too_large", beyond, "which do not fit")):
        if layers:
            yield TrainingSteps(
                name=name,
                title=f"{layers} layers of 8B, {what}",
                model=LARGE.format(layers=layers),
                batch=_large_batch(machine),
                sentences=_LARGE_PLAN,
            )


_LARGE_PLAN = (*FSDP, BF16, FLASH, "recompute blocks", COMPILED)


def _large_batch(machine: Machine) -> str:
    return f"{8 * machine.devices} x 4096 tokens microbatch 1"


def slice_sizes(machine: Machine) -> tuple[int, int]:
    """Layers of Llama 3 8B: the most whose program takes no more than FITTING of a device of `machine`, and the fewest
    that take more than BEYOND of it. 0 where there is no such number."""

    def smaller(share: float) -> int:
        """Number of slices that take no more than this share; as many layers has the largest of them."""
        return bisect_right(LAYERS, share, key=lambda layers: _memory_share(machine, layers))

    fitting, within = smaller(FITTING), smaller(BEYOND)
    return fitting, within + 1 if within < len(LAYERS) else 0


def _memory_share(machine: Machine, layers: int) -> float:
    """The share of a device's memory that a slice of so many layers takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slice.plan"
        path.write_text(plan_text("slice", LARGE.format(layers=layers), _large_batch(machine), _LARGE_PLAN, machine))
        memory = cost(path, target="cuda").memory
    assert memory is not None
    return memory.per_device_gib.total / memory.capacity_gib
