"""Which axes there are, and what each divides: data, state, tensors, sequences, layers and experts."""

from __future__ import annotations

from math import gcd, lcm

from planc.ir.model import EXPERTS
from planc.pipeline.schedule import ScheduleShape
from planc.pipeline.schedules import schedules
from tests.random_plans.pieces import DATA, OUTERMOST_FIRST, Axis, Draft, Role, divisors, names

OTHER_NAMES: dict[Role, tuple[str, ...]] = {
    "pp": ("pp", "pp", "stage", "pipe"),
    "replica": ("replica", "replica", "node", "dp_replicate"),
    "fsdp": ("fsdp", "fsdp", "data", "dp_shard"),
    "dp": ("dp", "dp", "data", "batch"),
    "ep": ("ep", "ep", "expert"),
    "cp": ("cp", "cp", "context", "seq"),
    "tp": ("tp", "tp", "tensor", "model"),
}
SMALL_SIZES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((2,), (4,), (4,), (8,), (3,), (1,)),
    2: ((2, 2), (2, 2), (2, 2), (2, 4), (4, 2), (2, 3), (3, 2)),
    3: ((2, 2, 2),),
    4: ((2, 2, 2, 2),),
}
"""Sizes of one, two and three axes of at most eight ranks; four show which features need more than a launch has."""


def draw_roles(draft: Draft) -> list[Role]:
    """One to four roles; those that only experts have need a model with experts."""
    dice = draft.dice
    data: dict[str, list[Role]] = {"none": [], "dp": ["dp"], "fsdp": ["fsdp"], "hsdp": ["replica", "fsdp"]}
    roles = list(data[dice.weighted(none=2, dp=2, fsdp=4, hsdp=1.5)])
    shares: dict[Role, float] = (
        {"tp": 0.5, "cp": 0.5, "pp": 0.35} if draft.small else {"tp": 0.4, "cp": 0.25, "pp": 0.35}
    )
    roles += [r for r, share in shares.items() if dice.chance(share)]
    if draft.experts and dice.chance(0.4):
        roles.append("ep")
    most = 3 if draft.small and dice.chance(0.95) else 4
    while len(roles) > most:
        roles.remove(dice.choice(roles))
    if "replica" in roles and "fsdp" not in roles:
        roles[roles.index("replica")] = "dp"
    return list(dict.fromkeys(roles)) or ["dp"]


def draw_axes(draft: Draft) -> None:
    """The mesh: sizes that divide what their axes will divide, in any order as often as pipelines outermost and tensors
    innermost, and as often as not with an axis of one rank."""
    dice, roles = draft.dice, sorted(draw_roles(draft), key=OUTERMOST_FIRST.index)
    sizes: dict[Role, int] = {}
    small = list(dice.choice(SMALL_SIZES[len(roles)])) if draft.small else []
    for role in roles:
        wanted = small.pop() if draft.small else dice.choice((1, 2, 2, 2, 3, 4, 4, 8, 8, 16))
        if role in ("replica", "fsdp", "dp") and not draft.small:
            wanted = dice.choice((2, 3, 4, 8, 8, 16, 24, 32, 64, 128))
        sizes[role] = _fitting(draft, role, wanted)
    left = [r for r in OUTERMOST_FIRST if r not in roles and (r != "ep" or draft.experts)]
    left = [r for r in left if r != "replica" or "fsdp" in roles]
    if left and dice.chance(0.5):
        roles.append(dice.choice(left))
        sizes[roles[-1]] = 1
        roles.sort(key=OUTERMOST_FIRST.index)
    used: set[str] = set()
    axes = []
    for role in roles:
        name = dice.choice([n for n in OTHER_NAMES[role] if n not in used])
        used.add(name)
        axes.append(Axis(role, name, sizes[role]))
    if dice.chance(0.5):
        dice.shuffle(axes)
    draft.axes = tuple(axes)


