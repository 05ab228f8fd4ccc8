"""Emits the functions that run the layers as a pipeline: each rank runs its stages, tick by tick.

A step differentiates each stage by itself, one microbatch at a time: a forward stores its residuals in slots that its
backward frees. The loss function is the user's: it is traced with other definitions of `layers`, once for what comes
before the layers and once for what comes after.
"""

from __future__ import annotations

from planc.backends.common.source_writer import INDENT, beside, comment, fill
from planc.backends.xla.analysis.attention import balanced
from planc.backends.xla.analysis.layouts import Spec, activation_spec
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.pipeline import (
    chunks,
    layers_of_a_stage,
    lockstep,
    pipelined,
    shards_of_rows,
    stack_axes,
    stage_layers,
    uneven,
)
from planc.backends.xla.analysis.saved_by_blocks import every
from planc.backends.xla.analysis.state_dtypes import narrow_state
from planc.backends.xla.emit.context_parallel import rows_spec
from planc.backends.xla.emit.specs import entry, spec_text
from planc.diag.quoting import python_string
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

LAYERS = '''
def layers(block: Callable[..., Any], x: Any, stack: Any) -> Any:
    """x after `block(x, one layer's parameters)` for each layer of the stack.

    A step runs them as a pipeline over <axis>; outside a step they run in a plain scan.
    """
    return _LAYERS.get()(block, x, stack)


def _one_by_one(block: Callable[..., Any], x: Any, stack: Any) -> Any:
    """`layers` outside a step."""
    flat = jax.tree.map(lambda w: w.reshape(-1, *w.shape[len(STACK) :]), stack)
    <there>
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
    with _layers_as(<y_given>):
        return loss_fn(params, targets, targets)<of_loss>
'''

SHARES = '''
def _embed_microbatches(loss_fn: Loss, params: Any, tokens: jax.Array) -> jax.Array:
    """Input x of the first stage, sharded over the ranks: [microbatches, MICROBATCH, ranks, S / ranks, E]."""
    x = _before_layers(loss_fn, params, _in_shares(tokens))[1]<of_carry>
    return _scatter_rows(x, ENDS[<hidden>])


def _in_shares(rows: jax.Array) -> jax.Array:
    """Tokens [sequences, S], reordered so that each rank of <axis> has a part of each of SHARDS shards."""
    cut = <rows>.reshape(len(rows), SHARDS, MESH[<quoted>], -1)
    return jnp.swapaxes(cut, 1, 2).reshape(rows.shape)


def _scatter_rows(rows: jax.Array, spec: P) -> jax.Array:
    """[sequences, S, ...] -> [microbatches, MICROBATCH, ranks, S / ranks, ...], without communication."""
    mine = rows.reshape(DATA_PARALLEL, -1, MICROBATCH // DATA_PARALLEL, *rows.shape[1:])
    batches = jnp.moveaxis(mine, 0, 1).reshape(-1, MICROBATCH, *rows.shape[1:])
    batches = with_sharding_constraint(batches, P(None, *spec))
    return batches.reshape(*batches.shape[:2], MESH[<quoted>], -1, *rows.shape[2:])


def _on_each_stage(
    run: Any, results: Any, loss_fn: Loss, params: Any, x: jax.Array, targets: jax.Array
) -> Any:
    """shard_map `run` over <axis>; XLA partitions the other axes.

    A rank has its layers, its shards of x and of the targets, and all parameters after the layers.
    """
    <own>
    block, _, stack = _before_layers(loss_fn, <whole>, targets)
    named = jax.tree_util.tree_leaves_with_path(params)
    specs = {id(w): GRADS[_name(path)] for path, w in <of_layers>}
    ends = {_name(path): w for path, w in named if _name(path) in LAST}
    # XLA chooses where gradients through the parameters' use in `loss_fn` are summed.
    free = [P.UNCONSTRAINED]
    stacked = jax.tree.map(
        lambda w: P(*[None] * len(STACK), *specs.get(id(w), free * (w.ndim - len(STACK)))), stack
    )
    where = stacked, {name: GRADS[name] for name in ends}

    def after(ends: Any, y: jax.Array, targets: jax.Array) -> jax.Array:
        unread = jax.tree.map(lambda w: jnp.zeros(w.shape, w.dtype), params)
        filled = jax.tree_util.tree_map_with_path(lambda path, w: ends.get(_name(path), w), unread)
        return _after_layers(loss_fn, <filled>, y, targets) / MESH[<quoted>]

    rows = P(None, None, <quoted>)
    mapped = jax.shard_map(
        functools.partial(run, block, after, where),
        in_specs=(P(*STACK), P(), rows, rows),
        out_specs=results,
        axis_names={<quoted>},
        check_vma=False,  # nothing differentiates it
    )
    return mapped(stack, ends, x, _scatter_rows(_in_shares(targets), TARGETS))


def _name(path: Any) -> str:
    return _pattern(jax.tree_util.keystr(path, simple=True, separator="."))


def _whole(share: jax.Array) -> jax.Array:
    """All-gather the microbatch [MICROBATCH, S, E] of which each rank of <axis> has a `share`."""
    gather = functools.partial(jax.lax.all_gather, axis_name=<quoted>, axis=1, tiled=True)
    return <by_hand>gather<by_hand_end>(share)


def _share(x: jax.Array, owner: int) -> jax.Array:
    """Scatter the microbatch x [MICROBATCH, S, E] of rank `owner` over <axis>: this rank's share."""

    def mine(x: jax.Array) -> jax.Array:
        cut = x.reshape(len(x), MESH[<quoted>], -1, x.shape[-1])
        return jax.lax.all_to_all(cut, <quoted>, 1, 1)[:, owner]

    return <by_hand>mine<by_hand_end>(x)
'''

