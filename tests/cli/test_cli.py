"""The command line as a user meets it: exit status, what is on standard output, no traceback ever."""

import json
import os
from pathlib import Path

import pytest

from planc.cli import COMMANDS, main
from tests.plans import BODY, BUNDLED, HEAD, ROOT

H100 = str(ROOT / "plans/llama3_70b_h100.plan")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(list(words))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return status, captured.out


def test_check_prints_what_the_readme_promises(capsys) -> None:
    status, out = run(capsys, "check", H100)
    assert status == 0
    for word in ("memory", "step", "MFU", "bound by", "collectives", "nvlink4", "leaf", "spine", "fsdp 16"):
        assert word in out, word


def test_several_files_give_an_array_in_order(capsys) -> None:
    status, out = run(capsys, "check", *map(str, BUNDLED), "--format", "json")
    assert status == 0
    assert [r["plan"] for r in json.loads(out)] == [p.stem for p in BUNDLED]


def test_json_is_alone_on_standard_output_at_exit_1(capsys, tmp_path: Path) -> None:
    path = tmp_path / "bad.plan"
    path.write_text(HEAD.replace("tp 8", "tp 9") + BODY)
    status, out = run(capsys, "check", str(path), "--format", "json")
    report = json.loads(out)
    assert status == 1 and report["memory"] is report["step"] is report["collectives"] is None
    assert report["diagnostics"][0]["code"] == "E0203"
    assert report["diagnostics"][0]["file"] == str(path)


@pytest.mark.parametrize("format", ["text", "json", "sarif", "github"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"\x80abc", b"PK\x03\x04" * 99, None], ids=str)
def test_files_that_are_no_plans(capsys, tmp_path: Path, content: bytes | None, format: str) -> None:
    path = tmp_path / "x.plan"
    path.mkdir() if content is None else path.write_bytes(content)
    status, out = run(capsys, "check", str(path), "--format", format)
    assert status == 1 and "E010" in out


def test_a_missing_file_is_a_diagnostic(capsys, tmp_path: Path) -> None:
    status, out = run(capsys, "check", str(tmp_path / "none.plan"))
    assert status == 1 and "E0104" in out and "cannot be read" in out


@pytest.mark.skipif(os.geteuid() == 0, reason="no file is unreadable for root, who runs the tests")
def test_an_unreadable_file_is_a_diagnostic(capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    path.write_text(HEAD)
    path.chmod(0)
    status, out = run(capsys, "check", str(path))
    assert status == 1 and "E0104" in out


def test_the_fix_is_applied(capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    path.write_text((HEAD + BODY).replace("model ", "modle ").replace("over tp\nuse", "ovr tp\nuse"))
    assert run(capsys, "check", str(path))[0] == 1
    assert run(capsys, "check", str(path), "--fix")[0] == 0
    assert path.read_text() == HEAD + BODY


def test_a_plan_that_does_not_fit_offers_a_costed_edit(capsys, tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    path.write_text(HEAD.replace("8 x h100", "1 x h100").replace("fsdp 8 > tp 8", "fsdp 8") + "use fsdp over fsdp\n")
    status, out = run(capsys, "check", str(path))
    assert status == 1 and "E0501" in out and "GiB of 80.0 GiB" in out and "fits:" in out
    assert run(capsys, "check", str(path), "--fix")[0] == 0


@pytest.mark.parametrize("words", [["check"], ["frobnicate"], ["lower", H100], ["check", H100, "--set", "nodes=x"]])
def test_what_could_not_be_asked_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2


def test_lower_refuses_with_the_sentence(capsys) -> None:
    status, out = run(capsys, "lower", H100, "--target", "xla")
    assert status == 1 and "E0901" in out and "split" in out


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_lower_writes_the_same_bytes_every_time(capsys, tmp_path: Path, target: str) -> None:
    plan = str(ROOT / "plans/llama3_70b_v5p.plan")
    texts = []
    for name in ("a.py", "b.py"):
        assert run(capsys, "lower", plan, "--target", target, "-o", str(tmp_path / name))[0] == 0
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    status, out = run(capsys, "lower", plan, "--target", target, "--emit", "json")
    assert status == 0 and json.loads(out)["text"].encode() == texts[0]


def test_expand_shows_where_sentences_come_from(capsys) -> None:
    status, out = run(capsys, "expand", str(ROOT / "plans/tiny.plan"))
    assert status == 0 and "# use fsdp over fsdp" in out and "use " not in out.split("#")[0]


def test_the_expansion_is_the_same_plan(capsys, tmp_path: Path) -> None:
    from planc.driver import load

    path = ROOT / "plans/tiny.plan"
    _, out = run(capsys, "expand", str(path))
    written = tmp_path / "expanded.plan"
    written.write_text(out)
    assert load(written).sha256 == load(path).sha256


def test_explain_lists_codes_and_prints_pages(capsys) -> None:
    status, out = run(capsys, "explain")
    assert status == 0 and "E0203" in out
    status, out = run(capsys, "explain", "E0203")
    assert status == 0 and "product of the axes" in out
    assert run(capsys, "explain", "E9999")[0] == 2
    status, out = run(capsys, "explain", "model", "llama3_8b")
    assert status == 0 and "8,030,261,248" in out and "layers.*.attention.wq.weight" in out


def test_every_command_says_what_it_does(capsys) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as error:
            main([command, "--help"])
        assert error.value.code == 0 and COMMANDS[command][:20] in capsys.readouterr().out
