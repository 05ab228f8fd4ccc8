"""The portability gate: every bundled module passes, and every planted leak is found at its line."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from planc.backends.cuda.models.moe import Experts
from planc.backends.torch_xla.audit.modules import NoModuleError, bundled, found, step_of
from planc.backends.torch_xla.audit.stand_in import ReadStandIn
from planc.backends.torch_xla.audit.walk import Walked, walk

from . import leaks

ROOT = Path(__file__).resolve().parents[2]
LEAKY = sorted(name for name, kind in vars(leaks).items() if inspect.isclass(kind) and kind.__base__ is leaks.Leaky)
SOURCE = Path(inspect.getfile(leaks))


def walked(name: str) -> Walked:
    return walk(step_of(*found(name)))


def planted(name: str) -> set[tuple[str, int]]:
    """The codes and lines that the module's source says, with those of what it calls beside it."""
    lines = SOURCE.read_text().splitlines()
    helper = {"HandedOn": leaks.note, "Backward": leaks.InTheBackward}.get(name)
    marked = set()
    for part in filter(None, (getattr(leaks, name), helper)):
        text, first = inspect.getsourcelines(part)
        for number in range(first, first + len(text)):
            comment = lines[number - 1].rpartition("# ")[2]
            marked |= {(code, number) for code in re.findall(r"\bE12\d\d\b", comment)}
    return marked


@pytest.mark.parametrize("family", bundled())
def test_a_bundled_module_is_portable(family: str) -> None:
    result = walked(family)
    assert result.leaks == ()
    assert result.operations > 100


@pytest.mark.parametrize("name", LEAKY)
def test_a_planted_leak_is_found_at_its_line(name: str) -> None:
    seen = {(leak.code, leak.place.line) for leak in walked(f"{leaks.__name__}:{name}").leaks if leak.place}
    assert seen == planted(name)


def test_leaks_of_each_kind_are_planted() -> None:
    marked = {name: {code for code, _ in planted(name)} for name in LEAKY}
    assert set().union(*marked.values()) == {"E1201", "E1202", "E1203", "E1204"}
    assert [name for name, codes in marked.items() if not codes] == ["Fine"]


def test_the_experts_of_the_stand_in_are_those_of_the_cpu() -> None:
    """Rows in places of fixed shape give what rows of counted shares give, gradients too."""
    torch.manual_seed(0)
    experts = Experts(5, 8, 12, top_k=2)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_()
    chosen = torch.stack([torch.randperm(4)[:2] for _ in range(9)]).flatten()  # the last expert gets no row
    counts = torch.bincount(chosen, minlength=5)
    rows, weights = torch.randn(18, 8), torch.rand(18)
    made, gradients = [], []
    for stands_in in (False, True):
        experts.zero_grad()
        if stands_in:
            with ReadStandIn(lambda name: pytest.fail(f"{name} was read")):
                out = experts(rows, weights, counts)
        else:
            out = experts(rows, weights, counts)
        out.square().sum().backward()
        made.append(out)
        gradients.append([p.grad for p in experts.parameters() if p.grad is not None])
    torch.testing.assert_close(made[1], made[0])
    assert len(gradients[0]) == 3
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_thing", "is no file, no module, and none of the families"),
        ("no/such/file.py", "is not there"),
        (f"{leaks.__name__}:Absent", "has no `Absent`"),
        (f"{leaks.__name__}:note", "without arguments"),
        (f"{leaks.__name__}:SEEN", "has no `SEEN`"),
    ],
)
def test_what_is_no_module_is_said_in_words(name: str, says: str) -> None:
    with pytest.raises(NoModuleError, match=re.escape(says)):
        found(name)


@pytest.mark.parametrize(("maker", "status"), [("Item", 1), ("Fine", 0)])
def test_the_command(maker: str, status: int) -> None:
    """The same through the command line, as JSON: the file, the line and the verdict."""
    argv = [sys.executable, "-m", "planc.cli", "audit", "--portability", f"{SOURCE}:{maker}", "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == status, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"] is (status == 0)
    at = {(d["code"], d["line"]) for d in said["diagnostics"]}
    assert at == planted(maker)
    assert all(d["file"] == str(SOURCE.relative_to(ROOT)) for d in said["diagnostics"])


def test_the_command_asks_for_one_thing() -> None:
    argv = [sys.executable, "-m", "planc.cli", "audit"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2 and "--portability MODULE" in done.stderr
    done = subprocess.run([*argv, "--portability", "none.such"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2 and "none of the families" in done.stderr
