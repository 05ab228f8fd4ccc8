"""The command line as a user meets it: exit status, what is on standard output, no traceback ever."""

import argparse
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planc.cli import COMMANDS, main
from planc.cli.topics import topics
from tests.plans import BODY, BUNDLED, HEAD, ROOT

H100 = str(ROOT / "plans/llama3_70b_h100.plan")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(list(words))
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return status, captured.out


def test_check_prints_what_the_readme_promises(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "check", H100)
    assert status == 0
    for word in ("memory", "step", "MFU", "bound by", "collectives", "nvlink4", "leaf", "spine", "fsdp 16"):
        assert word in out, word


def test_several_files_give_an_array_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "check", *map(str, BUNDLED), "--format", "json")
    assert status == 0
    assert [r["plan"] for r in json.loads(out)] == [p.stem for p in BUNDLED]


def test_json_is_alone_on_standard_output_at_exit_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.plan"
    path.write_text(HEAD.replace("tp 8", "tp 9") + BODY)
    status, out = run(capsys, "check", str(path), "--format", "json")
    report = json.loads(out)
    assert status == 1 and report["memory"] is report["step"] is report["collectives"] is None
    assert report["diagnostics"][0]["code"] == "E0203"
    assert report["diagnostics"][0]["file"] == str(path)


@pytest.mark.parametrize("format", ["text", "json", "sarif", "github"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"\x80abc", b"PK\x03\x04" * 99], ids=str)
def test_files_that_are_no_plans(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, format: str
) -> None:
    path = tmp_path / "x.plan"
    path.write_bytes(content)
    status, out = run(capsys, "check", str(path), "--format", format)
    assert status == (2 if b"\x80" in content or b"\0" in content else 1) and "E010" in out


COMMANDS_OF_A_PLAN = [
    "check",
    "cost",
    "expand",
    "graph",
    "place",
    "search",
    "lower --target xla",
    "report --trace",
    "sweep --over devices=8",
]


@pytest.mark.parametrize("words", [*COMMANDS_OF_A_PLAN, "audit --target cuda", "diff --cluster tpu_v5p(2x2x4)"])
def test_a_missing_file_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str) -> None:
    command, *flags = words.split(" ", 1)
    more = flags[0].split(" ", 1) if flags else []
    assert main([command, str(tmp_path / "none.plan"), *more]) == 2
    said = capsys.readouterr()
    assert "cannot be read" in " ".join((said.out + said.err).split())


@pytest.mark.parametrize("words", [["train", "P", "--target", "cuda"], ["embed", "P", "P"], ["fmt", "P"]], ids=str)
def test_a_missing_preset_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]) -> None:
    assert main([str(tmp_path / "none") if word == "P" else word for word in words]) == 2
    said = capsys.readouterr()
    assert "cannot be read" in " ".join((said.out + said.err).split())


def test_a_missing_import_is_a_mistake_of_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    path.write_text('plan x\nimport "none.plan"\n')
    status, out = run(capsys, "check", str(path))
    assert status == 1 and "E0104" in out


def test_a_folder_is_the_plans_in_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "b.plan").write_text(HEAD.replace("example", "b") + BODY)
    (tmp_path / "below" / "a.plan").write_text("# ours\n\n" + HEAD.replace("example", "a") + BODY)
    (tmp_path / "mine.plan").write_text("layout mine over x\nshard batch over x\n")
    (tmp_path / "chip.plan").write_text("# hardware\nhardware chip\n")
    status, out = run(capsys, "check", str(tmp_path), "--format", "json")
    assert status == 0 and [r["plan"] for r in json.loads(out)] == ["b", "a"]
    (tmp_path / "below" / "a.plan").write_text(HEAD.replace("tp 8", "tp 9") + BODY)
    assert run(capsys, "check", str(tmp_path))[0] == 1
    (tmp_path / "below" / "a.plan").write_bytes(b"\xff")
    assert run(capsys, "check", str(tmp_path))[0] == 2
    (tmp_path / "empty").mkdir()
    assert run(capsys, "check", str(tmp_path / "empty"))[0] == 2


def test_an_unreadable_file_is_a_diagnostic(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's refusal is planted: for root, who may run the tests, every file is readable."""
    path = tmp_path / "x.plan"
    path.write_text(HEAD)
    really_open = os.open

    def refusing_open(file: os.PathLike[str] | str, *arguments: int) -> int:
        if Path(file) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return really_open(file, *arguments)

    monkeypatch.setattr(os, "open", refusing_open)
    status, out = run(capsys, "check", str(path))
    assert status == 2 and "E0104" in out


def test_the_fix_is_applied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    path.write_text((HEAD + BODY).replace("model ", "modle ").replace("over tp\nuse", "ovr tp\nuse"))
    assert run(capsys, "check", str(path))[0] == 1
    assert run(capsys, "check", str(path), "--fix")[0] == 0
    assert path.read_text() == HEAD + BODY


def test_a_plan_that_does_not_fit_offers_a_costed_edit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    path.write_text(HEAD.replace("8 x h100", "1 x h100").replace("fsdp 8 > tp 8", "fsdp 8") + "use fsdp over fsdp\n")
    status, out = run(capsys, "check", str(path))
    assert status == 1 and "E0501" in out and "GiB of 80.0 GiB" in out and "fits:" in out
    assert run(capsys, "check", str(path), "--fix")[0] == 1
    assert run(capsys, "check", str(path), "--unsafe-fixes")[0] == 0


@pytest.mark.parametrize("words", [["check"], ["frobnicate"], ["lower", H100], ["check", H100, "--set", "nodes=x"]])
def test_what_could_not_be_asked_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2


def test_lower_refuses_with_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "lower", str(ROOT / "plans/field/llama3_8b_uneven.plan"), "--target", "xla")
    assert status == 1 and "E0901" in out and "gather params per microbatch" in out


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_lower_writes_the_same_bytes_every_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    plan = str(ROOT / "plans/llama3_70b_v5p.plan")
    texts = []
    for name in ("a.py", "b.py"):
        assert run(capsys, "lower", plan, "--target", target, "-o", str(tmp_path / name))[0] == 0
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    status, out = run(capsys, "lower", plan, "--target", target, "--emit", "json")
    assert status == 0 and json.loads(out)["text"].encode() == texts[0]


