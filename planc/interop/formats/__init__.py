"""Parses the formats of configuration files; each reader takes a text and returns its fields with their places."""

from __future__ import annotations

from planc.diag.span import Source
from planc.interop.document import Document, Format, UnreadableError

ENDINGS: dict[str, Format] = {
    ".sh": "flags",
    ".slurm": "flags",
    ".sbatch": "flags",
    ".bash": "flags",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".txt": "flags",
    ".args": "flags",
    ".overrides": "assignments",
}
"""Format by file name extension."""


def format_of(name: str) -> Format | None:
    """Returns the file format of the file `name`, by its extension; None for an extension of no known format."""
    ending = "." + name.rpartition(".")[2].lower() if "." in name else ""
    return ENDINGS.get(ending)


def read_document(name: str, text: str, format: Format) -> Document:
    """Returns the fields of the file `name` with content `text`, parsed as `format`.

    Raises UnreadableError, with a place (file, line, column), for text that is not of this format, that is nested too
    deep, or whose YAML aliases expand to too many values.
    """
    source = Source.of(name, text)
    if format in ("flags", "assignments"):
        from planc.interop.formats.shell import read_scripts

        return read_scripts([source], {}, {name: format})[0]
    if format == "toml":
        from planc.interop.formats.toml import read_toml

        return read_toml(source)
    from planc.interop.formats.yaml import read_yaml

    return read_yaml(source, format)


__all__ = ["ENDINGS", "UnreadableError", "format_of", "read_document"]
