"""Writes the plans that a search found."""

from __future__ import annotations

from pathlib import Path

from planc.files import MAX_TEXT_BYTES, first_word, read_bounded, write_atomically
from planc.language.build import build_file, build_serve


def write_plans(folder: Path, source: Path, texts: list[str]) -> None:
    """Write `texts` to STEM_1.plan (the best), STEM_2.plan, ... in `folder`; STEM is the name of the plan `source`.

    Files that `source` reads are copied too, with the same relative paths. Raises FileExistsError, before anything is
    written, if a different file is at the path of a copy.
    """
    copies = {}
    build = build_serve if first_word(source) == "serve" else build_file
    for name in build(source).files if texts else ():
        data, place = read_bounded(source.parent / name, MAX_TEXT_BYTES), folder / name
        if not place.exists():
            copies[place] = data
        elif read_bounded(place, MAX_TEXT_BYTES) != data:
            raise FileExistsError(f"{place} is another file than {source.parent / name}, which the plans read")
    folder.mkdir(parents=True, exist_ok=True)
    for place, data in copies.items():
        write_atomically(place, data)
    for i, text in enumerate(texts, 1):
        write_atomically(folder / f"{source.stem}_{i}.plan", text)
