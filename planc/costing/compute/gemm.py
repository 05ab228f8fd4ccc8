"""Seconds of the matmuls of one microbatch on one device, and which of them run as one.

Source: NVIDIA, Matrix Multiplication Background User's Guide
(https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication), with fitted parameters of each
chip (`docs/measured/accuracy.md`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf, prod

from planc.costing.compute.flops import cache_of, local_dim, update_products
from planc.costing.compute.quantize import casts_s, product_dtype, quantized, s_per_flop
from planc.costing.compute.shapes import Gemm
from planc.costing.machine.op_tables import table_s
from planc.costing.machine.rates import memory_bytes_per_s, peak_flops_per_s
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import ROUTED, Op
from planc.ir.op_tables import OpTable, table_of
from planc.ir.plan import Plan
from planc.ir.sharding import OpSharding, Sharded


@cached_on(lambda sharded, o: (sharded.plan.cache, (o.op.name, o.op.output)))
def gemm_of(sharded: Sharded, o: OpSharding) -> Gemm:
    """Return the forward matmul of op `o` of `sharded` on one device: [m, k] x [k, n], for each of `groups` experts.

    >>> gemm_of(sharded, ops["ffn.gate"])
    Gemm(m=8192, n=3584, k=8192, groups=1)
    """
    model = sharded.model
    taken = model.tensor[o.op.inputs[0]].dims
    made = model.tensor[o.op.output].dims
    weight = tuple(dict.fromkeys(d for p in o.op.weights for d in model.param[p].dims))
    sizes = {d: local_dim(sharded, o, d) for d in dict.fromkeys((*taken, *weight))}
    return Gemm(
        m=prod(sizes[d] for d in taken if d not in weight),
        n=prod(sizes[d] for d in weight if d not in taken),
        k=prod(sizes[d] for d in weight if d in taken and d not in made),
        groups=prod(sizes[d] for d in weight if d in taken and d in made),
    )


def gemm_s(
    gemm: Gemm, chip: Chip, s_per_flop: float, element_bytes: float, at_once: float = inf, dtype: str = ""
) -> float:
    """Return the seconds of one matmul: the longer of arithmetic and memory traffic, plus a launch. If the hardware
    file has a table of measured rates, it is used instead.

    The prologue and epilogue of a tile take as long as `matmul_depth` more steps of the contraction, partly hidden by
    other tiles: at most half of the time. The last wave of tiles leaves `matmul_tail` of the cores' time unused
    (NVIDIA, "Matrix Multiplication Background User's Guide": tile and wave quantization).

    Args:
        gemm: the matmul.
        chip: the device: its memory bandwidth, cores, launch time and the two fitted parameters above.
        s_per_flop: seconds per FLOP at the achieved rate.
        element_bytes: bytes of an element of the inputs and the output.
        at_once: number of groups that run concurrently, if each group is its own kernel.
        dtype: the dtype that selects the table; "" uses no table, and neither do several groups.

    >>> f"{gemm_s(Gemm(8192, 8192, 8192), h100, 1 / 989e12, 2) * 1e3:.2f} ms"  # 1.1 PFLOP
    '1.11 ms'
    """
    table = product_table(gemm, chip, dtype)
    if table is None:
        return _curve_s(gemm, chip, s_per_flop, element_bytes, at_once)
    return table_s(
        table,
        (gemm.m, gemm.n, gemm.k),
        work=lambda sizes: Gemm(*sizes).flops,
        curve_s=lambda sizes: _curve_s(Gemm(*sizes), chip, s_per_flop, element_bytes, at_once),
        units_per_s=peak_flops_per_s(chip, dtype) / chip.devices,
    )


def product_table(gemm: Gemm, chip: Chip, dtype: str) -> OpTable | None:
    """Return the table of measured rates of `chip` for the matmul `gemm` in `dtype`. None if there is none.

    >>> product_table(Gemm(8192, 8192, 8192), h100, "bf16") is None  # no file has one
    True
    """
    if not chip.tables or gemm.groups != 1 or dtype not in chip.flops_per_s:
        return None
    return table_of(chip.tables, "matmul", dtype)


def _curve_s(gemm: Gemm, chip: Chip, s_per_flop: float, element_bytes: float, at_once: float) -> float:
    """Return the seconds of one matmul by the formula, without a table of measured rates."""
    depth = 1 + chip.matmul_depth / (chip.matmul_depth + gemm.k)
    tail = 1.0
    if chip.matmul_tail:
        tiles = min(gemm.groups, at_once) * ceil(gemm.m / TILE_ROWS) * ceil(gemm.n / TILE_COLUMNS)
        tail += chip.matmul_tail * max(1, chip.cores) / tiles
    arithmetic = gemm.flops * s_per_flop * depth * tail
    traffic = gemm.elements * element_bytes / memory_bytes_per_s(chip)
    return max(arithmetic, traffic) + chip.launch_s


TILE_ROWS, TILE_COLUMNS = 128, 256
"""Output tile of a matmul that one core computes; typical of large matmuls."""


def fused_of(sharded: Sharded, o: OpSharding) -> tuple[Gemm, float]:
    """Return the fused matmul that op `o` of `sharded` is part of, and the op's share of its columns.

    Matmuls of one module with the same input run as one with concatenated columns: query, key and value; gate and up
    (Megatron-Core's `linear_qkv` and `linear_fc1`). They have one launch, one wave of tiles and one cast of the input.

    >>> fused_of(sharded, ops["ffn.gate"])
    (Gemm(m=8192, n=7168, k=8192, groups=1), 0.5)
    """
    return _fused_products(sharded)[o.op.name, o.op.output]


@cached_on(lambda sharded: (sharded.plan.cache, ()))
def _fused_products(sharded: Sharded) -> dict[tuple[str, str], tuple[Gemm, float]]:
    """Return the result of `fused_of` for all matmuls, by the names of op and output."""
    found = {}
    for ops in sharded.ops.values():
        for parts in _fused_groups(sharded, [o for o in ops if o.op.kind == "matmul"]):
            columns = sum(gemm.n for _, gemm in parts)
            for op, gemm in parts:
                whole = Gemm(gemm.m, columns, gemm.k, gemm.groups)
                found[op.name, op.output] = whole, gemm.n / columns if columns else 1.0
    return found


def _fused_groups(sharded: Sharded, matmuls: list[OpSharding]) -> Iterable[list[tuple[Op, Gemm]]]:
    """Return `matmuls` in groups that run as one: same input, module, dtype and number of rows."""
    groups: dict[object, list[tuple[Op, Gemm]]] = {}
    for o in matmuls:
        gemm = gemm_of(sharded, o)
        same = (o.op.inputs, _parent(o.op), id(quantized(sharded.plan, o.op)), gemm.m, gemm.k, gemm.groups)
        groups.setdefault(same, []).append((o.op, gemm))
    return groups.values()


def _parent(op: Op) -> str:
    return op.module.rpartition(".")[0]


def matmul_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Return the bytes of inputs and output of matmul op `o` of `sharded` on one device for one microbatch. An op in a
    fused matmul has its share of them.

    >>> matmul_bytes(sharded, ops["ffn.gate"]) == 2 * (8192 * 8192 / 2 + 8192 * 3584 + 8192 * 3584)  # and ffn.up
    True
    """
    gemm, share = fused_of(sharded, o)
    return share * gemm.elements * DTYPE_BYTES[sharded.plan.precision.compute]


@cached_on(lambda sharded, o, chip, backward: (cache_of(sharded, chip), (o.op.name, o.op.output, o.op.fixed, backward)))
def products_s(sharded: Sharded, o: OpSharding, chip: Chip, backward: bool) -> tuple[float, ...]:
    """Return the seconds of the matmuls of op `o`: (forward,) or with `backward` (input gradient, weight gradient), 0
    for a gradient that is not needed. The matmuls of a low-rank update are included.

    An op in a fused matmul has its share of the seconds. `sharded` has the local sizes, `chip` the rates.

    >>> [f"{s * 1e3:.2f} ms" for s in products_s(sharded, ops["ffn.gate"], h100, True)]
    ['0.49 ms', '0.49 ms']
    """
    gemm, share = fused_of(sharded, o)
    gemm = _with_shared_tiles(sharded, gemm)
    one = s_per_flop(sharded, o.op, chip)
    size, dtype = DTYPE_BYTES[sharded.plan.precision.compute], product_dtype(sharded.plan, o.op)
    at_once = sharded.stack.policy.expert_streams or inf
    host_s = _started_s(sharded, gemm)
    to_input = Gemm(gemm.m, gemm.k, gemm.n, gemm.groups)
    to_weight = Gemm(gemm.k, gemm.n, gemm.m, gemm.groups)
    if not o.op.fixed:
        products = (to_input, to_weight) if backward else (gemm,)
        return tuple(share * max(gemm_s(g, chip, one, size, at_once, dtype), host_s) for g in products)
    updates = [Gemm(*sides) for sides in update_products(sharded, o)]
    made: tuple[list[tuple[float, Gemm]], list[tuple[float, Gemm]]] = ([(share, gemm)], [])
    if backward:
        goes_on, trained = o.op.inputs[0] not in o.op.fixed, any(p not in o.op.fixed for p in o.op.weights)
        made = [(share, to_input)] * goes_on, [(share, to_weight)] * trained
        made[0].extend((1.0, Gemm(g.m, g.k, g.n)) for g in (updates if goes_on else updates[1:]))
        made[1].extend((1.0, Gemm(g.k, g.n, g.m)) for g in updates)
    else:
        made[0].extend((1.0, g) for g in updates)
    found = tuple(sum(part * gemm_s(g, chip, one, size, at_once, dtype) for part, g in some) for some in made)
    return found if backward else found[:1]


def _started_s(sharded: Sharded, gemm: Gemm) -> float:
    """Return the host's seconds to launch one matmul per expert; 0 if another microbatch overlaps."""
    policy, beside = sharded.stack.policy, gemm.groups == 1 or runs_beside(sharded.plan)
    return 0.0 if beside or not policy.expert_call_s else policy.experts_call_s + gemm.groups * policy.expert_call_s


def started_s(sharded: Sharded, o: OpSharding, *, backward: bool) -> float:
    """Return the host's seconds to launch the matmuls of experts that op `o` of `sharded` is part of, one by one, in
    the forward or the `backward`; 0 for other matmuls.

    >>> started_s(sharded, ops["ffn.gate"], backward=False)
    0.0
    """
    gemm, share = fused_of(sharded, o)
    return share * _started_s(sharded, gemm) * (1 + backward)


def runs_beside(plan: Plan) -> bool:
    """True if `plan` overlaps two microbatches, so that the device has work while the host launches or waits.

    >>> runs_beside(plan)
    False
    """
    return any(o.method == "dual_batch" for o in plan.overlaps)


def _with_shared_tiles(sharded: Sharded, gemm: Gemm) -> Gemm:
    """Return `gemm` with more rows, because both experts compute a tile in which their rows meet (JAX,
    pallas/ops/tpu/megablox/gmm.py: at most `tiles_m + num_groups - 1` tiles)."""
    rows, route = sharded.stack.policy.expert_tile_rows if sharded.stack.xla else 0, sharded.plan.route
    if not rows or gemm.groups == 1 or route is None or route.method != "dropless":
        return gemm
    return Gemm(gemm.m + rows * (1 - 1 / gemm.groups), gemm.n, gemm.k, gemm.groups)


def matmul_op_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """Return the seconds of matmul op `o` of `sharded` for one microbatch on `chip`, forward or `backward`, with the
    casts if it is quantized and the biases of experts.

    >>> f"{matmul_op_s(sharded, ops['ffn.gate'], h100, backward=False) * 1e3:.2f} ms"  # 481 GFLOP
    '0.49 ms'
    """
    seconds = sum(products_s(sharded, o, chip, backward))
    if sharded.plan.quantize:
        seconds += casts_s(sharded, o, gemm_of(sharded, o), fused_of(sharded, o)[1], chip, backward=backward)
    return seconds + _biases_s(sharded, o, chip, backward=backward)


def weights_s(sharded: Sharded, o: OpSharding, chip: Chip) -> float:
    """Return the seconds of the weight gradient's matmul (wgrad) of op `o` of `sharded` on one device (`chip`).

    >>> f"{weights_s(sharded, ops['ffn.gate'], h100) * 1e3:.2f} ms"
    '0.49 ms'
    """
    return products_s(sharded, o, chip, True)[1]


def update_s(sharded: Sharded, o: OpSharding, chip: Chip) -> float:
    """Return the seconds of the first matmul (input by A) of a low-rank update (LoRA) of op `o` of `sharded` on `chip`.

    >>> update_s(sharded, ops["ffn.gate"], h100)  # it has no update
    0.0
    """
    one, size = s_per_flop(sharded, o.op, chip), DTYPE_BYTES[sharded.plan.precision.compute]
    dtype = product_dtype(sharded.plan, o.op)
    return sum((gemm_s(Gemm(*g), chip, one, size, dtype=dtype) for g in update_products(sharded, o)[:1]), 0.0)


BIAS_PASSES = {False: 4, True: 2}
"""Passes over the output of grouped matmuls with biases, forward and backward: each expert's part is read and written
to add its bias, then again to concatenate the parts; in the backward, the gradient is split and summed."""
WEIGHTED_BIAS_BYTES = {False: 28, True: 40}
"""Bytes moved per element if an expert's last bias, times a token's weight, is added in fp32: the product of both is
written (4), added to the output (6 read, 4 written), the parts are concatenated (8) and cast (6). In the backward: the
cast (6), the cast and concatenation of the output's gradient (10), and for the gradients of bias and weight a product
of two (8) and its sum (4) each (Megatron-Core, `TEGroupedMLP._apply_bias`). The first bias is fused into its matmul."""


def _biases_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    if len(o.op.params) == 1 or (gemm := gemm_of(sharded, o)).groups == 1:
        return 0.0
    plan = sharded.plan
    if not sharded.stack.policy.expert_bias_in_fp32:
        each = float(BIAS_PASSES[backward] * DTYPE_BYTES[plan.precision.compute])
    elif sharded.model.tensor[o.op.output].region == ROUTED:
        each = float(WEIGHTED_BIAS_BYTES[backward])
    else:
        return 0.0
    return each * gemm.groups * gemm.m * gemm.n / memory_bytes_per_s(chip) + chip.launch_s
