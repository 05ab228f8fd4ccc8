"""`make mutants`: plant each fault in a copy of the tree; its named test must turn red.

A fault whose text is no longer found, or a test that is red without the fault, fails the run: a
mutant that cannot be planted proves nothing. `python tests/mutants/run.py NAME...` runs some of them,
`--jobs N` that many at a time, each in a copy of its own; with `--state FILE` a run that was interrupted
goes on where it was, as long as the tree is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.faults import FAULTS, Fault  # noqa: E402

TIMEOUT_S = 600
IN_CI = "not slow and not gpu"
"""The cases that CI runs: a fault that only others see is missed. Cases of `make test` see it where a test has any."""
NOTHING = 5
"""The status of pytest where no case was selected."""
JOBS = min(4, os.cpu_count() or 1)


def files_of_tree() -> list[str]:
    """Every file that git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name and ((ROOT / name).is_symlink() or (ROOT / name).is_file())]


def copy_of_tree(folder: Path) -> Path:
    """A copy of the tree in `folder`, links kept as links."""
    for name in files_of_tree():
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    return folder


def digest() -> str:
    """SHA-256 of the names and contents of the tree's files."""
    found = hashlib.sha256()
    for name in sorted(files_of_tree()):
        path = ROOT / name
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def pytest(tree: Path, *arguments: str, tier: str = f"not long and {IN_CI}") -> subprocess.CompletedProcess[str]:
    """Run a tier's cases of these tests on the copy: its own planc comes first on the path."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", tier, *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def verdict(tree: Path, fault: Fault) -> str:
    """An empty string when the fault is caught, else why it is not."""
    path = tree / fault.file
    original = path.read_text() if path.exists() else ""
    if original.count(fault.text) != 1:
        return f"its text is found {original.count(fault.text)} times in {fault.file}, not once"
    path.write_text(original.replace(fault.text, fault.planted))
    try:
        done = pytest(tree, fault.test)
        if done.returncode == NOTHING:
            done = pytest(tree, fault.test, tier=IN_CI)
            path.write_text(original)
            if pytest(tree, fault.test, tier=IN_CI).returncode:
                return f"{fault.test} is red without the fault"
    except subprocess.TimeoutExpired:
        return f"{fault.test} ran longer than {TIMEOUT_S} s"
    finally:
        path.write_text(original)
    if done.returncode == 1 and "FAILED " in done.stdout:
        return ""
    if done.returncode == 0:
        return f"{fault.test} stays green"
    return f"{fault.test} did not run:\n{done.stdout[-2000:]}"


class State:
    """Verdicts by fault, kept in a file for the tree that they were found on."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.tree, self.known = path, digest() if path else "", dict[str, str]()
        if path and path.exists():
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            self.known = {row["name"]: row["why"] for row in rows if row["tree"] == self.tree}

    def keep(self, name: str, why: str) -> None:
        self.known[name] = why
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps({"tree": self.tree, "name": name, "why": why}) + "\n")


def judge(faults: list[Fault], state: State, jobs: int) -> bool:
    """Plant these faults, `jobs` at a time, into `state`; false when their tests are red without any."""
    with tempfile.TemporaryDirectory(prefix="planc-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            trees.put(copy_of_tree(Path(folder) / f"{number}"))

        def plant(fault: Fault) -> None:
            start, tree = time.monotonic(), trees.get()
            try:
                why = verdict(tree, fault)
            finally:
                trees.put(tree)
            state.keep(fault.name, why)
            word = "MISSED" if why else "caught"
            print(f"  {time.monotonic() - start:5.1f} s  {word}  {fault.name}  {why}", flush=True)

        start, tree = time.monotonic(), trees.get()
        clean = pytest(tree, "-n", str(jobs), *sorted({f.test for f in faults}))
        trees.put(tree)
        if clean.returncode not in (0, NOTHING):
            print(f"the tests are red without any fault:\n{clean.stdout[-4000:]}{clean.stderr[-2000:]}")
            return False
        print(f"  {time.monotonic() - start:5.1f} s  without faults: all green", flush=True)
        list(pool.map(plant, faults))
    return True


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Plant faults: each must turn its named test red.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these faults; all without a name")
    parser.add_argument("--jobs", type=int, default=JOBS, help="faults at a time")
    parser.add_argument("--state", type=Path, help="verdicts of this tree are kept here and not asked for again")
    given = parser.parse_args(words)
    unknown = set(given.names) - {f.name for f in FAULTS}
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(f.name for f in FAULTS)}")
        return 2
    chosen = [f for f in FAULTS if not given.names or f.name in given.names]
    state = State(given.state)
    left = [f for f in chosen if f.name not in state.known]
    if left and not judge(left, state, given.jobs):
        return 1
    missed = [f.name for f in chosen if state.known[f.name]]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults caught{': not ' if missed else ''}{', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