def test_expand_shows_where_sentences_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "expand", str(ROOT / "plans/tiny.plan"))
    assert status == 0 and "# use fsdp over fsdp" in out and "use " not in out.split("#")[0]


def test_the_expansion_is_the_same_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from planc.driver import check

    path = ROOT / "plans/tiny.plan"
    _, out = run(capsys, "expand", str(path))
    assert "recompute none" in out and "target    cuda" in out
    written = tmp_path / "expanded.plan"
    written.write_text(out)
    said, own = check(written), check(path)
    assert (said.step, said.memory) == (own.step, own.memory) and said.defaults == () != own.defaults


def test_explain_lists_codes_and_prints_pages(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "explain")
    assert status == 0 and "E0203" in out
    status, out = run(capsys, "explain", "E0203")
    assert status == 0 and "product of the axes" in out
    assert run(capsys, "explain", "E9999")[0] == 2
    status, out = run(capsys, "explain", "model", "llama3_8b")
    assert status == 0 and "8,030,261,248" in out and "layers.*.attention.wq.weight" in out


NAMES = {
    "mesh": ("verb", "outermost axis first"),
    "chip": ("verb", "hardware"),
    "fsdp": ("layout", "store     params, grads, optimizer over fsdp"),
    "zbv": ("schedule", "ZB-V"),
    "llama3_8b": ("model", "8,030,261,248"),
    "h100": ("chip", "memory = 80 GiB"),
    "h100_node": ("node", "8 x h100 over nvlink4"),
    "tpu_v5p": ("torus", "ici"),
    "E0203": ("code", "product of the axes"),
}


@pytest.mark.parametrize("name", NAMES)
def test_explain_knows_names_of_every_kind(capsys: pytest.CaptureFixture[str], name: str) -> None:
    kind, says = NAMES[name]
    status, out = run(capsys, "explain", name)
    assert status == 0 and says in out
    assert run(capsys, "explain", kind, name) == (0, out)
    _, answer = run(capsys, "explain", name, "--format", "json")
    assert json.loads(answer)["format"] == "planc.page/1" and json.loads(answer)["kind"] == kind


def test_explain_has_a_page_for_every_name() -> None:
    """None of them is empty, and sentences of layouts and hardware are those of the bundled files."""
    for kind, pages in topics().items():
        assert pages, kind
        for name, page in pages.items():
            topic = page(name)
            assert topic.name == name and name in topic.text and len(topic.text) > len(f"{kind} {name}\n\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["explain", "llama3-8b"], "llama3_8b"),
        (["explain", "model", "llama3-8b"], "llama3_8b"),
        (["explain", "mehs"], "mesh"),
        (["explain", "chip", "h10"], "h100"),
        (["explain", "modle", "llama3_8b"], "model"),
        (["explain", "E0230"], "E0203"),
    ],
    ids=str,
)
def test_a_misspelt_name_is_asked_about(capsys: pytest.CaptureFixture[str], words: list[str], meant: str) -> None:
    assert main(words) == 2
    assert "did you mean `" in (said := capsys.readouterr().err) and meant[:3] in said


def test_a_misspelt_command_is_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["chekc", "x.plan"])
    assert error.value.code == 2 and "did you mean `check`?" in capsys.readouterr().err


def test_a_closed_output_is_no_traceback() -> None:
    """`planc check FILE >&-`."""
    command = f"{sys.executable} -m planc.cli check {ROOT / 'plans/tiny.plan'} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stderr == "planc: standard output is closed\n"
    assert subprocess.run(["sh", "-c", f"{command} 2>&-"], capture_output=True, cwd=ROOT).returncode == 2


@pytest.mark.parametrize("number", ["1" + 12 * "0" + "1", 15 * "9", 99 * "9"])
def test_a_setting_that_is_too_large_is_refused(capsys: pytest.CaptureFixture[str], number: str) -> None:
    with pytest.raises(SystemExit) as error:
        main(["check", H100, "--set", f"nodes={number}"])
    assert error.value.code == 2 and "--set" in capsys.readouterr().err


def test_every_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as error:
            main([command, "--help"])
        assert error.value.code == 0 and COMMANDS[command][:20] in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "cost", "sweep"])
def test_a_setting_beyond_every_number_of_a_plan_is_a_usage_error(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main([command, str(ROOT / "plans" / "tiny.plan"), "--set", "nodes=999999999999999"])
    assert error.value.code == 2 and "nodes=999999999999999" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "status", "said"), [(MemoryError, 2, "planc: not enough memory"),
                                                       (KeyboardInterrupt, 130, "interrupted")])  # fmt: skip
def test_what_ends_planc_while_it_reads_its_arguments_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException], status: int, said: str,
) -> None:  # fmt: skip
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(argparse.ArgumentParser, "add_subparsers", refused)
    assert main(["check", str(ROOT / "plans" / "tiny.plan")]) == status
    assert capsys.readouterr().err == f"{said}\n"
