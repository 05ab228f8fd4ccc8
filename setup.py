"""The commit that a package is built from, written beside the package's files: `planc --version` says it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent


def commit() -> str:
    """The commit of this checkout, or the one that an sdist was made from; empty outside both."""
    kept = HERE / "planc" / "commit.txt"
    if kept.exists():
        return kept.read_text()
    if not (HERE / ".git").exists():
        return ""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def write(folder: Path) -> None:
    """Write the commit below `folder`, where one is known."""
    if text := commit():
        (folder / "planc" / "commit.txt").write_text(text)


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write(Path(self.build_lib))


class SdistWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write(Path(base_dir))


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SdistWithCommit})
