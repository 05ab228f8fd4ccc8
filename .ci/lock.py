"""Write the locks: for each list of exact versions, the SHA-256 of every file that may be installed.

    python .ci/lock.py UV

`UV` is the path of uv, which asks the package index. A wheel on this machine's disk (pip's `find-links`), such as a
torch for the CPU alone, is a file of its own: its sum is added to those of the index.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {".ci/pins/main.txt": "main.txt", ".ci/pins/torch-xla.txt": "torch-xla.txt"}
HEAD = "# The versions of {pins}, with the sums of their files: written by `make lock`, checked by pip.\n"


def wheels_on_disk() -> dict[str, list[str]]:
    """Sums of the wheels in pip's `find-links`, by `name==version`."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    said = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    found: dict[str, list[str]] = {}
    for path in (wheel for folder in said for wheel in Path(folder.removeprefix("file://")).glob("*.whl")):
        name, version = path.name.split("-")[:2]
        pin = f"{name.lower().replace('_', '-')}=={version.split('+')[0]}"
        found.setdefault(pin, []).append(hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def locked(uv: str, pins: Path) -> str:
    """The text of the lock of a list of pins."""
    options = ["--no-deps", "--universal", "--python-version", "3.11", "--generate-hashes"]
    quiet = ["--no-header", "--no-annotate", "--quiet"]
    command = [uv, "pip", "compile", *options, *quiet, str(pins)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for pin, sums in wheels_on_disk().items():
        for digest in sums:
            if digest not in text:
                text = text.replace(f"{pin} \\\n", f"{pin} \\\n    --hash=sha256:{digest} \\\n")
    return HEAD.format(pins=pins.relative_to(ROOT)) + text


def main() -> int:
    (uv,) = sys.argv[1:]
    for pins, lock in LOCKS.items():
        path = ROOT / ".ci" / "locks" / lock
        path.parent.mkdir(exist_ok=True)
        path.write_text(locked(uv, ROOT / pins))
    return 0


if __name__ == "__main__":
    sys.exit(main())