def _fitting(draft: Draft, role: Role, wanted: int) -> int:
    """The size if it divides the heads or experts that it will divide, else the nearest below that does."""
    sizes = draft.model.sizes
    if draft.dice.chance(0.02):
        return wanted
    if role == "tp":
        heads = gcd(sizes["heads"], sizes.get("kv_heads", sizes["heads"]))
        widths = [sizes[d] for d in ("ffn", "expert_ffn", "vocab") if d in sizes]
        return max((d for d in range(1, wanted + 1) if heads % d == 0 and any(w % d == 0 for w in widths)), default=1)
    if role == "ep":
        return max(d for d in range(1, wanted + 1) if sizes["experts"] % d == 0)
    return wanted


def draw_pipeline(draft: Draft) -> None:
    """The schedule and its chunks; the model gets as many layers later."""
    if draft.axis("pp") is None:
        return
    legal = [s for s in schedules().values() if s.name != "csv" and not (s.even_ranks and draft.size("pp") % 2)]
    legal = [s for s in legal if s.name not in ONE_TARGET or draft.dice.chance(0.2)]
    common = [s for s in legal if s.name in ("gpipe", "1f1b", "interleaved_1f1b")]
    draft.schedule = draft.dice.choice(common if draft.dice.chance(0.4) else legal)
    draft.chunks = draft.schedule.chunks
    if draft.schedule.free_chunks and draft.dice.chance(0.6):
        draft.chunks = draft.dice.choice((1, 2, 3) if draft.small else (1, 2, 3, 4))


ONE_TARGET = ("dualpipe", "circular")
"""Schedules that cuda has not."""


