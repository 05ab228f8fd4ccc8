"""Times small operations with JAX: matmuls, memory streams, attention and collectives, on all devices at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planc.calibration.cpu_contention import ContentionMeter, own_s
from planc.ir.probe import Probe, Ranks

WINDOWS = 5
"""Number of windows of consecutive calls; see `own_s`."""
REPEATED = 10
"""Times that one program repeats a probe: dispatch is excluded, as a step is one program."""


class JaxRanks:
    """All devices in one process: implements `planc.ir.probe.Ranks`."""

    def __init__(self) -> None:
        import jax

        self.first, self.count = True, 1
        self.on_host = jax.default_backend() == "cpu"

    def sum(self, value: float) -> float:
        """Return `value`, since there is only one process to sum over."""
        return value


class JaxProber:
    """Measures the seconds of probes. `window_s` is the length of one measurement; the fastest of several counts."""

    def __init__(self, window_s: float, ranks: Ranks) -> None:
        import jax

        self.window_s, self.ranks = window_s, ranks
        self.devices = jax.device_count()

    def seconds(self, probe: Probe) -> float:
        """Return the seconds of one call of `probe` on all devices at once, in the fastest of several measurements."""
        if probe.kind == "collective":
            return self._collective(probe)
        if probe.kind == "attention_backward":
            both, forward = self._local_s(probe), self._local_s(replace(probe, kind="attention"))
            return max(both - forward, both / 2)  # never less than the forward, whatever the noise
        return self._local_s(probe)

    def _local_s(self, probe: Probe) -> float:
        """Return the seconds of a probe without communication. For an attention backward they include its forward."""
        program, shapes = _local(probe)
        return self._seconds(program, shapes, probe.dtype, self.devices)

    def _seconds(self, program: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: str, group: int) -> float:
        """Return the seconds of `program` on every device at once. `shapes` are the shapes of its inputs on one device;
        collectives run in groups of `group` devices."""
        import jax
        import jax.numpy as jnp

        mesh = jax.make_mesh((self.devices // group, group), ("outer", "group"))
        sharding: Any = jax.sharding
        rows = sharding.PartitionSpec(("outer", "group"))
        kind = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}[dtype]
        where = sharding.NamedSharding(mesh, rows)
        inputs = [jax.device_put(jnp.ones((self.devices, *shape), kind), where) for shape in shapes]

        def one(*parts: Any) -> Any:
            return _repeated(program, [part[0] for part in parts])[None]

        specs = tuple(rows for _ in shapes)
        call = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False))
        call(*inputs).block_until_ready()
        first = self._window(call, inputs, 1)
        count = max(1, int(self.window_s / max(1e-7, first)))
        meter, cpu_s = ContentionMeter(), time.process_time()
        windows = [self._window(call, inputs, count) / count for _ in range(WINDOWS)]
        return own_s(windows, meter.share_beside(self.ranks, time.process_time() - cpu_s)) / REPEATED

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


def _repeated(program: Callable[..., Any], inputs: list[Any]) -> Any:
    """Return the result of `program` after REPEATED rounds. One element of each result is written into the first input
    of the next round, so that XLA can neither eliminate nor hoist a round."""
    import jax

    def once(_: int, carried: tuple[Any, Any]) -> tuple[Any, Any]:
        first, made = carried
        corner = first.at[(0,) * first.ndim].set(made.ravel()[0].astype(first.dtype))
        return corner, program(corner, *inputs[1:])

    begun = (inputs[0], program(*inputs))
    return jax.lax.fori_loop(0, REPEATED - 1, once, begun)[1]


def _local(probe: Probe) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """Return the function that a micro-benchmark on one device times (`probe`: a matmul, a stream or attention), and
    the shapes of the arrays that it takes."""
    import jax
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

    def attend_and_back(q: Any, k: Any, v: Any) -> Any:
        made, pull = jax.vjp(attend, q, k, v)
        return jnp.concatenate(pull(made))

    return attend_and_back if probe.kind == "attention_backward" else attend, [(sequences, tokens, heads, width)] * 3