EVEN_ENDS = {"own": "", "whole": "params", "of_layers": "named", "filled": "filled"}
PADDED_ENDS = {
    "own": "own = _unpadded(params)  # but for the ends: those are divided evenly, and unpadded where they are read",
    "whole": "own",
    "of_layers": "jax.tree_util.tree_leaves_with_path(own)",
    "filled": "_unpadded(filled)",
}

BY_HAND = '''
def _by_hand(function: Callable[..., Any]) -> Callable[..., Any]:
    """shard_map a function of one device's shard of the hidden state."""
    spec, axes = ACTIVATIONS[<hidden>], set(MESH) - {<quoted>}
    return jax.shard_map(function, in_specs=spec, out_specs=spec, axis_names=axes, check_vma=False)
'''

HELD = "held = np.flatnonzero(np.arange(LAYERS) < np.array(STAGE_LAYERS)[..., None])"
"""Indices of the layers in a padded stack of stages."""
THERE = f"""
{HELD}
flat = jax.tree.map(lambda w: w[held], flat)
"""

PUT = '''
def _replaced(total: jax.Array, part: jax.Array, *place: jax.Array) -> jax.Array:
    """`total` with total[place] replaced by `part`."""
    start = [jnp.int32(i) for i in (*place, *[0] * part.ndim)]
    return jax.lax.dynamic_update_slice(total, part.reshape(*[1] * len(place), *part.shape), start)
'''

NUMBER = '''
def _number(i: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(microbatch, valid) of a rank's forward or backward number i."""
    return jnp.clip(i, 0, MICROBATCHES - 1), (i >= 0) & (i < MICROBATCHES)
'''

NUMBERS = '''
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
        ended = number - FIRST_BACKWARD - MESH[<quoted>]
        free += [places[forward] for forward in backwards[max(ended, 0) : max(ended + 1, 0)]]
        places.append(free.pop(0))
    return places
'''

