"""The git commit of planc: that of the checkout, or that from which an installed package was built."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from planc.files import read_text

MAX_BYTES = 1 << 22
"""Limit on the size of a `.git` file that is read: its list of packed references."""


def commit() -> str:
    """Return the hash of planc's git commit; "" if unknown, as for a package built outside a checkout."""
    built_from = files("planc").joinpath("commit.txt")
    return _hash(built_from.read_text()) if built_from.is_file() else _checked_out(Path(str(files("planc"))).parent)


def _checked_out(root: Path) -> str:
    """Return the commit checked out at `root`, read from `.git`: running git takes longer than `planc --version`."""
    if not (root / "setup.py").exists():
        return ""  # installed somewhere below another project's checkout
    try:
        git = root / ".git"
        if git.is_file():  # a worktree, whose folder is elsewhere
            git = root / _read(git).removeprefix("gitdir: ")
        head = _read(git / "HEAD")
        branch = head.removeprefix("ref: ")
        if branch == head:  # no branch is checked out
            return _hash(head)
        shared = git / _read(git / "commondir") if (git / "commondir").exists() else git
        if (shared / branch).exists():
            return _hash(_read(shared / branch))
        packed = re.search(rf"^(\w+) {re.escape(branch)}$", _read(shared / "packed-refs"), re.MULTILINE)
        return _hash(packed[1]) if packed else ""
    except (OSError, ValueError):
        return ""


def _read(path: Path) -> str:
    return read_text(path, MAX_BYTES).strip()


def _hash(text: str) -> str:
    found = re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", text.strip())
    return found[0] if found else ""
