"""No file names a machine's own folders or where packages come from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FORBIDDEN = {
    "a machine's path": re.compile(
        r"(?<![\w.$}/-])/(?:" + "|".join(["home", "work", "root", "Users", "opt", "mnt"]) + r")/[\w.-]+"
    ),
    "a package registry": re.compile(
        r"\b[\w.-]*(?:" + "|".join(["py" + "pi", "python" + "hosted", "ana" + "conda", "download[.]pytorch"])
        + r")[.](?:org|com|io)\b"
    ),
    "an index address": re.compile(r"(?:index-" + r"url|find-" + r"links)[ =]+\S"),
}  # fmt: skip


def findings(text: str) -> list[str]:
    return [f"{what}: {m[0]}" for what, pattern in FORBIDDEN.items() for m in pattern.finditer(text)]


def test_no_file_names_a_machine_or_a_registry() -> None:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = {p: (ROOT / p).read_text(errors="replace") for p in paths if (ROOT / p).is_file()}
    me = str(Path(__file__).relative_to(ROOT))
    assert {p: found for p, text in texts.items() if p != me and (found := findings(text))} == {}


@pytest.mark.parametrize(
    "text",
    ["see /home/ada/plans", "(/" + "work/dir)", "'/root/.cache'", "https://pypi.org/simple", "--index-url http"],
)
def test_a_planted_name_is_found(text: str) -> None:
    assert len(findings(text)) == 1


@pytest.mark.parametrize("text", ["https://arxiv.org/abs/2407.21783", "the work/home split", "a/opt/b"])
def test_a_fair_name_is_not(text: str) -> None:
    assert findings(text) == []
