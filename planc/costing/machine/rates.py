"""Rates of one device: memory bandwidth and matmul throughput, as the data sheet's value times an efficiency.

Efficiencies are fitted to published runs (`docs/measured/accuracy.md`). Peaks and bandwidths come from the data sheets
cited in `plans/hardware`.
"""

from __future__ import annotations

from planc.ir.hardware import Chip, Library


def memory_bytes_per_s(chip: Chip) -> float:
    """Return the memory bandwidth (bytes/s) of one device of `chip`: its share of the data sheet's, times efficiency.

    >>> f"{memory_bytes_per_s(h100) / 1e12} TB/s"
    '3.35 TB/s'
    """
    return chip.memory_bandwidth_bytes_per_s / chip.devices * chip.memory_efficiency


def rated_dtype(chip: Chip, dtype: str) -> str:
    """Return the dtype at whose rate `chip` runs `dtype`: `dtype` itself, or the next wider dtype that it supports. A
    chip without bf16 runs it as fp32, and one without tf32 too.

    >>> rated_dtype(h100, "bf16"), rated_dtype(h100, "float4")  # no float4 units
    ('bf16', 'float8')
    """
    wider = {"float4": ("float8", "bf16", "fp16"), "bf16": ("fp32", "fp16"), "tf32": ("fp32", "bf16", "fp16")}
    order = (dtype, *wider.get(dtype, ("bf16", "fp16")), "fp32")
    return next(d for d in order if d in chip.flops_per_s)


def peak_flops_per_s(chip: Chip, dtype: str) -> float:
    """Return the dense peak (FLOP/s) of the whole `chip` in `dtype`, or in the dtype that replaces it (`rated_dtype`).

    >>> peak_flops_per_s(h100, "bf16"), peak_flops_per_s(h100, "float4")
    (989000000000000.0, 1979000000000000.0)
    """
    return chip.flops_per_s[rated_dtype(chip, dtype)]


def dtype_s_per_flop(chip: Chip, dtype: str, library: Library = "torch") -> float:
    """Return the seconds per FLOP on one device of `chip` in `dtype` by the matmuls of `library`: 1 / (peak times
    matmul efficiency).

    >>> f"{1 / dtype_s_per_flop(h100, 'bf16') / 1e12:.0f} TFLOP/s"
    '989 TFLOP/s'
    """
    return chip.devices / (peak_flops_per_s(chip, dtype) * chip.efficiency(dtype, library))
