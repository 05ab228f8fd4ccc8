"""The notes of a release: the change log's entry of a tag, which must be the version of the package.

    python .ci/release.py v0.2.0

Prints the entry; exits with 1 where tag, package, change log and citation do not name one version, or a change is in no
release.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def entry(log: str, version: str) -> str:
    """The text below the heading of `version` in a change log; empty without one."""
    found = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", log, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Why the tree at `root` is no release of `tag`."""
    version = tag.removeprefix("v")
    said = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    found = [] if re.fullmatch(r"v\d+\.\d+\.\d+", tag) else [f"{tag} is not vMAJOR.MINOR.PATCH"]
    found += [f"pyproject.toml has version {said}"] if said != version else []
    found += [] if entry((root / "CHANGELOG.md").read_text(), version) else [f"CHANGELOG.md has no entry {version}"]
    found += [f"changes/{p.name} is in no release: make changelog" for p in sorted(root.glob("changes/*.*.md"))]
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    return found + ([] if cited and cited[1] == version else [f"CITATION.cff does not name version {version}"])


def main() -> None:
    if found := problems(sys.argv[1]):
        sys.exit("\n".join(found))
    print(entry((ROOT / "CHANGELOG.md").read_text(), sys.argv[1].removeprefix("v")))


if __name__ == "__main__":
    main()
