"""Every command that prints seconds or GiB of a plan, and what it says of them, read out of its answer.

The law: they are those of `planc check` of that file, and the answer names its target. `told` asks all commands about
one plan; a new command is asked too, or `ELSEWHERE` says why it has no such figure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planc.cli import main
from planc.driver import check, load, user_path
from planc.editor.opened import EditorSettings, open_file
from planc.graph import machine_links
from planc.ir.target import Target, named
from planc.language import library

PLANS = Path(__file__).parents[2] / "plans"
NONE, CUDA = PLANS / "field" / "megatron_1t_a100.plan", PLANS / "tiny.plan"
"""A plan without a target for `planc diff` of one that has one, and the other way round."""


@dataclass(frozen=True)
class Told:
    """One answer: its words, the target that it names, and the figures of the plan in it."""

    words: str
    target: Target | None
    step_s: float | None = None
    memory_gib: float | None = None


def answered(*words: str) -> str:
    """Standard output of a command that must not fail by a usage error."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as wrong:
        status = main(list(words))
    assert status in (0, 1), (words, status, out.getvalue()[-2000:], wrong.getvalue()[-2000:])
    return out.getvalue()


def as_json(*words: str) -> Any:
    return json.loads(answered(*words, "--format", "json"))


def _check(path: Path, folder: Path) -> Iterator[Told]:
    for command in ("check", "cost"):
        said = as_json(command, str(path))
        yield Told(command, said["target"], said["step"]["time_s"], said["memory"]["per_device_gib"]["total"])
    link = machine_links(load(path).cluster).kinds[0].name
    said = as_json("check", str(path), "--with", f"links {link} at 100 %")
    yield Told("check --with", said["target"], said["checked_s"])


def _cost(path: Path, folder: Path) -> Iterator[Told]:
    said = as_json("cost", str(path), "--explain")
    yield Told("cost --explain", said["target"], said["time_s"])


def _search(path: Path, folder: Path) -> Iterator[Told]:
    """The plan itself, as nothing is free."""
    said = as_json("search", str(path), "-o", str(folder / "found"))
    if [r["code"] for r in said["refusals"]] == ["W0907"]:
        return  # what a framework cannot run is costed by `check`, and left out by a search
    (best,) = said["best"] or [said["nearest_miss"]]
    yield Told("search", said["target"], best["time_s"], best["memory_gib"])


def _diff(path: Path, folder: Path) -> Iterator[Told]:
    other = str(CUDA if checked(path).target is None else NONE)
    for side, files in {"a": (str(path), other), "b": (other, str(path))}.items():
        said = as_json("diff", *files, "--exit-zero")
        numbers = {(c["part"], c["name"]): c[side] for c in said["changes"]}
        target = said["targets"]["ab".index(side)]
        yield Told(f"diff, {side}", target, numbers["step", "time_s"], numbers["memory", "total"])


def _sweep(path: Path, folder: Path) -> Iterator[Told]:
    """At the number that the plan has; `let` may hide it, and then there is no row."""
    (row,) = as_json("sweep", str(path), "--over", f"batch={load(path).batch.sequences}")["rows"]
    if row["ok"] or row["time_s"]:
        yield Told("sweep", row["target"], row["time_s"], row["memory_gib"])


def _place(path: Path, folder: Path) -> Iterator[Told]:
    said = as_json("place", str(path))
    yield Told("place", said["target"], said["today"]["step_s"])


def _report(path: Path, folder: Path) -> Iterator[Told]:
    said = as_json("report", str(path), "--trace", "-o", str(folder / "trace"))
    yield Told("report --trace", said["target"], said["step_s"])
    said = as_json("report", str(path), "--memory-snapshot", "-o", str(folder / "snapshot"))
    reserve = check(path).memory.per_device_gib.reserve
    yield Told("report --memory-snapshot", said["target"], None, said["fullest_gib"] + reserve)
    said = as_json("report", str(path), "--view", "verdict")
    numbers = {number["unit"]: number["value"] for number in said["data"]["numbers"]}
    yield Told("report", said["target"] if "target" in said else check(path).target, numbers["s"], numbers["GiB"])


def _hardware(path: Path) -> str:
    """The text of the hardware file that the plan at `path` is on."""
    cluster = load(path).cluster
    own = cluster.name not in library.machines()
    return Path(user_path(cluster.sources[0], path)).read_text() if own else library.machine_text(cluster.name)


