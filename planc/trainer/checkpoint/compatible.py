"""Check that a checkpoint is compatible with a preset: every change that affects the losses is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planc.diag import Diagnostic, Span
from planc.ir.session import SECOND_MOMENT, STATE
from planc.ir.updates import is_orthogonalised
from planc.trainer.checkpoint.manifest import Manifest, Stored
from planc.trainer.preset.load import Preset

DATA = "data"
"""The name of the data in `[checkpoint] allow`."""


def course(preset: Preset) -> dict[str, Any]:
    """Return the settings of `preset` that affect the losses, without model and data: batch size, learning rate,
    optimizer. Sharding does not affect losses."""
    batch, train = preset.plan.batch, preset.train
    names = ["seed", "lr", "warmup_steps", "schedule", "betas", "eps", "weight_decay", "clip_norm"]
    names += [] if train.schedule == "constant" else ["min_lr", "steps"]
    names += ["decay_steps"] if train.schedule == "wsd" else []
    names += [] if train.optimizer == "adamw" else ["optimizer", "momentum"]
    names += ["decay_groups"] if train.decay_groups else []
    names += ["balance_loss"] if train.balance_loss else []
    found = {name: getattr(train, name) for name in names}
    shape = {"batch_sequences": batch.sequences, "sequence_tokens": batch.sequence_tokens}
    shape |= {"lora_alpha": preset.plan.lora.alpha} if preset.plan.lora else {}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in (found | shape).items()}


def misfits(preset: Preset, manifest: Manifest, data_sha256: str, span: Span) -> list[Diagnostic]:
    """Return why `preset` cannot resume from the checkpoint with this `manifest`, as diagnostics at `span`; [] if it
    can.

    `data_sha256` is the checksum of the preset's data.
    """
    allowed = set(preset.checkpoint.allow)
    return [
        *_model(preset, manifest, span),
        *_data(manifest, data_sha256, span, allowed),
        *_changed_settings(course(preset), manifest, span, allowed),
    ]


def _model(preset: Preset, manifest: Manifest, span: Span) -> Iterator[Diagnostic]:
    from planc.trainer.run.initial_weights import names, pattern

    model = preset.plan.model
    muon = preset.train.optimizer == "muon"
    wanted = {
        f"{kind}.{name}": shape
        for kind in STATE
        for name, shape in names(model)
        if kind == "params" or not model.param[pattern(name)].frozen
        if not (muon and kind == SECOND_MOMENT and is_orthogonalised(model, pattern(name)))
    }
    gaps = list(_differences(wanted, manifest.tensors))
    if gaps:
        more = f", and {len(gaps) - 1} more" if len(gaps) > 1 else ""
        message = f"the checkpoint is of {manifest.model}, the plan's model is {model.name}: {gaps[0]}{more}"
        help_text = "train the model of the checkpoint, or begin a run of this one in another folder"
        yield Diagnostic("E1018", message, span, help=help_text)


def _differences(wanted: Mapping[str, tuple[int, ...]], there: Mapping[str, Stored]) -> Iterator[str]:
    """Yield how the tensors of the model (`wanted`) and of the checkpoint (`there`) differ: shapes first."""
    for name, shape in wanted.items():
        if name in there and there[name].shape != shape:
            yield f"{name} is {_shape(there[name].shape)} there and {_shape(shape)} here"
    yield from (f"{name} is not there" for name in wanted if name not in there)
    yield from (f"{name} is not in the model" for name in there if name not in wanted)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _data(manifest: Manifest, sha256: str, span: Span, allowed: set[str]) -> Iterator[Diagnostic]:
    if sha256 != manifest.data_sha256 and DATA not in allowed:
        message = (
            f"the data have changed since step {manifest.step} was saved: {manifest.data_sha256[:12]} then,"
            f" {sha256[:12]} now"
        )
        help_text = 'bring the data back, or write `allow = ["data"]` under [checkpoint] to go on with these'
        yield Diagnostic("E1023", message, span, help=help_text)


def _changed_settings(
    here: Mapping[str, Any], manifest: Manifest, span: Span, allowed: set[str]
) -> Iterator[Diagnostic]:
    there = manifest.course
    changed = [n for n in {**here, **there} if not _same(here.get(n), there.get(n)) and n not in allowed]
    if changed:
        said = ", ".join(f"{n} was {_value_text(there, n)} and is {_value_text(here, n)}" for n in changed)
        names = ", ".join(f'"{n}"' for n in changed)
        help_text = f"write the old values, or `allow = [{names}]` under [checkpoint] to go on with the new ones"
        yield Diagnostic("E1024", f"the run would not be the one that was saved: {said}", span, help=help_text)


def _same(one: Any, other: Any) -> bool:
    """True if two settings are equal; in a dict the order counts too, as later decay groups override earlier ones."""
    return bool(one == other) and (not isinstance(one, dict) or list(one) == list(other))


def _value_text(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "not set"
