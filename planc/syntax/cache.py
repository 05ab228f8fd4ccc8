"""Where planc keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$PLANC_CACHE, or `planc` in the user's cache folder. It may not exist yet."""
    if "PLANC_CACHE" in os.environ:
        return Path(os.environ["PLANC_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "planc"
