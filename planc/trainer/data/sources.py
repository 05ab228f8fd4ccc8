"""The data that a preset names."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from planc.diag import Diagnostic, PlanError
from planc.trainer.preset.load import Preset

if TYPE_CHECKING:
    from pathlib import Path

    from planc.trainer.data.stream import Source
    from planc.trainer.data.tokens.source import TokenSource


def source_of(preset: Preset) -> Source:
    """The data of `preset` at its plan's batch. Raises PlanError (E1032) for data that cannot be read."""
    batch, data = preset.plan.batch, preset.data
    if data.source == "python-stdlib":
        from planc.trainer.data.stream import PythonStdlib

        return PythonStdlib(batch.sequences, batch.sequence_tokens, preset.train.seed, data.max_bytes)
    return _tokens(preset)


def _tokens(preset: Preset) -> TokenSource:
    from planc.trainer.data.tokens.files import DataError

    try:
        return _of_text(preset) if preset.data.source == "text" else _of_tokens(preset)
    except (DataError, OSError) as error:
        raise PlanError([Diagnostic("E1032", f"the data cannot be read: {error}", preset.at("data", "path"))]) from None
    except ModuleNotFoundError as error:
        message = f"the preset's tokenizer needs {error.name}, which is not installed"
        where = preset.at("data", "tokenizer")
        raise PlanError([Diagnostic("E1009", message, where, help="pip install 'planc[data]'")]) from None


def _of_tokens(preset: Preset) -> TokenSource:
    from planc.trainer.data.tokens.files import Stream, token_files
    from planc.trainer.data.tokens.sums import remembered, sha256_of

    files = token_files(_path(preset), preset.data.dtype)
    said = "\n".join(f"{f.path.name} {f.dtype} {sha256_of(f.path)}" for f in files)
    largest = max(int(remembered(f.path, f"largest {f.dtype}", f.largest)) for f in files)
    return _source(preset, Stream(files), hashlib.sha256(said.encode()).hexdigest(), largest)


def _of_text(preset: Preset) -> TokenSource:
    from planc.cache import cache_folder
    from planc.trainer.data.tokens.files import Stream
    from planc.trainer.data.tokens.sums import remembered
    from planc.trainer.data.tokens.text import text_of
    from planc.trainer.data.tokens.tokenizer import tokenizer_of

    data = preset.data
    text = text_of(_path(preset), tokenizer_of(data.tokenizer, preset.path.parent, data.end_of_document))
    file = text.tokens(cache_folder() / "tokens")
    largest = int(remembered(file.path, f"largest {file.dtype}", file.largest))
    return _source(preset, Stream((file,)), text.sha256, largest)


def _source(preset: Preset, stream: object, content: str, largest: int) -> TokenSource:
    from planc.trainer.data.tokens.files import Stream
    from planc.trainer.data.tokens.source import TokenSource

    assert isinstance(stream, Stream)
    batch, data = preset.plan.batch, preset.data
    sizes = batch.sequences, batch.sequence_tokens, preset.train.seed
    return TokenSource(stream, content, largest, *sizes, data.held_out, data.shuffle)


def _path(preset: Preset) -> Path:
    return preset.path.parent / preset.data.path
