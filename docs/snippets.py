"""The fenced blocks of the documentation, and how each kind is run.

The words after a fence's language say how it is checked:

    plan                     a whole file without a finding
    plan                     a layout or hardware file: imported by a plan without a finding
    plan                     a serve plan of "train.plan", which is a plan of `BASE`: the same
    plan fragment            some sentences, completed with those of `BASE` whose verb they lack
    plan bad E0203           a whole file whose errors have exactly these codes
    plan file=my.plan        the same, and the page's commands find it under this name
    plan from=plans/my.plan  that file, as it stands
    python                   runs by itself; `torchrun=4` or `devices=4` runs it on as many
    console                  `$ planc ...` exits 0 (`exit=1`: 1), and prints what the block shows, if it does
    console launch           trains, so only its exit status counts
    json file=ds.json        another system's file, which the page's commands read; also yaml, toml and bash
    text                     on generated pages alone, which a test writes anew and compares
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BASE = (
    "plan fragment",
    "model     llama3_8b",
    "batch     256 x 8192 tokens microbatch 1",
    "cluster   4 x h100_node",
    "mesh      fsdp 4 > tp 8",
    "use       fsdp over fsdp",
    "use       tp over tp",
    "compute   bf16 reduce fp32",
)
FENCE = re.compile(r"^```(?P<info>[^\n]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One fenced block. `line` is that of its fence in `page`."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def option(self, name: str) -> str:
        """The value of `name=value`, or an empty string."""
        return next((w.partition("=")[2] for w in self.words if w.startswith(f"{name}=")), "")

    @property
    def launches(self) -> bool:
        return "launch" in self.words or bool(self.option("torchrun") or self.option("devices"))

    @property
    def codes(self) -> tuple[str, ...]:
        """The errors a `bad` plan must have."""
        return tuple(w for w in self.words if re.fullmatch(r"[EWN]\d{4}", w)) if "bad" in self.words else ()


def pages() -> list[Path]:
    """Everything a reader is shown, in Markdown."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path) -> list[Snippet]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        language, *words = match["info"].split()
        line = text.count("\n", 0, match.start()) + 1
        found.append(Snippet(page, line, language, tuple(words), match["text"]))
    return found


def completed(fragment: str) -> str:
    """A whole plan: the fragment's sentences, and those of BASE whose verb it does not use."""
    used = {line.split()[0] for line in fragment.splitlines() if line and not line.startswith(("#", " "))}
    dropped = used | ({"use"} if "mesh" in used else set())
    return "\n".join([*(line for line in BASE if line.split()[0] not in dropped), fragment])


def importing(name: str) -> str:
    """A plan that imports a layout or hardware file and is otherwise BASE."""
    return completed(f'import    "{name}"\n')


def workspace(page: Path, folder: Path) -> Path:
    """A folder in which the page's commands run: the repository's plans, and the page's own files."""
    (folder / "plans").symlink_to(ROOT / "plans")
    for snippet in snippets(page):
        if name := snippet.option("file"):
            (folder / name).write_text(snippet.text)
    return folder


@dataclass(frozen=True)
class Command:
    """One `$ ...` line of a console block and the output shown below it."""

    line: str
    shown: str


def commands(snippet: Snippet) -> Iterator[Command]:
    for part in re.split(r"^\$ ", snippet.text, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield Command(line, shown)


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a `planc` or `python` command line as a reader would, 100 columns wide and without colour."""
    program, *arguments = shlex.split(line)
    binary = Path(sys.executable).with_name(program)
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [str(binary), *arguments], cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
