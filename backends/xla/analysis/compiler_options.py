"""Chooses the options of the TPU compiler that a program passes to `jax.jit`: one table, by chip and kind of model.

Sources: MaxText 0.2.5 (`benchmarks/xla_flags_library.py`; `trainers/diloco/scripts` for the SparseCores) and the TPU
recipes for 7x (`training/ironwood`). The figures beside the rows were read from compiled steps of llama3_8b over 64 of
v5p and 256 of v6e, and llama3_70b over 256 of v5p: by libtpu 0.0.48.1 (jax 0.11.2) where 0.0.42.1 is not named.

Not here: continuation fusion of collectives (`xla_tpu_enable_async_collective_fusion_fuse_*`, in most of MaxText's
configs), which libtpu from 0.0.44 refuses on every chip but v5e, as it may compute wrong results; options for v4 and
v5e, on which nothing was compiled with them; and 7x, which uses its SparseCores without being told.
"""

from __future__ import annotations

from collections.abc import Callable

from planc.diag.fast_dataclass import dataclass
from planc.ir.sharding import Sharded
from planc.ir.version import Version

SPARSE_CORE = "xla_tpu_enable_sparse_core_collective_offload_"
WITH_SPARSE_CORES = ("v5p", "v6e")
"""Chips whose compiler moves collectives to the SparseCores only if an option says so."""
OLD_SCATTERS = (0, 10)
"""The last JAX whose libtpu (0.0.42) looks for reduce-scatters on the outermost dim alone."""


@dataclass(frozen=True)
class OptionRow:
    """Options of the programs for some chips. `note` is their comment in the program."""

    chips: tuple[str, ...]
    """() for every chip."""
    options: dict[str, bool | int]
    note: str
    wanted: Callable[[Sharded], bool] = lambda sharded: True
    last: Version | None = None
    """The last version of JAX that needs them; None: all do."""


def dense(sharded: Sharded) -> bool:
    """True if the model has no experts."""
    return not sharded.plan.model.top_k


def one_sequence_in_parts(sharded: Sharded) -> bool:
    """True if a rank has one sequence at a time, and its rows between matmuls are divided over other ranks."""
    plan = sharded.plan
    divided = any(s.dim == "sequence" and s.region for s in plan.shards)
    return divided and plan.batch.microbatch_sequences == 1


TABLE = (
    # llama3_70b sends 107 GB less over tp than with windowed einsum; 11.43 s for 11.62, the other rows set.
    OptionRow(
        chips=(),
        options={"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1000000},
        note="No windowed einsum: it makes permutes inside matmul loops out of gathers, which send more.",
    ),
    # v5p (0.0.42.1 too): no byte of 63.2 GB was asynchronous, then 93 % of 46.4 GB; v6e: none of 64.0, 94 % of 58.3 GB.
    OptionRow(
        chips=WITH_SPARSE_CORES,
        options={
            f"{SPARSE_CORE}{name}": True
            for name in ("all_gather", "2d_all_gather", "3d_all_gather", "reduce_scatter", "nd_reduce_scatter")
        },
        note="Gathers and reduce-scatters on the SparseCores, beside matmuls; 2d, 3d, nd: over several dims of "
        "the torus. Without nd, gradients over a whole torus are all-reduced.",
    ),
    # 13 to 18 % fewer estimated cycles of dense models, up to 2 % of those with experts.
    OptionRow(
        chips=WITH_SPARSE_CORES,
        options={"xla_tpu_scoped_vmem_limit_kib": 98304},
        note="Scratch memory of a fusion: larger tiles. MaxText's limit for dense models.",
        wanted=dense,
    ),
    OptionRow(
        chips=WITH_SPARSE_CORES,
        options={"xla_tpu_scoped_vmem_limit_kib": 81920},
        note="Scratch memory of a fusion: larger tiles. MaxText's limit for models with experts.",
        wanted=lambda sharded: not dense(sharded),
    ),
    # llama3_70b, 0.0.42.1: sums over tp of 322.9 GB, all-reduced, are 161.5 GB. 0.0.48.1 needs it not.
    OptionRow(
        chips=WITH_SPARSE_CORES,
        options={"xla_tpu_use_minor_sharding_for_major_trivial_input": True},
        note="Sums along the sequence are reduce-scattered with one sequence per rank too.",
        wanted=one_sequence_in_parts,
        last=OLD_SCATTERS,
    ),
)


def option_rows(sharded: Sharded, jax: Version) -> tuple[OptionRow, ...]:
    """Return the rows of the table for the chip and the model of `sharded`; () without TPUs."""
    cluster = sharded.plan.cluster
    if not cluster.has_tpus:
        return ()
    mine = (row for row in TABLE if not row.chips or cluster.chip.name in row.chips)
    return tuple(row for row in mine if (row.last is None or jax <= row.last) and row.wanted(sharded))


def compiler_options(sharded: Sharded, jax: Version) -> dict[str, bool | int]:
    """Return the options that the program of `sharded` for a version of `jax` passes to the TPU compiler."""
    return {name: value for row in option_rows(sharded, jax) for name, value in row.options.items()}


def scatters_by_sparse_cores(sharded: Sharded) -> bool:
    """True if the program moves reduce-scatters to the SparseCores. Other frameworks' runs have options of their own,
    which a plan does not say."""
    cluster = sharded.plan.cluster
    return sharded.stack.own and cluster.has_tpus and cluster.chip.name in WITH_SPARSE_CORES


def scatters_one_sequence(sharded: Sharded) -> bool:
    """True if an option makes a reduce-scatter along the sequence of a sum with one sequence per rank."""
    return scatters_by_sparse_cores(sharded) and one_sequence_in_parts(sharded)
