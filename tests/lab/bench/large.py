"""`planc bench large`: CPU seconds for a megabyte of many kinds of text, and for the largest plan of each kind that is
still read."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from planc.cli.common import print_json
from planc.cli.views.table import table
from planc.language.imports import MAX_BYTES
from planc.syntax.lines import MOST_CHARACTERS, MOST_SENTENCES

HEAD = """plan large
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 8
use       fsdp over fsdp
use       tp   over tp
compute   fp32
recompute blocks
"""
PROJECTIONS = tuple(f"layers.{i}.attention.{w}" for i in range(32) for w in ("wq", "wk", "wv", "wo"))
LONG = 4_900
"""Words of a long sentence: it is shorter than the longest one that is read."""
KINDS: dict[str, Callable[[int], str]] = {
    "one override": lambda i: "override layers.*.attention.wq = replicated\n",
    "overrides": lambda i: f"override {PROJECTIONS[i % len(PROJECTIONS)]} = replicated\n",
    "overrides that match nothing": lambda i: f"override *l*a*y*e*r*q{i} = replicated\n",
    "overrides of one target": lambda i: f"on {('cuda', 'xla')[i % 2]}: override layers.*.attention.wq = replicated\n",
    "numbers": lambda i: f"let n{i} = {f'n{i - 1}' if i else 1} + 1\n",
    "unknown numbers": lambda i: f"let number{i} = {f'nubmer{i - 1}' if i % 2 else 1}\n",
    "layouts": lambda i: "use tp over tp\n",
    "unknown layouts": lambda i: f"use fsd{i} over tp\n",
    "dims": lambda i: "shard ffn over tp\n",
    "unknown dims": lambda i: f"shard hed{i}s over tp\n",
    "unknown axes": lambda i: f"shard ffn over tp{i}\n",
    "unknown verbs": lambda i: f"sharp{i} ffn over tp\n",
    "one letter": lambda i: "x\n",
    "malformed sentences": lambda i: f"shard ffn ovr tp{i}\n",
    "names with hyphens": lambda i: f"model llama3-8b-{i}\n",
    "expectations": lambda i: "expect memory <= 60 GiB\nexpect memory >= 70 GiB\n",
    "absent codes": lambda i: "expect no W0601\n",
    "unknown metrics": lambda i: f"expect memroy{i} <= 72 GiB\n",
    "units": lambda i: "expect memory <= 72 GB/s\n",
    "comments": lambda i: "# comment\n",
    "sentences with comments": lambda i: f"let n{i} = 1  # comment {i}\n",
    "blank lines": lambda i: "\n",
    "sums": lambda i: f"let n{i} = 1{' + 1' * LONG}\n",
    "lists": lambda i: f"shard {', '.join(['ffn'] * (LONG - 1000))} over tp\n",
    "unknown lists": lambda i: f"shard ffn over {', '.join(f'a{j}' for j in range(LONG // 2))}\n",
    "brackets": lambda i: f"let n{i} = {'(' * 50}1{')' * 50}\n",
    "open brackets": lambda i: "model llama3_8b(layers = 4\n",
    "sentences of many lines": lambda i: f"let n{i} = ({'1 +' + chr(10)}{'1 +' + chr(10)}1)\n",
    "long names": lambda i: f"let {'a' * (4 * LONG - 20)}{i} = 1\n",
    "long names, malformed": lambda i: f"shard {'a' * (4 * LONG - 20)}{i} ovr tp\n",
    "long hyphens, malformed": lambda i: f"shard {'a-1' * LONG} ovr tp\n",
    "meshes": lambda i: f"mesh {' > '.join(f'a{j} 1' for j in range(100))}\n",
    "imports": lambda i: f'import "a{i}.plan"\n',
    "old spellings": lambda i: "use dp over fsdp\n",
    "other characters": lambda i: "\u00e9\u4e2d\N{SNAKE}\n",
}
"""Lines of each kind of text, by number; they follow HEAD."""
COMMANDS = {
    "check": ("check",),
    "json": ("check", "--format", "json"),
    "cuda": ("check", "--target", "cuda"),
    "xla": ("check", "--target", "xla"),
    "fmt": ("fmt", "--check"),
}
HEADS = ("kind", "1 MB", *COMMANDS)
MEGABYTE = "megabyte_cpu_s"


def lines(kind: str) -> Iterator[str]:
    """The lines of a plan of this kind, without an end."""
    yield from HEAD.splitlines(keepends=True)
    yield from map(KINDS[kind], count())


def of_size(kind: str, most_bytes: int, most_lines: int = MAX_BYTES) -> str:
    """A plan of this kind, of at most so many bytes and lines."""
    text: list[str] = []
    size = written = 0
    for line in lines(kind):
        size, written = size + len(line.encode()), written + line.count("\n")
        if size > most_bytes or written > most_lines:
            break
        text.append(line)
    return "".join(text)


def largest_read(kind: str) -> str:
    """The largest plan of this kind that is read whole, or nearly."""
    return of_size(kind, MOST_CHARACTERS, MOST_SENTENCES)


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: _measured(kind, Path(folder)) for kind in KINDS}
    if options.format == "json":
        print_json(found, "planc.bench.large/1")
        return 0
    rows = [[kind, *(f"{value:.2f}" for value in figures.values())] for kind, figures in found.items()]
    print("CPU seconds for a megabyte, the slowest command; and for the largest plan that is read, each command\n")
    print("\n".join(table(HEADS, rows, left=1)))
    return 0


def _measured(kind: str, folder: Path) -> dict[str, float]:
    """CPU seconds of each command on the largest plan that is read, and of the slowest one on a megabyte."""
    whole, read = folder / "whole.plan", folder / "read.plan"
    whole.write_text(of_size(kind, MAX_BYTES))
    read.write_text(largest_read(kind))
    slowest = max(_cpu_s(*words, str(whole)) for words in COMMANDS.values())
    return {MEGABYTE: slowest} | {f"{name}_cpu_s": _cpu_s(*words, str(read)) for name, words in COMMANDS.items()}


def _cpu_s(*words: str) -> float:
    """CPU seconds of one planc command."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-P", "-m", "planc.cli", *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, env=kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
