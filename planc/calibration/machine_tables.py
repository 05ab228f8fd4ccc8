"""Op tables, i.e. measured rates by shape or message size: their microbenchmarks, and their text in hardware files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from planc.calibration.probes import LARGE, STREAMED, MeasuredProbe
from planc.costing.compute.attention import FLASH_BACKWARD
from planc.ir.hardware import Cluster
from planc.ir.op_tables import BY_DTYPE, COLLECTIVES, OpTable, TableOp
from planc.ir.probe import Probe

LENGTHS = (64, 256, 1024)
"""Sizes of m, n and k of a matmul; all combinations are measured."""
ATTENDED = ((2, 8), (2, 8), (64, 256), (32, 64))
"""Sizes of attention: sequences, heads, tokens, head_dim."""


def table_probes(dtypes: Iterable[str], *, large: bool = False) -> list[Probe]:
    """Return the microbenchmarks that only op tables need: matmuls in `dtypes`, and attention forward and backward.

    Those of memory streams and collectives are already in `probes`. `large` selects the sizes for an accelerator.
    """
    more = LARGE if large else 1
    sides = [more * n for n in LENGTHS]
    found = [Probe(kind="matmul", sizes=s, dtype=dtype) for dtype in dtypes for s in product(sides, sides, sides)]
    dtype, (sequences, heads, tokens, widths) = "bf16" if large else "fp32", ATTENDED
    attended = [*product(sequences, [more * h for h in heads], [more * t for t in tokens], widths)]
    found += [Probe(kind="attention", sizes=s, dtype=dtype) for s in attended]
    return found + [Probe(kind="attention_backward", sizes=s, dtype=dtype) for s in attended]


def with_measured_tables(cluster: Cluster, measured: Sequence[MeasuredProbe]) -> Cluster:
    """Return `cluster` with op tables from `measured`: compute for its chip, collectives for its link, or for its
    network if a node has one device. A rate above the chip's peak is set to the peak."""
    points: dict[tuple[TableOp, str, int], dict[tuple[int, ...], float]] = {}
    for m in measured:
        op: TableOp = m.probe.op if m.probe.kind == "collective" else m.probe.kind  # type: ignore[assignment]
        dtype, members = m.probe.dtype if op in BY_DTYPE else "", m.probe.sizes[0] if op in COLLECTIVES else 0
        size, work = _size_and_work(m.probe)
        points.setdefault((op, dtype, members), {})[size] = work / m.seconds
    chip, levels, link = cluster.chip, cluster.levels, cluster.link
    on_level = bool(levels) and cluster.devices_per_node == 1
    way = levels[0].bandwidth_bytes_per_s if on_level else link.bandwidth_bytes_per_s
    of_chip: list[OpTable] = []
    of_way: list[OpTable] = []
    for (op, dtype, members), rates in points.items():
        whole = chip.flops_per_s.get(dtype, 0.0) if dtype else chip.memory_bandwidth_bytes_per_s
        scale = way if op in COLLECTIVES else whole / chip.devices
        shares = {s: rate / scale if op in COLLECTIVES else min(1.0, rate / scale) for s, rate in rates.items()}
        sizes = (*sorted(shares),)
        made = OpTable(op=op, dtype=dtype, members=members, sizes=sizes, shares=tuple(shares[s] for s in sizes))
        (of_way if op in COLLECTIVES else of_chip).append(made)
    cluster = replace(cluster, chip=replace(chip, tables=(*of_chip,)))
    if on_level:
        return replace(cluster, levels=(replace(levels[0], tables=(*of_way,)), *levels[1:]))
    return replace(cluster, link=replace(link, tables=(*of_way,)))


def without_tables(cluster: Cluster) -> Cluster:
    """Return `cluster` without op tables (measured rates by shape or message size). Costs then follow the formulas."""
    levels = tuple(replace(level, tables=()) for level in cluster.levels)
    chip, link = replace(cluster.chip, tables=()), replace(cluster.link, tables=())
    return replace(cluster, chip=chip, link=link, levels=levels)


def _size_and_work(probe: Probe) -> tuple[tuple[int, ...], float]:
    """Return the size of `probe` as in an op table, and its work in FLOPs or bytes."""
    if probe.kind == "collective":
        return probe.sizes[1:], float(probe.sizes[1])
    if probe.kind == "stream":
        return (STREAMED * probe.sizes[0],), float(STREAMED * probe.sizes[0])
    return probe.sizes, probe.scale * (FLASH_BACKWARD if probe.kind == "attention_backward" else 1.0)


def table_sentences(cluster: Cluster) -> Iterator[str]:
    """Yield each op table of `cluster` as a `measured ...` sentence of a hardware file."""
    chip, link = cluster.chip, cluster.link
    owners: list[tuple[str, tuple[OpTable, ...], float]] = [
        (link.name, link.tables, link.bandwidth_bytes_per_s),
        *((level.name, level.tables, level.bandwidth_bytes_per_s) for level in cluster.levels),
    ]
    for table in chip.tables:
        whole = chip.flops_per_s[table.dtype] if table.dtype else chip.memory_bandwidth_bytes_per_s
        yield _sentence(chip.name, table, whole / chip.devices)
    for name, tables, scale in owners:
        yield from (_sentence(name, table, scale) for table in tables)


def _sentence(owner: str, table: OpTable, scale: float) -> str:
    unit = "GFLOP/s" if table.op in BY_DTYPE else "GB/s"
    points = [
        f"{_size(table.op, size)} at {_number(share * scale / 1e9)} {unit}"
        for size, share in zip(table.sizes, table.shares, strict=True)
    ]
    over, dtype = f" over {table.members}" if table.members else "", f" in {table.dtype}" if table.dtype else ""
    return f"measured {table.op}{over} of {owner}{dtype} ({', '.join(points)})"


def _size(op: TableOp, size: tuple[int, ...]) -> str:
    if op in BY_DTYPE:
        return "x".join(map(str, size))
    return f"{size[0] // 1024} KiB" if size[0] % 1024 == 0 else f"{size[0]} B"


def _number(value: float) -> str:
    from decimal import Decimal

    return f"{Decimal(f'{value:.4g}'):f}"
