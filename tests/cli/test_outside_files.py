"""Files from outside in every command: pipes, nesting, indexes that lie; outputs on a full disk."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from planc.catalog import build_model
from planc.cli import main
from planc.diag import PlanError, Span
from planc.trainer.checkpoint.hugging_face import ALONE, INDEX, imported
from planc.trainer.data.tokens.files import DataError, token_files
from planc.trainer.data.tokens.text import documents
from tests.plans import BODY, HEAD

NESTED = "[" * 100_000
COMMANDS = [["crosscheck", "F", "F"], ["report", "--accuracy", "F"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
@pytest.mark.parametrize("kind", ["pipe", "nested", "binary", "list", "folder"])
def test_what_is_no_receipt_is_answered_at_once(command: list[str], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes({"nested": NESTED.encode(), "binary": b"\xff\xfe", "list": b"[]"}[kind])
    assert main([word.replace("F", str(path)) for word in command]) == 2


def weights(folder: Path, kind: str) -> None:
    """A folder of weights that is none."""
    folder.mkdir()
    if kind == "a pipe":
        os.mkfifo(folder / INDEX)
        (folder / ALONE).write_bytes(b"")
    elif kind == "a nested header":
        (folder / ALONE).write_bytes(struct.pack("<Q", len(NESTED)) + NESTED.encode())
    elif kind == "a header without end":
        (folder / ALONE).write_bytes(struct.pack("<Q", 2**63) + b"{}")
    elif kind == "an impossible shape":
        text = b'{"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}'
        (folder / ALONE).write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    else:
        texts = {
            "a nested index": NESTED,
            "an index of files elsewhere": '{"weight_map": {"a": "../x.safetensors"}}',
            "an index of absolute files": '{"weight_map": {"a": "/etc/passwd"}}',
            "an index of numbers": '{"weight_map": {"a": 1}}',
            "an index that is a list": "[1]",
        }
        (folder / INDEX).write_text(texts[kind])


@pytest.mark.parametrize(
    "kind",
    [
        "a pipe", "a nested header", "a header without end", "an impossible shape", "a nested index",
        "an index of files elsewhere", "an index of absolute files", "an index of numbers", "an index that is a list",
    ],
)  # fmt: skip
def test_weights_that_are_none_are_refused(kind: str, tmp_path: Path) -> None:
    weights(tmp_path / "hf", kind)
    with pytest.raises(PlanError) as raised:
        imported(build_model("llama_micro"), tmp_path / "hf", Span("run.toml", 1, 1, 1, 1))
    assert [d.code for d in raised.value.diagnostics] == ["E1030"]


@pytest.mark.parametrize("sequences", [2, 2**40, 2**62, 2**64 - 1])
def test_an_index_of_tokens_that_promises_too_much_is_refused(sequences: int, tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, sequences, 1)
    (tmp_path / "a.idx").write_bytes(head + np.array([100], "<i4").tobytes())
    with pytest.raises(DataError, match="cut short"):
        token_files(tmp_path / "a.bin", "uint16")


def test_sequences_of_negative_length_are_refused(tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2, 1)
    (tmp_path / "a.idx").write_bytes(head + np.array([300, -200], "<i4").tobytes())
    with pytest.raises(DataError, match="a sequence of -200 tokens"):
        token_files(tmp_path / "a.bin", "uint16")


def test_an_index_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    os.mkfifo(tmp_path / "a.idx")
    with pytest.raises((DataError, OSError)):
        token_files(tmp_path / "a.bin", "uint16")


def test_a_nested_line_of_text_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(NESTED)
    with pytest.raises(DataError, match="line 1"):
        list(documents(tmp_path / "a.jsonl"))


# Outputs.

OUTPUTS = {
    "lower": ["lower", "P", "--target", "cuda", "-o", "F"],
    "report": ["report", "P", "--trace", "-o", "F"],
    "fmt": ["fmt", "F"],
}


def written_to(name: str, folder: Path) -> tuple[list[str], Path]:
    """The words of a command, and the file that it writes over."""
    plan, file = folder / "x.plan", folder / "out.plan"
    plan.write_text(HEAD + BODY)
    file.write_text((HEAD + BODY).replace("use ", "use      ") if name == "fmt" else "the old text")
    return [w.replace("P", str(plan)).replace("F", str(file)) for w in OUTPUTS[name]], file


@pytest.mark.parametrize("name", ["lower", "report", "fmt"])
def test_a_full_disk_keeps_the_old_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up before the new file takes the old one's place."""
    words, file = written_to(name, tmp_path)
    before = file.read_bytes()

    def fails(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("planc.files.os.replace", fails)
    monkeypatch.setattr("planc.cli._discard_output", lambda: None)
    assert main(words) == 2
    assert file.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"x.plan", file.name}


