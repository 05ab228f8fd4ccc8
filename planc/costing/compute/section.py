"""Seconds of one layer, of the embedding or of the head (sections of the model), for one microbatch on one device.

Formulas are described in `docs/reference/cost-model.md`, under "Compute"; launch times are fitted
(`docs/measured/accuracy.md`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planc.costing.compute.attention import attention_s, attention_table
from planc.costing.compute.flops import backward_of_code, cache_of, op_by_op, op_bytes, op_flops
from planc.costing.compute.gemm import (
    fused_of,
    matmul_op_s,
    product_table,
    runs_beside,
    started_s,
    update_s,
    weights_s,
)
from planc.costing.compute.quantize import product_dtype, quantized
from planc.costing.compute.scan import scan_s
from planc.costing.machine.op_tables import table_s
from planc.costing.machine.rates import dtype_s_per_flop, memory_bytes_per_s
from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import EXPERTS, Section
from planc.ir.op_tables import table_of
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import tensor_bytes
from planc.sharding.recompute import replay
from planc.sharding.redistribute import restrict


@dataclass(frozen=True, slots=True)
class SectionTime:
    """Seconds of one layer, or of the embedding or head, for one microbatch."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0
    weight_s: float = 0.0
    """The part of `backward_s` that only the weights' gradients take: half of a matmul's, and of its launch."""


def section_time(sharded: Sharded, section: Section, chip: Chip) -> SectionTime:
    """Return the seconds of `section` (one layer of a kind, or the embedding or head) of `sharded` for one microbatch
    on one device (`chip`): forward, backward and recompute.

    >>> time = section_time(sharded, "block", h100)
    >>> [f"{s * 1e3:.1f} ms" for s in (time.forward_s, time.backward_s, time.recompute_s, time.weight_s)]
    ['2.0 ms', '4.1 ms', '0.2 ms', '1.8 ms']
    """
    plan, forward = sharded.plan, ops_s(sharded, section, chip)
    rerun = dispatched_s(*_rerun(sharded, section, chip, forward), chip)
    return replace(_once_each(sharded, section, chip), recompute_s=rerun / plan.recompute.every)


def _rerun(sharded: Sharded, section: Section, chip: Chip, forward: dict[str, float]) -> tuple[list[float], float]:
    """Return the seconds of each op (or first matmul of a low-rank update) recomputed in the backward of `section`, and
    those of the host for them."""
    if section not in sharded.model.blocks:
        return [], 0.0
    again = replay(sharded.plan, section)
    updates = [update_s(sharded, o, chip) for o in sharded.ops[section] if o.op.name in again.updates]
    launched_s = launches_s(sharded, section, chip, only=again.ops) + len(updates) * chip.dispatch_s
    return [*(forward[name] for name in again.ops), *updates], launched_s


@cached_on(
    lambda sharded, section, chip: (cache_of(sharded, chip), (section, _launch_wait_s(sharded), op_by_op(sharded)))
)
def _once_each(sharded: Sharded, section: Section, chip: Chip) -> SectionTime:
    """Return the seconds of a section's forward and backward, without recompute."""
    launched_s = launches_s(sharded, section, chip, backward=True)
    backward_s = dispatched_s(ops_s(sharded, section, chip, backward=True).values(), launched_s, chip)
    return SectionTime(
        forward_s=dispatched_s(ops_s(sharded, section, chip).values(), launches_s(sharded, section, chip), chip),
        backward_s=backward_s,
        weight_s=_weight_s(sharded, section, chip, backward_s, launched_s),
    )


def _weight_s(sharded: Sharded, section: Section, chip: Chip, backward_s: float, launched_s: float) -> float:
    """Return the part of `backward_s` for weight gradients (wgrad). It and the rest both take at least the host's time
    for their launches (`launched_s` together), so that neither gets longer when kernels get shorter."""
    kernels = [weights_s(sharded, o, chip) for o in sharded.ops[section] if o.op.kind == "matmul"]
    host_s = chip.dispatch_s * sum(s > 0 for s in kernels) / 2
    if chip.hosts_itself:
        return sum(kernels) + host_s
    return min(max(sum(kernels), host_s), backward_s - (launched_s - host_s))


