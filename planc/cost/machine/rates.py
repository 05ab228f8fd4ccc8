"""Rates of one device: memory bandwidth and matmul throughput, as data sheet times reached efficiency."""

from __future__ import annotations

from planc.ir.hardware import Chip


def memory_bytes_per_s(chip: Chip) -> float:
    """Reached memory bandwidth of one device (bytes/s): the data sheet's, shared by the chip's devices, times its
    efficiency.

    >>> memory_bytes_per_s(h100) / (h100.memory_bandwidth_bytes_per_s * h100.memory_efficiency)
    1.0
    """
    return chip.memory_bandwidth_bytes_per_s / chip.devices * chip.memory_efficiency


def peak_flops_per_s(chip: Chip, dtype: str) -> float:
    """The dense peak of a dtype; a chip without a rate for it computes in the next wider one."""
    order = [dtype, *(["float8"] if dtype == "float4" else []), "bf16", "fp16", "fp32"]
    return next(chip.flops_per_s[d] for d in order if d in chip.flops_per_s)


def dtype_s_per_flop(chip: Chip, dtype: str) -> float:
    return chip.devices / (peak_flops_per_s(chip, dtype) * chip.efficiency(dtype))