def _calibrate(path: Path, folder: Path) -> Iterator[Told]:
    """A run that takes what `check` predicts moves nothing."""
    report, table, machine = check(path), folder / "runs.csv", folder / "machine.plan"
    table.write_text(f"plan,seconds\n{path.resolve()},{report.step.time_s!r}\n")
    said = as_json("calibrate", "--from", str(table), "-o", str(machine))
    (step,) = said["steps"]
    assert step["before_s"] == step["fitted_s"] and said["far"] == []
    assert all(p["value"] == p["prior"] for p in said["parameters"] if f"{p['prior']:.12g}" != f"{p['value']:.12g}")
    before = _hardware(path)
    assert _sentences(machine.read_text()) == _sentences(before), "the machine is another one"
    yield Told("calibrate --from", step["target"], step["before_s"])


def _sentences(text: str) -> list[str]:
    return sorted(" ".join(line.split()) for line in text.splitlines() if line and not line.startswith("#"))


def _lsp(path: Path, folder: Path) -> Iterator[Told]:
    """Hovers read this report."""
    opened = open_file(path, path.read_text(), {}, EditorSettings())
    report = opened.checked.report if opened.checked else None
    assert report is not None
    yield Told("lsp", report.target, report.step.time_s, report.memory.per_device_gib.total)


ASKED: dict[str, Callable[[Path, Path], Iterator[Told]]] = {
    "check": _check,
    "cost": _cost,
    "search": _search,
    "diff": _diff,
    "sweep": _sweep,
    "place": _place,
    "report": _report,
    "calibrate": _calibrate,
    "lsp": _lsp,
}
NAMED = {
    "check": ("{plan}", "--brief"),
    "cost": ("{plan}", "--explain"),
    "search": ("{plan}",),
    "diff": ("{plan}", "{plan}"),
    "sweep": ("{plan}", "--over", "microbatch=1,2"),
    "place": ("{plan}",),
    "report": ("{plan}", "--trace", "-o", "{folder}/trace"),
}
"""Commands whose text names the target too, and what follows each of them."""
ELSEWHERE = {
    "init": "a plan's text, with what is left free",
    "import": "a plan's text; `check` of the same files costs it: tests/cli/test_one_target.py",
    "train": "figures of the target that it is told: test_a_preset_predicts_what_its_plan_s_check_shows",
    "audit": "figures of the target that it names: test_an_audit_compares_the_tensors_of_that_number",
    "export": "another system's configuration",
    "lower": "a program",
    "sync": "a transfer of weights, whatever program trains: tests/checks/test_serving.py",
    "fmt": "a plan's text",
    "expand": "a plan's sentences",
    "graph": "a machine; its picture has the seconds of links alone",
    "explain": "the manual",
    "embed": "a compiled plan",
    "weights": "a checkpoint",
    "crosscheck": "losses of receipts",
    "completion": "a script",
    "bench": "seconds of planc itself, and published runs beside their predictions",
}
"""Commands without such a figure, and what they write; those that are held elsewhere."""


@cache
def checked(path: Path) -> Told:
    """Figures of `planc check`."""
    report = check(path)
    return Told("check", report.target, report.step.time_s, report.memory.per_device_gib.total)


def told(path: Path, folder: Path, commands: tuple[str, ...] = tuple(ASKED)) -> Iterator[Told]:
    """Figures that each of these commands says of the plan at `path`; `folder` takes what they write."""
    for command in commands:
        yield from ASKED[command](path, folder)


def law(path: Path, folder: Path, commands: tuple[str, ...] = tuple(ASKED)) -> None:
    """Raise AssertionError where an answer has other figures than `planc check` of the same file, or another target."""
    wanted = checked(path)
    for one in told(path, folder, commands):
        assert one.target == wanted.target, (one, wanted)
        for mine, theirs in ((one.step_s, wanted.step_s), (one.memory_gib, wanted.memory_gib)):
            assert mine is None or f"{mine:.9g}" == f"{theirs:.9g}", (one, wanted)


def names_its_target(path: Path, folder: Path) -> None:
    """Raise AssertionError where the text of an answer does not name the target of its figures."""
    for command, words in NAMED.items():
        text = answered(command, *(word.format(plan=path, folder=folder) for word in words))
        assert named(checked(path).target) in " ".join(text.split()), (command, text[:2000])