def host_s(sharded: Sharded, section: Section, chip: Chip) -> tuple[float, float]:
    """Return the seconds in which the device waits for the host to launch ops, for one layer or end of the model
    (`section`) of `sharded` and one microbatch: (in forward and backward, in recompute).

    `chip.dispatch_s` is the host's time to launch one op.

    >>> host_s(sharded, "block", h100)  # at data-sheet rates a launch takes no time
    (0.0, 0.0)
    """
    plan, each_s = sharded.plan, _launch_wait_s(sharded)
    forward = ops_s(sharded, section, chip)
    passes = [
        (list(ops_s(sharded, section, chip, backward=back).values()), launches_s(sharded, section, chip, backward=back))
        for back in (False, True)
    ]
    waits = [
        dispatched_s(kernels, launched_s, chip) - sum(kernels) + each_s * len(kernels)
        for kernels, launched_s in (*passes, _rerun(sharded, section, chip, forward))
    ]
    return waits[0] + waits[1], waits[2] / plan.recompute.every


@cached_on(
    lambda sharded, section, chip, backward=False: (
        cache_of(sharded, chip),
        (section, backward, _launch_wait_s(sharded), op_by_op(sharded)),
    )
)
def ops_s(sharded: Sharded, section: Section, chip: Chip, *, backward: bool = False) -> dict[str, float]:
    """Return the seconds of each op of `section` for one microbatch on one device, by name, in order of execution.

    `backward` returns those of the backward, for ops that have one; `sharded` has the layouts and `chip` the rates. In
    pipelines of some frameworks the device also waits for the launch of each op (`Policy.launch_wait_s`).

    >>> f"{ops_s(sharded, 'block', h100)['ffn.down'] * 1e3:.2f} ms"
    '0.49 ms'
    """
    ops = [o for o in sharded.ops[section] if o.op.has_backward or not backward]
    wait_s = _launch_wait_s(sharded)
    return {o.op.name: op_s(sharded, o, chip, backward=backward) + wait_s for o in ops}


def _launch_wait_s(sharded: Sharded) -> float:
    """Return the seconds that the device waits for the launch of each op of `sharded`."""
    return sharded.stack.policy.launch_wait_s if sharded.plan.pipeline > 1 else 0.0


def dispatched_s(ops: Iterable[float], launched_s: float, chip: Chip) -> float:
    """Return the seconds of consecutive ops: the longer of their kernels and the host's launches; the sum of both if
    the device is a CPU, which launches its own ops.

    `ops` are the seconds of each op's kernels, `launched_s` those in which the host of `chip` launches them.

    >>> dispatched_s([3e-6, 1e-6], 10e-6, h100)  # the device waits for the host
    1e-05
    """
    return sum(ops) + launched_s if chip.hosts_itself else max(sum(ops), launched_s)


ROUTED_LAUNCHES = {"route": (8, 4), "combine": (2, 1)}
"""Ops' launches, forward and backward, that routing and permuting tokens take where a framework does it in ops of
torch: about 60 and 10 forward (scores, top-k, maps and the balancing loss of `TopKRouter`, counts, permutation and
exchange of `MoEAlltoAllTokenDispatcher`, megatron/core/transformer/moe), of 10 us each."""


@cached_on(
    lambda sharded, section, chip, backward=False, only=None: (cache_of(sharded, chip), (section, backward, only))
)
def launches_s(
    sharded: Sharded, section: Section, chip: Chip, *, backward: bool = False, only: tuple[str, ...] | None = None
) -> float:
    """Return the host's seconds to launch the ops of `section` for one microbatch, or those called `only`.

    `chip.dispatch_s` is its time for one op of the graph. Only experts count in a layer that has them if the framework
    launches the rest as CUDA graphs.

    >>> launches_s(sharded, "block", h100)  # at data-sheet rates a launch takes no time
    0.0
    """
    ops = [o for o in sharded.ops[section] if only is None or o.op.name in only]
    ops = [o for o in ops if o.op.has_backward or not backward]
    captured = chip.name in sharded.stack.policy.graphs_on and any(o.op.kind == "route" for o in sharded.ops[section])
    if captured:
        ops = [o for o in ops if o.op.region == EXPERTS]
    products_s = sum(started_s(sharded, o, backward=backward) for o in ops if o.op.kind == "matmul")
    return products_s + chip.dispatch_s * sum(_launches(sharded, o, backward=backward) for o in ops)


