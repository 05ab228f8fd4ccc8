"""The installed files are those of the tree: packages, their resources, and the pins."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker

import planc

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = "docs/reference/diagnostics"
TOP = {
    "planc": "planc",
    "planc.backends": "backends",
    "planc.diag.pages": PAGES,
    "planc.grammar": "grammar",
    "planc.plans": "plans",
}
KINDS = {".md", ".py", ".plan", ".lark", ".toml", ".json", ".j2", ".css", ".js"}


def files_of_tree() -> dict[str, str]:
    """Path in the wheel to path in the tree, of every source and resource that planc is made of."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TOP.values()],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    shipped = [p for p in tracked if "/goldens/" not in p]
    kept = [p for p in shipped if Path(p).suffix in KINDS or Path(p).name == "py.typed"]
    inside = {p: p.replace(f"{PAGES}/", "planc/diag/pages/") for p in kept if (ROOT / p).is_file()}
    return {i if i.startswith("planc/") else f"planc/{i}": p for p, i in inside.items()}


def test_the_package_list_is_the_tree() -> None:
    packages = {str(Path(p).parent).replace("/", ".") for p in files_of_tree()}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(packages)


def test_the_package_map_names_the_real_folders() -> None:
    assert PROJECT["tool"]["setuptools"]["package-dir"] == TOP
    for package, folder in TOP.items():
        link = ROOT / package.replace(".", "/")
        assert link.resolve() == (ROOT / folder).resolve()
        assert not (ROOT / folder).is_symlink()


def test_the_wheel_holds_every_file_once(tmp_path: Path) -> None:
    build = tmp_path / "tree"
    for source in [*files_of_tree().values(), "pyproject.toml", "README.md", "LICENSE", "docs/man/planc.1"]:
        (build / source).parent.mkdir(parents=True, exist_ok=True)
        (build / source).write_bytes((ROOT / source).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(tmp_path), "."], cwd=build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("planc-*.whl")
    names = [n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n]
    installed = [n for n in names if ".data/" in n]
    assert [n.partition(".data/data/")[2] for n in installed] == ["share/man/man1/planc.1"]
    assert sorted(set(names) - set(installed)) == sorted(files_of_tree())


@pytest.mark.long
def test_the_wheel_is_the_same_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds in folders of other names, of files with other times and rights, under another umask."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # as it was, afterwards
    build = runpy.run_path(str(ROOT / ".ci/packages.py"))["wheel"]
    digests, umask = set(), os.umask(0o022)
    try:
        for folder, mode, time_s in ((tmp_path / "one", 0o600, 1e9), (tmp_path / "an other" / "deeper", 0o755, 1.7e9)):
            folder.mkdir(parents=True)
            os.umask(0o777 & ~mode)
            source = folder / "planc.tar.gz"
            with tarfile.open(source, "w:gz") as archive:
                for file in [*files_of_tree().values(), "pyproject.toml", "README.md", "LICENSE", "docs/man/planc.1"]:
                    member = archive.gettarinfo(ROOT / file, f"planc/{file}")
                    member.mode, member.mtime = mode, time_s
                    with (ROOT / file).open("rb") as content:
                        archive.addfile(member, content)
            digests.add(hashlib.sha256(build(source, folder, 1_700_000_000).read_bytes()).hexdigest())
    finally:
        os.umask(umask)
    assert len(digests) == 1


GPU_BUILD = ("nvidia-", "cuda-", "triton")
"""Beginnings of the packages that a GPU build of torch brings along; its own metadata pins them."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: set[str]) -> set[str]:
    """These distributions and what they need here, by metadata (extras are not followed)."""
    seen: set[str] = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        names = names | {_needed(r) for r in requires(name) or [] if _applies(r)}
    return {name for name in seen if not name.startswith(GPU_BUILD)}


def _needed(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match
    return canonical(match[0])


def _applies(requirement: str) -> bool:
    _, _, marker = requirement.partition(";")
    return not marker or Marker(marker.strip()).evaluate({"extra": ""})


def test_everything_installed_is_pinned_and_nothing_else() -> None:
    lines = (ROOT / ".ci/pins/main.txt").read_text().splitlines()
    pins = [line.split("==")[0] for line in lines if not line.startswith("#")]
    assert pins == sorted(pins, key=str.lower)
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *extras["cuda"], *extras["xla"], *extras["dev"]]
    asked += [r.partition(";")[0] for r in requires("jax") or [] if re.search("""extra == ['"]tpu['"]""", r)]
    assert {canonical(p) for p in pins} == closure({_needed(r) for r in asked})


