"""The layers as a pipeline: each rank runs its stages, tick by tick.

A step differentiates each stage by itself, one microbatch at a time: a forward stores its residuals in slots that its
backward frees. The loss function is the user's: it is traced with other definitions of `layers`, once for what comes
before the layers and once for what comes after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import with_sharding_constraint
from jax.sharding import PartitionSpec as P

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import (
    ACTIVATION_SLOTS,
    ACTIVATIONS,
    CHUNKS,
    DATA_PARALLEL,
    ENDS,
    FIRST_BACKWARD,
    FIRST_LOSS,
    FORWARDS,
    FORWARDS_PER_RANK,
    GRADS,
    LAST,
    LAYERS,
    MESH,
    MICROBATCH,
    MICROBATCHES,
    ONLY_CHUNK,
    ROUND,
    SHARDS,
    STACK,
    STAGE_LAYERS,
    TARGETS,
    Loss,
    _in_groups,
    _ordered,
    _pattern,
    _unpadded,
    _wide,
    remat,
    unpicked,
)


def layers(block: Callable[..., Any], x: Any, stack: Any) -> Any:
    """x after `block(x, one layer's parameters)` for each layer of the stack.

    A step runs them as a pipeline over FACTS.axis; outside a step they run in a plain scan.
    """
    return _LAYERS.get()(block, x, stack)


def _one_by_one(block: Callable[..., Any], x: Any, stack: Any) -> Any:
    """`layers` outside a step."""
    flat = jax.tree.map(lambda w: w.reshape(-1, *w.shape[len(STACK) :]), stack)
    if FACTS.uneven:
        held = np.flatnonzero(np.arange(LAYERS) < np.array(STAGE_LAYERS)[..., None])
        flat = jax.tree.map(lambda w: w[held], flat)
    return jax.lax.scan(remat(lambda x, layer: (block(x, layer), None)), x, flat)[0]


_LAYERS: ContextVar[Callable[..., Any]] = ContextVar("layers", default=_one_by_one)


@contextmanager
def _layers_as(run: Callable[..., Any]) -> Iterator[None]:
    """Context for tracing a loss function: replaces `layers` by this function."""
    before = _LAYERS.set(run)
    try:
        yield
    finally:
        _LAYERS.reset(before)


def _before_layers(loss_fn: Loss, params: Any, tokens: jax.Array) -> Any:
    """The arguments of `layers` in `loss_fn`. What follows is unused, and not part of the program."""
    given = []

    def keep(*arguments: Any) -> Any:
        given.append(arguments)
        return arguments[1]

    with _layers_as(keep):
        loss_fn(params, tokens, tokens)
    (arguments,) = given  # the layers are one stack
    return arguments


def _after_layers(loss_fn: Loss, params: Any, y: Any, targets: jax.Array) -> Any:
    """The result of `loss_fn` if `layers` returns y. What precedes is unused."""
    if FACTS.experts:
        with _layers_as(lambda *given: (y, given[1][1])):
            return loss_fn(params, targets, targets)[0]
    with _layers_as(lambda *_: y):
        return loss_fn(params, targets, targets)


def _embed_microbatches(loss_fn: Loss, params: Any, tokens: jax.Array) -> jax.Array:
    """Input x of the first stage, sharded over the ranks: [microbatches, MICROBATCH, ranks, S / ranks, E]."""
    if FACTS.experts:
        x = _before_layers(loss_fn, params, _in_shares(tokens))[1][0]
    else:
        x = _before_layers(loss_fn, params, _in_shares(tokens))[1]
    return _scatter_rows(x, ENDS[FACTS.hidden])


def _in_shares(rows: jax.Array) -> jax.Array:
    """Tokens [sequences, S], reordered so that each rank of FACTS.axis has a part of each of SHARDS shards."""
    cut = (_ordered(rows) if FACTS.balanced else rows).reshape(len(rows), SHARDS, MESH[FACTS.axis], -1)
    return jnp.swapaxes(cut, 1, 2).reshape(rows.shape)


def _scatter_rows(rows: jax.Array, spec: P) -> jax.Array:
    """[sequences, S, ...] -> [microbatches, MICROBATCH, ranks, S / ranks, ...], without communication."""
    mine = rows.reshape(DATA_PARALLEL, -1, MICROBATCH // DATA_PARALLEL, *rows.shape[1:])
    batches = jnp.moveaxis(mine, 0, 1).reshape(-1, MICROBATCH, *rows.shape[1:])
    batches = with_sharding_constraint(batches, P(None, *spec))
    return batches.reshape(*batches.shape[:2], MESH[FACTS.axis], -1, *rows.shape[2:])


def _on_each_stage(run: Any, results: Any, loss_fn: Loss, params: Any, x: jax.Array, targets: jax.Array) -> Any:
    """shard_map `run` over FACTS.axis; XLA partitions the other axes.

    A rank has its layers, its shards of x and of the targets, and all parameters after the layers.
    """
    if FACTS.padded:
        own = _unpadded(params)  # but for the ends: those are divided evenly, and unpadded where they are read
    block, _, stack = _before_layers(loss_fn, own if FACTS.padded else params, targets)
    named = jax.tree_util.tree_leaves_with_path(params)
    of_layers = jax.tree_util.tree_leaves_with_path(own) if FACTS.padded else named
    specs = {id(w): GRADS[_name(path)] for path, w in of_layers}
    ends = {_name(path): w for path, w in named if _name(path) in LAST}
    # XLA chooses where gradients through the parameters' use in `loss_fn` are summed.
    free = [P.UNCONSTRAINED]
    stacked = jax.tree.map(lambda w: P(*[None] * len(STACK), *specs.get(id(w), free * (w.ndim - len(STACK)))), stack)
    where = stacked, {name: GRADS[name] for name in ends}

    def after(ends: Any, y: jax.Array, targets: jax.Array) -> jax.Array:
        unread = jax.tree.map(lambda w: jnp.zeros(w.shape, w.dtype), params)
        filled = jax.tree_util.tree_map_with_path(lambda path, w: ends.get(_name(path), w), unread)
        whole = _unpadded(filled) if FACTS.padded else filled
        return _after_layers(loss_fn, whole, y, targets) / MESH[FACTS.axis]

    rows = P(None, None, FACTS.axis)
    mapped = jax.shard_map(
        functools.partial(run, block, after, where),
        in_specs=(P(*STACK), P(), rows, rows),
        out_specs=results,
        axis_names={FACTS.axis},
        check_vma=False,  # nothing differentiates it
    )
    return mapped(stack, ends, x, _scatter_rows(_in_shares(targets), TARGETS))


def _name(path: Any) -> str:
    return _pattern(jax.tree_util.keystr(path, simple=True, separator="."))


def _whole(share: jax.Array) -> jax.Array:
    """All-gather the microbatch [MICROBATCH, S, E] of which each rank of FACTS.axis has a `share`."""
    gather = functools.partial(jax.lax.all_gather, axis_name=FACTS.axis, axis=1, tiled=True)
    return (_by_hand(gather) if FACTS.by_hand else gather)(share)


def _share(x: jax.Array, owner: int) -> jax.Array:
    """Scatter the microbatch x [MICROBATCH, S, E] of rank `owner` over FACTS.axis: this rank's share."""

    def mine(x: jax.Array) -> jax.Array:
        cut = x.reshape(len(x), MESH[FACTS.axis], -1, x.shape[-1])
        return jax.lax.all_to_all(cut, FACTS.axis, 1, 1)[:, owner]

    return (_by_hand(mine) if FACTS.by_hand else mine)(x)