RANK = '''
class _Rank:
    """A rank of <axis> with its layers.

    In tick t it runs its forward number t - rank, and its backward number
    t - FIRST_BACKWARD - (ranks - 1 - rank).
    <order>
    """

    def __init__(self, block: Any, after: Any, where: Any, stack: Any, ends: Any, targets: jax.Array) -> None:
        self.rank, self.last = jax.lax.axis_index(<quoted>), MESH[<quoted>] - 1
        self.after, self.where, self.targets = after, where, targets[:, :, 0]
        self.stack, self.ends = stack, ends
        <body>
        self.to_next = [(<from_to>) for i in range(<senders>)]
        self.to_previous = [(to, source) for source, to in self.to_next]

    <stage>

    def start(self, shares: jax.Array) -> dict[str, Any]:
        """The rank's state before the first tick."""
        x = jnp.zeros_like(_whole(shares[0]))
        _, <pulls> = jax.eval_shape(self.stage, <first>)
        self.tree = jax.tree.structure(pulls)
        saved = [jnp.zeros((ACTIVATION_SLOTS, *k.shape), k.dtype) for k in jax.tree.leaves(pulls)]
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), (self.stack, self.ends))
        layers, ends = with_sharding_constraint(zeros, self.where)
        now = {"x": x, "dx": x, "saved": saved, "shares": shares}
        <later>
        <unpicked>
        return now | {"layers": layers, "ends": ends, "loss": jnp.float32(0)}

    def forward(self, now: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        """Run a microbatch's forward through a stage and send the result to the next rank."""
        <begun>
        y, <pulls> = self.stage(x<chunk>)
        pairs = zip(now["saved"], jax.tree.leaves(pulls), strict=True)
        saved = [_replaced(total, jnp.where(valid, new, total[place]), place) for total, new in pairs]
        <picks>
        return now | {"x": jax.lax.ppermute(y, <quoted>, self.to_next), "saved": saved}, y

    def loss(self, now: Any, y: jax.Array, t: jax.Array) -> Any:
        """The loss of the last stage's output, and its gradient<waits>, sharded over the ranks."""
        <loss_lines>

    def loss_of(self, now: Any, y: jax.Array, number: jax.Array) -> tuple[Any, jax.Array]:
        """Add a microbatch's loss, and return this rank's share of the gradient of y."""
        of = jax.value_and_grad(self.after, (0, 1))
        loss, (ends, dy) = of(<ends>, _share(y, self.last), self.targets[number])
        return now | {"loss": now["loss"] + loss, "ends": jax.tree.map(jnp.add, now["ends"], ends)}, dy

    def backward(self, now: Any, t: jax.Array) -> Any:
        """Run a microbatch's backward through a stage and send the gradient to the previous rank."""
        <back>

        <pulled>
        <left>
        return now | {"dx": jax.lax.ppermute(dx, <quoted>, self.to_previous), "layers": layers, "shares": shares}
'''

STAGE = '''
def layer(self, <place_arguments>) -> Any:
    """The parameters of a layer."""
    return <of_layer>

def stage(self, x: jax.Array<chunk_argument>) -> tuple[jax.Array, Any]:
    """x after the layers of a stage, and the residuals of its backward without the weights."""

    def one(x: jax.Array, n: jax.Array) -> tuple[jax.Array, Any]:
        pull: Any  # jax's type of it has no `args_res`
        <made> = jax.vjp(self.body, x, self.layer(<place>)<has_aux>)
        pull.args_res[1] = None  # the weights
        return <y>, <gives>

    return jax.lax.scan(one, x, jnp.arange(LAYERS))
'''
STAGE_LAYERS = '''

def present(self, <place_arguments>) -> jax.Array:
    """True for a layer of the stage, False for padding."""
    return n < jnp.array(STAGE_LAYERS)[<stage_of_rank>]
'''
PULLED = """

def one(carry: Any, at: Any) -> tuple[Any, None]:
    (dx, grads), (leaves, n) = carry, at
    pull = jax.tree.unflatten(self.tree, leaves)
    pull.args_res[1] = self.layer(<place>)
    <pulled_dx>
    new = jax.tree.map(lambda total, g: <sum>, grads, new)
    return (dx, jax.tree.map(lambda total, g: _replaced(total, g, <place>), grads, new)), None

saved = [total[place] for total in now["saved"]]
(dx, layers), _ = jax.lax.scan(one, (dx, now["layers"]), (saved, jnp.arange(LAYERS)), reverse=True)
"""
STAGE_AT_ONCE = '''
def layers(self<chunk_argument>) -> Any:
    """The parameters of a stage."""
    return <of_stage>

def stage(self, x: jax.Array<chunk_argument>) -> tuple[jax.Array, Any]:
    """x after the layers of a stage, and the residuals of its backward without the weights."""
    pull: Any  # jax's type of it has no `args_res`
    y, pull = jax.vjp(self.body, x, self.layers(<only_chunk>))
    pull.args_res[1] = None  # the weights
    return y, pull
'''
PULLED_AT_ONCE = """
pull = jax.tree.unflatten(self.tree, [total[place] for total in now["saved"]])
pull.args_res[1] = self.layers(<only_chunk>)
dx, new = pull(dx)
<added>
"""

