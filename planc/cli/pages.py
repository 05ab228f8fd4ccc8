"""Pages that commands write: the ending of the path picks HTML, SVG or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planc.cli.common import did_you_mean
from planc.files import write_atomically

if TYPE_CHECKING:
    from planc.report.render import Page, View

Form = Literal["html", "svg", "json"]
FORMS: dict[str, Form] = {".html": "html", ".htm": "html", ".svg": "svg", ".json": "json"}


def ending(path: str) -> tuple[Form, str]:
    """The form that the ending of `path` picks, and what is wrong with it: an empty string, or a message."""
    form = FORMS.get(Path(path).suffix.lower())
    if form is None:
        return "html", f"{path}: the ending picks the form: .html, .svg or .json"
    return form, ""


def known_view(name: str, views: Sequence[View]) -> str:
    """An empty string for the name of one of `views` or none; else a message that `name` is not one of them."""
    names = [v.name for v in views]
    if name in ("", *names):
        return ""
    return f"--view {name}: {did_you_mean(name, names) or f'one of {chr(44).join(names)}'}"


def write_page(page: Page, views: tuple[View, ...], view: str, path: Path | None) -> int | None:
    """Write a `page`, or one `view` of its `views`, in the form that the ending of `path` picks; returns its bytes.

    None, and no file, where a picture is wanted and there is none. Without a path the JSON is printed.
    """
    from planc.report.render import as_json, html, picture_file

    if path is None:
        print(as_json(page, view))
        return 0
    form, _ = ending(str(path))
    text = {"json": as_json, "html": html, "svg": lambda p, v: picture_file(p, views, v)}[form](page, view)
    if text is None:
        return None
    data = text.encode("utf-8", "backslashreplace")
    write_atomically(path, data)
    return len(data)