def _by_hand(function: Callable[..., Any]) -> Callable[..., Any]:
    """shard_map a function of one device's shard of the hidden state."""
    spec, axes = ACTIVATIONS[FACTS.hidden], set(MESH) - {FACTS.axis}
    return jax.shard_map(function, in_specs=spec, out_specs=spec, axis_names=axes, check_vma=False)


def _replaced(total: jax.Array, part: jax.Array, *place: jax.Array) -> jax.Array:
    """`total` with total[place] replaced by `part`."""
    start = [jnp.int32(i) for i in (*place, *[0] * part.ndim)]
    return jax.lax.dynamic_update_slice(total, part.reshape(*[1] * len(place), *part.shape), start)


def _number(i: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(microbatch, valid) of a rank's forward or backward number i."""
    return jnp.clip(i, 0, MICROBATCHES - 1), (i >= 0) & (i < MICROBATCHES)


def _forward(i: jax.Array) -> tuple[jax.Array, ...]:
    """(stage, microbatch, activation slot, valid) of a rank's forward number i."""
    number = jnp.clip(i, 0, FORWARDS_PER_RANK - 1)
    of_round = jax.lax.rem(number, CHUNKS * ROUND)
    microbatch = jax.lax.div(number, CHUNKS * ROUND) * ROUND + jax.lax.rem(of_round, ROUND)
    valid = (i == number) & (microbatch < MICROBATCHES)
    place = jnp.array(_slots())[number]
    return jax.lax.div(of_round, ROUND), jnp.minimum(microbatch, MICROBATCHES - 1), place, valid


def _backward(i: jax.Array) -> tuple[jax.Array, ...]:
    """The same of its backward number i; each round begins with the last stage."""
    chunk, microbatch, _, valid = _forward(i)
    place = jnp.array(_slots())[jnp.array(_backwards())[jnp.clip(i, 0, FORWARDS_PER_RANK - 1)]]
    return CHUNKS - 1 - chunk, microbatch, place, valid


def _backwards() -> list[int]:
    """Numbers of the forwards in the order of their backwards."""
    return np.arange(FORWARDS_PER_RANK).reshape(-1, CHUNKS, ROUND)[:, ::-1].flatten().tolist()


def _slots() -> list[int]:
    """The activation slot of each forward until its backward; sized for the first rank."""
    free, places, backwards = list(range(ACTIVATION_SLOTS)), list[int](), _backwards()
    for number in range(FORWARDS_PER_RANK):
        ended = number - FIRST_BACKWARD - MESH[FACTS.axis]
        free += [places[forward] for forward in backwards[max(ended, 0) : max(ended + 1, 0)]]
        places.append(free.pop(0))
    return places


def _same(x: Any) -> Any:
    return x


class _Rank:
    """A rank of FACTS.axis with its layers.

    In tick t it runs its forward number t - rank, and its backward number
    t - FIRST_BACKWARD - (ranks - 1 - rank).
    FACTS.order
    """

    def __init__(self, block: Any, after: Any, where: Any, stack: Any, ends: Any, targets: jax.Array) -> None:
        self.rank, self.last = jax.lax.axis_index(FACTS.axis), MESH[FACTS.axis] - 1
        self.after, self.where, self.targets = after, where, targets[:, :, 0]
        self.stack, self.ends = stack, ends
        if FACTS.recomputes_groups:
            self.body = lambda x, stack: _in_groups(block, x, stack)
        elif FACTS.gathers_each_pass or FACTS.experts:

            def body(x: jax.Array, layer: Any) -> Any:
                if FACTS.gathers_each_pass:
                    # A layer waits for its x: otherwise all weights of a stage are gathered before the loop and saved.
                    x, layer = jax.lax.optimization_barrier((x, layer))
                return block((x, unpicked(1, FACTS.experts)) if FACTS.experts else x, layer)

            self.body = remat(body)
        else:
            self.body = remat(block)
        if FACTS.chunks > 1:
            self.to_next = [(i, (i + 1) % MESH[FACTS.axis]) for i in range(MESH[FACTS.axis])]
        else:
            self.to_next = [(i, i + 1) for i in range(self.last)]
        self.to_previous = [(to, source) for source, to in self.to_next]

    if FACTS.recomputes_groups:

        def layers(self, chunk: Annotated[jax.Array, FACTS.chunks > 1] = ONLY_CHUNK) -> Any:
            """The parameters of a stage."""
            stack = jax.tree.map(lambda w: w[chunk], self.stack) if FACTS.chunks > 1 else self.stack
            return _wide(stack) if FACTS.widens else stack

        def stage(
            self, x: jax.Array, chunk: Annotated[jax.Array, FACTS.chunks > 1] = ONLY_CHUNK
        ) -> tuple[jax.Array, Any]:
            """x after the layers of a stage, and the residuals of its backward without the weights."""
            pull: Any  # jax's type of it has no `args_res`
            y, pull = jax.vjp(self.body, x, self.layers(chunk))
            pull.args_res[1] = None  # the weights
            return y, pull

    else:

        def layer(self, chunk: Annotated[jax.Array, FACTS.chunks > 1], n: jax.Array) -> Any:
            """The parameters of a layer."""
            layer = jax.tree.map(lambda w: w[(chunk, n) if FACTS.chunks > 1 else n], self.stack)
            return _wide(layer) if FACTS.widens else layer

        def stage(
            self, x: jax.Array, chunk: Annotated[jax.Array, FACTS.chunks > 1] = ONLY_CHUNK
        ) -> tuple[jax.Array, Any]:
            """x after the layers of a stage, and the residuals of its backward without the weights."""

            def one(x: jax.Array, n: jax.Array) -> tuple[jax.Array, Any]:
                pull: Any  # jax's type of it has no `args_res`
                if FACTS.experts:
                    y, pull, picked = jax.vjp(self.body, x, self.layer(chunk, n), has_aux=True)
                else:
                    y, pull = jax.vjp(self.body, x, self.layer(chunk, n))
                pull.args_res[1] = None  # the weights
                passed = jnp.where(self.present(chunk, n), y, x) if FACTS.uneven else y
                return passed, ((pull, picked) if FACTS.experts else pull)

            return jax.lax.scan(one, x, jnp.arange(LAYERS))

    if FACTS.uneven:

        def present(self, chunk: Annotated[jax.Array, FACTS.chunks > 1], n: jax.Array) -> jax.Array:
            """True for a layer of the stage, False for padding."""
            return n < jnp.array(STAGE_LAYERS)[(chunk, self.rank) if FACTS.chunks > 1 else self.rank]

    def start(self, shares: jax.Array) -> dict[str, Any]:
        """The rank's state before the first tick."""
        x = jnp.zeros_like(_whole(shares[0]))
        given = (x, jnp.int32(0)) if FACTS.chunks > 1 else (x,)
        if FACTS.experts:
            _, (pulls, picked) = jax.eval_shape(self.stage, *given)
        else:
            _, pulls = jax.eval_shape(self.stage, *given)
        self.tree = jax.tree.structure(pulls)
        saved = [jnp.zeros((ACTIVATION_SLOTS, *k.shape), k.dtype) for k in jax.tree.leaves(pulls)]
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), (self.stack, self.ends))
        layers, ends = with_sharding_constraint(zeros, self.where)
        now = {"x": x, "dx": x, "saved": saved, "shares": shares}
        if FACTS.delay:
            waiting = jnp.zeros((FACTS.delay, *x.shape), x.dtype)
            now |= {"waiting_x": waiting, "waiting_dx": waiting}
        if FACTS.experts:
            shape = (CHUNKS, *picked.shape) if FACTS.chunks > 1 else picked.shape
            now |= {"picks": jnp.zeros(shape, picked.dtype)}
        return now | {"layers": layers, "ends": ends, "loss": jnp.float32(0)}

    def forward(self, now: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        """Run a microbatch's forward through a stage and send the result to the next rank."""
        if FACTS.chunks > 1:
            chunk, _, place, valid = _forward(t - self.rank)
            x = now["x"]
            if FACTS.delay:
                # Between two stages of the first rank a microbatch waits for the rest of its round.
                slot = t % FACTS.delay
                x = jnp.where(self.rank == 0, now["waiting_x"][slot], x)
                now |= {"waiting_x": _replaced(now["waiting_x"], now["x"], slot)}
            first, number, *_ = _forward(t)
            enter = functools.partial(jnp.where, self.rank == 0)
            x = jax.lax.cond(first == 0, lambda x: enter(_whole(now["shares"][number]), x), _same, x)
        else:
            chunk = ONLY_CHUNK
            number, valid = _number(t - self.rank)
            x = jnp.where(self.rank == 0, _whole(now["shares"][_number(t)[0]]), now["x"])
            place = number % ACTIVATION_SLOTS
        if FACTS.experts:
            y, (pulls, picked) = self.stage(x, chunk)
        else:
            y, pulls = self.stage(x, chunk)
        pairs = zip(now["saved"], jax.tree.leaves(pulls), strict=True)
        saved = [_replaced(total, jnp.where(valid, new, total[place]), place) for total, new in pairs]
        if FACTS.experts and FACTS.chunks > 1:
            now |= {"picks": _replaced(now["picks"], now["picks"][chunk] + jnp.where(valid, picked, 0), chunk)}
        elif FACTS.experts:
            now |= {"picks": now["picks"] + jnp.where(valid, picked, 0)}
        return now | {"x": jax.lax.ppermute(y, FACTS.axis, self.to_next), "saved": saved}, y

    def loss(self, now: Any, y: jax.Array, t: jax.Array) -> Any:
        """The loss of the last stage's output, and its gradientFACTS.waits, sharded over the ranks."""
        if FACTS.chunks > 1:
            chunk, number, _, valid = _forward(t - self.last)

            def at_loss(now: Any) -> Any:
                now, dy = self.loss_of(now, y, number)
                if FACTS.stores_loss_gradients:
                    return now | {"shares": _replaced(now["shares"], dy, number)}  # reuses the slot of its input
                return now | {"dx": jnp.where(self.rank == self.last, _whole(dy), now["dx"])}

            changed = {name: now[name] for name in ("loss", "ends", "shares" if FACTS.stores_loss_gradients else "dx")}
            return now | jax.lax.cond(valid & (chunk == CHUNKS - 1), at_loss, _same, changed)
        if FACTS.forwards_first:
            number = _number(t - self.last)[0]
            now, dy = self.loss_of(now, y, number)
            return now | {"shares": _replaced(now["shares"], dy, number)}  # reuses the slot of its input
        now, dy = self.loss_of(now, y, _number(t - self.last)[0])
        return now | {"dx": jnp.where(self.rank == self.last, _whole(dy), now["dx"])}

    def loss_of(self, now: Any, y: jax.Array, number: jax.Array) -> tuple[Any, jax.Array]:
        """Add a microbatch's loss, and return this rank's share of the gradient of y."""
        of = jax.value_and_grad(self.after, (0, 1))
        used = _wide(self.ends) if FACTS.widens else self.ends
        loss, (ends, dy) = of(used, _share(y, self.last), self.targets[number])
        return now | {"loss": now["loss"] + loss, "ends": jax.tree.map(jnp.add, now["ends"], ends)}, dy

    def backward(self, now: Any, t: jax.Array) -> Any:
        """Run a microbatch's backward through a stage and send the gradient to the previous rank."""
        if FACTS.chunks > 1:
            chunk, _, place, valid = _backward(t - FIRST_BACKWARD - (self.last - self.rank))
            dx = now["dx"]
            if FACTS.delay:
                # Between two stages of the last rank a microbatch waits for the rest of its round.
                slot = t % FACTS.delay
                dx = jnp.where(self.rank == self.last, now["waiting_dx"][slot], dx)
                now |= {"waiting_dx": _replaced(now["waiting_dx"], now["dx"], slot)}
            if FACTS.stores_loss_gradients:
                first, number, _, begins = _backward(t - FIRST_BACKWARD)
                begins &= first == CHUNKS - 1
                begin = functools.partial(jnp.where, self.rank == self.last)
                dx = jax.lax.cond(begins, lambda dx: begin(_whole(now["shares"][number]), dx), _same, dx)
        else:
            chunk = ONLY_CHUNK
            number, valid = _number(t - FIRST_BACKWARD - (self.last - self.rank))
            place = number % ACTIVATION_SLOTS
            if FACTS.forwards_first:
                turns = now["shares"][_number(t - FIRST_BACKWARD)[0]]
                dx = jnp.where(self.rank == self.last, _whole(turns), now["dx"])
            else:
                dx = now["dx"]

        if FACTS.recomputes_groups:
            pull = jax.tree.unflatten(self.tree, [total[place] for total in now["saved"]])
            pull.args_res[1] = self.layers(chunk)
            dx, new = pull(dx)
            if FACTS.chunks > 1:

                def add(total: jax.Array, g: jax.Array) -> jax.Array:
                    return _replaced(total, total[chunk] + jnp.where(valid, g, 0), chunk)

                layers = jax.tree.map(add, now["layers"], new)
            else:
                layers = jax.tree.map(lambda total, g: total + jnp.where(valid, g, 0), now["layers"], new)
        else:

            def one(carry: Any, at: Any) -> tuple[Any, None]:
                (dx, grads), (leaves, n) = carry, at
                pull = jax.tree.unflatten(self.tree, leaves)
                pull.args_res[1] = self.layer(chunk, n)
                if FACTS.uneven:
                    present = self.present(chunk, n)
                    through, new = pull(dx)
                    dx = jnp.where(present, through, dx)
                else:
                    dx, new = pull(dx)
                counts = valid & present if FACTS.uneven else valid
                layer = (chunk, n) if FACTS.chunks > 1 else (n,)
                new = jax.tree.map(lambda total, g: total[layer] + jnp.where(counts, g, 0), grads, new)
                return (dx, jax.tree.map(lambda total, g: _replaced(total, g, *layer), grads, new)), None

            saved = [total[place] for total in now["saved"]]
            (dx, layers), _ = jax.lax.scan(one, (dx, now["layers"]), (saved, jnp.arange(LAYERS)), reverse=True)
        if FACTS.chunks > 1:
            first, number, _, leaves = _backward(t - FIRST_BACKWARD - self.last)
            leaves &= first == 0
            shares = jax.lax.cond(leaves, lambda to: _replaced(to, _share(dx, 0), number), _same, now["shares"])
        else:
            number, leaves = _number(t - FIRST_BACKWARD - self.last)
            shares = _replaced(now["shares"], jnp.where(leaves, _share(dx, 0), now["shares"][number]), number)
        return now | {"dx": jax.lax.ppermute(dx, FACTS.axis, self.to_previous), "layers": layers, "shares": shares}


def _train(block: Any, after: Any, where: Any, stack: Any, ends: Any, x: jax.Array, targets: jax.Array) -> Any:
    """One rank's part of a step: (loss, gradients of its layers, of `ends` and of its share of x)."""
    rank = _Rank(block, after, where, stack, ends, targets)

    def steady(t: jax.Array, now: Any) -> Any:
        now, y = rank.forward(now, t)
        if FACTS.forwards_first:
            return rank.loss(now, y, t)
        return rank.backward(rank.loss(now, y, t), t)

    now = rank.start(x[:, :, 0])
    now = jax.lax.fori_loop(0, FIRST_LOSS, lambda t, now: rank.forward(now, t)[0], now)
    now = jax.lax.fori_loop(FIRST_LOSS, FORWARDS, steady, now)
    now = jax.lax.fori_loop(FORWARDS, FIRST_BACKWARD + FORWARDS, lambda t, now: rank.backward(now, t), now)
    loss, ends = jax.lax.psum((now["loss"], now["ends"]), FACTS.axis)
    if FACTS.experts:
        return (loss, now["layers"], ends, now["picks"]), now["shares"][:, :, None]
    return (loss, now["layers"], ends), now["shares"][:, :, None]


class _Evaluation(_Rank):
    """A rank whose stages save no activations."""

    def stage(self, x: jax.Array, chunk: Annotated[jax.Array, FACTS.chunks > 1] = ONLY_CHUNK) -> tuple[jax.Array, Any]:
        if FACTS.recomputes_groups:
            return self.body(x, self.layers(chunk)), ()

        def one(x: jax.Array, n: jax.Array) -> tuple[jax.Array, None]:
            if FACTS.experts:
                y = self.body(x, self.layer(chunk, n))[0]
            else:
                y = self.body(x, self.layer(chunk, n))
            return (jnp.where(self.present(chunk, n), y, x) if FACTS.uneven else y), None

        if FACTS.experts:
            return jax.lax.scan(one, x, jnp.arange(LAYERS))[0], ((), 0)
        return jax.lax.scan(one, x, jnp.arange(LAYERS))[0], ()

    def loss(self, now: Any, y: jax.Array, t: jax.Array) -> Any:
        if FACTS.chunks > 1:
            chunk, number, _, valid = _forward(t - self.last)
        else:
            number = _number(t - self.last)[0]
        used = _wide(self.ends) if FACTS.widens else self.ends
        loss = self.after(used, _share(y, self.last), self.targets[number])
        added = jnp.where(valid & (chunk == CHUNKS - 1), loss, 0) if FACTS.chunks > 1 else loss
        return now | {"loss": now["loss"] + added}


def _losses(block: Any, after: Any, where: Any, stack: Any, ends: Any, x: jax.Array, targets: jax.Array) -> Any:
    """One rank's part of an evaluation, summed over microbatches."""
    rank = _Evaluation(block, after, where, stack, ends, targets)
    now = rank.start(x[:, :, 0])
    now = jax.lax.fori_loop(0, FIRST_LOSS, lambda t, now: rank.forward(now, t)[0], now)
    now = jax.lax.fori_loop(FIRST_LOSS, FORWARDS, lambda t, now: rank.loss(*rank.forward(now, t), t), now)
    return jax.lax.psum(now["loss"], FACTS.axis)


def _resting(name: str) -> P:
    """Layout inside the pipeline, or outside it, where its ranks shard the rows."""
    return {True: ACTIVATIONS | ENDS, False: ACTIVATIONS}[_outside()][name]


def _outside() -> bool:
    """True outside the pipeline, where XLA partitions FACTS.axis."""
    return FACTS.axis not in jax.sharding.get_abstract_mesh().manual_axes