ORDER = {
    (False, False): "The last rank runs a microbatch's backward in the tick of its forward.",
    (False, True): "A stage runs a round of microbatches before the rank's next stage.",
    (True, False): "All forwards run before the first backward.",
    (True, True): "A stage runs all microbatches before the rank's next stage; all backwards come after that.",
}
BEGUN = """
number, valid = _number(t - self.rank)
x = jnp.where(self.rank == 0, _whole(now["shares"][_number(t)[0]]), now["x"])
place = number % ACTIVATION_SLOTS
"""
BEGUN_CHUNKS = """
chunk, _, place, valid = _forward(t - self.rank)
x = now["x"]
<wait>
first, number, *_ = _forward(t)
enter = functools.partial(jnp.where, self.rank == 0)
x = jax.lax.cond(first == 0, lambda x: enter(_whole(now["shares"][number]), x), _same, x)
"""
EVALUATED = """
def one(x: jax.Array, n: jax.Array) -> tuple[jax.Array, None]:
    y = self.body(x, self.layer(<place>))<of_aux>
    return <y>, None

return jax.lax.scan(one, x, jnp.arange(LAYERS))[0], <nothing>
"""
EVALUATED_AT_ONCE = """
return self.body(x, self.layers(<only_chunk>)), ()
"""
WAIT = """
slot = t % <delay>  # between two stages of the <which> rank a microbatch waits for the rest of its round
<what> = jnp.where(self.rank == <rank>, now["waiting_<what>"][slot], <what>)
now |= {"waiting_<what>": _replaced(now["waiting_<what>"], now["<what>"], slot)}
"""
LATER = """
waiting = jnp.zeros((<delay>, *x.shape), x.dtype)
now |= {"waiting_x": waiting, "waiting_dx": waiting}
"""
LOSS = """
now, dy = self.loss_of(now, y, _number(t - self.last)[0])
return now | {"dx": jnp.where(self.rank == self.last, _whole(dy), now["dx"])}
"""
LOSS_FIRST = """
number = _number(t - self.last)[0]
now, dy = self.loss_of(now, y, number)
return now | {"shares": _replaced(now["shares"], dy, number)}  # reuses the slot of its input
"""
LOSS_CHUNKS = """
chunk, number, _, valid = _forward(t - self.last)

def at_loss(now: Any) -> Any:
    now, dy = self.loss_of(now, y, number)
    return now | <to_backward>

changed = {name: now[name] for name in ("loss", "ends", <changed>)}
return now | jax.lax.cond(valid & (chunk == CHUNKS - 1), at_loss, _same, changed)
"""
NUMBER_OF_LOSS = "number = _number(t - self.last)[0]"
BACK = """
number, valid = _number(t - FIRST_BACKWARD - (self.last - self.rank))
place = number % ACTIVATION_SLOTS
<dx>
"""
FROM_LOSS = """
turns = now["shares"][_number(t - FIRST_BACKWARD)[0]]
dx = jnp.where(self.rank == self.last, _whole(turns), now["dx"])
"""
BACK_CHUNKS = """
chunk, _, place, valid = _backward(t - FIRST_BACKWARD - (self.last - self.rank))
dx = now["dx"]
<wait>
<from_loss>
"""
FROM_LOSS_CHUNKS = """
first, number, _, begins = _backward(t - FIRST_BACKWARD)
begins &= first == CHUNKS - 1
begin = functools.partial(jnp.where, self.rank == self.last)
dx = jax.lax.cond(begins, lambda dx: begin(_whole(now["shares"][number]), dx), _same, dx)
"""
LEFT = """
number, leaves = _number(t - FIRST_BACKWARD - self.last)
shares = _replaced(now["shares"], jnp.where(leaves, _share(dx, 0), now["shares"][number]), number)
"""
LEFT_CHUNKS = """
first, number, _, leaves = _backward(t - FIRST_BACKWARD - self.last)
leaves &= first == 0
shares = jax.lax.cond(leaves, lambda to: _replaced(to, _share(dx, 0), number), _same, now["shares"])
"""
WIDE = """
def _wide(params: Any) -> Any:
    \"""Parameters cast to fp32, so that their gradients are accumulated in fp32.\"""
    return jax.tree.map(lambda w: w.astype(jnp.float32), params)
"""
SAME = """
def _same(x: Any) -> Any:
    return x
"""

