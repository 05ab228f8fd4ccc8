"""`planc --version`: the version, and the commit where one is known."""

import re
import subprocess
from pathlib import Path

import pytest

import planc
from planc.cli import commit as commits
from planc.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_says_its_commit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"planc {planc.__version__} (commit {done.stdout[:12]})\n"


@pytest.mark.parametrize("checkout", ["branch", "packed", "detached", "worktree"])
def test_any_checkout_says_its_commit_without_git(
    checkout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git itself says it, with git nowhere to be found."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(tmp_path), *words], capture_output=True, text=True, check=True).stdout

    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    git("init", "--quiet")
    git(*identity, "commit", "--quiet", "--allow-empty", "-m", "one")
    root = tmp_path / "other" if checkout == "worktree" else tmp_path
    match checkout:
        case "packed":
            git("pack-refs", "--all")
        case "detached":
            git("checkout", "--quiet", "--detach")
        case "worktree":
            git("worktree", "add", "--quiet", "-b", "room/other", str(root))
            git(*identity, "commit", "--quiet", "--allow-empty", "-m", "two")
    expected = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout.strip()
    (root / "setup.py").touch()
    (root / "planc").mkdir()
    monkeypatch.setattr(commits, "files", lambda _: root / "planc")
    monkeypatch.setenv("PATH", "")
    assert commits.commit() == expected


@pytest.mark.parametrize(("text", "hash"), [("a" * 40 + "\n", "a" * 40), ("HEAD\n", ""), ("", ""), ("a" * 41, "")])
def test_a_package_says_what_it_was_built_from(
    text: str, hash: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "commit.txt").write_text(text)
    monkeypatch.setattr(commits, "files", lambda _: tmp_path)
    assert commits.commit() == hash


def test_a_planc_below_another_checkout_does_not_take_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed into a project's folder, without a commit of its own."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "planc").mkdir()
    monkeypatch.setattr(commits, "files", lambda _: tmp_path / "planc")
    assert commits.commit() == ""
    assert re.fullmatch(r"\d+\.\d+\.\d+", planc.__version__)
