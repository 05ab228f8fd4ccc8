"""The parameters that are fitted to published runs: prior and bounds of each.

`prior` is a parameter's value without data, `spread` the standard deviation of the prior's logarithm, chosen so that no
publisher alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from planc.calibration.parameters import (
    AMPERE,
    BLACKWELL,
    GPUS,
    HOPPER,
    TPUS,
    ULTRA,
    Parameter,
)  # fmt: skip
from planc.ir.hardware import Cluster

OF_BEST = "measured best shape (public ml-engineering notes), of which an H100's large ones keep 0.917 (0.65 of 0.709)"
KERNEL = "FlashAttention-2 forward, causal, heads of 128 (Dao 2023)"
TE_A100 = "Transformer Engine's of training on an A100 PCIe, 77 % (SimuMax 1.2), by the best shapes of both"
TE_B200 = "Transformer Engine's of training on a B200, one after the other (SimuMax 1.2)"
AT_500_W = "8192 x 8192 x 8192 and twice larger at 500 W (pytorch/FBGEMM, pull request 2546), by the power's cube root"
BY_BEST = "a B200's, by their measured best shapes (public ml-engineering notes)"
DEFAULT = "the language's default"


def _matmul(name: str, chips: tuple[str, ...], prior: float, why: str, spread: float = 0.04) -> Parameter:
    return Parameter(name=f"matmul {name}", field="matmul_efficiency", chips=chips, prior=prior, why=why, spread=spread)


def _narrow_efficiency(name: str, dtype: str, chips: tuple[str, ...], prior: float, why: str = OF_BEST) -> Parameter:
    return Parameter(name=f"{dtype} {name}", field=f"{dtype}_efficiency", chips=chips, prior=prior, why=why)


def _attention(name: str, chips: tuple[str, ...], prior: float, why: str = KERNEL) -> Parameter:
    return Parameter(name=f"attention {name}", field="attention_efficiency", chips=chips, prior=prior, why=why)


def _memory(name: str, chips: tuple[str, ...], prior: float, why: str = DEFAULT) -> Parameter:
    return Parameter(
        name=f"memory_efficiency {name}",
        field="memory_efficiency",
        chips=chips,
        prior=prior,
        low=0.5,
        high=0.95,
        why=why,
    )


def _shared_parameter(
    field: str, chips: tuple[str, ...], prior: float, unit: str, low: float, high: float
) -> Parameter:
    kind = "GPUs" if chips == GPUS else "TPUs"
    return Parameter(
        name=f"{field} {kind}", field=field, chips=chips, prior=prior, unit=unit, low=low, high=high, why=SHARED[field]
    )


SHARED = {
    "memory_efficiency": "achieved share of the data sheet's rate, streaming",
    "launch": "gap between two kernels of one stream",
    "dispatch": "the framework's Python and C++ for one op of the graph",
    "matmul_depth": "prologue and epilogue of a tile, in steps of the contraction",
    "matmul_tail": "half a wave at most, less what smaller tiles and split contractions win back",
    "contention": "cores and memory bandwidth that transfers take from compute",
    "step": "data, logging and the host's waiting once a step",
}

PARAMETERS: tuple[Parameter, ...] = (
    _matmul("A100", AMPERE, 0.828, TE_A100, 0.06),
    _matmul("H100", HOPPER, 0.69, AT_500_W, 0.03),
    _matmul("B200", ("b200",), 0.50, TE_B200, 0.03),
    _matmul("B300", ("b300",), 0.507, BY_BEST, 0.05),
    _matmul("GB200 and GB300", ("gb200", "gb300"), 0.47, BY_BEST, 0.05),
    Parameter(
        name="torch_2_1_speed H100", field="torch_2_1_speed", chips=HOPPER, prior=1.0, unit="times", low=0.5, high=2.0,
        why="cuBLAS 12.1 was the first for Hopper; llm-foundry alone",
    ),
    _narrow_efficiency("H100", "float8", HOPPER, 0.65, AT_500_W),
    _narrow_efficiency("B200", "float8", ("b200", "b300"), 0.69),
    _narrow_efficiency("GB200", "float8", ("gb200",), 0.66),
    _narrow_efficiency("GB300", "float8", ("gb300",), 0.66),
    _narrow_efficiency("GB200", "float4", BLACKWELL, 0.47, DEFAULT),
    _narrow_efficiency("GB300", "float4", ULTRA, 0.48, DEFAULT),
    _attention("A100", AMPERE, 0.60),
    _attention("H100", HOPPER, 0.37),
    _attention("B200", BLACKWELL, 0.265, "cuDNN's of 4,096 tokens (SimuMax 1.2), by its speed"),
    _attention("B300", ULTRA, 0.32, "twice the exponentials of a B200 (NVIDIA, Blackwell Ultra)"),
    _memory("A100", AMPERE, 0.85),
    _memory("H100", HOPPER, 0.85),
    _memory("B200 and later", (*BLACKWELL, *ULTRA), 0.67, "elementwise kernels on a B200 (SimuMax 1.2)"),
    _shared_parameter("launch", GPUS, 4e-6, "s", 1e-6, 10e-6),
    _shared_parameter("dispatch", GPUS, 85e-6, "s", 5e-6, 300e-6),
    _shared_parameter("matmul_depth", GPUS, 250.0, "steps", 32.0, 1024.0),
    _shared_parameter("matmul_tail", GPUS, 0.2, "share of a wave", 0.05, 0.9),
    Parameter(
        name="contention GPUs", field="contention", chips=GPUS, prior=0.2, low=0.02, high=0.8, spread=0.3,
        why="20 of 132 multiprocessors (DeepSeek-V3, section 3.2.2) and some memory bandwidth",
    ),
    _shared_parameter("step", GPUS, 8e-3, "s", 1e-3, 50e-3),
    _matmul("TPU v4", ("v4",), 0.8, DEFAULT, 0.15),
    _matmul("TPU v5e", ("v5e",), 0.8, DEFAULT, 0.15),
    _matmul("TPU v5p", ("v5p",), 0.8, DEFAULT, 0.15),
    _matmul("TPU v6e", ("v6e",), 0.8, DEFAULT, 0.15),
    _matmul("TPU 7x", ("tpu7x",), 0.8, DEFAULT, 0.15),
    _narrow_efficiency("TPU 7x", "float8", ("tpu7x",), 0.8, DEFAULT),
    _attention("TPU", TPUS, 0.26, "splash attention, causal"),
    _shared_parameter("memory_efficiency", TPUS, 0.85, "share", 0.5, 0.95),
    _shared_parameter("matmul_depth", TPUS, 120.0, "steps", 32.0, 1024.0),
    _shared_parameter("contention", TPUS, 0.27, "share", 0.02, 0.8),
    _shared_parameter("step", TPUS, 10e-3, "s", 1e-3, 50e-3),
    Parameter(
        name="half_size NVLink 3", field="half_size", chips=AMPERE, place="link", unit="B", prior=3 * 2.0**20,
        low=2.0**18, high=2.0**26, why="a message that runs at half the rate",
    ),
    Parameter(
        name="half_size NVLink 4", field="half_size", chips=HOPPER, place="link", unit="B", prior=8 * 2.0**20,
        low=2.0**18, high=2.0**26, why="a message that runs at half the rate",
    ),
    Parameter(
        name="half_size network", field="half_size", chips=GPUS, place="network", unit="B", prior=1.5 * 2**20,
        low=2.0**18, high=2.0**26, why="a message that runs at half the rate",
    ),
)  # fmt: skip


def with_values(cluster: Cluster, values: Sequence[float]) -> Cluster:
    """`cluster` with every parameter at its value; `values` are in the order of `PARAMETERS`."""
    for parameter, value in zip(PARAMETERS, values, strict=True):
        cluster = parameter.put(cluster, value)
    return cluster