def _launches(sharded: Sharded, o: OpSharding, *, backward: bool) -> int:
    policy = sharded.stack.policy
    if policy.routes_op_by_op and o.op.kind in ROUTED_LAUNCHES:
        return ROUTED_LAUNCHES[o.op.kind][backward]
    return policy.narrow_launches if quantized(sharded.plan, o.op) else 1


@cached_on(
    lambda sharded, o, chip, backward=False: (
        cache_of(sharded, chip),
        (o.op.name, o.op.output, o.op.window, o.op.fixed, backward, op_by_op(sharded)),
    )
)
def op_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool = False) -> float:
    """Return the seconds of op `o` of `sharded` for one microbatch on one device (`chip`), launches included.

    Ops other than matmuls, attention and scans are limited by memory bandwidth, and transfer more in the `backward`.
    Opaque code takes the seconds of its matmuls if these are longer.

    >>> f"{op_s(sharded, ops['ffn.norm'], h100) * 1e6:.0f} us"  # 17 MB read and as many written
    '10 us'
    """
    if o.op.kind == "matmul":
        beside_s = _update_passes_s(sharded, o, chip, backward=backward) if o.op.update and op_by_op(sharded) else 0.0
        return matmul_op_s(sharded, o, chip, backward=backward) + beside_s
    if o.op.kind == "attention":
        return attention_s(sharded, o, chip, backward=backward)
    if o.op.kind == "scan":
        return scan_s(sharded, o, chip, backward=backward)
    traffic = op_bytes(sharded, o) * BACKWARD_BYTES.get(o.op.kind, 1.0) if backward else op_bytes(sharded, o)
    traffic = traffic * _passes(sharded, o) + _clamped_bytes(sharded, o, backward=backward)
    flops = op_flops(sharded, o) * (backward_of_code(o.op) if backward else 1.0)
    arithmetic = flops * dtype_s_per_flop(chip, sharded.plan.precision.compute)
    waits = 0.0 if backward or o.op.kind != "route" else _waits_for_counts(sharded) * chip.dispatch_s
    return max(arithmetic + chip.launch_s, stream_s(traffic, chip)) + waits


def _passes(sharded: Sharded, o: OpSharding) -> float:
    """Return the memory traffic of an op that runs as several kernels, as a multiple of that of one. A fused loss comes
    with kernels for norms (`Policy.fuses_head_and_loss`)."""
    plan, policy = sharded.plan, sharded.stack.policy
    if not op_by_op(sharded) or (o.op.kind == "norm" and policy.fuses_head_and_loss and plan.compiled("loss")):
        return 1.0
    return EAGER_PASSES.get(o.op.kind, 1.0) if len(o.op.inputs) > 1 or o.op.kind != "elementwise" else 1.0


CLAMPED_BYTES = {False: 16, True: 20}
"""Bytes moved per element of a gate whose two inputs are clamped before its kernel, forward and backward: both are read
and written, and concatenated again; in the backward, each reads its input and a gradient and writes one, and the two
are concatenated (Megatron-Core, `weighted_bias_quick_geglu_impl`, which gpt-oss uses)."""


