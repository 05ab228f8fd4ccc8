"""Every call with which a command writes, made to fail in turn: each file is as before or whole, nothing else is left,
and the command says what happened."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from safetensors import SafetensorError

from planc.catalog import build_model
from planc.cli import main
from planc.trainer.checkpoint.hugging_face import exported
from planc.trainer.run.initial_weights import initial, names
from tests.faults.calls import ERRORS, CountedCalls, Fault

PLAN = """plan small
model     llama_micro
batch     8 x 32 tokens microbatch 2
cluster   4 x cpu_local
mesh      dp 4
use       ddp over dp
compute   fp32
"""
FREE = PLAN.replace("mesh      dp 4\nuse       ddp over dp\n", "mesh dp ? > tp ?\nuse ddp over dp\nuse tp over tp\n")
PRESET = "[train]\nsteps = 2\nlr = 1e-3\n"
OLD = "the old text\n"
COMMANDS: dict[str, tuple[dict[str, str], str]] = {
    "lower": ({"p.plan": PLAN, "out.py": OLD}, "lower p.plan --target cuda -o out.py"),
    "lower to a new folder": ({"p.plan": PLAN}, "lower p.plan --target xla -o new/out.py"),
    "fmt": ({"p.plan": PLAN.replace("use  ", "use"), "q.plan": PLAN.replace("mesh  ", "mesh")}, "fmt p.plan q.plan"),
    "check --fix": ({"p.plan": PLAN.replace("use ", "usee ")}, "check --fix p.plan"),
    "search": ({"p.plan": FREE}, "search p.plan --top 2 -o found"),
    "sweep": (
        {"p.plan": PLAN, "out.csv": OLD},
        "sweep p.plan --over batch=8,16 -o out.csv -o out.svg",
    ),
    "report": ({"p.plan": PLAN, "out.json": OLD}, "report p.plan --trace -o out.json"),
    "embed": ({"p.plan": PLAN, "p.toml": PRESET}, "embed p.plan p.toml"),
}
SLOWER = ("search", "lower to a new folder", "report")
"""Commands that write with the calls of the others, and compute more before it."""
Files = dict[str, bytes]


def files(folder: Path) -> Files:
    """Everything below the folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def run(folder: Path, name: str, calls: CountedCalls) -> tuple[int, str]:
    """The command in a fresh folder: its status, and what it printed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    before, words = COMMANDS[name]
    for file, text in before.items():
        (folder / file).write_text(text)
    given = [str(folder / word) if "." in word or word == "found" else word for word in words.split()]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), calls.installed():
        return main(given), said.getvalue()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long if n in SLOWER else ()) for n in COMMANDS])
def test_a_file_is_as_before_or_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planc.cli._discard_output", lambda: None)
    folder, clean = tmp_path / "x", CountedCalls()
    expected, _ = run(folder, name, clean)
    assert expected in (0, 1)
    before = {file: text.encode() for file, text in COMMANDS[name][0].items()}
    after = files(folder)
    assert after != before and len(clean.calls) >= 4
    for number, call in enumerate(clean.calls, 1):
        error = ERRORS[number % 4] if call.name == "write" else ERRORS[number % 3]
        status, said = run(folder, name, CountedCalls(Fault(number, error)))
        found = files(folder)
        assert all(data in (before.get(file), after.get(file)) for file, data in found.items()), call
        assert before.keys() <= found.keys() <= after.keys(), call
        assert (status == 2 and f"planc {name.split()[0]}: " in said) or found == after, (call, error, status, said)


def test_exported_weights_are_all_there_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("llama_micro")
    draw = initial(model, 1)

    def export() -> bool:
        """Export; True unless it raised an OSError."""
        with suppress(OSError):
            exported(model, ((name, draw(name, shape)) for name, shape in names(model)), tmp_path / "hf", 300_000)
            return True
        return False

    clean = CountedCalls()
    with clean.installed():
        assert export()
    whole = sorted(files(tmp_path))
    for number in range(1, len(clean.calls) + 1):
        shutil.rmtree(tmp_path / "hf")
        with CountedCalls(Fault(number, ERRORS[number % 3])).installed():
            done = export()
        assert [p.name for p in tmp_path.iterdir()] == (["hf"] if done else []), clean.calls[number - 1]
        assert done or export()
        assert sorted(files(tmp_path)) == whole
    shutil.rmtree(tmp_path / "hf")

    def full(*_given: object, **_named: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    assert not export()
    assert not [*tmp_path.iterdir()]
