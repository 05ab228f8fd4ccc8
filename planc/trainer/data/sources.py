"""Open the data that a preset names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planc.diag import Diagnostic, PlanError
from planc.trainer.preset.load import Preset
from planc.trainer.preset.settings import DataTable

if TYPE_CHECKING:
    from pathlib import Path

    from planc.trainer.data.stream import BatchSource
    from planc.trainer.data.tokens.files import Stream
    from planc.trainer.data.tokens.source import TokenSource


def source_of(preset: Preset) -> BatchSource:
    """Return the training and evaluation data that `preset` names, in batches of its plan's size. Raises PlanError
    (E1032) if data cannot be read."""
    source = _TableReader(preset, preset.data, "data").source()
    if preset.parts.evaluation is None:
        return source
    from planc.trainer.data.stream import Evaluated

    return Evaluated(source, _TableReader(preset, preset.parts.evaluation, "evaluation").source())


@dataclass(frozen=True)
class _TableReader:
    """Opens the data that one table of a preset describes: [data] or [evaluation]."""

    preset: Preset
    data: DataTable
    table: str

    def source(self) -> BatchSource:
        if self.data.source == "python-stdlib":
            from planc.trainer.data.stream import PythonStdlib

            return PythonStdlib(*self._sizes, self.data.max_bytes)
        from planc.trainer.data.tokens.files import DataError

        try:
            return self._of_text() if self.data.source == "text" else self._of_tokens()
        except (DataError, OSError) as error:
            where = self.preset.at(self.table, "path")
            raise PlanError([Diagnostic("E1032", f"the data cannot be read: {error}", where)]) from None
        except ModuleNotFoundError as error:
            message = f"the preset's tokenizer needs {error.name}, which is not installed"
            where = self.preset.at(self.table, "tokenizer")
            raise PlanError([Diagnostic("E1009", message, where, help="pip install 'planc[data]'")]) from None

    def _of_tokens(self) -> TokenSource:
        from planc.trainer.data.tokens.files import Stream, token_files
        from planc.trainer.data.tokens.sums import remembered, sha256_of

        files = token_files(self._path, self.data.dtype)
        said = "\n".join(f"{f.path.name} {f.dtype} {sha256_of(f.path)}" for f in files)
        largest = max(int(remembered(f.path, f"largest {f.dtype}", f.largest)) for f in files)
        return self._over(Stream(files), hashlib.sha256(said.encode()).hexdigest(), largest)

    def _of_text(self) -> TokenSource:
        from planc.cache import cache_folder
        from planc.trainer.data.tokens.files import Stream
        from planc.trainer.data.tokens.sums import remembered
        from planc.trainer.data.tokens.text import text_of
        from planc.trainer.data.tokens.tokenizer import tokenizer_of

        tokenizer = tokenizer_of(self.data.tokenizer, self.preset.path.parent, self.data.end_of_document)
        text = text_of(self._path, tokenizer)
        file = text.tokens(cache_folder() / "tokens")
        largest = int(remembered(file.path, f"largest {file.dtype}", file.largest))
        return self._over(Stream((file,)), text.sha256, largest)

    def _over(self, stream: Stream, content: str, largest: int) -> TokenSource:
        from planc.trainer.data.tokens.source import TokenSource

        held_out = 1.0 if self.table == "evaluation" else self.data.held_out
        return TokenSource(stream, content, largest, *self._sizes, held_out, self.data.shuffle)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Return the sequences per batch, the tokens per sequence, and the seed of the order of sequences."""
        batch = self.preset.plan.batch
        return batch.sequences, batch.sequence_tokens, self.preset.train.seed

    @property
    def _path(self) -> Path:
        return self.preset.path.parent / self.data.path
