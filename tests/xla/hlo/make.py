"""`make.py NAME...`: compiles small programs and writes their HLO here, without places in the source.

Each shows forms that the audit's reader must know; they change with jax and libtpu, so the texts are kept.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from planc.backends.xla.audit.worker import LOG_LEVELS, OPTIONS  # noqa: E402

os.environ.update(LOG_LEVELS, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

SHAPE, AXES = (4, 2), ("fsdp", "tp")


def layers(mesh: Mesh):
    """Gradients of matmuls in a loop: weights stored over both axes, rows over one."""
    x = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P("fsdp", None)))
    w = jax.ShapeDtypeStruct((6, 512, 512), jnp.float32, sharding=NamedSharding(mesh, P(None, "fsdp", "tp")))

    def loss(w, x):
        def block(x, w):
            y = jnp.tanh(x @ jax.lax.with_sharding_constraint(w.astype(x.dtype), NamedSharding(mesh, P(None, "tp"))))
            return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P("fsdp", None))), None

        return jnp.mean(jax.lax.scan(block, x, w)[0].astype(jnp.float32) ** 2)

    return jax.jit(jax.grad(loss), out_shardings=w.sharding), (w, x)


def ring(mesh: Mesh):
    """Blocks that travel round an axis, in a loop."""
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=NamedSharding(mesh, P("fsdp", "tp")))
    around = [(i, (i + 1) % 4) for i in range(4)]

    def travel(x):
        step = lambda _, carry: (carry[0] + carry[1], jax.lax.ppermute(carry[1], "fsdp", around))  # noqa: E731
        return jax.lax.fori_loop(0, 3, step, (x, x))[0]

    return jax.jit(jax.shard_map(travel, mesh=mesh, in_specs=P("fsdp", "tp"), out_specs=P("fsdp", "tp"))), (x,)


def exchange(mesh: Mesh):
    """Blocks for every rank of an axis."""
    x = jax.ShapeDtypeStruct((16, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("fsdp", None)))
    swap = lambda x: jax.lax.all_to_all(x, "fsdp", 1, 0, tiled=True)  # noqa: E731
    return jax.jit(jax.shard_map(swap, mesh=mesh, in_specs=P("fsdp", None), out_specs=P(None, "fsdp"))), (x,)


def scatter(mesh: Mesh):
    """A sum of which each rank of an axis keeps a part."""
    x = jax.ShapeDtypeStruct((1024, 512), jnp.float32, sharding=NamedSharding(mesh, P()))
    part = lambda x: jax.lax.psum_scatter(x * jax.lax.axis_index("fsdp"), "fsdp", tiled=True)  # noqa: E731
    return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=P(), out_specs=P("fsdp"))), (x,)


PROGRAMS = {f.__name__: f for f in (layers, ring, exchange, scatter)}
PLATFORMS = {"cpu": "", "v5p": "v5p:2x2x2", "v5e": "v5e:2x4"}


def main(names: list[str]) -> None:
    for platform, topology in PLATFORMS.items():
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices if topology else None
        mesh = jax.make_mesh(SHAPE, AXES, devices=devices, axis_types=(jax.sharding.AxisType.Auto,) * 2)
        for name, program in PROGRAMS.items():
            if names and f"{name}_{platform}" not in names:
                continue
            step, arguments = program(mesh)
            text = step.lower(*arguments).compile(compiler_options=OPTIONS if topology else None).as_text()
            (HERE / f"{name}_{platform}.hlo").write_text(trimmed(text))


def trimmed(text: str) -> str:
    """Without tables of places, what each instruction comes from, and settings of kernels."""
    lines = [line for line in text.splitlines() if not re.match(r"\d+ |File|Function|StackFrames", line)]
    short = (re.sub(r", metadata=\{[^}]*\}", "", line) for line in lines)
    short = (re.sub(r", backend_config=\{.*\}$", _kept, line) for line in short)
    return "\n".join(line for line in short if line) + "\n"


def _kept(config: re.Match[str]) -> str:
    """The settings of a kernel that the audit reads."""
    found = re.findall(r'"known_trip_count":\{"n":"\d+"\}|"estimated_cycles":"\d+"', config[0])
    return f", backend_config={{{','.join(found)}}}" if found else ""


if __name__ == "__main__":
    main(sys.argv[1:])
