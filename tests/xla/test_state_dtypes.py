"""State in bf16 on its way from files and to files, which hold fp32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from planc.backends.xla.runtime import shards, state
from planc.ir.plan import Plan
from tests.xla.cases import NARROW_STATE, plan_of


def plan() -> Plan:
    return plan_of("state_bf16", *NARROW_STATE["state_bf16"])


def test_parameters_are_filled_in_as_they_are_kept() -> None:
    model = plan().model
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    where: dict[str, Any] = {p.name: here for p in model.params}
    found = shards.fill(model, where, lambda name, shape: np.full(shape, 1 + 2**-12, np.float32), dtype="bf16")
    assert {a.dtype for a in found.values()} == {jnp.dtype(jnp.bfloat16)}
    assert {float(a.ravel()[0]) for a in found.values()} == {1.0}


def test_a_checkpoint_of_fp32_is_read_and_written_in_the_dtype_of_the_state() -> None:
    model = plan().model
    name, shape = "norm.weight", (model.sizes["embed"],)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    held = {"params": {name: jnp.zeros(shape, jnp.bfloat16)}}
    values = np.linspace(1, 2, shape[0], dtype=np.float32)
    new = state.restored(model, held, {"params": {name: here}}, lambda found, index: values[index], 3)
    assert new["params"][name].dtype == jnp.bfloat16
    (piece,) = state.pieces(model, lambda: new)
    out = np.empty(shape, np.float32)
    piece.copy_to(out)
    assert np.array_equal(out, np.asarray(values.astype(jnp.bfloat16), np.float32)) and not np.array_equal(out, values)
