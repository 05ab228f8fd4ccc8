"""`planc weights`: export the parameters of a complete checkpoint in Hugging Face's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planc.diag import Diagnostic, PlanError, Span
from planc.trainer.checkpoint.resume import start_of
from planc.trainer.preset.load import load_preset

if TYPE_CHECKING:
    from planc.ir.session import Weights


def export(preset: Path | str, folder: Path | str, *, checkpoint: Path | str | None = None, step: int = -1) -> Path:
    """Write the parameters in a checkpoint of `preset` to `folder`, in Hugging Face's format. Return the checkpoint's
    path.

    `checkpoint` is the folder of the checkpoints, by default the preset's. `step` chooses a checkpoint, by default the
    newest. Low-rank updates are merged into their weights. Raises PlanError if the checkpoint is damaged or of another
    model. If `folder` is not empty, it is left unchanged.
    """
    from planc.ir.model import LORA_A, LORA_B
    from planc.trainer.checkpoint.directory import read_manifest
    from planc.trainer.checkpoint.hugging_face import exported, own_names
    from planc.trainer.checkpoint.tensor_files import Reader
    from planc.trainer.data.sources import source_of
    from planc.trainer.run.initial_weights import pattern

    loaded, span, folder = load_preset(preset, checkpoint), Span(str(preset), 1, 1, 1, 1), Path(folder)
    path = start_of(loaded, step, source_of(loaded).sha256).path
    if path is None:
        raise PlanError([Diagnostic("E1019", f"{loaded.checkpoints} holds no checkpoint", span)])
    if folder.exists() and any(folder.iterdir()):
        raise PlanError([Diagnostic("E1030", f"{folder} is not empty", span, help="name a new folder")])
    reader, model, lora = Reader(path, read_manifest(path).tensors), loaded.plan.model, loaded.plan.lora

    def whole(name: str) -> Weights:
        return reader(f"params.{name}", tuple(slice(0, n) for n in model.shape(model.param[pattern(name)])))

    def updated(name: str) -> Weights:
        module = name.removesuffix(".weight")
        a, b = f"{module}{LORA_A}", f"{module}{LORA_B}"
        if lora is None or pattern(a) not in model.param:
            return whole(name)
        return whole(name) + lora.alpha / lora.rank * (whole(b) @ whole(a))

    exported(model, ((name, updated(name)) for name, _ in own_names(model)), folder)
    return path
