"""The backends are mirrored: a folder or file of one name does the same job on each target."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from planc.backends.cuda.rules import ORDER as CUDA
from planc.backends.torch_xla import TorchXla
from planc.backends.xla import Xla
from planc.backends.xla.rules import ORDER as XLA
from planc.lowering import RUNTIMES, load_backend
from tests.house.test_floors import ROOT

BACKENDS = ROOT / "backends"
ROOMS = ("analysis", "audit", "emit", "models", "program", "refusals", "rules", "runtime", "versions")
JOBS = {
    "analysis": ("attention", "expert_mesh", "peak_memory"),
    "audit": ("predict", "run"),
    "emit": ("context_parallel", "experts", "loss", "pipeline", "program", "step", "sync"),
    "program": ("experts", "facts", "names", "sync", "sync_names"),
    "models": ("balance", "deepseek", "llama", "mistral", "mixtral", "moe", "qwen2", "qwen3", "qwen3_moe"),
    "refusals": ("experts", "loss", "plan"),
    "rules": ("rule",),
    "versions": (),
    "runtime": ("dry_run", "optimizer", "probe", "reference", "session", "shards", "start_up", "state"),
}
"""Files that both targets have, by room."""
FILES = sorted(BACKENDS.rglob("*.py"))


def files(target: str, room: str) -> set[str]:
    return {p.stem for p in (BACKENDS / target / room).glob("*.py")} - {"__init__"}


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_both_targets_have_the_same_rooms(target: str) -> None:
    folders = {p.name for p in (BACKENDS / target).iterdir() if p.is_dir()} - {"__pycache__"}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_both_targets_have_the_same_files_for_the_same_jobs(room: str) -> None:
    rules = {rule.NAME for rule in (*CUDA, *XLA)} if room == "rules" else set()
    assert files("cuda", room) & files("xla", room) - rules == set(JOBS[room])


def test_a_rule_is_named_as_its_file() -> None:
    assert [(r.NAME, r.__name__) for r in (*CUDA, *XLA) if r.__name__.rpartition(".")[2] != r.NAME] == []


def test_every_rule_file_is_applied() -> None:
    for target, order in (("cuda", CUDA), ("xla", XLA)):
        assert files(target, "rules") - {"rule"} == {rule.NAME for rule in order}


def renamed(path: Path, text: str) -> list[str]:
    """Relative imports, and modules of a backend that are imported under another name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            folder = BACKENDS / module.removeprefix("planc.backends").strip(".").replace(".", "/")
            own = module.startswith("planc.backends") and folder.is_dir()
            names = [a.name for a in node.names if own and a.asname and (folder / f"{a.name}.py").exists()]
            found += [f"{path.name}:{node.lineno} {name}" for name in (names if node.level == 0 else ["relative"])]
    return found


def test_imports_are_absolute_and_modules_keep_their_names() -> None:
    assert [line for path in FILES for line in renamed(path, path.read_text())] == []


@pytest.mark.parametrize(
    "line", ["from ..rules import ORDER", "from planc.backends.cuda.emit import blocks as emit_blocks"]
)
def test_another_name_would_be_found(line: str) -> None:
    assert len(renamed(BACKENDS / "cuda" / "emit" / "step.py", line)) == 1


def test_texts_are_written_by_one_engine() -> None:
    """`fill` of `common/source_writer.py`: no template is filled by `str.format` or by replacing braces."""
    other = re.compile(r"\b[A-Z][A-Z_]+(\.strip\(\))?\.(format|replace)\(|\.replace\(\"\{")
    found = [
        f"{path.relative_to(BACKENDS)}:{number}"
        for path in sorted(BACKENDS.glob("*/emit/*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if other.search(line)
    ]
    assert found == []


def test_every_runtime_has_its_backend() -> None:
    loaded = [load_backend(target, runtime) for target, runtimes in RUNTIMES.items() for runtime in runtimes]
    assert [b.name for b in loaded] == ["cuda", "xla", "torch_xla"]
    assert [b.target for b in loaded] == ["cuda", "xla", "xla"]


FROM_JAX = {
    *(
        "attention_kernel",
        "audit",
        "dry_run",
        "emit_sync",
        "fill",
        "launch_file",
        "launchers",
        "lockstep",
        "notes",
        "one_process",
    ),
    *("parallelize", "peak_memory", "prober", "ranks", "realise", "shardings", "state_layout", "target"),
}
"""Names that torch_xla has from the backend of JAX, each looked at: a new one is listed here, or overridden."""


def test_torch_xla_has_nothing_of_jax_by_accident() -> None:
    assert {name for name in vars(Xla) if not name.startswith("_")} - {*vars(TorchXla)} == FROM_JAX
