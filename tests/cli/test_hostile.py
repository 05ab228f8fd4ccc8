"""Careless and hostile input: no traceback, no hang, nothing written into emitted code."""

import ast
import os
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from planc.cli import main
from planc.driver import check, lower
from planc.ir.target import Target
from tests.plans import BODY, HEAD, codes, found

OWN = """hardware own
chip      c({chip})
link      l({link})
node      box = 8 x c over l
{network}"""
GOOD = {
    "chip": "bf16 = 989 TFLOP/s, fp32 = 60 TFLOP/s, memory = 80 GiB, memory_bandwidth = 3350 GB/s",
    "link": "bandwidth = 450 GB/s, latency = 3 us",
    "network": "network n = leaf 32 at 400 GB/s\n",
}


def on_own(folder: Path, **changes: str) -> list[str]:
    (folder / "own.plan").write_text(OWN.format(**{**GOOD, **changes}))
    return codes(folder, HEAD.replace("model ", 'import "own.plan"\nmodel ').replace("h100_node", "box") + BODY)


def test_own_hardware_is_used(tmp_path: Path) -> None:
    assert on_own(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"network": ""},
        {"network": "network n = leaf 32 at 0 GB/s\n"},
        {"network": "network n = leaf 32 at 400 GB/s (oversubscription = 0)\n"},
        {"network": "network n = leaf 32 at 400 GB/s (rails = 1 / 2)\n"},
        {"link": "bandwidth = 0 GB/s, latency = 3 us"},
        {"link": "bandwidth = 450 GB/s, latency = 3 us, shared = 0.5"},
        {"link": "bandwidth = 450 GB/s, latency = 3 us, half_size = 16 GB/s"},
        {"chip": GOOD["chip"] + ", devices = 1.5"},
        {"chip": GOOD["chip"] + ", host_bandwidth = 0 GB/s"},
        {"chip": GOOD["chip"].replace("989", "0")},
        {"chip": GOOD["chip"].replace("3350", "0")},
        {"chip": GOOD["chip"] + ", matmul_efficiency = 0 %"},
        {"chip": GOOD["chip"] + ", matmul_efficiency = 500 %"},
        {"chip": GOOD["chip"].replace("80 GiB", "80 GB/s")},
    ],
    ids=str,
)
def test_impossible_hardware_is_one_finding(tmp_path: Path, changes: dict[str, str]) -> None:
    assert on_own(tmp_path, **changes) in (["E0103"], ["E0107"])


NAMES = ['a\n__import__("os").system("touch pwned")\n#.plan', 'a"""\nx = 1\n"""b.plan', "a\\.plan", "ä.plan"]


@pytest.mark.parametrize("target", ["cuda", "xla"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_writes_no_code(tmp_path: Path, name: str, target: Target) -> None:
    plain, odd = tmp_path / "x.plan", tmp_path / name.replace("/", "_")
    for path in (plain, odd):
        path.write_text(HEAD + BODY)
    shapes = [ast.dump(_without_docstring(lower(p, target).text)) for p in (plain, odd)]
    assert shapes[0] == shapes[1]


def _without_docstring(text: str) -> ast.Module:
    tree = ast.parse(text)
    tree.body = tree.body[1:]
    return tree


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "x.plan"
    os.mkfifo(pipe)
    answer: list[str] = []
    thread = threading.Thread(target=lambda: answer.extend(d.code for d in check(pipe).diagnostics), daemon=True)
    thread.start()
    thread.join(20)
    assert answer == ["E0104"]


@pytest.mark.parametrize("words", [["lower", "P", "--target", "cuda", "-o", "F"], ["embed", "P", "F/x/y.toml"]])
def test_an_unwritable_output_is_no_traceback(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planc.cli._discard_output", lambda: None)  # pytest's own output is behind it
    plan, file = tmp_path / "x.plan", tmp_path / "taken"
    plan.write_text(HEAD + BODY)
    file.mkdir() if words[0] == "lower" else file.write_text("")
    status = main([w.replace("P", str(plan)).replace("F", str(file)) for w in words])
    assert status in (1, 2) and "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("value", ["abc", None, float("nan"), 10**400, True, -1])
def test_settings_that_are_no_numbers_are_the_callers_mistake(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.plan"
    path.write_text(HEAD + BODY)
    with pytest.raises(ValueError, match="whole number"):
        check(path, set={"n": value})


def test_an_unknown_target_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rocm"):
        check(tmp_path / "x.plan", target=cast(Target, "rocm"))


@pytest.mark.parametrize("header", ["plan a-b", "plan 7b", "plan", "plan a b", "paln p"])
def test_a_wrong_header_is_one_mistake(tmp_path: Path, header: str) -> None:
    assert len(codes(tmp_path, (HEAD + BODY).replace("plan example", header))) == 1


def test_a_wrong_axis_of_a_layout_is_shown_where_the_user_wrote_it(tmp_path: Path) -> None:
    (d,) = {d.code: d for d in found(tmp_path, HEAD + BODY.replace("tp   over tp", "tp   over tpp"))}.values()
    assert (d.code, Path(d.span.file).name, d.span.line) == ("E0108", "example.plan", 8)
    assert d.fix is not None


STAGED = HEAD.replace("fsdp 8 > tp 8", "pp 2 > fsdp 32") + "use fsdp over fsdp\nrecompute blocks\n"


@pytest.mark.parametrize(
    "stages",
    ["16 + head, embed + 16", "embed + 16 + head, 16", "embed + embed + 16, 16 + head", "embed + 32, 0"],
)
def test_ends_and_empty_stages(tmp_path: Path, stages: str) -> None:
    assert codes(tmp_path, STAGED + f"split layers over pp as 1f1b stages [{stages}]\n") == ["E0401"]


@pytest.mark.parametrize("line", ["use fsdp over fsdp as 1f1b", "shard layers over fsdp"])
def test_nothing_is_dropped_in_silence(tmp_path: Path, line: str) -> None:
    assert "E0108" in codes(tmp_path, HEAD + BODY.replace("use       fsdp over fsdp", line))
