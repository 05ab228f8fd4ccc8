"""The cache folder: absolute, the user's own, closed to others; nothing that is read from it becomes code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from planc.cache import cache_folder
from planc.ir.emitted import import_text

ROOT = Path(__file__).resolve().parents[2]


class Attack:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch OWNED",)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without a cache, and a working folder beside it."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.delenv("PLANC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return home


def planc(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "planc.cli", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "PLANC_CACHE"])
@pytest.mark.parametrize("value", ["", ".", "cache"])
def test_an_empty_or_relative_variable_is_as_if_unset(
    clean: Path, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert cache_folder() == clean / ".cache" / "planc"


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "PLANC_CACHE"])
def test_nothing_of_the_working_folder_is_loaded(clean: Path, variable: str) -> None:
    """A pull request may bring `planc/grammar` or `grammar` along: formerly a pickle that planc loaded."""
    for place in (Path("planc"), Path()):
        place.mkdir(exist_ok=True)
        (place / "grammar").write_bytes(pickle.dumps(Attack()))
    done = planc("check", str(ROOT / "plans" / "tiny.plan"), **{variable: ""})
    assert done.returncode == 0
    assert not Path("OWNED").exists()


def test_no_pickle_and_no_pipe_of_the_cache_is_read(clean: Path) -> None:
    folder = cache_folder()
    (folder / "grammar").write_bytes(pickle.dumps(Attack()))
    assert planc("check", str(ROOT / "plans" / "tiny.plan")).returncode == 0
    (folder / "grammar").unlink()
    os.mkfifo(folder / "grammar")
    assert planc("check", str(ROOT / "plans" / "tiny.plan")).returncode == 0
    assert not Path("OWNED").exists()


def test_the_folder_is_made_private_and_is_closed_when_others_may_read(clean: Path) -> None:
    folder = cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert cache_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700


def elsewhere(folder: Path) -> bool:
    """True if a private temporary folder stands in for the configured one."""
    found = cache_folder()
    return found != folder and found.stat().st_mode & 0o777 == 0o700 and found.stat().st_uid == os.geteuid()


def test_a_folder_that_others_may_write_into_is_not_used(clean: Path) -> None:
    folder = cache_folder()
    folder.chmod(0o777)
    assert elsewhere(folder)


def test_a_folder_under_one_that_all_may_write_into_is_not_used(clean: Path) -> None:
    folder = cache_folder()
    clean.chmod(0o777)
    assert elsewhere(folder)
    clean.chmod(0o1777)
    assert cache_folder() == folder


def test_a_folder_of_another_user_is_not_used(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache_folder()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert cache_folder() != folder


def test_a_link_a_pipe_and_a_file_are_no_folder(clean: Path, tmp_path: Path) -> None:
    folder = clean / ".cache" / "planc"
    folder.parent.mkdir()
    (tmp_path / "victim").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "victim")
    assert elsewhere(folder)
    folder.unlink()
    os.mkfifo(folder)
    assert elsewhere(folder)
    folder.unlink()
    folder.write_text("")
    assert elsewhere(folder)


def test_a_home_in_which_nothing_can_be_made(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "file").write_text("")
    for home in (clean / "file", Path("/proc/1"), Path("")):
        monkeypatch.setenv("HOME", str(home) if home.parts else "")
        assert elsewhere(home)
        assert planc("check", str(ROOT / "plans" / "tiny.plan")).returncode == 0
        assert planc("lower", str(ROOT / "plans" / "tiny.plan"), "--target", "cuda").returncode == 0
    assert list(Path().iterdir()) == []


# Emitted programs.

TEXT = "ANSWER = 42\n\n\ndef fails():\n    raise RuntimeError('here')\n"


def test_a_program_is_its_text_whatever_lies_in_the_folder(clean: Path) -> None:
    first = import_text(TEXT, "planted")
    path = Path(first.__file__ or "")
    assert path.read_text() == TEXT
    path.write_text("open('OWNED', 'w')\n")
    del sys.modules[first.__name__]
    again = import_text(TEXT, "planted")
    assert again is not first and again.ANSWER == 42
    assert path.read_text() == TEXT
    assert not Path("OWNED").exists()


def test_a_link_at_the_programs_place_leaves_its_file_alone(clean: Path, tmp_path: Path) -> None:
    first = import_text(TEXT, "linked")
    path = Path(first.__file__ or "")
    (tmp_path / "victim").write_text("mine")
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    del sys.modules[first.__name__]
    assert import_text(TEXT, "linked").ANSWER == 42
    assert (tmp_path / "victim").read_text() == "mine"
    assert path.read_text() == TEXT and not path.is_symlink()


def test_a_program_is_imported_where_nothing_can_be_written(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planc.ir.emitted.write_atomically", refuse)
    module = import_text(TEXT, "unwritten")
    assert module.ANSWER == 42 and not Path(module.__file__ or "").exists()


def refuse(*_given: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_traceback_shows_the_programs_line(clean: Path) -> None:
    import traceback

    module = import_text(TEXT, "shown")
    Path(module.__file__ or "").unlink()
    try:
        module.fails()
    except RuntimeError:
        assert "raise RuntimeError('here')" in traceback.format_exc()
    else:
        pytest.fail("it raises")


def test_a_program_that_fails_is_not_kept(clean: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            import_text("1 / 0\n", "broken")


RACE = """
from planc.ir.emitted import import_text
for number in range(20):
    assert import_text(f"NUMBER = {number}\\n", "race").NUMBER == number
"""


def test_processes_that_start_at_once_share_the_folder(clean: Path) -> None:
    def start(_number: int) -> int:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "-c", RACE], env=env, timeout=60, check=False).returncode

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(start, range(6))) == [0] * 6
    written = sorted(p.name for p in (clean / ".cache" / "planc" / "programs").iterdir())
    assert len(written) == 20 and all(name.startswith("race_") for name in written)
