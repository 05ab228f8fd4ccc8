"""The playground, `make playground`: a page that runs planc in the browser, from files as they lie on a server.

    python docs/playground/build.py FOLDER

Pyodide's core is npm's package, the compiled part of pydantic the wheel of the version that is installed here; both are
fetched once, and refused where their sums differ. Everything else is copied from this checkout and its environment.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PYODIDE = "314.0.7"
PYDANTIC_CORE = "2.50.4"
SUMS = {
    f"pyodide-{PYODIDE}.tgz": "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0",
    f"pydantic_core-{PYDANTIC_CORE}-cp314-cp314-pyemscripten_2026_0_wasm32.whl": (
        "e6da138a1ecc1341c8b788a5ee822670b03788e1f5decf7af9d461de6e508b8e"
    ),
}
"""sha256 of what is fetched."""
CORE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PACKAGES = ("annotated_types", "jinja2", "lark", "markupsafe", "pydantic", "tomlkit", "typing_inspection", "yaml")
"""Packages that are pure Python, or work without their compiled part; and typing_extensions."""
PAGE = ("index.html", "playground.js", "worker.js", "run.py")


def main(folder: Path) -> None:
    """Write the page and all that it loads into `folder`/html."""
    assert version("pydantic_core") == PYDANTIC_CORE, (
        f"pydantic_core is {version('pydantic_core')}: change its sum here"
    )
    fetched, out = folder / "fetched", folder / "html"
    fetched.mkdir(parents=True, exist_ok=True)
    core, wheel = (_fetched(fetched, name) for name in SUMS)
    shutil.rmtree(out, ignore_errors=True)
    (out / "pyodide").mkdir(parents=True)
    with tarfile.open(core) as archive:
        for name in CORE:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            (out / "pyodide" / name).write_bytes(member.read())
    shutil.copy(wheel, out / "pydantic_core.whl")
    for name in PAGE:
        shutil.copy(HERE / name, out / name)
    _pack(out / "planc.zip")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 1e6:.1f} MB; serve it with `python -m http.server -d {out}`")


def _fetched(folder: Path, name: str) -> Path:
    """The file `name`, fetched by its registry's own client unless it is there."""
    path = folder / name
    if not path.exists():
        if name.endswith(".tgz"):
            command = ["npm", "pack", "--silent", f"pyodide@{PYODIDE}"]
        else:
            python = ["--platform", "pyemscripten_2026_0_wasm32", "--python-version", "3.14", "--abi", "cp314"]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *python]
            command += ["-d", ".", f"pydantic-core=={PYDANTIC_CORE}"]
        subprocess.run(command, cwd=folder, check=True)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found == SUMS[name], f"{name} has the sum {found}, not {SUMS[name]}"
    return path


def _pack(to: Path) -> None:
    """planc as its wheel has it, and the packages that it needs."""
    site = Path(sysconfig.get_path("purelib"))
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(site / "typing_extensions.py", "typing_extensions.py")
        for package in PACKAGES:
            for path in sorted((site / package).rglob("*")):
                if path.suffix in (".py", ".lark"):
                    archive.write(path, path.relative_to(site))
        listed = ["git", "ls-files", "planc", "backends", "grammar", "plans"]
        for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
            path = ROOT / name
            if path.is_file() and not path.is_symlink() and "/goldens/" not in name:
                archive.write(path, name if name.startswith("planc/") else f"planc/{name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
