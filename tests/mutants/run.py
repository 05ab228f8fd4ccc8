"""`make mutants`: plant each fault in a copy of the tree; its named test must turn red.

A fault whose text is no longer found, or a test that is red without the fault, fails the run: a
mutant that cannot be planted proves nothing. `python tests/mutants/run.py NAME...` runs some of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600


def copy_of_tree(folder: Path) -> Path:
    """Every file git knows or would add, links kept as links."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def pytest(tree: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run these tests on the copy: its own planc comes first on the path."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
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
        done = pytest(tree, [fault.test])
    except subprocess.TimeoutExpired:
        return f"{fault.test} ran longer than {TIMEOUT_S} s"
    finally:
        path.write_text(original)
    if done.returncode == 1 and "FAILED " in done.stdout:
        return ""
    if done.returncode == 0:
        return f"{fault.test} stays green"
    return f"{fault.test} did not run:\n{done.stdout[-2000:]}"


def main(names: list[str]) -> int:
    unknown = set(names) - {f.name for f in FAULTS}
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(f.name for f in FAULTS)}")
        return 2
    chosen = [f for f in FAULTS if not names or f.name in names]
    with tempfile.TemporaryDirectory(prefix="planc-mutants-") as folder:
        tree = copy_of_tree(Path(folder))
        start = time.monotonic()
        clean = pytest(tree, sorted({f.test for f in chosen}))
        if clean.returncode != 0:
            print(f"the tests are red without any fault:\n{clean.stdout[-4000:]}{clean.stderr[-2000:]}")
            return 1
        print(f"  {time.monotonic() - start:5.1f} s  without faults: all green", flush=True)
        missed = 0
        for fault in chosen:
            start = time.monotonic()
            why = verdict(tree, fault)
            missed += bool(why)
            state = "caught" if not why else "MISSED"
            print(f"  {time.monotonic() - start:5.1f} s  {state}  {fault.name}  {why}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
