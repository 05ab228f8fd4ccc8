"""Timing small things with JAX: matmuls, streams, attention, collectives, on every device at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from planc.calibration.probes import Probe

WINDOWS = 5
"""Of calls one after the other; the fastest counts."""


class Prober:
    """What one process measures with. What an empty program takes is taken off: a step is one program."""

    def __init__(self, window_s: float) -> None:
        import jax

        self.window_s = window_s
        self.devices = jax.device_count()
        self.empty_s = 0.0
        self.empty_s = self._seconds(lambda x: x + 1, [(1,)], "fp32", self.devices)

    def seconds(self, probe: Probe) -> float:
        """Seconds of one call on all devices at once, in the fastest window."""
        if probe.kind == "collective":
            return self._collective(probe)
        program, shapes = _local(probe)
        return self._seconds(program, shapes, probe.dtype, self.devices)

    def _seconds(self, program: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: str, group: int) -> float:
        """The program on every device; `shapes` are one device's, stacked over the devices."""
        import jax
        import jax.numpy as jnp

        mesh = jax.make_mesh((self.devices // group, group), ("outer", "group"))
        sharding: Any = jax.sharding
        rows = sharding.PartitionSpec(("outer", "group"))
        kind = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}[dtype]
        where = sharding.NamedSharding(mesh, rows)
        inputs = [jax.device_put(jnp.ones((self.devices, *shape), kind), where) for shape in shapes]

        def one(*parts: Any) -> Any:
            return program(*(part[0] for part in parts))[None]

        specs = tuple(rows for _ in shapes)
        call = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False))
        call(*inputs).block_until_ready()
        first = self._window(call, inputs, 1)
        count = max(1, int(self.window_s / max(1e-7, first)))
        taken = min(self._window(call, inputs, count) / count for _ in range(WINDOWS))
        return max(taken - self.empty_s, 1e-7)

    def _window(self, call: Callable[..., Any], inputs: list[Any], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call(*inputs).block_until_ready()
        return time.perf_counter() - start

    def _collective(self, probe: Probe) -> float:
        import jax

        lax: Any = jax.lax
        size, buffer = probe.sizes
        elements = max(1, buffer // 4 // size) * size
        programs: dict[str, tuple[Callable[[Any], Any], int]] = {
            "all_reduce": (lambda x: lax.psum(x, "group"), elements),
            "all_gather": (lambda x: lax.all_gather(x, "group", tiled=True), elements // size),
            "reduce_scatter": (lambda x: lax.psum_scatter(x, "group", tiled=True), elements),
            "all_to_all": (lambda x: lax.all_to_all(x, "group", 0, 0, tiled=True), elements),
        }
        program, length = programs[probe.op]
        return self._seconds(program, [(length,)], "fp32", size)


def _local(probe: Probe) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """A probe without transfers as a function of arrays, and their shapes."""
    import jax.numpy as jnp
    from jax import nn

    if probe.kind == "matmul":
        m, n, k = probe.sizes
        return jnp.matmul, [(m, k), (k, n)]
    if probe.kind == "stream":
        return jnp.add, [(probe.sizes[0] // 4,)] * 2
    sequences, heads, tokens, width = probe.sizes

    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.dot_product_attention(q, k, v, is_causal=True)

    return attend, [(sequences, tokens, heads, width)] * 3