def _clamped_bytes(sharded: Sharded, o: OpSharding, *, backward: bool) -> float:
    """Return the bytes moved to clamp the inputs of a gate of biased experts, where the framework does so op by op."""
    policy, biased = sharded.stack.policy, f"{o.op.module}.w1.bias" in sharded.model.param
    if not policy.expert_bias_in_fp32 or not biased or o.op.region != EXPERTS or o.op.kind != "elementwise":
        return 0.0
    made = tensor_bytes(sharded.plan, o.op.output, o.needs(o.op.output, sharded.model.tensor[o.op.output].dims))
    return CLAMPED_BYTES[backward] * made / DTYPE_BYTES[sharded.plan.precision.compute]


def _update_passes_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """Return the seconds of what a LoRA update of op `o` does beside its matmuls, op by op: it casts its input to fp32
    and back (6 bytes each), scales its output (4) and adds it (6); the backward casts twice, adds the gradient of the
    input, and scales (`Linear.forward` of peft/tuners/lora/layer.py)."""
    plan = sharded.plan
    read, made = (
        tensor_bytes(plan, t, restrict(o.layout, sharded.model.tensor[t].dims)) for t in (o.op.inputs[0], o.op.output)
    )
    return stream_s(read * 9 + made * 2 if backward else read * 6 + made * 5, chip)


def _waits_for_counts(sharded: Sharded) -> int:
    """Return how many times the device waits until the host has read the experts' token counts: for the sizes of
    torch's all-to-all, and for one matmul per expert. 0 if a capacity makes the counts static, or if another microbatch
    overlaps."""
    plan = sharded.plan
    if sharded.stack.xla or plan.route.method != "dropless" or runs_beside(plan):
        return 0
    divided = any(plan.axes_of("experts", EXPERTS))
    return int(divided) + int(sharded.stack.policy.expert_call_s > 0)


def stream_s(transferred_bytes: float, chip: Chip) -> float:
    """Return the seconds of one kernel on `chip` that reads and writes `transferred_bytes`, launch included. If the
    hardware file has a table of measured rates of memory streams, it is used.

    >>> f"{stream_s(33.5e6, h100) * 1e6:.0f} us"
    '10 us'
    """

    def curve_s(sizes: tuple[float, ...]) -> float:
        return sizes[0] / memory_bytes_per_s(chip) + chip.launch_s

    table = table_of(chip.tables, "stream") if chip.tables and transferred_bytes > 0 else None
    if table is None:
        return curve_s((transferred_bytes,))
    rate = chip.memory_bandwidth_bytes_per_s / chip.devices
    return table_s(table, (transferred_bytes,), work=lambda sizes: sizes[0], curve_s=curve_s, units_per_s=rate)


def table_for(sharded: Sharded, o: OpSharding, chip: Chip) -> str:
    """Return the name of the table of measured rates of `chip` that applies to the forward of op `o` of `sharded`, such
    as `matmul in bf16`; "" for none.

    >>> table_for(sharded, ops["ffn.gate"], h100)  # no file has one
    ''
    """
    if not chip.tables:
        return ""
    if o.op.kind == "matmul":
        table = product_table(fused_of(sharded, o)[0], chip, product_dtype(sharded.plan, o.op))
    elif o.op.kind == "attention":
        table = attention_table(sharded, o, chip, backward=False)
    else:
        table = table_of(chip.tables, "stream")
    return f"{table.op} in {table.dtype}" if table and table.dtype else table.op if table else ""


EAGER_PASSES = {"norm": 9.0, "rope": 5.0, "elementwise": 5 / 3}
"""Memory traffic of ops that run as several kernels, as a multiple of that of one: a norm in fp32 casts, squares,
means, scales, casts and multiplies (18 passes over bf16 bytes for 2); rotary embeddings negate, concatenate, multiply
twice and add; a gate's activation is written and read (transformers/models/llama/modeling_llama.py)."""
BACKWARD_BYTES = {"code": 2.0, "norm": 1.5, "elementwise": 5 / 3, "embedding": 2.0, "loss": 0.0}
"""Memory traffic of an op's backward as a multiple of its forward; 1 for other ops. A norm reads its input and a
gradient and writes one; a gated product reads three and writes two instead of reading two and writing one. The loss
computes its gradient in the forward (`LOSS_PASSES`)."""
