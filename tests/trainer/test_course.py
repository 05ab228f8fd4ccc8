"""Every setting that decides the losses is in a checkpoint's course: a run that changes one does not go on from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planc.diag import Span
from planc.trainer.checkpoint.compatible import course, misfits
from planc.trainer.checkpoint.manifest import Manifest, Position, read
from planc.trainer.preset.load import Preset, load_preset
from planc.trainer.preset.settings import COURSE, Checkpoint, TrainTable

TINY = Path(__file__).resolve().parents[2] / "plans" / "presets" / "tiny.toml"
SPAN = Span("run.toml", 1, 1, 1, 1)
GROUPS = {"*.attention.*": 0.5, "*.wq.*": 0.25}
FULL: dict[str, Any] = {
    "steps": 100, "lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 5, "schedule": "wsd", "decay_steps": 20,
    "optimizer": "muon", "momentum": 0.9, "decay_groups": GROUPS, "balance_loss": 0.01,
}  # fmt: skip
"""A run that uses every setting of its course."""
CHANGED: dict[str, Any] = {
    "seed": 1, "lr": 2e-3, "min_lr": 2e-4, "warmup_steps": 6, "steps": 101, "decay_steps": 21, "optimizer": "adamw",
    "schedule": "cosine", "momentum": 0.95, "balance_loss": 0.02, "betas": (0.9, 0.99), "eps": 1e-7,
    "weight_decay": 0.2, "clip_norm": 0.5, "decay_groups": {**GROUPS, "*.wq.*": 0.3},
}  # fmt: skip


def preset(allow: tuple[str, ...] = (), **settings: Any) -> Preset:
    loaded = load_preset(TINY)
    parts = loaded.parts.model_copy(
        update={"train": TrainTable.model_construct(**{**FULL, **settings}), "checkpoint": Checkpoint(allow=allow)}
    )
    return replace(loaded, parts=parts)


def said(then: Preset, now: Preset) -> list[str]:
    """The codes and messages about the course with which `now` is refused after `then`."""
    manifest = Manifest(
        step=1, optimizer_steps=1, plan="p", plan_sha256="0", mesh={"dp": 1}, target="cuda", runtime="numpy",
        versions={}, model="m", course=course(then), data_sha256="d", saved_at="",
        position=Position(step=1, sequences=1, tokens=1),
    )  # fmt: skip
    return [f"{d.code} {d.message}" for d in misfits(now, read(manifest.text()), "d", SPAN) if d.code != "E1018"]


def test_every_setting_of_a_course_is_changed_here() -> None:
    shape = {"batch_sequences", "sequence_tokens"}
    assert CHANGED.keys() | shape == course(preset()).keys() == set(COURSE) - {"data"}


@pytest.mark.parametrize("name", CHANGED)
def test_another_value_is_refused(name: str) -> None:
    (found,) = said(preset(), preset(**{name: CHANGED[name]}))
    assert found.startswith("E1024 the run would not be the one that was saved: ")
    assert f"{name} was " in found


@pytest.mark.parametrize("name", ["balance_loss", "decay_groups"])
def test_what_is_set_later_is_refused(name: str) -> None:
    unset: dict[str, Any] = {"balance_loss": 0.0, "decay_groups": {}}
    (found,) = said(preset(**{name: unset[name]}), preset())
    assert f"{name} was not set and is " in found


def test_groups_in_another_order_are_another_course() -> None:
    """The last one that fits counts."""
    (found,) = said(preset(), preset(decay_groups=dict(reversed(GROUPS.items()))))
    assert "decay_groups was " in found


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_allowed_is_taken(name: str) -> None:
    more = {"schedule": ("decay_steps",), "optimizer": ("momentum",)}.get(name, ())
    assert said(preset(), preset((name, *more), **{name: CHANGED[name]})) == []