@pytest.mark.parametrize("name", ["main", "torch-xla"])
def test_every_pin_is_locked_with_the_sums_of_its_files(name: str) -> None:
    """The lists that pip checks name the versions of the pins, no others, and each with a sum; no index is named."""
    pins = ROOT / {"main": ".ci/pins/main.txt", "torch-xla": ".ci/pins/torch-xla.txt"}[name]
    wanted = {_lower(line) for line in pins.read_text().splitlines() if not line.startswith("#")}
    lock = (ROOT / ".ci" / "locks" / f"{name}.txt").read_text()
    entries = re.findall(r"^([\w.-]+==\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", lock, re.MULTILINE)
    assert {_lower(pin) for pin, _ in entries} == wanted and len(entries) == len(wanted)
    assert "".join(f"{pin}{sums}\n" for pin, sums in entries) == "".join(
        f"{line}\n" for line in lock.splitlines() if not line.startswith("#")
    ), "every line is a pin or a sum"


def _lower(pin: str) -> str:
    """A pin under the name by which an index knows the package."""
    name, _, version = pin.partition("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"


def test_the_page_on_security_names_files_and_commands_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`((?:planc|tests|plans|docs|\.ci)/[\w./-]+)(?:::\w+)?`", text)
    assert len(named) > 10 and [path for path in named if not (ROOT / path).exists()] == []
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text() + (ROOT / "tests/lab/Makefile").read_text(), re.MULTILINE
    )
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= set(targets)
    codes = {path.stem for path in (ROOT / "docs" / "reference" / "diagnostics").glob("*.md")}
    assert set(re.findall(r"\b[EWN][0-9]{4}\b", text)) <= codes


def test_the_citation_names_the_version_and_licence() -> None:
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (said["version"], said["license"]) == (PROJECT["project"]["version"], PROJECT["project"]["license"])
    assert said["cff-version"] == "1.2.0" and said["authors"] and said["title"] and said["message"]


def test_the_version_is_semantic_and_said_once() -> None:
    """MAJOR.MINOR.PATCH, the same in the package, in its metadata and in the change log's headings."""
    version = PROJECT["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version) and planc.__version__ == version
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", h) for h in headings)
    assert headings[0].partition(" ")[0] == version
    assert json.loads((ROOT / "docs" / "editor" / "package.json").read_text())["version"] == version


def test_a_release_names_one_version_everywhere(tmp_path: Path) -> None:
    """The notes are the change log's entry; a tag that the tree does not stand for is refused with the reasons."""
    for name in ("pyproject.toml", "CITATION.cff"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    log = f"# Changelog\n\n## {planc.__version__} (2026-11-23)\n\n- first\n\n## 0.0.9\n\n- before\n"
    (tmp_path / "CHANGELOG.md").write_text(log)
    release = runpy.run_path(str(ROOT / ".ci" / "release.py"))
    assert release["entry"](log, planc.__version__) == "- first"
    assert release["problems"](f"v{planc.__version__}", tmp_path) == []
    assert len(release["problems"]("v0.0.9", tmp_path)) == 2
    assert len(release["problems"]("0.3", tmp_path)) == 4
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").touch()
    (tmp_path / "changes" / "it-works.fixed.md").touch()
    assert release["problems"](f"v{planc.__version__}", tmp_path) == [
        "changes/it-works.fixed.md is in no release: make changelog"
    ]
