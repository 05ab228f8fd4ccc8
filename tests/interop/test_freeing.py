"""Other systems' files where a plan is expected: `planc search my.sh`, and several files of one configuration."""

from pathlib import Path

import pytest

from planc.cli import main
from planc.interop.freeing import FREE, freed_text
from planc.interop.importing import import_
from planc.language.build import build_file
from tests.interop.scripts import SCRIPT

EXPERTS = SCRIPT.replace("--lr 1e-4", "--num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall")
CLUSTER = ["--cluster", "1 x h100_node"]


@pytest.mark.parametrize("text", [SCRIPT, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("free", [FREE, ("mesh",), ("recompute", "microbatch")], ids=" ".join)
def test_what_is_left_open_is_the_only_thing_that_a_plan_lacks(
    text: str, free: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(text)
    found = import_(tmp_path / "run.sh", cluster="1 x h100_node").setup
    assert found is not None
    path = tmp_path / "free.plan"
    path.write_text(freed_text(found, free))
    assert {d.code for d in build_file(path).diagnostics if d.severity == "error"} == {"E0115"}


def test_a_script_is_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(SCRIPT.replace("--lr 1e-4", "--fp8-param-gather"))
    assert main(["search", "run.sh", *CLUSTER, "--free", "mesh,recompute", "-o", "found"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("run.sh (approximate: 1 field") and "W1310" in shown.err
    assert main(["check", "found/run_1.plan", "--brief"]) == 0
    assert main(["search", "run.sh", *CLUSTER, "--free", "mash"]) == 2
    assert main(["search", "found/run_1.plan", "--free", "mesh"]) == 2
    Path("run.sh").write_text(SCRIPT.replace("--micro-batch-size 1", ""))
    assert main(["search", "run.sh", *CLUSTER]) == 1


def test_files_that_need_each_other_are_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}'
    )
    Path("arguments.yaml").write_text("per_device_train_batch_size: 2\nbf16: true\nmax_length: 4096\noutput_dir: x\n")
    words = ["--cluster", "8 x h100_node", "--model", "llama3_8b"]
    assert main(["check", "ds.json", "arguments.yaml", *words, "--brief"]) == 0
    assert capsys.readouterr().out.startswith("ds: ")
    assert main(["check", "ds.json", *words]) == 1
