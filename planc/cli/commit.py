"""The commit of this planc: what an installed package was built from, or what is checked out."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from pathlib import Path


def commit() -> str:
    """The commit's hash; empty where nothing tells it: a package that was built outside a checkout."""
    kept = files("planc").joinpath("commit.txt")
    return _hash(kept.read_text()) if kept.is_file() else _checked_out(Path(str(files("planc"))).parent)


def _checked_out(root: Path) -> str:
    if not ((root / ".git").exists() and (root / "setup.py").exists()):
        return ""  # installed somewhere below another project's checkout
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return _hash(done.stdout)


def _hash(text: str) -> str:
    found = re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", text.strip())
    return found[0] if found else ""
