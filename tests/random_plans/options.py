"""The sentences beside the layout: precision, recomputation, kernels, narrow matmuls, offload, expectations and others.

Those that a target seldom takes are drawn seldom, at most one or two a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from planc.checks import rules
from planc.frameworks import NAMES
from planc.ir.dims import DIMS
from planc.ir.plan import Priced
from planc.language.op_names import beginnings
from planc.language.units import CURRENCIES
from planc.language.verbs.expect import METRICS
from planc.language.verbs.overlap import METHODS as OVERLAPS
from tests.random_plans.pieces import Dice, Draft


def draw(draft: Draft) -> None:
    """Common sentences, and now and then one that few plans have."""
    _common(draft)
    if draft.small:
        seldom: list[Callable[[Draft], object]] = [
            *(_kernel, _offload_state, _offload_tensors, _override, _other_dims, _on_target, _reverse, _chunk_loss),
        ]
        share = 0.35
    else:
        seldom = [
            *(
                _kernel,
                _quantize,
                _offload_state,
                _offload_tensors,
                _override,
                _compile,
                _chunk_loss,
                _overlap,
                _store_dtype,
                _realise,
            ),
            *(_replicate, _other_dims, _expect, _expect_no, _target, _on_target, _numbers, _own_layout, _node_limit),
            *(_realise, _price),
        ]
        share = 0.65
    while draft.dice.chance(share):
        draft.dice.choice(seldom)(draft)
        share /= 2
    if draft.dice.chance(0.06):
        _fine_tune(draft)


def _common(draft: Draft) -> None:
    dice = draft.dice
    if dice.chance(0.5):
        draft.say("optimizer muon" if dice.chance(0.15) else "optimizer adamw")
    if draft.small:
        narrow = not draft.experts and dice.chance(0.07)
        draft.say("compute bf16 reduce fp32" if narrow else dice.choice(("compute fp32", "compute fp32 reduce fp32")))
    else:
        others = ("compute bf16", "compute fp32", "compute fp32", "compute bf16 reduce bf16")
        usual = (*(["compute bf16 reduce fp32"] * 4), *others)
        seldom = ("compute fp16 reduce fp32", "compute fp16", "compute tf32")
        draft.say(dice.choice(seldom if dice.chance(0.06) else usual))
    if draft.nouns and "params" in draft.nouns:
        schedule = draft.schedule
        halves = schedule is not None and schedule.name in ("zbv", "dualpipev", "interleaved_zero_bubble")
        if halves or dice.chance(0.35):
            period = "step" if halves else dice.choice(("pass", "microbatch", "step", "step"))
            draft.say(f"gather params per {period}{_layers_together(dice)}")
    _recompute(draft)
    if draft.experts and dice.chance(0.3):
        method = dice.choice(("dropless", "capacity", "capacity(factor = 1.25)", "capacity(factor = 2)"))
        draft.say(f"route experts as {method}")


def _layers_together(dice: Dice) -> str:
    """Seldom, how many layers are gathered together or ahead."""
    bucket = f" bucket {dice.choice((1, 2, 2, 3))} layers" if dice.chance(0.15) else ""
    return bucket + (f" prefetch {dice.choice((1, 2, 5))} layers" if dice.chance(0.15) else "")


def _recompute(draft: Draft) -> None:
    """None, whole blocks, or ops by their names or the beginnings of these."""
    dice, model = draft.dice, draft.model
    ops = list(dict.fromkeys(op.name for kind in model.blocks for op in model.ops[kind]))
    matmuls = list(dict.fromkeys(op.name for k in model.blocks for op in model.ops[k] if op.kind == "matmul"))
    way = dice.weighted(
        nothing=4, none=0.5, blocks=4, whole=0.08, core=1.5, norms=1, kept=0.7, kept_matmuls=0.3, ops=0.6
    )
    every = f" every {dice.choice((2, 3))} layers" if dice.chance(0.1) else ""
    norms = [n for n in ops if n.endswith("norm")]
    sentence = {
        "none": "recompute none",
        "blocks": f"recompute blocks{every}",
        "whole": "recompute whole_blocks",
        "core": f"recompute {'attention.core' if 'attention.core' in ops else ops[0]}{every}",
        "norms": f"recompute {', '.join(dice.some(norms or ops, 1, 2))}{every}",
        "kept": f"recompute blocks except {'attention.core' if 'attention.core' in ops else ops[0]}",
        "kept_matmuls": f"recompute blocks except {', '.join(matmuls)}",
        "ops": f"recompute {', '.join(dice.some([*dict.fromkeys(beginnings(ops)), *ops], 1, 3))}",
    }
    if way != "nothing":
        draft.say(sentence[way])


def _kernel(draft: Draft) -> None:
    """A kernel of attention by name; context parallelism says this sentence itself."""
    passed = draft.axis("cp") is not None and not draft.ulysses
    if passed and draft.dice.chance(0.7):
        return
    if not passed and any("attention.core as" in s for s in draft.sentences):
        return
    common = (
        ("unfused", "flash") if draft.small else ("flash", "flash", "unfused", "triton", "cudnn", "efficient", "flex")
    )
    kernel = draft.dice.choice((*common, "splash", "splash(block = 512)") if not draft.small else common)
    draft.say(f"attention.core as {kernel}")


def _quantize(draft: Draft) -> None:
    dice, model = draft.dice, draft.model
    ops = [op.name for kind in model.blocks for op in model.ops[kind] if op.kind == "matmul"]
    names = list(dict.fromkeys([*beginnings(ops), *ops]))
    method = dice.choice(
        (
            *("float8(rowwise)", "float8(rowwise)", "float8(tensorwise)", "float8(recipe = rowwise)", "float8"),
            *("float8(blockwise)", "float8(tile = 128)", "int8", "int8(tile = 128)", "float4"),
        )
    )
    spared = dice.choice(("", "", " except layers 0", f" except {ops[0]}", f" except {ops[-1]} layers 0"))
    if model.layers > 2 and dice.chance(0.2):
        spared = f" except layers 0..1, {model.layers - 1}"
    draft.say(f"quantize {', '.join(dice.some(names, 1, 3))} as {method}{spared}")


def _fine_tune(draft: Draft) -> None:
    """Parts that are frozen, or low-rank updates, seldom both."""
    dice, model = draft.dice, draft.model
    said = dice.choice(("freeze", "freeze", "lora", "lora", "both"))
    if said != "lora":
        parts = ("blocks", "norms", "embedding", "attention", "head", "model except norms", "model except head")
        draft.say(f"freeze {dice.choice(parts)}")
    if said != "freeze":
        ops = [op.name for kind in model.blocks for op in model.ops[kind]]
        named = [op for op in ("attention.q", "attention.v", "attention.out") if op in ops]
        strength = dice.choice(("", " alpha 4", " alpha 16"))
        draft.say(f"lora rank {dice.choice((2, 3, 4))}{strength} on {dice.choice(('heads', *named))}")


def _offload_state(draft: Draft) -> None:
    if draft.nouns or not draft.small:
        what = "params, optimizer" if draft.dice.chance(0.7) else draft.dice.choice(("params", "optimizer"))
        draft.say(f"offload {what} to host")


def _offload_tensors(draft: Draft) -> None:
    model = draft.model
    saved = list(dict.fromkeys(t for kind in model.blocks for op in model.ops[kind] for t in (*op.saves, op.output)))
    draft.say(f"offload {', '.join(draft.dice.some(saved, 1, 2))} to host")


def _override(draft: Draft) -> None:
    """A parameter kept whole, or divided another way; one of the block goes by `*`, a run of layers by its pattern."""
    dice = draft.dice
    param = dice.choice(draft.model.params)
    glob = param.name.removesuffix(".weight")
    if draft.small or dice.chance(0.6):
        draft.say(f"override {glob} = replicated")
        return
    axes = [a for a in draft.axes if a.role in ("tp", "fsdp", "dp")]
    legal = [(d, a) for d in param.dims for a in axes if draft.model.sizes.get(d, 1) % a.size == 0]
    if not legal:
        return
    dim, axis = dice.choice(legal)
    second = [(d, a) for d, a in legal if d != dim and a is not axis]
    more = ""
    if second and dice.chance(0.3):
        d, a = dice.choice(second)
        more = f" and {d} over {a.name}"
    draft.say(f"override {glob} = {dim} over {axis.name}{more}")


def _compile(draft: Draft) -> None:
    what = draft.dice.choice(("blocks", "blocks", "blocks, loss", "loss"))
    draft.say(f"compile {what}{draft.dice.choice(('', ' as inductor'))}")


def _chunk_loss(draft: Draft) -> None:
    draft.say(f"loss in {draft.dice.choice((1, 2, 2, 3, 4, 8))} chunks")


def _overlap(draft: Draft) -> None:
    axis = draft.dice.choice(draft.axes)
    draft.say(f"overlap {axis.name} as {draft.dice.choice(OVERLAPS)}")
    if draft.dice.chance(0.3) and not any(s.startswith("compile") for s in draft.sentences):
        draft.say("compile blocks as inductor")


def _realise(draft: Draft) -> None:
    draft.say(f"realise as {draft.dice.choice(NAMES)}")


def _store_dtype(draft: Draft) -> None:
    """A dtype for state. A sentence of the same noun that has axes would say it twice, so the dtype goes into that."""
    dice = draft.dice
    dtype = dice.choice(("bf16", "fp32", "float8"))
    for i, sentence in enumerate(draft.sentences):
        if sentence.startswith("store ") and " as " not in sentence:
            draft.sentences[i] = sentence.replace(" over ", f" as {dtype} over ", 1)
            return
    if not draft.nouns:
        draft.say(f"store {dice.choice(('optimizer', 'params', 'grads'))} as {dtype}")


def _replicate(draft: Draft) -> None:
    axis = draft.axis("tp") or draft.axis("cp")
    if axis is None:
        return
    dims = ["kv_heads"] if "heads" in draft.divided and "kv_heads" in draft.model.sizes else []
    dims += list(draft.divided) or ["sequence"]
    regions = draft.dice.some([r for r in draft.model.regions if r not in ("dispatch",)], 1, 1)
    where = f" in {regions[0]}" if draft.dice.chance(0.4) else ""
    draft.say(f"replicate {draft.dice.choice(dims)} over {axis.name}{where}")


def _other_dims(draft: Draft) -> None:
    """A dim that few layouts divide, over the tensor axis."""
    dice, tp, model = draft.dice, draft.axis("tp"), draft.model
    if tp is None:
        return
    named = " ".join(s for s in draft.sentences if s.startswith(("use", "shard")))
    legal = [d for d in DIMS if d not in ("layers", "batch", *draft.divided) and d not in named]
    legal = [d for d in legal if d in model.sizes and model.sizes[d] % tp.size == 0]
    if legal:
        where = dice.choice([r for r in model.regions if r != "dispatch"])
        draft.say(f"shard {dice.choice(legal)} over {tp.name}" + (f" in {where}" if dice.chance(0.7) else ""))


LOOSE = {
    "memory": ("<= 900 GiB", "< 2 TiB", ">= 1 MiB"),
    "step_time": (">= 1 us", "<= 5000 s", "> 10 ns"),
    "mfu": ("<= 100 %", "> 0.001 %"),
    "bubble": ("<= 99 %", ">= 0 %"),
    "exposed_comm": ("<= 99.5 %", ">= 0 %"),
    "days": ("<= 1e9", "> 0"),
    "device_hours": ("<= 1e15", ">= 0"),
    "price": (">= 0 {currency}", "< 1e12 M{currency}"),
}


def _expect(draft: Draft) -> None:
    metric = draft.dice.choice(sorted(METRICS))
    currency = _price(draft) if METRICS[metric] == "money" else ""
    if metric in ("days", "device_hours", "price"):
        _train(draft)
    draft.say(f"expect {metric} {draft.dice.choice(LOOSE[metric]).format(currency=currency)}")


def _train(draft: Draft) -> None:
    if not any(s.startswith("train") for s in draft.sentences):
        draft.say(f"train for {draft.dice.choice(('20000', '300 k', '2.5 M', '100 B', '15 T'))} tokens")


def _price(draft: Draft) -> str:
    """A price, if there is none yet; returns its currency."""
    dice = draft.dice
    given = next((s for s in draft.sentences if s.startswith("price")), "")
    if not given:
        currency = dice.choice(CURRENCIES)
        amount = dice.choice((f"2.50 {currency}", f"0.01 k{currency}", f"1e-6 M{currency}"))
        given = f"price {amount} per {dice.choice(get_args(Priced))} hour"
        draft.say(given)
    return given.split()[2][-3:]


def _expect_no(draft: Draft) -> None:
    draft.say(
        f"expect no {draft.dice.choice(sorted(c for c, r in rules().items() if r.page.reads in ('plan', 'cost')))}"
    )


def _target(draft: Draft) -> None:
    draft.say(f"target {draft.dice.choice(('cuda', 'xla', 'none'))}")


def _on_target(draft: Draft) -> None:
    """A sentence for one target alone."""
    dice = draft.dice
    if any("attention.core as" in s or s.startswith("use cp") for s in draft.sentences) or draft.axis("cp") is not None:
        if any(s.startswith("recompute") for s in draft.sentences):
            return
        draft.say(f"on {dice.choice(('cuda', 'xla'))}: recompute blocks")
        return
    draft.say(f"on cuda: attention.core as {dice.choice(('unfused', 'flash'))}")


def _reverse(draft: Draft) -> None:
    """The order of sentences means nothing."""
    draft.sentences.reverse()


def _numbers(draft: Draft) -> None:
    """Numbers of one's own, in the sizes of the batch."""
    dice = draft.dice
    for i, sentence in enumerate(draft.sentences):
        if sentence.startswith("batch "):
            draft.sentences[i] = sentence.replace(
                f"{draft.sequences} x", dice.choice(("global * 1 x", "global x", "(global) x")), 1
            )
    draft.sentences.insert(0, f"let global = {draft.sequences}")


def _own_layout(draft: Draft) -> None:
    """A layout beside the plan in place of a sentence that divides over one axis."""
    for i, sentence in enumerate(draft.sentences):
        words = sentence.split(" over ")
        if sentence.startswith(("shard", "store")) and len(words) == 2 and words[1].isidentifier():
            verb = words[0]
            if draft.dice.chance(0.5) and " as " not in sentence:
                text = f"layout mine over axis\n{verb} over axis\n"
            else:
                text = f"layout mine over axis as way = gpipe\n{verb} over axis\n"
            draft.files["mine.plan"] = text
            draft.sentences[i] = f"use mine over {words[1]}"
            draft.sentences.insert(0, 'import "mine.plan"')
            return


def _node_limit(draft: Draft) -> None:
    if draft.experts and not any(s.startswith("route") for s in draft.sentences):
        method = draft.dice.choice(("dropless(node_limit = 4)", "capacity(factor = 1.5, node_limit = 2)"))
        draft.say(f"route experts as {method}")
