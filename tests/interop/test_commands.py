"""The commands on other systems' files: check, diff, import and export, and one layout through three systems."""

import json
from pathlib import Path

import pytest

from planc.cli import main
from planc.driver import load
from planc.interop.effective import differing
from planc.interop.exporting import export_plan
from planc.interop.importing import import_files
from planc.interop.systems.deepspeed import nested
from planc.interop.values import Options
from tests.interop.scripts import SCRIPT

TOML = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 4
[activation_checkpoint]
mode = "full"
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "titan.toml").write_text(TOML)
    return tmp_path


@pytest.mark.usefixtures("files")
def test_a_script_is_checked_where_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "run.sh", "--cluster", "1 x h100_node", "--brief"]) == 0
    assert "GiB" in capsys.readouterr().out
    assert main(["check", "run.sh"]) == 1
    assert "E1306" in capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_a_finding_stands_at_the_field_that_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    big = SCRIPT.replace("--hidden-size 4096", "--hidden-size 32768").replace("--num-layers 32", "--num-layers 96")
    Path("run.sh").write_text(big)
    assert main(["check", "run.sh", "--cluster", "1 x h100_node", "--format", "github"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "E0501" in line]
    assert len(lines) == 1 and "file=run.sh" in lines[0], "it does not fit, said of the script"


@pytest.mark.usefixtures("files")
def test_two_systems_files_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "run.sh", "titan.toml", "--cluster", "1 x h100_node"]) == 1
    text = capsys.readouterr().out
    assert "A run.sh" in text and "B titan.toml" in text
    assert "128,512" in text.replace("128512", "128,512"), "Megatron pads its vocabulary"
    assert main(["diff", "run.sh", "run.sh", "--cluster", "1 x h100_node"]) == 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", ["check run.sh", "diff run.sh run.sh", "import run.sh"])
def test_an_unknown_system_is_a_usage_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--from", "megatorn"]) == 2
    assert "megatron" in capsys.readouterr().err


def test_one_layout_goes_through_three_systems(tmp_path: Path) -> None:
    """Megatron-LM's script, torchtitan's fields and MaxText's words say the same plan where all of them can."""
    path = tmp_path / "same.plan"
    path.write_text(
        "plan same\nmodel llama3_8b\nbatch 64 x 4096 tokens microbatch 2\ncluster 2 x h100_node\nmesh dp 2 > tp 8\n"
        "use ddp over dp\nuse tp over tp\nuse sp over tp\ncompute bf16 reduce fp32\nrecompute blocks\n"
    )
    plan, seen = load(path), path
    for system, ending in (("megatron", "sh"), ("torchtitan", "json"), ("maxtext", "sh")):
        exported = export_plan(load(seen), system)
        file = tmp_path / f"{system}.{ending}"
        # torchtitan's function is run by torchtitan, which dumps its fields as JSON; that is what is read
        file.write_text(json.dumps(nested(exported.fields)) if ending == "json" else exported.text)
        options = Options(cluster="2 x h100_node", devices=16, model="llama3_8b")
        found = import_files([file], options, system)
        seen = tmp_path / f"{system}.plan"
        seen.write_text(found.text)
        assert set(differing(plan, load(seen))) <= {"recompute"}, "blocks end elsewhere in Megatron's recomputation"


@pytest.mark.usefixtures("files")
def test_findings_of_an_import_are_not_in_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """`planc import x.sh > x.plan` holds a plan, or nothing."""
    assert main(["import", "run.sh", "--cluster", "1 x h100_node"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("plan run\n") and "N1308" in shown.err and "N1308" not in shown.out
    Path("run.sh").write_text(SCRIPT.replace("--bf16", "--bf61"))
    assert main(["import", "run.sh", "--cluster", "1 x h100_node"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "E1303" in shown.err
    assert main(["import", "run.sh", "--cluster", "1 x nothing"]) == 1
    assert capsys.readouterr().out == ""
