"""`planc bench accelerator` with the Python that is there: planc from this checkout, its packages from wheels.

    python3 .ci/accelerator.py [--minutes 9] [--state FOLDER] [--packages FOLDER]

For a machine with an accelerator, torch and perhaps JAX, but without planc's other packages and without a registry:
`--packages` is a folder of wheels for its Python, which are unpacked into the state folder and come before what is
installed. The page is written into docs/measured/. Ends with the status of the bench.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", default="9")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "accelerator")
    parser.add_argument("--packages", type=Path, help="wheels for this Python")
    parser.add_argument("--page", type=Path, help="instead of docs/measured/accelerator-CHIP.md")
    given = parser.parse_args(words)
    places = [str(ROOT)]
    if given.packages:
        places.append(str(unpacked(given.packages, given.state / "packages")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"}
    page = given.page or ROOT / "docs" / "measured" / f"accelerator-{chip(environment)}.md"
    bench = ["-m", "planc.cli", "bench", "accelerator", "--minutes", given.minutes, "--state", str(given.state)]
    return subprocess.run([sys.executable, *bench, "--page", str(page)], env=environment, check=False).returncode


def unpacked(wheels: Path, folder: Path) -> Path:
    """The folder into which every wheel has been unpacked, once."""
    for wheel in sorted(wheels.glob("*.whl")):
        mark = folder / f".{wheel.stem}"
        if not mark.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            mark.touch()
    return folder


def chip(environment: dict[str, str]) -> str:
    """The device's name in a file name: `h100`, `cpu`."""
    code = "from tests.lab.experiments.runner import find_machine; m = find_machine(); print(m.node if m else 'other')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return re.sub(r"_(node|local|nvl72)$", "", done.stdout.strip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
