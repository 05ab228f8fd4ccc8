"""Nothing the documentation shows can go stale: every plan is checked, every program and command run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402
from figures import FIGURE, FigureError, filled, measured  # noqa: E402
from snippets import Snippet, commands, completed, importing, pages, run, snippets, workspace  # noqa: E402

import planc  # noqa: E402
from planc.catalog import model_names  # noqa: E402
from planc.driver.serving import check_serve  # noqa: E402
from planc.language import library  # noqa: E402
from planc.language.verbs.expect import METRICS  # noqa: E402
from planc.pipeline.schedules import schedules  # noqa: E402

ALL = [snippet for page in pages() for snippet in snippets(page)]
OTHERS = ("plans.yml", "pre-commit-config.yaml", "planc.toml")
"""Files of GitHub and of pre-commit: tests/cli/test_action.py compares them with the action and the hooks. planc.toml
is read because it is there."""
FOREIGN = {"json", "yaml", "toml", "bash"}
"""Other systems' files, which the commands of their page read."""
KNOWN = {"plan", "python", "console", "text", *FOREIGN}


def of(*languages: str) -> list[object]:
    """The blocks of these languages as parameters, with the marks of their tiers."""
    return [pytest.param(s, id=s.id, marks=tier(s)) for s in ALL if s.language in languages]


def tier(snippet: Snippet) -> list[pytest.MarkDecorator]:
    """The marks of a block that starts processes; with `slow`, CI leaves it out."""
    slow = [pytest.mark.slow] if "slow" in snippet.words else []
    return [pytest.mark.launch, pytest.mark.long, *slow] if snippet.launches else []


def test_every_block_is_of_a_known_kind() -> None:
    assert [s.id for s in ALL if s.language not in KNOWN] == []
    assert {s.page.parent.name for s in ALL if s.language == "text"} <= {"diagnostics"}, "nothing runs these"
    named = [s for s in ALL if s.language in FOREIGN and s.option("file") not in OTHERS]
    text = {page: page.read_text() for page in {s.page for s in named}}
    assert [
        s.id for s in named if not re.search(rf"^\$ .*\b{s.option('file') or '-'}", text[s.page], re.MULTILINE)
    ] == []
    assert {"plan", "python", "console"} <= {s.language for s in ALL}


def test_no_fence_is_overlooked() -> None:
    fences = {p: len(re.findall(r"^```", p.read_text(), flags=re.MULTILINE)) for p in pages()}
    assert fences == {p: 2 * len(snippets(p)) for p in pages()}


def findings(text: str, folder: Path) -> list[str]:
    """The codes that `planc.check` reports for a file with this text, notes left out."""
    path = folder / "snippet.plan"
    path.write_text(text)
    if text.startswith("serve"):
        (folder / "train.plan").write_text(completed(""))
        return [d.code for d in check_serve(path).diagnostics if d.severity != "note"]
    report = planc.check(path).to_json()
    return [d["code"] for d in report["diagnostics"] if d["severity"] != "note"]


@pytest.mark.parametrize("snippet", of("plan"))
def test_a_plan_has_the_findings_it_says(snippet: Snippet, tmp_path: Path) -> None:
    folder = workspace(snippet.page, tmp_path)
    text = snippet.text
    if text.startswith(("layout", "hardware")):
        (folder / "imported.plan").write_text(text)
        text = importing("imported.plan")
    elif "fragment" in snippet.words:
        text = completed(text)
    assert sorted(set(findings(text, folder))) == sorted(snippet.codes)


@pytest.mark.parametrize("snippet", of("python"))
def test_a_program_runs(snippet: Snippet, tmp_path: Path) -> None:
    script = workspace(snippet.page, tmp_path) / "snippet.py"
    script.write_text(snippet.text)
    command = [sys.executable, str(script)]
    if processes := snippet.option("torchrun"):
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if devices := snippet.option("devices"):
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        environment["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def make_targets() -> set[str]:
    return set(
        re.findall(
            r"^([a-z]+):",
            (ROOT / "Makefile").read_text() + (ROOT / "tests/lab/Makefile").read_text(),
            flags=re.MULTILINE,
        )
    )


@pytest.mark.parametrize("snippet", of("console"))
def test_a_command_does_what_is_shown(snippet: Snippet, tmp_path: Path) -> None:
    folder = workspace(snippet.page, tmp_path)
    for command in commands(snippet):
        if command.line.startswith("make "):  # running `make test` from a test would not end
            assert set(command.line.split("#")[0].split()[1:]) <= make_targets()
            continue
        done = run(command.line, folder)
        assert done.returncode == int(snippet.option("exit") or 0), done.stdout
        if command.shown and not snippet.launches:
            assert generate.tidy(done.stdout) == command.shown, "the output moved on: make docs"


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in pages()])
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text())) == []


def broken_links(page: Path, text: str) -> Iterator[str]:
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            yield target


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_a_broken_link_is_found() -> None:
    text = "[a](README.md) [b](nowhere.md) [c](#no-such-heading) [d](https://example.com/x)"
    assert list(broken_links(ROOT / "README.md", text)) == ["nowhere.md", "#no-such-heading"]


def test_the_generated_pages_are_the_rules() -> None:
    """`make docs` has been run: each code has its page, and no page is without a code."""
    wanted = generate.diagnostics_pages()
    folder = ROOT / "docs" / "reference" / "diagnostics"
    assert {p.name for p in folder.glob("*.md")} == set(wanted)
    assert [name for name, text in wanted.items() if (folder / name).read_text() != text] == []


def test_the_pages_of_other_systems_are_their_tables() -> None:
    """`make docs` has been run since a field of a system changed."""
    folder = ROOT / "docs" / "reference" / "systems"
    assert {p.name: p.read_text() for p in folder.glob("*.md")} == generate.systems_pages()


def test_the_published_schemas_are_those_of_the_types() -> None:
    """`make docs` has been run since a type of an answer changed."""
    assert {p.name: p.read_text() for p in generate.SCHEMAS.glob("*.json")} == generate.schema_files()


def test_a_quoted_file_is_that_file() -> None:
    quoted = [(s, (ROOT / s.option("from")).read_text()) for s in ALL if s.option("from")]
    assert "README.md" in {s.page.name for s, _ in quoted}
    assert [s.id for s, text in quoted if s.text != text] == [], "make docs"


def test_a_figure_that_is_repeated_is_the_measured_one() -> None:
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages()}
    assert [name for name, text in texts.items() if filled(text) != text] == [], "make docs"
    assert len(FIGURE.findall(texts["README.md"])) >= 3, "the accuracy of step times"


def test_a_stale_figure_is_found() -> None:
    stale = "within <!-- figure measured/accuracy.md | all | median -->0.1 %<!-- end --> of"
    assert filled(stale) == stale.replace("0.1 %", measured("measured/accuracy.md", "all", "median")) != stale
    with pytest.raises(FigureError, match="no table with a row 'none'"):
        filled(stale.replace("all", "none"))


def test_the_language_page_names_the_whole_library() -> None:
    page = (ROOT / "docs" / "reference" / "language.md").read_text()
    names = {*library.machines(), *library.layouts(), *METRICS, *schedules()}
    assert {name for name in names if not re.search(rf"\b{name}\b", page)} == set()
    models = (ROOT / "docs" / "reference" / "models.md").read_text()
    assert {name for name in model_names() if not re.search(rf"\b{name}\b", models)} == set()
