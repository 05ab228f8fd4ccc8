"""The threads of threads.toml as values, and the plans that repeat their mistakes."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
EXPECT = re.compile(r"#\s*expect:\s*([EWN]\d{4})")


@dataclass(frozen=True)
class Thread:
    """One public thread. Exactly one of `code`, `row`, `receipts` and `reason` says what planc does about it."""

    name: str
    theme: str
    what: str
    plan: str = ""
    code: str = ""
    row: tuple[str, str] | None = None
    """The tensor and the axes of a collective in the plan's report."""
    receipts: tuple[str, ...] = ()
    reason: str = ""

    @property
    def url(self) -> str:
        repository, number = self.name.split("#")
        return f"https://github.com/{repository}/issues/{number}"


def threads() -> list[Thread]:
    """Every thread, in the order of the file."""
    return [_thread(entry) for entry in _read()["thread"]]


def themes() -> dict[str, str]:
    """Each theme's title."""
    return {entry["name"]: entry["title"] for entry in _read()["theme"]}


def plan_path(name: str) -> Path:
    """The plan of that name."""
    return FOLDER / "plans" / f"{name}.plan"


def marked(text: str) -> list[tuple[str, int]]:
    """The codes that a plan's comments expect, with their lines."""
    lines = enumerate(text.splitlines(), 1)
    return [(code, number) for number, line in lines for code in EXPECT.findall(line)]


def _read() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "threads.toml").read_text())


def _thread(entry: dict[str, Any]) -> Thread:
    row = entry.pop("row", None)
    receipts = tuple(entry.pop("receipts", ()))
    return Thread(**entry, row=(row["tensor"], row["axis"]) if row else None, receipts=receipts)
