"""Framework versions, compared by major and minor number."""

from __future__ import annotations

import re

Version = tuple[int, int]


def dotted(version: Version) -> str:
    """Return `version` as text.

    >>> dotted((2, 11))
    '2.11'
    """
    return ".".join(map(str, version))


def version_of(text: str) -> Version | None:
    """Return the major and minor version in `text`; None if `text` is not a version.

    >>> version_of("2.11.0+cu130"), version_of("newest")
    ((2, 11), None)
    """
    found = re.match(r"(\d{1,4})\.(\d{1,4})(?![\d])", text)
    return (int(found[1]), int(found[2])) if found else None
