"""Emits a plan as a plain JAX program. Builds text only; imports no framework."""

from __future__ import annotations

import textwrap

from planc.backends.common.source_writer import WIDTH, file_of, fill
from planc.backends.xla.analysis.attention import balanced, keyed_axes, rings, runs_splash
from planc.backends.xla.analysis.expert_mesh import XlaExpertAxes
from planc.backends.xla.analysis.layouts import casts, own_gradient
from planc.backends.xla.analysis.narrow_products import segments
from planc.backends.xla.analysis.pipeline import chunks, pipelined, uneven
from planc.backends.xla.analysis.saved_by_blocks import every, names_activations
from planc.backends.xla.analysis.state_dtypes import narrow_state
from planc.backends.xla.emit.context_parallel import constants as context_constants
from planc.backends.xla.emit.context_parallel import windows
from planc.backends.xla.emit.experts import expert_tables
from planc.backends.xla.emit.loss import chunks_constant
from planc.backends.xla.emit.model import (
    BY_NAME,
    model_functions,
    rows_tables,
    spec_function,
    summed_table,
)
from planc.backends.xla.emit.narrow import narrow_tables
from planc.backends.xla.emit.padding import padding_table
from planc.backends.xla.emit.pipeline import constants as pipeline_constants
from planc.backends.xla.emit.pipeline import ends_table
from planc.backends.xla.emit.remat import saved_tables
from planc.backends.xla.emit.step import mesh_function, state_functions, step_functions
from planc.backends.xla.emit.tables import (
    activation_table,
    constants,
    exchange_table,
    not_decayed,
    options_table,
    param_tables,
)
from planc.backends.xla.versions import JAX
from planc.diag.quoting import python_docstring
from planc.ir.base import plain_name
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.ir.version import Version, dotted

DOCSTRING = '''"""Plan <name>: the layout and training step of <model> in JAX.

<mesh>
<cluster>
<batch>

    mesh, optimizer = build_mesh(), adamw()
    state = init_state(params, optimizer, mesh)
    step = build_train_step(loss_fn, optimizer, mesh, params)
    state, metrics = step(state, tokens, targets, lr)

`loss_fn(params, tokens, targets)` is yours. In it, call `constrain(name, x)` on activations,
`linear`, `lookup` or `weight` on parameters and `layers` on the block (`remat` without a stack); names are
those of the tables below. `positions` gives each row's index; only `attend` mixes rows.<experts>
Written by planc for JAX <jax> from <file>: edit the plan, not this file.
"""'''


def emit(sharded: Sharded, jax: Version = JAX.pinned) -> str:
    """Return the source of the program of `sharded` for a version of `jax`; the same plan gives the same bytes."""
    plan = sharded.plan
    blocks = [
        _docstring(plan, jax),
        *_imports(sharded),
        JAX.guard(sharded, jax),
        "Loss = Callable[[Any, jax.Array, jax.Array], jax.Array]",
        *_tables(sharded, jax),
    ]
    functions = [mesh_function(plan), *model_functions(sharded), *step_functions(sharded), spec_function(plan)]
    own = narrow_state(plan) or plan.state_on_host
    state = state_functions(plan)
    functions += [*state, NO_PLAN, BY_NAME] if own else [NO_PLAN, BY_NAME, *state]
    return file_of(blocks, functions)


NO_PLAN = "# The following functions are the same for every plan: they read the tables above."

WITH_EXPERTS = """ `experts`
routes tokens; `loss_fn` returns the loss, and picks as that counts them."""


def _docstring(plan: Plan, jax: Version) -> str:
    axes = " x ".join(f"{a.name} {a.size}" for a in plan.mesh.axes)
    return fill(
        DOCSTRING,
        name=python_docstring(plan.name),
        model=python_docstring(plan.model.name),
        mesh=_field("Mesh", f"{axes} = {plan.mesh.devices} devices, outermost first"),
        cluster=_field("Cluster", _without_verb(plan.cluster.cause.sentence)),
        batch=_field("Batch", _without_verb(plan.batch.cause.sentence)),
        experts=WITH_EXPERTS if plan.model.top_k else "",
        jax=dotted(jax),
        file=plain_name(plan.file),
    )


def _field(name: str, text: str) -> str:
    said = f"{name:<9}{python_docstring(text)}"
    return textwrap.fill(said, WIDTH, subsequent_indent=" " * 9, break_long_words=False)


def _without_verb(sentence: str) -> str:
    return " ".join(sentence.split()[1:])


def _tables(sharded: Sharded, jax: Version) -> list[str]:
    tables = (
        constants,
        chunks_constant,
        context_constants,
        pipeline_constants,
        param_tables,
        padding_table,
        summed_table,
        rows_tables,
        narrow_tables,
        not_decayed,
        activation_table,
        exchange_table,
        ends_table,
        expert_tables,
        saved_tables,
    )
    found = (*(table(sharded) for table in tables), options_table(sharded, jax))
    return ["\n".join(lines) for lines in found if lines]


def _imports(sharded: Sharded) -> list[str]:
    plan = sharded.plan
    torus = plan.cluster.has_tpus
    managers = [*(["AbstractContextManager"] if casts(plan) else []), *(["contextmanager"] if _manages(plan) else [])]
    sequence = ("Callable", *(["Iterator"] if _manages(plan) else []), "Sequence")
    standard = [
        "import functools" if _partials(sharded) else "",
        "import math" if torus or (plan.model.top_k and plan.route.method == "capacity") else "",
        "import re",
        "import warnings",
        f"from collections.abc import {', '.join(sequence)}",
        f"from contextlib import {', '.join(managers)}",
        "from contextvars import ContextVar" if pipelined(plan) or segments(plan) else "",
        "from typing import Any",
    ]
    installed = [
        "import jax",
        "import jax.numpy as jnp",
        "import numpy as np" if torus or _keys_in_order(sharded) or chunks(plan) > 1 or uneven(plan) else "",
        "import optax",
        "from jax.ad_checkpoint import checkpoint_name" if names_activations(sharded) else "",
        "from jax.experimental import mesh_utils" if torus else "",
        "from jax.experimental.pallas.ops.tpu import splash_attention" if runs_splash(sharded) else "",
        "from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm" if XlaExpertAxes(sharded).has_kernel else "",
        "from jax.lax import with_sharding_constraint",
        "from jax.sharding import AxisType, Mesh, NamedSharding, use_abstract_mesh",
        "from jax.sharding import PartitionSpec as P",
    ]
    groups = (["from __future__ import annotations"], standard, installed)
    return ["\n".join(line for line in group if line) for group in groups]


def _keys_in_order(sharded: Sharded) -> bool:
    """True if splash attention needs row positions: ranks have a piece from each end of a sequence, and gather keys."""
    return runs_splash(sharded) and balanced(sharded) and not rings(sharded)


def _manages(plan: Plan) -> bool:
    return pipelined(plan) or bool(segments(plan)) or not casts(plan)


def _partials(sharded: Sharded) -> bool:
    plan = sharded.plan
    windowed = runs_splash(sharded) and windows(sharded) and not keyed_axes(sharded)
    return (
        plan.state_on_host
        or (runs_splash(sharded) and rings(sharded))
        or own_gradient(plan)
        or bool(plan.quantize)
        or pipelined(plan)
        or every(sharded) > 1
        or bool(plan.model.top_k)
        or plan.loss_chunks > 1
        or windowed
    )
