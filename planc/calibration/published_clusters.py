"""Clusters of published runs as plan sentences, with the differences from the catalog that a row states."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from planc.calibration.rows import Row
from planc.ir.hardware import Cluster

NODES = {
    "A100-40": "a100_40_node",
    "A100-80": "a100_node",
    "H100 SXM": "h100_node",
    "H200 SXM": "h200_node",
    "H800": "h800_node",
    "B200": "b200_node",
    "B200 (power limited)": "b200_node",
    "B300": "b300_node",
    "GB200 NVL72": "gb200_nvl72",
    "GB300 NVL72": "gb300_nvl72",
}
TORI = {"TPU v4": "tpu_v4", "TPU v5e": "tpu_v5e", "TPU v5p": "tpu_v5p", "TPU v6e": "tpu_v6e", "TPU 7x": "tpu_7x"}
FLAT = ("tpu_v5e", "tpu_v6e")
"""Tori of two dimensions."""
TWO_DEVICES = ("TPU 7x",)
"""Chips that are two framework devices."""
RACK = 64
"""GPUs of a rack of 72 that a job of whole eights uses."""


def cluster_words(row: Row) -> str:
    """The machines of a `cluster` sentence for `row`. GPUs come in whole nodes, in part of one, or in racks of 64."""
    if row.chip in TORI:
        torus = TORI[row.chip]
        slices = int(row.facts["hardware"].get("slices") or row.facts["parallel"].get("dcn_dp") or 1)
        shape = "x".join(map(str, slice_shape(row.devices // slices, 2 if torus in FLAT else 3)))
        return f"{slices} x {torus}({shape})" if slices > 1 else f"{torus}({shape})"
    node = NODES[row.chip]
    whole = RACK if row.chip.endswith("NVL72") else 8
    if row.devices <= whole:
        return f"1 x {node}({row.devices})"
    used = f"({whole})" if whole == RACK else ""
    return f"{row.devices // whole} x {node}{used}"


def slice_shape(chips: int, dims: int) -> tuple[int, ...]:
    """The most even torus of `chips` (a power of two) in `dims` dimensions: number of chips along each, shortest
    first."""
    power = chips.bit_length() - 1
    assert 2**power == chips
    each = [power // dims + (i >= dims - power % dims) for i in range(dims)]
    shape = tuple(2**n for n in each)
    assert prod(shape) == chips
    return shape


def machine(row: Row, cluster: Cluster) -> Cluster:
    """`cluster`, from the hardware files, with what `row` says of its own machines: memory, power, network."""
    detail = f"{row.facts['hardware'].get('detail', '')} {row.facts.get('notes', '')}"
    chip, levels = cluster.chip, cluster.levels
    if "2.4 TB/s" in detail:
        chip = replace(chip, memory_bandwidth_bytes_per_s=2.4e12, memory_bytes=96 * 2.0**30)
    if row.publisher == "pytorch/torchtitan" and row.devices > ONE_NODE:
        chip = replace(chip, runtime_fraction=FIXED_SEGMENTS)
    for words, share in POWER.items():
        if words in detail:
            slower = share ** (1 / 3)
            chip = replace(chip, flops_per_s={dtype: slower * rate for dtype, rate in chip.flops_per_s.items()})
    for words, bandwidth in NETWORKS.items():
        if words in detail:
            levels = tuple(replace(v, bandwidth_bytes_per_s=bandwidth) for v in levels)
    return replace(cluster, chip=chip, levels=levels)


ONE_NODE = 8
FIXED_SEGMENTS = 0.1
"""Share beyond the tensors' bytes that torch's allocator reserves when its segments cannot grow. torchtitan lets them
grow (`expandable_segments`) in the script for one node, and not in those for several: its run_train.sh and
multinode_trainer.slurm; the runs on H200 print their command."""
POWER = {"500 W cap": 500 / 700}
"""Power caps as a share of the data sheet's power. Dynamic power is C V^2 f and voltage follows the clock, so the clock
goes with the cube root of the power."""
NETWORKS = {"inter-node 800 Gb/s per node": 100e9, "1600 Gb/s node-to-node": 200e9, "4x200 Gb/s": 100e9}
"""Bytes per second out of a node, as rows print it."""
