"""The environment changes nothing that planc prints: commands by environments, byte by byte. (A search says how long it
took, and is not among them.)"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = (
    ["check", "plans/tiny.plan"], ["cost", "plans/tiny.plan"], ["diff", "plans/tiny.plan", "plans/tiny_moe.plan"],
    ["cost", "plans/tiny.plan", "--format", "json"], ["expand", "plans/tiny.plan"], ["explain", "E0501"],
    ["sync", "plans/serve/qwen3_8b_apart.plan"], ["check", "plans/serve/qwen3_8b_apart.plan"],
    ["import", "tests/field/inputs/megatron-rampup.sh", "--cluster", "1 x h100_node"],
    ["export", "plans/tiny.plan", "--onto", "tests/field/inputs/megatron-rampup.sh"],
    ["check", "ä.plan"], ["lower", "plans/tiny.plan", "--target", "cuda"], ["graph", "plans/tiny.plan"],
)  # fmt: skip
RUN = f"""import os, sys
from planc.cli import main
for words in {COMMANDS!a}:
    try:
        print(main([os.fsdecode(word.encode()) for word in words]), flush=True)  # as arguments are decoded
    except SystemExit as ended:
        print(ended.code, flush=True)
"""
QUICK = ({"PYTHONIOENCODING": "utf-16", "PYTHONHASHSEED": "7"}, {"PYTHONOPTIMIZE": "2", "LC_ALL": "C"})
OTHERS = (
    {"PYTHONIOENCODING": "cp037:strict"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONOPTIMIZE": "1"},
    {"LANG": "de_DE.ISO-8859-1"}, {"PYTHONUTF8": "0", "LC_ALL": "POSIX"}, {"HOME": "nowhere"}, {"HOME": "/dev/null"},
    {"PLANC_CACHE": "/proc/none"}, {"TZ": "Asia/Tokyo"},
    {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONWARNINGS": "error"}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONHASHSEED": "99"},
)  # fmt: skip


@cache
def printed(*variables: tuple[str, str]) -> tuple[bytes, bytes]:
    """Standard output and standard error of all commands, with these variables set."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN], cwd=ROOT, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **dict(variables)},
    )  # fmt: skip
    return done.stdout, done.stderr


@pytest.mark.parametrize("set_to", [*QUICK, *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS)], ids=str)
def test_every_command_prints_the_same(set_to: dict[str, str]) -> None:
    plain = printed()
    assert plain[0].count(b"\n") > 100 and b"Traceback" not in plain[1]
    # A locale of ASCII cannot decode the file's name, whose bytes are then shown as escapes.
    out, errors = (stream.replace(rb"\udcc3\udca4", "ä".encode()) for stream in printed(*set_to.items()))
    assert (out, errors) == plain
