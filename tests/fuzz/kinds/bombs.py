"""Bombs: what a reader's format knows, many times over. The time of every reader is linear in the text.

Each module that calls a reader of `planc/files.py` is in `MODULES`, so that a new one is bombed too.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import random
import tempfile
import time
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from planc.calibration.measured_table import read_table
from planc.diag.errors import PlanError
from planc.driver import check
from planc.interop.importing import import_files
from planc.interop.topologies.read import READERS as TOPOLOGIES
from planc.interop.topologies.read import read_topology
from planc.interop.values import Options
from planc.ir.saved_model import SavedModel
from planc.report.run_page import RunError, run_page
from planc.syntax.fmt import format_text
from planc.trainer.checkpoint import history, manifest
from planc.trainer.checkpoint.safetensors_header import read_header
from planc.trainer.preset.load import load_preset
from planc.trainer.receipt.receipt import read_receipt
from tests.fuzz.kinds import Kind

ROOT = Path(__file__).parents[3]
MOST_S = 2.0
"""Largest seconds of the processor for a megabyte that is begun."""
GROWTH, FLOOR_S = 2.3, 0.25
"""Largest growth of the time for twice the text, beyond a time that says nothing."""
TOLD = (PlanError, RunError, ValueError, OSError, manifest.LaterError)
"""How a reader that is no command refuses."""


ANY = (*"\n\t x09,.-=\\/#([{)]}\"'é:;*$!<>&|%\0\ufeff\udc80\u2028\U0001f600", "\x1b[", "\r\n")
"""Characters for a file of any format."""
PLAN = "plan x\nmodel llama_tiny\nbatch 8 x 32 tokens\ncluster 1 x h100_node\nmesh d 8\nuse fsdp over d\ncompute bf16\n"
OPTIONS = Options(cluster="1 x h100_node", devices=8, model="llama3_8b")
FORMATS: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parents[1] / "bombs.toml").read_text())


def _beside(name: str, sentence: str) -> Callable[[Path], object]:
    """The check of a plan that names the bomb in `sentence`, or in its last line where the bomb is a schedule."""

    def read(path: Path) -> object:
        plan = path.with_name("around.plan")
        path.rename(path.with_name(name))
        last = 'split layers over p as schedule "own.csv"\n' if name == "own.csv" else ""
        plan.write_text(PLAN.replace("model llama_tiny\n", sentence).replace("mesh d 8", "mesh p 2 > d 4") + last)
        return check(plan).diagnostics

    return read


def _imported(path: Path) -> object:
    found = import_files([path], OPTIONS)
    assert found.text or found.diagnostics
    return found


def _header(path: Path) -> object:
    data = path.read_bytes()
    path.write_bytes(len(data).to_bytes(8, "little") + data)
    return read_header(path)


OWN = _beside("own.plan", 'import "own.plan"\nmodel llama_tiny\n')
READERS: dict[str, Callable[[Path], object]] = {
    "plan": lambda path: (check(path), format_text(path.read_bytes().decode("utf-8", "replace"))),
    "hardware": OWN,
    "layout": OWN,
    "config": _beside("config.json", 'model from "config.json"\n'),
    "schedule": _beside("own.csv", "model llama_tiny\n"),
    **dict.fromkeys(("shell", "words", "flags", "yaml", "toml", "json"), _imported),
    **{module.__name__.rpartition(".")[2]: lambda path: read_topology(path, "h100_node") for module in TOPOLOGIES},
    "preset": load_preset,
    "receipt": read_receipt,
    "run": lambda path: run_page(path, ""),
    "table": read_table,
    "history": lambda path: history.read(path.read_bytes().decode("utf-8-sig"), 1),
    "manifest": lambda path: manifest.read(path.read_bytes().decode("utf-8-sig")),
    "header": _header,
    "kept model": lambda path: SavedModel.parse(path.read_bytes()),
}
"""How each is called. The topologies are the readers that planc itself asks, one by one."""


def make(seed: int, index: int) -> bytes:
    """A bomb: a format, a beginning, words of the format or of any, how they are repeated, and how many bytes."""
    rng = random.Random(f"{seed}:{index}")
    name = list(FORMATS)[index % len(FORMATS)]
    words = [
        rng.choice(FORMATS[name]["words"] if rng.random() < 0.8 else ANY) for _ in range(rng.choice((1, 1, 2, 2, 3)))
    ]
    how = rng.choice(("alone", "alone", "alone", "nested", "in lines", "before"))
    return json.dumps([name, rng.choice(FORMATS[name]["heads"]), how, int(10 ** rng.uniform(4, 5)), *words]).encode()


CLOSING = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}


def written(head: str, how: str, size: int, words: list[str], times: int = 1) -> bytes:
    """The text of a bomb of about `size` bytes, with an even number of its words, or `times` as many."""
    unit, head = "".join(words) + ("\n" if how == "in lines" else ""), PLAN if head == "PLAN" else head
    count = max(2, size // max(1, len(unit)) // 2 * 2) * times
    closing = "".join(CLOSING.get(c, "") for c in reversed(unit)) if how == "nested" else ""
    text = "".join(unit.replace("@", str(number)) for number in range(count)) + closing * count
    return (text + head if how == "before" else head + text).encode("utf-8", "surrogateescape")


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    name, head, how, size, *words = json.loads(data)
    half, whole = (written(head, how, size, words, times) for times in (1, 2))
    twice_s, label = _timed(name, folder / "whole", whole)
    half_s = FLOOR_S
    for again in range(3):  # others use the cores too
        if twice_s <= GROWTH * half_s and twice_s <= MOST_S * -(-len(whole) // 10**6):
            return name, label
        half_s = max(half_s if again else 0.0, _timed(name, folder / f"half{again}", half)[0], FLOOR_S / GROWTH)
        twice_s = min(twice_s, _timed(name, folder / f"whole{again}", whole)[0])
    raise AssertionError(f"{name}: {half_s:.2f} s, of twice the text {twice_s:.2f} s")


def _timed(name: str, folder: Path, data: bytes) -> tuple[float, str]:
    """Seconds of the processor that a reader takes, and whether it reads or refuses."""
    folder.mkdir()
    path = folder / f"bomb{FORMATS[name]['ending']}"
    path.write_bytes(data)
    gc.disable()  # whose time is that of all there is
    began, label = time.process_time(), "refused"
    try:
        with contextlib.suppress(*TOLD):
            READERS[name](path)
            label = "read"
    finally:
        gc.enable()
    return time.process_time() - began, label


def warm() -> None:
    with tempfile.TemporaryDirectory() as top:
        for name in FORMATS:
            _timed(name, Path(top, name), b"x")


KIND = Kind("bombs", ".json", "items", 20_000, make, run, warm, deep=("read", "refused", *FORMATS))

READS = {"read_text", "read_bounded", "read_json", "parse_json", "parse_toml", "open_regular"}
"""The readers of `planc/files.py`."""
ITS_OWN, BYTES = "a file that planc itself wrote", "bytes that are counted or summed, and not parsed"
TOKENS = "tests/fuzz/kinds/tokens.py"
MODULES: dict[str, str] = {
    "backends/xla/runtime/named_trace.py": ITS_OWN,
    "backends/xla/runtime/trees/rules.py": "tests/fuzz/kinds/rules.py",
    "planc/allowed.py": BYTES,
    "planc/calibration/measured_table.py": "table",
    "planc/cli/apply_fixes.py": "plan",
    "planc/cli/commands/calibrate.py": "hardware",
    "planc/cli/commands/fmt.py": "plan",
    "planc/cli/found_plans.py": BYTES,
    "planc/cli/commit.py": ITS_OWN,
    "planc/cli/common.py": BYTES,
    "planc/cli/portability.py": "plan",
    "planc/cli/views/accuracy_of_receipts.py": "receipt",
    "planc/compare/plan_edit.py": "plan",
    "planc/driver/from_code.py": "config",
    "planc/driver/allowed_code.py": "kept model",
    "planc/driver/policy.py": "toml",
    "planc/editor/diagnostics.py": BYTES,
    "planc/editor/server.py": "plan",
    "planc/editor/transport.py": "tests/fuzz/kinds/editor.py",
    "planc/files.py": ITS_OWN,
    "planc/interop/formats/toml.py": "toml",
    "planc/interop/formats/yaml.py": "yaml",
    "planc/interop/importing.py": "shell",
    "planc/interop/onto.py": "shell",
    "planc/interop/topologies/read.py": "nvidia_smi",
    "planc/ir/emitted.py": BYTES,
    "planc/ir/saved_model.py": "kept model",
    "planc/language/draft.py": "plan",
    "planc/language/verbs/model_from.py": "config",
    "planc/trainer/checkpoint/directory.py": "manifest",
    "planc/trainer/checkpoint/history.py": "history",
    "planc/trainer/checkpoint/hugging_face.py": "header",
    "planc/trainer/checkpoint/manifest.py": "manifest",
    "planc/trainer/checkpoint/safetensors_header.py": "header",
    "planc/trainer/checkpoint/writer.py": ITS_OWN,
    "planc/trainer/data/tokens/files.py": TOKENS,
    "planc/trainer/data/tokens/sums.py": ITS_OWN,
    "planc/trainer/data/tokens/text.py": TOKENS,
    "planc/trainer/data/tokens/tokenizer.py": TOKENS,
    "planc/trainer/preset/compiled.py": "preset",
    "planc/trainer/preset/embed.py": "preset",
    "planc/trainer/preset/load.py": "preset",
    "planc/trainer/receipt/receipt.py": "receipt",
    "planc/trainer/telemetry/metrics_file.py": "run",
}
"""Where files are read, and the format that bombs it, or why none does."""


@cache
def reading() -> frozenset[str]:
    """Modules that call a reader."""
    found = set()
    for path in (p for room in ("planc", "backends") for p in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("planc/backends/") and any(f"{read}(" in path.read_text() for read in READS):
            calls = (n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
            found |= {name} if any(isinstance(call, ast.Name) and call.id in READS for call in calls) else set()
    return frozenset(found)
