"""Build planc's sdist and its wheel, install the wheel into an empty environment, and use it there (`make packages`).

    python .ci/packages.py FOLDER

FOLDER is emptied and gets `dist/`. The wheel is made from the sdist. The environment has planc and what it needs,
pinned as everywhere; `[cuda]` and `[xla]` are resolved, not downloaded. A file of a user's is checked by mypy against
the installed package: its types are what `py.typed` promises. pip asks the index that it is configured for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
EXTRAS = {"cuda": {"torch", "numpy", "safetensors"}, "xla": {"jax", "optax", "numpy", "safetensors"}}
"""Packages that each extra must bring."""
WITHOUT = ("torch", "jax", "numpy", "transformers", "pygls")
"""Packages that the compiler alone must do without."""
PLAN = """plan mine
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp {size}
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
train     for 15 B tokens
price     2 USD per device hour
"""
USER = """import planc

report: planc.Report = planc.check("mine.plan")
memory = report.memory
step_s: float | None = report.step.time_s if report.step is not None else None
fits: bool = memory is not None and memory.per_device_gib.total < memory.capacity_gib
program: planc.Program = planc.lower("mine.plan", "cuda")
"""
"""Lines that a user may write: mypy must accept them, and refuse them with MISTAKE among them."""
MISTAKE = "days: str = report.run"


def sdist(dist: Path) -> Path:
    """Build the sdist of this checkout."""
    build = f"from setuptools import build_meta; print(build_meta.build_sdist({str(dist)!r}))"
    run(sys.executable, "-c", build, cwd=ROOT)
    (made,) = dist.glob("planc-*.tar.gz")
    return made


def wheel(source: Path, folder: Path, epoch_s: int) -> Path:
    """Build the wheel from the sdist `source`, unpacked below `folder`: away from the checkout.

    The same files give the same bytes: their rights and times are set, the times to `epoch_s` (seconds of Unix).
    """
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked", filter=plain)
    (tree,) = (folder / "unpacked").iterdir()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
    os.umask(0o022)
    run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(source.parent), str(tree))
    (made,) = source.parent.glob("planc-*.whl")
    assert made.name.endswith("-py3-none-any.whl"), made.name
    return made


def plain(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """The member of an archive as tarfile's `data_filter` lets it pass, with rights that do not depend on the umask."""
    return tarfile.data_filter(member, folder).replace(mode=0o644 if member.isfile() else 0o755)


def install(package: Path, folder: Path) -> Path:
    """The Python of a new environment with the wheel `package` and what it needs."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    into = [*PIP, "--python", str(python)]
    run(*into, "install", "--quiet", "--only-binary=:all:", "-c", str(ROOT / ".ci/pins/main.txt"), str(package))
    run(*into, "check")
    found = json.loads(run(*into, "list", "--format", "json"))
    names = {p["name"].lower() for p in found}
    assert names.isdisjoint(WITHOUT), f"the compiler alone brings {names & set(WITHOUT)}"
    print(f"installed alone: {', '.join(sorted(names))}")
    return python


def resolve(package: Path, extra: str) -> None:
    """Ask pip what `planc[extra]` would install here: the pins must fit together. Only metadata is downloaded."""
    asked = [f"planc[{extra}] @ {package.as_uri()}", "-c", str(ROOT / ".ci/pins/main.txt")]
    report = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet", "--report", "-"]
    found = json.loads(run(*PIP, "install", *report, *asked))
    names = {item["metadata"]["name"].lower() for item in found["install"]}
    assert EXTRAS[extra] <= names, f"planc[{extra}] lacks {EXTRAS[extra] - names}"
    print(f"planc[{extra}]: {len(names)} packages fit together")


def use(python: Path, folder: Path) -> None:
    """The commands of a first day, in a folder of the user's."""
    planc = str(python.parent / "planc")
    folder.mkdir()
    (folder / "mine.plan").write_text(PLAN.format(size=8))
    (folder / "free.plan").write_text(PLAN.format(size="?"))
    version = run(planc, "--version", cwd=folder).strip()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    assert not commit or version.endswith(f"(commit {commit[:12]})"), version
    print(version)
    assert ".TH PLANC 1" in (python.parent.parent / "share/man/man1/planc.1").read_text()
    report = json.loads(run(planc, "check", "mine.plan", "--format", "json", cwd=folder))
    assert report["step"]["time_s"] > 0 and report["run"]["price"] > 0, report["run"]
    run(planc, "report", "mine.plan", "-o", "mine.html", cwd=folder)
    assert (folder / "mine.html").read_text().rstrip().endswith("</html>")
    found = json.loads(run(planc, "search", "free.plan", "--format", "json", cwd=folder))
    assert found["best"][0]["plan"] == PLAN.format(size=8), found["best"]
    run(planc, "lower", "mine.plan", "--target", "cuda", "-o", "mine.py", cwd=folder)
    run(planc, "explain", "E0806", cwd=folder)


def types(python: Path, folder: Path) -> None:
    """mypy accepts what is right in a user's file and refuses what is not, from the installed package's types."""
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--cache-dir", os.devnull]
    (folder / "user.py").write_text(USER)
    (folder / "wrong.py").write_text(f"{USER}{MISTAKE}\n")
    done = subprocess.run([*mypy, "user.py", "wrong.py"], cwd=folder, capture_output=True, text=True, env=clean())
    (error,) = [line for line in done.stdout.splitlines() if "error:" in line]
    assert done.returncode == 1 and error.startswith("wrong.py:8:") and "RunCost" in error, done.stdout


def clean() -> dict[str, str]:
    """The environment without what would let the checkout be imported."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}


def run(*command: str, cwd: Path | None = None) -> str:
    """The output of a command; its whole output and an end of everything where it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=clean(), stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    folder, start = Path(sys.argv[1]).resolve(), time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    dist = folder / "dist"
    dist.mkdir(parents=True)
    source = sdist(dist)
    epoch_s = int(run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    package = wheel(source, folder, epoch_s)
    python = install(package, folder / "alone")
    use(python, folder / "user")
    types(python, folder / "user")
    for extra in EXTRAS:
        resolve(package, extra)
    print(f"{source.name}, {package.name}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
