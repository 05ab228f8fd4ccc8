"""A valid plan for a seed. Everything is chosen with its type and its legal values at hand, and written as text last.

Each part knows the rules of the language: an axis's size divides what the axis divides, the batch comes out even, the
schedule gets microbatches and layers that it can run, the cluster has as many devices as the mesh. A few plans in
a hundred leave a rule aside, so that refusals are met too.
"""

from __future__ import annotations

import re
from math import lcm

from tests.random_plans import layouts, machines, models, options
from tests.random_plans.pieces import Dice, Draft, Drawn


def draw(seed: int, *, small: bool = False) -> Drawn:
    """The plan of a seed, always the same. A `small` one is a tiny model on at most eight CPU devices."""
    dice = Dice(f"planc {'small ' if small else ''}{seed}")
    model, changes = models.draw(dice, small=small)
    draft = Draft(dice, small, model)
    layouts.draw_axes(draft)
    layouts.draw_pipeline(draft)
    model_sentence = _model(draft, changes)
    layouts.draw_batch(draft)
    if not small and layouts.need_gib(draft) > layouts.MEMORY_GIB and not draft.files:
        stages = draft.size("pp") * draft.chunks if draft.schedule else 1
        draft.model, changes = models.with_layers(draft.model, changes, stages * (1 + (stages < 4)))
        model_sentence = models.sentence(dice, draft.model, changes)
    cluster = machines.draw(draft)
    imports, draft.sentences = draft.sentences, []
    layouts.draw_tensor(draft)
    layouts.draw_state(draft)
    layouts.draw_sequence(draft)
    layouts.draw_stages(draft)
    layouts.draw_experts(draft)
    rest, draft.sentences = draft.sentences, [*imports, model_sentence, _batch(draft), cluster, _mesh(draft)]
    draft.sentences += rest
    options.draw(draft)
    if not small and dice.chance(0.1):
        dice.shuffle(draft.sentences)
    layouts.draw_corners(draft)
    name = f"random_{seed}"
    return Drawn(name, tuple(draft.sentences), draft.files)


def _model(draft: Draft, changes: dict[str, int]) -> str:
    """The sentence of the model, which gets as many layers as the pipeline asks for."""
    dice, model = draft.dice, draft.model
    stages = draft.size("pp") * draft.chunks if draft.schedule else 1
    if draft.small:
        layers = stages * dice.choice((1, 1, 2)) if stages > 1 else dice.choice((1, 2, 2, 3, 4))
        layers = max(layers, 2) if model.family == "deepseek" else layers
    elif dice.chance(0.45):
        layers = lcm(stages, dice.choice((1, 2, 4)))
        layers = layers if stages > 8 else layers * dice.choice((1, 1, 2))
    else:
        layers = model.layers if model.layers >= stages and dice.chance(0.7) else -(-model.layers // stages) * stages
    if layers <= 256:
        draft.model, changes = models.with_layers(model, changes, layers)
    if not draft.small and dice.chance(0.06) and (found := models.config(dice, draft.model.layers)):
        draft.model, fields = found
        draft.files["config.json"] = models.config_text(fields)
        return 'model from "config.json"'
    return models.sentence(dice, draft.model, changes)


def _batch(draft: Draft) -> str:
    micro = f" microbatch {draft.microbatch}" if draft.microbatch > 1 or draft.dice.chance(0.7) else ""
    return f"batch {draft.sequences} x {draft.sequence_tokens} tokens{micro}"


def _mesh(draft: Draft) -> str:
    return "mesh " + " > ".join(f"{a.name} {a.size}" for a in draft.axes)


def trainable(text: str) -> str:
    """The plan with nothing that only a machine or a compiler of its own has; the same text where it has none of it."""
    return re.sub(r"^(compile|overlap|target|expect) .*\n", "", text, flags=re.M)
