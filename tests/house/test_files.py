"""One reader and one writer: no other module opens files that people or strangers wrote, or writes over any."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from planc.files import (
    TooLargeError,
    open_regular,
    parse_json,
    parse_toml,
    read_bounded,
    read_json,
    read_text,
    write_atomically,
)

ROOT = Path(__file__).resolve().parents[2]
CALLS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "memmap", "fromfile", "open_memmap", "safe_open",
    "save_file", "from_file", "copyfile", "copy2", "copytree", "copyfileobj",
}  # fmt: skip
"""Functions and methods that read or write a file by its path."""
PACKAGE = "files of the package itself"
ALLOWED = {
    "planc/files.py": "the reader and the writer",
    "planc/catalog/__init__.py": PACKAGE,
    "planc/diag/registry.py": PACKAGE,
    "planc/syntax/tables.py": PACKAGE,
    "backends/common/specialise.py": PACKAGE,
    "backends/common/box_reader.py": "a checkpoint of the trainer's, verified or named by a program's user",
    "planc/cli/schemas/__init__.py": PACKAGE,
    "planc/cli/commit.py": PACKAGE,
    "planc/cli/topics.py": PACKAGE,
    "planc/language/library.py": PACKAGE,
    "planc/cache.py": "opens the cache folder to look at its owner",
    "planc/allowed.py": "its own temporary folder, /proc of the kernel",
    "planc/driver/allowed_code.py": "the answer of its own process, in its folder",
    "planc/calibration/bundled.py": PACKAGE,
    "planc/calibration/cpu_contention.py": "/proc/stat of the kernel",
    "planc/cli/__init__.py": "/dev/null for a closed output",
    "planc/cli/commands/calibrate.py": "plans in a temporary folder of its own",
    "planc/trainer/measure/worker.py": "the task that the coordinator wrote",
    "planc/trainer/measure/coordinator.py": "tasks in a temporary folder of its own",
    "planc/trainer/run/worker.py": "methods of a run and a reporter that are called `open`",
    "planc/trainer/telemetry/metrics_file.py": "a file that a run adds lines to, after a look at what is there",
    "planc/trainer/checkpoint/directory.py": "the lock, without following a link",
    "planc/trainer/checkpoint/writer.py": "a folder to sync; a rank's word in the folder of a save",
    "planc/trainer/checkpoint/tensor_files.py": "files of a save, synced",
    "planc/trainer/checkpoint/hugging_face.py": "values after their headers were read; exported weights",
    "planc/trainer/data/tokens/files.py": "tokens, mapped after a look at the file's size",
    "planc/trainer/data/stream.py": "Python's own library",
    "planc/report/render.py": "the package's own templates",
    "backends/cuda/audit/pool.py": "a hash of the backend's own files, and the cache of traces",
    "backends/xla/audit/compile.py": "a temporary folder and the cache of compilations",
    "backends/xla/audit/worker.py": "a temporary folder and the cache of compilations",
}
"""Modules that may, and why."""


def opening(path: Path) -> set[str]:
    """Names of the calls of a module that open a file by its path."""
    found, text = set(), path.read_text()
    if not any(f"{name}(" in text for name in CALLS):
        return set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            own = name == "read_text" and isinstance(node.func, ast.Name)
            if name in CALLS and not own:
                found.add(name)
    return found


def modules() -> list[Path]:
    below = [p for room in ("planc", "backends", "grammar") for p in (ROOT / room).rglob("*.py")]
    return [p for p in below if not any(parent.is_symlink() for parent in p.relative_to(ROOT).parents)]


def test_only_the_listed_modules_open_files() -> None:
    found = {p.relative_to(ROOT).as_posix() for p in modules() if opening(p)}
    linked = {f for f in found if f.startswith(("planc/backends/", "planc/grammar/", "planc/plans/"))}
    assert found - linked == set(ALLOWED)


def test_a_call_is_seen(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("from pathlib import Path\nPath('a').read_bytes()\nopen('b')\nread_text('c')\n")
    assert opening(tmp_path / "m.py") == {"read_bytes", "open"}


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, Path]:
    """Paths that are no regular file, by what they are."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    paths = {"pipe": tmp_path / "pipe", "circle": tmp_path / "circle", "folder": tmp_path, "null": Path("a\0b")}
    return {**paths, "device": Path("/dev/zero"), "absent": tmp_path / "absent"}


@pytest.mark.parametrize("name", ["pipe", "circle", "folder", "null", "device", "absent"])
def test_what_is_no_regular_file_is_refused_at_once(odd: dict[str, Path], name: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        open_regular(odd[name])
    with pytest.raises(OSError, match=r".+"):
        read_json(odd[name], 100)


def test_reading_is_bounded_and_tells_text_from_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbf{\r\n}")
    assert (read_text(path, 7), read_json(path, 7)) == ("{\n}", {})
    with pytest.raises(TooLargeError):
        read_bounded(path, 6)
    for data in (b"\xff", b"[" * 100_000, b"{", b"9" * 5000, b'{"a":' * 50_000):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r".+"):
            read_json(path, 10**6)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', "NaN", "[-Infinity]", "1e400", str(2**64), "-" + "9" * 30, "[" * 10**5]
)
def test_json_that_nobody_can_mean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


def test_json_has_64_bits_and_says_what_stands_twice() -> None:
    assert parse_json(f"[{2**64 - 1}, {-(2**63)}, 1e308]") == [2**64 - 1, -(2**63), 1e308]
    assert str(parse_json("[NaN, 1e400]", finite=False)) == "[nan, inf]"
    with pytest.raises(ValueError, match="'ab' stands twice"):
        parse_json('{"x": [{"ab": 1, "c": 2, "ab": 3}]}')


@pytest.mark.parametrize(
    "text", ["a = nan", "a = [inf]", "a = 1e400", "a = 0x1" + "0" * 16, "a." * 10**5 + "b = 1", '"a" .' * 60 + "b = 1"]
)
def test_toml_that_nobody_can_mean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_toml(text)
    assert parse_toml("a.b = 0xffff_ffff_ffff_ffff\nc = '" + "w. " * 99 + "'") == {
        "a": {"b": 2**64 - 1},
        "c": "w. " * 99,
    }


def test_a_device_is_written_into_and_stays(tmp_path: Path) -> None:
    """A terminal, whose folder takes no files: /dev/null itself would be replaced, where root tests a broken planc."""
    reader, terminal = os.openpty()
    device = Path(os.ttyname(terminal))
    write_atomically(device, "x")
    assert os.read(reader, 10) == b"x" and device.is_char_device()
    os.close(reader)
    os.close(terminal)
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, "x")
    assert list(tmp_path.iterdir()) == []


def test_a_link_out_of_its_folder_is_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "outside").write_text("[1]")
    (folder / "below" / "inside").write_text("[2]")
    (folder / "near").symlink_to("below/inside")
    (folder / "far").symlink_to("../outside")
    assert read_json(folder / "near", 10) == [2]
    with pytest.raises(OSError, match="a link out of its folder"):
        read_json(folder / "far", 10)
    assert read_json(folder / "far", 10, follows_links=True) == [1]
