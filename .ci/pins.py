"""Exit 0 when this interpreter has the pinned packages and planc from this tree; else say what differs."""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def installed(name: str) -> str:
    try:
        return version(name).split("+")[0]
    except PackageNotFoundError:
        return "nothing"


def main() -> int:
    lines = (ROOT / ".ci/pins/main.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    wrong = [f"{n}: {installed(n)}, pinned {v}" for n, v in pins.items() if installed(n) != v]
    spec = find_spec("planc")
    if spec is None or spec.origin is None or Path(spec.origin).resolve().parent != ROOT / "planc":
        wrong.append(f"planc: {spec.origin if spec else 'nothing'}, not this tree")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