TRAIN = """
def _train(block: Any, after: Any, where: Any, stack: Any, ends: Any, x: jax.Array, targets: jax.Array) -> Any:
    \"""One rank's part of a step: (loss, gradients of its layers, of `ends` and of its share of x).\"""
    rank = _Rank(block, after, where, stack, ends, targets)

    def steady(t: jax.Array, now: Any) -> Any:
        now, y = rank.forward(now, t)
        return <steady>

    now = rank.start(x[:, :, 0])
    now = jax.lax.fori_loop(0, FIRST_LOSS, lambda t, now: rank.forward(now, t)[0], now)
    now = jax.lax.fori_loop(FIRST_LOSS, FORWARDS, steady, now)
    now = jax.lax.fori_loop(FORWARDS, FIRST_BACKWARD + FORWARDS, lambda t, now: rank.backward(now, t), now)
    loss, ends = jax.lax.psum((now["loss"], now["ends"]), <quoted>)
    return (loss, now["layers"], ends<picks_made>), now["shares"][:, :, None]


class _Evaluation(_Rank):
    \"""A rank whose stages save no activations.\"""

    def stage(self, x: jax.Array<chunk_argument>) -> tuple[jax.Array, Any]:
        <evaluated_stage>

    def loss(self, now: Any, y: jax.Array, t: jax.Array) -> Any:
        <evaluated>
        loss = self.after(<ends>, _share(y, self.last), self.targets[number])
        return now | {"loss": now["loss"] + <loss>}


def _losses(block: Any, after: Any, where: Any, stack: Any, ends: Any, x: jax.Array, targets: jax.Array) -> Any:
    \"""One rank's part of an evaluation, summed over microbatches.\"""
    rank = _Evaluation(block, after, where, stack, ends, targets)
    now = rank.start(x[:, :, 0])
    now = jax.lax.fori_loop(0, FIRST_LOSS, lambda t, now: rank.forward(now, t)[0], now)
    now = jax.lax.fori_loop(FIRST_LOSS, FORWARDS, lambda t, now: rank.loss(*rank.forward(now, t), t), now)
    return jax.lax.psum(now["loss"], <quoted>)
"""

RESTING = """
def _resting(name: str) -> P:
    \"""Layout inside the pipeline, or outside it, where its ranks shard the rows.\"""
    return {True: ACTIVATIONS | ENDS, False: ACTIVATIONS}[_outside()][name]


def _outside() -> bool:
    \"""True outside the pipeline, where XLA partitions <axis>.\"""
    return <quoted> not in jax.sharding.get_abstract_mesh().manual_axes
"""

ACCUMULATE = """
def _accumulate(loss_fn: Loss, params: Any, tokens: jax.Array, targets: jax.Array) -> tuple[jax.Array, Any]:
    \"""The mean loss of the global batch and its gradients, fp32, by a pipeline.\"""
    <cut>
    <before>
    x, of_tokens = jax.vjp(lambda params: _embed_microbatches(loss_fn, params, tokens), <wide>)
    _, of_stack = jax.vjp(lambda params: _before_layers(loss_fn, params, tokens)[2], <own>)
    results = (P(), P(*STACK), P()<picks_spec>), P(None, None, <quoted>)
    (loss, layers, ends<picks>), dx = _on_each_stage(_train, results, loss_fn, <params>, x, targets)
    (grads,), (more,) = of_stack(layers), of_tokens(dx)
    <added>
    loss, grads = jax.tree.map(lambda total: total / MICROBATCHES, (loss, grads))
    <held>
    return loss, _placed(<grads>, GRADS)<picks_joined>
"""

ADDED = """
grads = jax.tree_util.tree_map_with_path(lambda path, a, b: a + b + ends.get(_name(path), 0), grads, more)
"""
ADDED_PADDED = """
(grads,) = of_stored(jax.tree.map(jnp.add, grads, more))
grads = jax.tree_util.tree_map_with_path(lambda path, g: g + ends.get(_name(path), 0), grads)
"""

EVALUATE = """
x = _embed_microbatches(loss_fn, <wide>, tokens)
return _on_each_stage(_losses, P(), loss_fn, <params>, x, targets) / MICROBATCHES
"""


def constants(sharded: Sharded) -> list[str]:
    """Return the lines of the pipeline's constants (ticks, leading dims of stacks); [] without a pipeline."""
    plan = sharded.plan
    if not pipelined(plan):
        return []
    assert plan.split is not None
    ticks, parts = lockstep(plan), chunks(plan)
    dims = "[layers]" if parts == 1 else f"[{parts} chunks, layers of a chunk on all ranks]"
    entries = ", ".join(python_string(a[0]) if a else "None" for a in stack_axes(plan))
    trailing = "," if parts == 1 else ""
    said = f"leading dims of the layers' parameters, {dims}; {plan.split.cause.comment()}"
    rounds = [
        *beside(f"CHUNKS = {parts}", "stages of a rank"),
        *beside(f"ROUND = {ticks.round}", "microbatches that a stage runs before the rank's next stage"),
        *beside(f"FORWARDS_PER_RANK = {ticks.numbers}", "forwards of a rank"),
    ]
    return [
        *beside(f"STACK = ({entries}{trailing})", said),
        *beside(f"LAYERS = {layers_of_a_stage(plan)}", "of a stage" if not uneven(plan) else "of the longest stage"),
        *(
            beside(f"STAGE_LAYERS = {stage_layers(plan)}", f"layers of each stage{_by_chunks(parts)}")
            if uneven(plan)
            else []
        ),
        *beside(f"MICROBATCHES = {plan.microbatches}", "of a step"),
        *(rounds if parts > 1 else []),
        *beside(f"FIRST_LOSS = {ticks.first_loss}", "tick of the first loss"),
        *beside(f"FIRST_BACKWARD = {ticks.first_backward}", "tick of the first backward, at the last rank"),
        *beside(f"FORWARDS = {ticks.forward_ticks}", "number of ticks with forwards, and also of those with backwards"),
        *beside(f"ACTIVATION_SLOTS = {ticks.places}", "most forwards that wait for their backward"),
        *beside(f"SHARDS = {shards_of_rows(sharded)}", "parts of a sequence between blocks"),
    ]