@pytest.mark.parametrize("name", ["lower", "report", "fmt"])
def test_an_output_keeps_its_mode_and_its_link(name: str, tmp_path: Path) -> None:
    words, file = written_to(name, tmp_path)
    real = tmp_path / "real"
    file.rename(real)
    file.symlink_to("real")
    real.chmod(0o640)
    before = real.read_bytes()
    assert main(words) == 0
    assert file.is_symlink() and real.read_bytes() != before
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_plan_is_formatted_with_its_own_line_ends_and_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.plan"
    text = (HEAD + BODY).replace("use ", "use      ")
    file.write_text(text)
    assert main(["fmt", str(file)]) == 0
    expected = file.read_bytes()
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert main(["fmt", str(file)]) == 0
    assert file.read_bytes() == b"\xef\xbb\xbf" + expected.replace(b"\n", b"\r\n")


def test_a_device_may_be_an_output(tmp_path: Path) -> None:
    (tmp_path / "x.plan").write_text(HEAD + BODY)
    reader, terminal = os.openpty()  # its folder takes no files; /dev/null would be replaced, if planc were wrong
    device = Path(os.ttyname(terminal))
    shown = threading.Thread(target=lambda: [*iter(lambda: b"END" in os.read(reader, 10_000), True)], daemon=True)
    shown.start()
    assert main(["lower", str(tmp_path / "x.plan"), "--target", "cuda", "-o", str(device)]) == 0
    assert device.is_char_device()
    os.write(terminal, b"END")
    shown.join()
    os.close(reader)
    os.close(terminal)


# Links, which a repository may bring along.

SECRET = "user alice\nhunter2 password\nlayers: 12, hunter2\n"
LINKED = {
    "check script": (["check", "F"], "run.sh"), "check yaml": (["check", "F"], "run.yaml"),
    "import": (["import", "F"], "run.sh"), "import toml": (["import", "F"], "run.toml"),
    "diff": (["diff", "F", "P"], "run.sh"), "graph": (["graph", "--from", "F"], "topology.conf"),
    "calibrate": (["calibrate", "--from", "F", "-o", "out.plan"], "runs.csv"), "fmt": (["fmt", "F"], "a.plan"),
    "train": (["train", "F", "--target", "xla", "--dry-run"], "run.toml"), "embed": (["embed", "P", "F"], "run.toml"),
    "crosscheck": (["crosscheck", "F", "F"], "r.json"), "accuracy": (["report", "--accuracy", "F"], "r.json"),
    "hardware": (["bench", "calibrated", "--hardware", "F", "--target", "cuda"], "m.plan"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_link_out_of_its_folder_is_neither_quoted_nor_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI checks the files of a stranger's change, and git carries links: to the environment of the runner, say."""
    words, file = LINKED[name]
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "x.plan").write_text(HEAD + BODY)
    (tmp_path / "secret").write_text(SECRET)
    (folder / file).symlink_to("../secret")
    assert main([{"F": file, "P": "x.plan"}.get(word, word) for word in words]) in (1, 2)
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err and "alice" not in said.out + said.err
    assert (tmp_path / "secret").read_text() == SECRET
