"""Presets that experiments train: a plan's text and a few settings."""

from __future__ import annotations

from pathlib import Path

from planc.driver import load


def preset_of(name: str, plan: str, settings: str, folder: Path) -> Path:
    """A preset `name`.toml in `folder` beside its plan.

    Args:
        name: of the plan and the preset.
        plan: the plan's text.
        settings: the preset's sections but `[plan]`.
        folder: where both are written.

    Raises PlanError when the plan or the settings have mistakes.
    """
    from planc.trainer.preset.embed import embed
    from planc.trainer.preset.load import load_preset

    source, preset = folder / f"{name}.plan", folder / f"{name}.toml"
    source.write_text(plan)
    preset.write_text(settings)
    embed(load(source), source, preset)
    load_preset(preset)
    return preset