def _by_chunks(parts: int) -> str:
    return ", by chunk and rank" if parts > 1 else ""


def ends_table(sharded: Sharded) -> list[str]:
    """Return the lines of the tables for embedding and head, which run outside the pipeline: `ENDS` and `TARGETS` are
    layouts, `LAST` names the parameters after the layers. [] without a pipeline."""
    plan = sharded.plan
    if not pipelined(plan):
        return []
    assert plan.split is not None
    axis = plan.split.axis
    tensors = [sharded.model.tensor[t] for t in dict.fromkeys(o.op.output for o in sharded.ops["first"])]
    rows = [row for t in tensors if t.dims and t.dtype != "int" for row in entry(t.name, ends_spec(sharded, t.name))]
    batch, sequence = rows_spec(sharded)
    last = [p.name for p in sharded.model.params if "last" in p.sections]
    return [
        *comment(f"Activations outside the pipeline, where the ranks of {axis} have shares of the rows."),
        *("ENDS = {", *rows, "}"),
        *beside(f"TARGETS = {spec_text((batch, (axis, *sequence)))}", "those of the microbatches that they shard"),
        *comment("Parameters used after the layers."),
        *("LAST = {", *(f"{INDENT}{python_string(name)}," for name in last), "}"),
    ]


def ends_spec(sharded: Sharded, tensor: str) -> Spec:
    """Return the layout of the activation `tensor` at embedding or head: its sequence is sharded over stages too."""
    return shared_by_stages(sharded, sharded.model.tensor[tensor].dims, activation_spec(sharded, tensor))


def shared_by_stages(sharded: Sharded, dims: tuple[str, ...], spec: Spec) -> Spec:
    """Return `spec`, the layout of a tensor with `dims`, with the sequence sharded over the pipeline's axis too;
    unchanged without a pipeline."""
    if not pipelined(sharded.plan):
        return spec
    assert sharded.plan.split is not None
    axis = sharded.plan.split.axis
    return tuple((axis, *axes) if d == "sequence" else axes for d, axes in zip(dims, spec, strict=True))


def pipeline_functions(sharded: Sharded) -> list[str]:
    """Return the source of `layers` as a pipeline, and its helpers."""
    plan = sharded.plan
    texts = [LAYERS, SHARES]
    if by_hand := len([a for a in atoms(plan) if a.size > 1]) > 1:
        texts.append(BY_HAND)
    texts += [PUT, NUMBERS if chunks(plan) > 1 else NUMBER, *([SAME] if chunks(plan) > 1 else [])]
    texts += [WIDE] if narrow_copies(plan) and not narrow_state(plan) else []
    names = _names(plan) | {
        "hidden": python_string(sharded.model.block_output),
        "rows": "_ordered(rows)" if balanced(sharded) else "rows",
        "by_hand": "_by_hand(" if by_hand else "",
        "by_hand_end": ")" if by_hand else "",
        "of_carry": "[0]" if sharded.model.top_k else "",
        "y_given": "lambda *given: (y, given[1][1])" if sharded.model.top_k else "lambda *_: y",
        "of_loss": "[0]" if sharded.model.top_k else "",
        "there": fill(THERE) if uneven(plan) else "",
        **(PADDED_ENDS if padded(sharded) else EVEN_ENDS),
    }
    pieces = names | _pieces(sharded)
    return [fill(text, **names) for text in texts] + [fill(text, **pieces) for text in (RANK, TRAIN)]


def _names(plan: Plan) -> dict[str, str]:
    assert plan.split is not None
    return {"axis": plan.split.axis, "quoted": python_string(plan.split.axis)}


