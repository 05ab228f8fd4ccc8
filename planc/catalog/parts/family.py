"""A family of models: its sizes, the ops of its blocks, and the reader of its Hugging Face configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planc.catalog.parts.config import Config
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.part import BLOCK, Part, assemble
from planc.catalog.parts.sizes import Size, layers_of
from planc.catalog.parts.steps import LAYER, RMS
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Model, Section


def _kinds_of_size(_name: str, size: Size, _layers: int) -> tuple[Section, ...]:
    return size.kinds or (BLOCK,)


def _unread(_config: Config) -> Size:
    raise AssertionError("a family without `model_types` reads no config")


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A family of models, such as Llama: a table of sizes, and how to build a model from them."""

    name: str
    sizes: Mapping[str, Size]
    """The sizes of each model that `model NAME` may name."""
    blocks: Callable[[Size], Mapping[Section, Part]]
    """The parts of each kind of block."""
    kinds: Callable[[str, Size, int], Sequence[Section]] = _kinds_of_size
    """Each layer's kind of block, from the model's name, its size and its number of layers. Raises ValueError for a
    number that makes no such model."""
    mtp: Callable[[Size], Part | None] = lambda _size: None
    """The block of the modules for multi-token prediction, if the family has them."""
    model_types: tuple[str, ...] = ()
    """`model_type` of the configs that `read` understands."""
    read: Callable[[Config], Size] = _unread
    """The size that a config describes. Raises ValueError, in words for the user, for a config of another family."""

    def build(self, name: str, changes: dict[str, int] | None = None) -> Model:
        """Return the op graph of `name`, a key of `sizes`; `changes` replaces sizes. Raises ValueError for invalid
        sizes."""
        return self._model(name, self.sizes[name], changes)

    def read_config(self, name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
        """Return the op graph of the Hugging Face config `fields`, called `name`, and the names of the fields not used.
        Raises ValueError for an invalid config."""
        config = Config(self.name, fields)
        return self._model(name, self.read(config)), config.unused

    def _model(self, name: str, size: Size, changes: dict[str, int] | None = None) -> Model:
        return assemble(
            name=name,
            family=self.name,
            size=size,
            changes=changes,
            first=embedding(positions=size.positions > 0),
            blocks=self.blocks(size),
            last=head(tied=size.tied, before=LAYER if size.biased else RMS),
            mtp=self.mtp(size),
            kinds=self.kinds(name, size, layers_of(size, changes)),
        )
