"""Programs that compute and sum in fp64: what rounds to bf16, float8 or int8 then rounds alike on one device and on
many.

A sum that ranks round otherwise moves a number to the next narrow one, and all that follows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planc.ir.program import Program

if TYPE_CHECKING:  # the module imports JAX, whose environment a worker sets first
    from planc.backends.xla.runtime.session import JaxSession


def in_fp64(program: Program) -> Program:
    """The program in fp64, as all JAX of this process is from now on."""
    import jax
    import jax.numpy as jnp

    from planc.backends.xla.runtime import shards

    jax.config.update("jax_enable_x64", True)
    jnp.float32, jnp.int32 = jnp.float64, jnp.int64
    shards.DTYPES["fp32"] = jnp.float64
    jax.nn.dot_product_attention = _attention  # type: ignore[assignment]
    text = program.text.replace("COMPUTE = jnp.bfloat16", "COMPUTE = jnp.float64")
    return replace(program, text=f"{text}# in fp64\n")  # what was loaded of the same text keeps its dtypes


def with_state(session: JaxSession) -> JaxSession:
    """The session with the state of its optimizer and its parameters in fp64, if JAX is."""
    import jax
    import jax.numpy as jnp

    # `jnp.float32` is what `in_fp64` made of it
    session._state = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == "float32" else x, session._state)
    return session


def _attention(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, mask: Any = None, local_window_size: Any = None
) -> Any:
    """`jax.nn.dot_product_attention`, whose scores are in fp32 whatever it is given."""
    import jax
    import jax.numpy as jnp

    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    back = jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])
    seen = (back >= 0) if is_causal else jnp.ones(back.shape, bool)
    if local_window_size is not None:
        before, after = local_window_size
        seen &= (back <= before) & (back >= -after)
    seen = seen if mask is None else seen & mask
    scores = jnp.einsum("brhd,bchd->bhrc", q, k) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhrc,bchd->brhd", weights, v)