def _pieces(sharded: Sharded) -> dict[str, str]:
    """Return the parts of the templates of `_Rank` and its callers that depend on the schedule, by placeholder."""
    plan = sharded.plan
    ticks, several = lockstep(plan), chunks(plan) > 1
    quoted, first, delay = _names(plan)["quoted"], ticks.forwards_first, str(ticks.delay)
    place = "chunk, n" if several else "n"
    pieces = {
        "order": ORDER[first, several],
        "body": _body(sharded),
        "from_to": f"i, (i + 1) % MESH[{quoted}]" if several else "i, i + 1",
        "senders": f"MESH[{quoted}]" if several else "self.last",
        "place_arguments": "chunk: jax.Array, n: jax.Array" if several else "n: jax.Array",
        "place": place,
        "stage_of_rank": "chunk, self.rank" if several else "self.rank",
        "of_layer": _wide(plan, f"jax.tree.map(lambda w: w[{place}], self.stack)"),
        "of_stage": _wide(plan, "jax.tree.map(lambda w: w[chunk], self.stack)" if several else "self.stack"),
        "ends": _wide(plan, "self.ends"),
        "chunk_argument": ", chunk: jax.Array" if several else "",
        "chunk": ", chunk" if several else "",
        "only_chunk": "chunk" if several else "",
        "first": "x, jnp.int32(0)" if several else "x",
        "later": fill(LATER, delay=delay) if ticks.delay else "",
        "begun": _begun(several, delay if ticks.delay else ""),
        "waits": ", which waits" if first else "",
        "loss_lines": _loss_lines(several, first),
        "back": _back(several, first, delay if ticks.delay else ""),
        "left": fill(LEFT_CHUNKS if several else LEFT),
        "steady": "rank.loss(now, y, t)" if first else "rank.backward(rank.loss(now, y, t), t)",
        "evaluated": "chunk, number, _, valid = _forward(t - self.last)" if several else NUMBER_OF_LOSS,
        "loss": "jnp.where(valid & (chunk == CHUNKS - 1), loss, 0)" if several else "loss",
    }
    pieces |= _of_experts(sharded, several) | _of_uneven(plan, place)
    at_once = every(sharded) > 1
    pieces["sum"] = f"total[{place}] + jnp.where({pieces['valid']}, g, 0)"
    added = f"{'total[chunk]' if several else 'total'} + jnp.where(valid, g, 0)"
    added = f"_replaced(total, {added}, chunk)" if several else added
    pieces["added"] = f'layers = jax.tree.map(lambda total, g: {added}, now["layers"], new)'
    stage = fill(STAGE_AT_ONCE if at_once else STAGE, **pieces)
    return pieces | {
        "stage": stage + ("\n\n" + fill(STAGE_LAYERS, **pieces) if uneven(plan) else ""),
        "pulled": fill(PULLED_AT_ONCE if at_once else PULLED, **pieces),
        "evaluated_stage": fill(EVALUATED_AT_ONCE if at_once else EVALUATED, **pieces),
    }


def _of_experts(sharded: Sharded, several: bool) -> dict[str, str]:
    """Return the template parts that carry expert counts with the hidden state, for one or `several` stages a rank."""
    if not sharded.model.top_k:
        return {
            "made": "y, pull",
            "has_aux": "",
            "gives": "pull",
            "pulls": "pulls",
            "picks": "",
            "unpicked": "",
            "of_aux": "",
            "nothing": "()",
            "picks_made": "",
        }
    added = (
        'now["picks"][chunk] + jnp.where(valid, picked, 0)' if several else 'now["picks"] + jnp.where(valid, picked, 0)'
    )
    added = f'_replaced(now["picks"], {added}, chunk)' if several else added
    shape = "(CHUNKS, *picked.shape)" if several else "picked.shape"
    return {
        "made": "y, pull, picked",
        "has_aux": ", has_aux=True",
        "gives": "(pull, picked)",
        "pulls": "(pulls, picked)",
        "picks": f'now |= {{"picks": {added}}}',
        "unpicked": f'now |= {{"picks": jnp.zeros({shape}, picked.dtype)}}',
        "of_aux": "[0]",
        "nothing": "((), 0)",
        "picks_made": ', now["picks"]',
    }


def _of_uneven(plan: Plan, place: str) -> dict[str, str]:
    """Return the template pieces that skip padding layers of short stages; `place` is code for a layer's index."""
    if not uneven(plan):
        return {"y": "y", "pulled_dx": "dx, new = pull(dx)", "valid": "valid"}
    return {
        "y": f"jnp.where(self.present({place}), y, x)",
        "pulled_dx": "\n".join(
            (
                f"present = self.present({place})",
                "through, new = pull(dx)",
                "dx, counts = jnp.where(present, through, dx), valid & present",
            )
        ),
        "valid": "counts",
    }