def draw_batch(draft: Draft) -> None:
    """As many microbatches as the schedule runs, and sequences that every axis on them divides."""
    dice = draft.dice
    draft.microbatch = dice.choice((1, 2, 2, 4))
    count = dice.choice((1, 1, 2, 4)) if draft.schedule is None else draft.size("pp") * dice.choice((1, 2, 2))
    if draft.schedule is not None:
        stages = ScheduleShape(draft.size("pp"), draft.chunks, count)
        need = draft.schedule.need(stages)
        count = need.microbatches if need else count
    draft.microbatches = count
    ranks = 1
    for axis in draft.data:
        ranks *= axis.size
    draft.sequences = ranks * draft.microbatch * count
    unit = lcm(2 * draft.size("cp"), draft.size("cp") * draft.size("tp"))
    if dice.chance(0.03):
        unit = 1
    about = dice.choice((16, 24, 32, 40)) if draft.small else dice.choice((128, 512, 1024, 2048, 4096, 8192, 16384))
    most = draft.model.sizes.get("positions", about)
    while True:
        draft.sequence_tokens = max(1, min(about, most) // unit) * unit
        if draft.small or about <= 128 or need_gib(draft) < 0.7 * MEMORY_GIB:
            return
        about //= 2


MEMORY_GIB = 80
"""Memory of a device that plans are drawn for: many chips have as much."""


def need_gib(draft: Draft) -> float:
    """About the memory of a device: parameters with their gradients and AdamW's state, and what backward keeps."""
    model, tp, pp, cp = draft.model, draft.size("tp"), draft.size("pp"), draft.size("cp")
    shards = tp * pp * draft.size("fsdp") * draft.size("ep")
    tokens = draft.sequence_tokens * draft.microbatch / cp
    wide = model.sizes.get("ffn", 0) + model.top_k * model.sizes.get("expert_ffn", 0) + 10 * model.sizes["embed"]
    kept = min(draft.microbatches, 2 * pp * draft.chunks) * tokens * model.layers / pp * wide * 3 / tp
    logits = 3 * 4 * tokens * model.sizes["vocab"] / tp
    return (16 * model.parameters / shards + kept + logits) / 2**30


def draw_tensor(draft: Draft) -> None:
    """Dims that the tensor axis divides: heads, ffn, vocab (into unequal parts too), and the sequence between them."""
    dice, tp, sizes = draft.dice, draft.axis("tp"), draft.model.sizes
    if tp is None:
        return
    legal = [d for d in ("heads", "ffn", "vocab") if d in sizes and (sizes[d] % tp.size == 0 or d == "vocab")]
    every = set(legal) == {d for d in ("heads", "ffn", "vocab") if d in sizes}
    if every and dice.chance(0.6):
        draft.divided = tuple(legal)
        draft.say(f"use tp over {tp.name}")
    else:
        draft.divided = tuple(legal if dice.chance(0.5) else dice.some(legal, 1, 2))
        vocab = "vocab" in draft.divided and dice.chance(0.3)
        if vocab:
            draft.say(f"use vocab over {tp.name}")
        if rest := [d for d in draft.divided if not (vocab and d == "vocab")]:
            draft.say(f"shard {', '.join(rest)} over {tp.name}")
    if "heads" not in draft.divided and "ffn" not in draft.divided and draft.divided:
        return
    if draft.sequence_tokens % (tp.size * draft.size("cp")) == 0 and dice.chance(0.65):
        draft.sequence_parallel = True


def draw_sequence(draft: Draft) -> None:
    """Context parallelism in its forms, and the tensor axis's share of the residual stream."""
    dice, cp, tp = draft.dice, draft.axis("cp"), draft.axis("tp")
    heads = gcd(draft.model.sizes["heads"], draft.model.sizes.get("kv_heads", draft.model.sizes["heads"]))
    if cp is not None:
        ranks = cp.size * (tp.size if tp and "heads" in draft.divided else 1)
        ulysses = heads % ranks == 0 and dice.chance(0.35)
        draft.ulysses = ulysses and not draft.sequence_parallel
        if draft.ulysses:
            if "heads" in draft.divided and tp:
                draft.say(f"shard sequence over {cp.name}")
                draft.say(f"shard heads over {tp.name}, {cp.name} in attention")
            else:
                draft.say(f"use ulysses over {cp.name}")
        elif dice.chance(0.5):
            draft.say(f"use cp over {cp.name}{dice.choice(('', ' as ring', ' as ring', ' as all_gather'))}")
        else:
            draft.say(f"shard sequence over {cp.name}")
            if dice.chance(0.7):
                draft.say(f"attention.core as {dice.choice(_MEETINGS)}")
    if draft.sequence_parallel and tp is not None:
        if cp is None:
            draft.say(f"use sp over {tp.name}" if dice.chance(0.6) else f"shard sequence over {tp.name} in residual")
        else:
            draft.say(f"shard sequence over {tp.name} in residual")


_MEETINGS = (
    *("ring", "ring(balance = none)", "ring(headtail)", "ring(balance = headtail, rotate = p2p)"),
    *("all_gather", "all_gather(balance = none)", "all_gather(headtail)", "ring(rotate = alltoall)"),
)
"""Ways in which attention meets keys of other ranks."""


def draw_state(draft: Draft) -> None:
    """How the batch is divided and state is kept over the data axes."""
    dice, data, cp = draft.dice, draft.data, draft.axis("cp")
    if not data:
        if cp is not None and dice.chance(0.5):
            draft.nouns = _nouns(draft)
            draft.say(f"store {', '.join(draft.nouns)} over {cp.name}")
        return
    roles = [a.role for a in data]
    everything = ("params", "grads", "optimizer")
    if roles == ["replica", "fsdp"] and dice.chance(0.7):
        draft.nouns = everything
        draft.say(f"use hsdp over {names(data)}")
    elif len(data) == 1 and dice.chance(0.75 if cp is None else 0.4):
        kind = (
            dice.choice(("ddp", "zero1", "zero2")) if roles == ["dp"] else dice.choice(("fsdp",) * 4 + ("zero1", "ddp"))
        )
        draft.nouns = {"ddp": (), "zero1": ("optimizer",), "zero2": ("grads", "optimizer")}.get(kind, everything)
        draft.say(f"use {kind} over {names(data)}")
    elif len(data) == 2 and dice.chance(0.2):
        draft.nouns = everything
        draft.say(f"use fsdp over {names(data)}")
    else:
        draft.say(f"shard batch over {names(data)}")
        draft.nouns = _nouns(draft) if dice.chance(0.85) else ()
        if draft.nouns:
            kept = [a for a in data if a.role != "replica"] or list(data)
            if cp is not None and dice.chance(0.5):
                kept = [cp, *kept] if dice.chance(0.75) else [cp]
            dice.shuffle(kept)
            on = " on embed" if dice.chance(0.05) else ""
            draft.say(f"store {', '.join(draft.nouns)} over {names(kept)}{on}")


def _nouns(draft: Draft) -> tuple[str, ...]:
    return draft.dice.choice(
        (
            *(("params", "grads", "optimizer"),) * 3,
            *(("optimizer",), ("grads", "optimizer"), ("params", "optimizer")),
        )
    )


def draw_stages(draft: Draft) -> None:
    """The `split` sentence, with stages written out now and then, or a schedule from a file."""
    dice, pp, schedule = draft.dice, draft.axis("pp"), draft.schedule
    if pp is None or schedule is None:
        return
    own_chunks = schedule.free_chunks and draft.chunks != schedule.chunks
    method = f"{schedule.name}(chunks = {draft.chunks})" if own_chunks else schedule.name
    stages = pp.size * draft.chunks
    if dice.chance(0.2) and draft.model.layers >= stages:
        draft.say(f"split layers over {pp.name} as {method} stages [{_stages(draft, stages)}]")
    elif dice.chance(0.05) and schedule.copies == 1:
        draft.files["own.csv"] = _csv(draft)
        draft.say(f'split layers over {pp.name} as csv("own.csv")')
    elif not own_chunks and dice.chance(0.4):
        draft.say(
            f"use pp over {pp.name} as {method}" if method != "1f1b" or dice.chance(0.5) else f"use pp over {pp.name}"
        )
    else:
        draft.say(f"split layers over {pp.name} as {method}")


def _stages(draft: Draft, count: int) -> str:
    """Layers of each stage, whose sum is the model's; the ends may hold none."""
    dice, layers = draft.dice, draft.model.layers
    base = layers // count
    if layers % count == 0 and count > 2 and dice.chance(0.4):
        return f"embed + {base}, {count - 2} x {base} layers, {base} + head"
    sizes = [1] * count
    sizes[0], sizes[-1] = (dice.choice((0, 1)), dice.choice((0, 1))) if count > 1 else (0, 0)
    for _ in range(layers - sum(sizes)):
        sizes[dice.randrange(count)] += 1
    texts = [str(n) for n in sizes]
    texts[0] = f"embed + {texts[0]}" if sizes[0] else "embed"
    texts[-1] = (f"{sizes[-1]} + head" if sizes[-1] else "head") if count > 1 else f"{texts[0]} + head"
    return ", ".join(texts)


def _csv(draft: Draft) -> str:
    """The schedule's own actions, written as torch writes them."""
    assert draft.schedule is not None
    shape = ScheduleShape(draft.size("pp"), draft.chunks, draft.microbatches)
    rows = []
    for rank in range(shape.ranks):
        cells, joined = [], ""
        for repeat in draft.schedule.rank_actions(shape, rank):
            for turn in range(repeat.times):
                for action in repeat.actions:
                    a = action.shifted(turn * repeat.step)
                    cells += [] if a.overlaps_next else [f"({joined};{a.text})OVERLAP_F_B" if joined else a.text]
                    joined = a.text if a.overlaps_next else ""
        rows.append(",".join(cells))
    return "\n".join(rows) + "\n"


def draw_experts(draft: Draft) -> None:
    """Where experts lie: on an axis of their own, on data ranks, on tensor ranks, or on a view of these."""
    if not draft.experts:
        return
    dice, ep, tp = draft.dice, draft.axis("ep"), draft.axis("tp")
    experts, width = draft.model.sizes["experts"], draft.model.sizes["expert_ffn"]
    shared = tp is not None and draft.sequence_parallel
    ways = ["whole"]
    ways += ["own"] * 4 if ep is not None else []
    ways += ["tensor"] if shared and experts % tp.size == 0 else []
    ways += ["width"] if tp is not None and width % tp.size == 0 else []
    data = draft.axis("fsdp") or draft.axis("dp")
    if data is not None and ep is None:
        ways += ["data"] * (experts % data.size == 0)
    covered = _covered(draft, shared=shared) if ep is None else []
    ways += ["view"] * len(ways) * bool(covered)
    way = dice.choice(ways)
    if way == "own" and ep is not None:
        draft.say(dice.choice((f"use ep over {ep.name}", f"shard experts over {ep.name}")))
        if tp is not None and shared and width % tp.size == 0 and dice.chance(0.4):
            draft.say(f"use etp over {tp.name}")
    elif way == "tensor" and tp is not None:
        draft.say(f"use ep over {tp.name}")
    elif way == "width" and tp is not None:
        draft.say(dice.choice((f"use etp over {tp.name}", f"shard expert_ffn over {tp.name}")))
    elif way == "data" and data is not None:
        draft.say(f"use ep over {data.name}")
        others = [a for a in (*draft.data, draft.axis("cp")) if a not in (None, data)]
        if others and draft.nouns and dice.chance(0.5):
            draft.say(f"store {', '.join(draft.nouns)} over {names([a for a in others if a][:1])} for experts")
    elif way == "view":
        _view(draft, covered)


def draw_corners(draft: Draft) -> None:
    """Sentences that hardly any plan would have: the sequence over the tensor axis beside heads for it, the width of
    experts that an axis of the batch divides, and divided widths stored apart. Drawn last: no choice depends on it."""
    dice, tp, said = draft.dice, draft.axis("tp"), " ".join(draft.sentences)
    if tp is None or not dice.chance(0.4):
        return
    whole = draft.sequence_tokens % (tp.size * draft.size("cp")) == 0
    if draft.ulysses and "heads" in draft.divided and whole:
        draft.say(f"shard sequence over {tp.name} in residual")
    if not draft.experts or draft.model.sizes["expert_ffn"] % tp.size:
        return
    data = [a for a in draft.data if a.role != "ep"]
    wide = f"use etp over {tp.name}" in said or f"shard expert_ffn over {tp.name}" in said
    if any(f"use ep over {a.name}" in said for a in data) and not wide:
        draft.say(f"use etp over {tp.name}")
    elif wide and draft.nouns and data and f"for {EXPERTS}" not in said:
        draft.say(f"store {', '.join(draft.nouns)} over {data[-1].name} for {EXPERTS}")


def _covered(draft: Draft, *, shared: bool) -> list[Axis]:
    """Neighbours in the mesh whose ranks have tokens of their own, one axis or more; none where there are none.
    `shared`: those of the tensor axis have."""
    runs: list[list[Axis]] = [[]]
    for axis in draft.axes:
        if axis.role in DATA or axis.role == "cp" or (axis.role == "tp" and shared):
            runs[-1].append(axis)
        elif axis.size > 1:
            runs.append([])
    runs = [run for run in runs if any(axis.size > 1 for axis in run)]
    if not runs:
        return []
    run = draft.dice.choice(runs)
    first = draft.dice.randrange(len(run))
    part = run[first : draft.dice.randint(first, len(run)) + 1]
    return part if any(axis.size > 1 for axis in part) else run


def _view(draft: Draft, covered: list[Axis]) -> None:
    """Other axes over the ranks of these."""
    dice = draft.dice
    size = 1
    for axis in covered:
        size *= axis.size
    experts, width = draft.model.sizes["experts"], draft.model.sizes["expert_ffn"]
    ep = dice.choice([1, *[d for d in divisors(size, 64) if experts % d == 0]])
    left = size // ep
    etp = left if left > 1 and width % left == 0 and len(covered) > 1 and dice.chance(0.3) else 1
    rest = left // etp
    factors = [("eshard", rest), ("eexp", ep), ("ewide", etp)]
    factors = [(n, s) for n, s in factors if s > 1 or n == "eexp"]
    if dice.chance(0.3):
        dice.shuffle(factors)
    draft.say(f"view {' > '.join(f'{n} {s}' for n, s in factors)} of {names(covered)} for experts")
    draft.say("use ep over eexp")
    if etp > 1:
        draft.say("use etp over ewide")
    stored = set(draft.nouns)
    if rest > 1 and stored and dice.chance(0.9):
        form = dice.choice(("store", "store", "use"))
        if form == "use" and stored == {"params", "grads", "optimizer"}:
            draft.say("use fsdp over eshard for experts")
        else:
            draft.say(f"store {', '.join(draft.nouns)} over eshard for {EXPERTS}")