def _begun(several: bool, delay: str) -> str:
    if not several:
        return fill(BEGUN)
    return fill(BEGUN_CHUNKS, wait=fill(WAIT, delay=delay, which="first", rank="0", what="x") if delay else "")


def _loss_lines(several: bool, first: bool) -> str:
    if not several:
        return fill(LOSS_FIRST if first else LOSS)
    entered = '{"shares": _replaced(now["shares"], dy, number)}  # reuses the slot of its input'
    to_backward = entered if first else '{"dx": jnp.where(self.rank == self.last, _whole(dy), now["dx"])}'
    return fill(LOSS_CHUNKS, to_backward=to_backward, changed='"shares"' if first else '"dx"')


def _back(several: bool, first: bool, delay: str) -> str:
    if not several:
        return fill(BACK, dx=fill(FROM_LOSS) if first else 'dx = now["dx"]')
    wait = fill(WAIT, delay=delay, which="last", rank="self.last", what="dx") if delay else ""
    return fill(BACK_CHUNKS, wait=wait, from_loss=fill(FROM_LOSS_CHUNKS) if first else "")


def _body(sharded: Sharded) -> str:
    """Return the source of `self.body`, which runs one layer, or a whole stage if only some layers are recomputed."""
    if every(sharded) > 1:
        return "self.body = lambda x, stack: _in_groups(block, x, stack)"
    gathered, picks = sharded.plan.gathers_each_pass(), bool(sharded.model.top_k)
    if not gathered and not picks:
        return "self.body = remat(block)"
    said = "# A layer waits for its x: otherwise all weights of a stage are gathered before the loop and saved."
    waits = [said, "x, layer = jax.lax.optimization_barrier((x, layer))"] if gathered else []
    given = f"(x, unpicked(1, {sharded.model.sizes['experts']}))" if picks else "x"
    inside = [f"{INDENT}{line}" for line in (*waits, f"return block({given}, layer)")]
    return "\n".join(["", "def body(x: jax.Array, layer: Any) -> Any:", *inside, "", "self.body = remat(body)"])


def narrow_copies(plan: Plan) -> bool:
    """True if the pipeline computes with copies of the parameters in the compute dtype, gathered once a step."""
    return bool(plan.store("params")) and not plan.gathers_each_pass() and plan.precision.compute != "fp32"


def accumulate_function(sharded: Sharded, before: str, used: str) -> str:
    """Return the source of `_accumulate` for a pipeline. `before` are the lines that gather the parameters; `used` is
    the name of the gathered parameters."""
    plan = sharded.plan
    picked, uncut = bool(plan.model.top_k), not padded(sharded)
    return fill(
        ACCUMULATE,
        before=before,
        params=used,
        cut="" if uncut else "own, of_stored = jax.vjp(_unpadded, params)",
        own="params" if uncut else "own",
        added=fill(ADDED if uncut else ADDED_PADDED),
        wide=_wide(plan, _own(sharded, used)),
        quoted=_names(plan)["quoted"],
        picks_spec=", P(*STACK)" if picked else "",
        picks=", picks" if picked else "",
        grads="_in_dtype(grads, GRADS_DTYPE)" if narrow_state(plan) else "grads",
        held=HELD if picked and uneven(plan) else "",
        picks_joined=f", picks.reshape(-1, *picks.shape[-2:]){'[held]' * uneven(plan)}" if picked else "",
    )


def evaluate_lines(sharded: Sharded, used: str) -> str:
    """Return the lines that evaluate the loss by a pipeline. `used` is the name of the parameters in use."""
    return fill(EVALUATE, params=used, wide=_wide(sharded.plan, _own(sharded, used)))


def _own(sharded: Sharded, used: str) -> str:
    """Return code for the parameters without their padding to equal shards; `used` is code for the padded
    parameters."""
    return f"_unpadded({used})" if padded(sharded) else used


def _wide(plan: Plan, params: str) -> str:
    """Return code that casts the parameters `params` (code) to the dtype of their gradient sums; unchanged if the
    pipeline has no copies in the compute dtype."""
    return f"_wide({params})" if narrow_copies(plan) else params


def resting_function(plan: Plan) -> str:
    """Return the source of `_resting`, which returns the layout of an activation inside or outside the pipeline."""
    return fill(RESTING, **_names(plan))
