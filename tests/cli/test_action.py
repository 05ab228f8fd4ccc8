"""The action and the hooks in a repository of their own: steps run as written, the comment as a golden."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from planc.checks import rules
from planc.cli import main
from planc.files import read_json
from tests.cli.runner import Comments, Runner, Step, github

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "goldens" / "comment.md"
NUMBER = 12
HOSTILE = """plan hostile
model     llama_tiny
batch     8 x 128 tokens microbatch 4
cluster   4 x cpu_local
mesh      fsdp 2 > tp 2
use       fsdp over `|@all`<script>alert(1)</script>::error::
compute   fp32
"""
PYTHON = """#!/bin/sh
# stands for a Python whose environments need no network: they have this checkout's planc
if [ "$1 $2 $3" = "-I -m venv" ]; then
  mkdir -p "$4/bin"
  cp "$0" "$4/bin/python"
  printf '#!/bin/sh\\nexec "%s" -P -m planc.cli "$@"\\n' "$4/bin/python" > "$4/bin/planc"
  chmod +x "$4/bin/planc"
elif [ "$1 $2 $3 $4" = "-I -m pip install" ]; then
  echo "$@" > "$(dirname "$0")/installed"
elif [ "$1" = "-I" ]; then
  exec {python} "$@"
else
  PYTHONPATH={root} exec {python} "$@"
fi
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(PYTHON.replace("{root}", str(ROOT)).replace("{python}", sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def comments() -> Iterator[Comments]:
    with github(NUMBER) as server:
        yield server


def git(folder: Path, *words: str) -> str:
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


class Repository:
    """A repository on a server and a checkout of it, as a job of a pull request has one."""

    def __init__(self, folder: Path) -> None:
        self.server, self.checkout, self.jobs = folder / "server", folder / "checkout", 0
        self.server.mkdir()
        git(self.server, "init", "--quiet", "-b", "main")
        git(self.server, "config", "uploadpack.allowReachableSHA1InWant", "true")

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.server / f"{name}.plan").write_text(text)
        git(self.server, "add", ".")
        git(self.server, "commit", "--quiet", "-m", "plans")
        return git(self.server, "rev-parse", "HEAD")

    def job(self, base: str, python: Path, api_url: str, **inputs: str) -> tuple[Runner, list[Step]]:
        """A job of the pull request from `base` to what is committed, in a new checkout of one commit."""
        self.jobs += 1
        checkout = self.checkout.with_name(f"checkout{self.jobs}")
        git(self.server.parent, "clone", "--quiet", "--depth", "1", self.server.as_uri(), str(checkout))
        event = {"pull_request": {"number": NUMBER, "base": {"sha": base}}}
        temp = checkout.with_name(f"temp{self.jobs}")
        given = {"python": str(python), **inputs}
        runner = Runner(ROOT, checkout, temp, "pull_request", event, api_url, given)
        return runner, runner.run()


def plan(**sentences: str) -> str:
    """The bundled plan of four processes, with some of its sentences written otherwise; "" leaves one out."""
    lines = []
    for line in (ROOT / "plans" / "tiny.plan").read_text().splitlines():
        verb = (line.split() or [""])[0]
        changed = sentences.get(verb)
        lines += [line] if changed is None else [f"{verb} {changed}"] if changed else []
    return "\n".join([*lines, ""])


def test_a_pull_request_has_one_comment(tmp_path: Path, python: Path, comments: Comments) -> None:
    """It is written once, changed by the next push, and left alone by a push that changes nothing."""
    comments.add("a stranger's <!-- planc-diff -->", "stranger")
    here = Repository(tmp_path)
    base = here.commit(first=plan(), second=plan())
    here.commit(first=plan(batch="8 x 128 tokens microbatch 2"))
    job, steps = here.job(base, python, comments.url)
    assert [(s.name, s.ran, s.returncode) for s in steps] == [
        ("Install planc", True, 0),
        ("Check", True, 0),
        ("Compare with the base of the pull request", True, 0),
        ("Comment", True, 0),
    ], steps
    assert (job.temp / "planc" / "bin" / "installed").read_text().split()[-1] == str(ROOT)
    (said,) = comments.mine
    assert said.startswith(job.summary.rstrip()) and job.outputs["check"] == {"status": "0"}
    golden(said)
    assert steps[-1].stdout == "planc: commented\n"
    assert job.again("Comment").stdout == "planc: the comment stands as it is\n"
    Path(job.outputs["diff"]["comment"]).write_text("no plan changes (2 compared)")
    assert job.again("Comment").stdout == "planc: changed the comment\n"
    assert comments.mine == ["no plan changes (2 compared)\n\n<!-- planc-diff -->\n"]
    assert comments.bodies.pop(2) and job.again("Comment").stdout == "planc: nothing to say\n" and not comments.mine
    assert comments.bodies[1]["body"] == "a stranger's <!-- planc-diff -->"
    job.api_url = "http://127.0.0.1:9"
    assert job.again("Comment").stdout.startswith("::warning title=planc::the comment could not be written")


def golden(text: str) -> None:
    if "PLANC_UPDATE_GOLDENS" in os.environ:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    page = (ROOT / "docs" / "guide" / "repository.md").read_text()
    assert f"> {text.splitlines()[0]}\n" in page, "the page shows another line"


def test_errors_are_annotations_and_fail_the_job(tmp_path: Path, python: Path, comments: Comments) -> None:
    """The comparison comes nevertheless; a fork's token may not comment, which fails nothing."""
    comments.refusal = 403
    here = Repository(tmp_path)
    base = here.commit(first=plan())
    here.commit(first=plan(mesh="fsdp 2 > tp 3"), other=HOSTILE)
    job, steps = here.job(base, python, comments.url, sarif="found.sarif")
    by_name = {s.name: s for s in steps}
    assert by_name["Check"].returncode == 1 and job.outputs["check"] == {"status": "1"}
    commands = by_name["Check"].stdout.splitlines()
    assert all(re.match(r"::(error|warning|notice) file=(first|other)\.plan,line=\d+,col=", c) for c in commands)
    assert read_json(job.workspace / "found.sarif", 10**6)["runs"][0]["results"]
    assert "may not write comments (403)" in by_name["Comment"].stdout and by_name["Comment"].returncode == 0
    assert "1 new; 1 with errors now" in job.summary.splitlines()[0] and comments.mine == []
    outside = re.sub(r"(?s)```.*?```|``.*?``|`[^`]*`", "", job.summary)
    assert "@" not in outside and "<script" not in outside and "::error" not in job.summary.replace("`", "")[:2]


def test_warnings_fail_a_strict_job(tmp_path: Path, python: Path, comments: Comments) -> None:
    here = Repository(tmp_path)
    base = here.commit(first=rules()["W0503"].page.bad)
    _, steps = here.job(base, python, comments.url, strict="true", diff="false")
    assert [s.ran for s in steps] == [True, True, False, False] and steps[1].returncode == 1
    assert steps[1].stdout.startswith("::warning file=first.plan")
    assert main(["check", str(here.server / "first.plan")]) == 0


def test_no_module_of_a_pull_request_is_run(tmp_path: Path, python: Path, comments: Comments) -> None:
    """`python -m venv` in the checkout would import a `venv.py` of it; and planc's own modules have names there too."""
    steps = Runner(ROOT, tmp_path, tmp_path, "push", {}, "").document["runs"]["steps"]
    started = [words for step in steps for words in re.findall(r'(?:PYTHON|/bin/python)" (.*)', step["run"])]
    assert len(started) == 3 and all(words.startswith("-I ") for words in started), started
    here = Repository(tmp_path)
    for name in ("venv", "pip", "json", "argparse", "logging", "planc", "lark"):
        (here.server / f"{name}.py").write_text(f"open({str(tmp_path / 'OWNED')!r}, 'w')\n")
    base = here.commit(first=plan())
    here.commit(first=plan(batch="8 x 128 tokens microbatch 2"))
    _, ran = here.job(base, python, comments.url)
    assert [s.returncode for s in ran] == [0, 0, 0, 0]
    assert not (tmp_path / "OWNED").exists()


# Hooks.

HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


def hook(id: str, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """A hook as pre-commit runs it: its entry, its arguments, and the names of changed files that match."""
    (found,) = (h for h in HOOKS if h["id"] == id)
    words = [*shlex.split(found["entry"]), *found.get("args", [])]
    words += [f for f in files if re.search(found["files"], f)] if found.get("pass_filenames", True) else []
    assert words[0] == "planc"
    command = [sys.executable, "-m", "planc.cli", *words[1:]]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )


def test_the_hook_of_fmt_changes_plans_alone(tmp_path: Path) -> None:
    (tmp_path / "a.plan").write_text(plan().replace("use       tp", "use tp"))
    (tmp_path / "readme.md").write_text("use   it")
    assert hook("planc-fmt", tmp_path, "a.plan", "readme.md").returncode == 0
    assert (tmp_path / "a.plan").read_text() == plan() and (tmp_path / "readme.md").read_text() == "use   it"


def test_the_hook_of_check_reads_what_imports_a_changed_file(tmp_path: Path) -> None:
    """A hardware file is no plan: changing it checks the plans of the repository; hidden folders hold none."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.plan").write_text("no plan")
    (tmp_path / "machine.plan").write_text((ROOT / "plans" / "hardware" / "cpu_local.plan").read_text())
    (tmp_path / "a.plan").write_text(plan())
    assert hook("planc-check", tmp_path, "machine.plan").returncode == 0
    (tmp_path / "a.plan").write_text(plan(mesh="fsdp 2 > tp 3"))
    answer = hook("planc-check", tmp_path, "machine.plan")
    assert answer.returncode == 1 and "a.plan" in answer.stdout and "other.plan" not in answer.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pre-commit") is None, reason="pre-commit is not on the path: make hooks")
def test_pre_commit_runs_the_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pre-commit itself, which builds an environment with planc from this repository, and the pinned packages."""
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    here = Repository(tmp_path)
    here.commit(a=plan().replace("use       tp", "use tp"), b=plan(mesh="fsdp 2 > tp 3"))
    command = ["pre-commit", "try-repo", str(ROOT), "--all-files", "--verbose"]
    done = subprocess.run(command, cwd=here.server, capture_output=True, text=True)
    assert "planc fmt" in done.stdout and "formatted: a.plan" in done.stdout, done.stdout + done.stderr
    assert "error[E" in done.stdout and "b.plan" in done.stdout
    assert (here.server / "a.plan").read_text() == plan()


@pytest.mark.slow
def test_the_action_installs_planc(tmp_path: Path, comments: Comments, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real environment, pip, and the pinned packages."""
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    here = Repository(tmp_path)
    base = here.commit(first=plan())
    here.commit(first=plan(batch="8 x 128 tokens microbatch 2"))
    _, steps = here.job(base, Path(sys.executable), comments.url)
    assert [s.returncode for s in steps] == [0, 0, 0, 0], steps
    assert len(comments.mine) == 1


def test_the_page_names_inputs_and_hooks_that_exist() -> None:
    page = (ROOT / "docs" / "guide" / "repository.md").read_text()
    workflow, config = (yaml.safe_load(text) for text in re.findall(r"(?s)```yaml[^\n]*\n(.*?)```", page))
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = [s for s in workflow["jobs"]["plans"]["steps"] if "planc" in s["uses"]]
    assert set(step["with"]) <= set(action["inputs"])
    table = page.partition("| input |")[2].partition("Outputs:")[0]
    assert set(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()[2:] if row))) == set(
        action["inputs"]
    )
    assert {h["id"] for h in config["repos"][0]["hooks"]} == {h["id"] for h in HOOKS}


# Problem matchers.


def matched(name: str, text: str) -> list[dict[str, str]]:
    """Findings that GitHub's runner sees in the lines of `text` with a matcher's patterns of one line."""
    found = []
    for matcher in read_json(ROOT / ".github" / "matchers" / f"{name}.json", 10**5)["problemMatcher"]:
        (pattern,) = matcher["pattern"]
        groups = {key: value for key, value in pattern.items() if key != "regexp"}
        for line in text.splitlines():
            if hit := re.search(pattern["regexp"], line):
                severity = {"severity": matcher.get("severity", "error")}
                found.append({**severity, **{key: hit[group] for key, group in groups.items()}})
    return found


def test_the_matchers_read_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "a b.plan"
    bad.write_text(plan(mesh="fsdp 2 > tp 3"))
    assert main(["check", "--format", "concise", str(bad)]) == 1
    (first, *_) = matched("check", capsys.readouterr().out)
    assert (first["file"], first["line"], first["severity"]) == (str(bad), "5", "error")
    assert first["code"].startswith("E") and first["message"]
    for code in ("W0503", "N0110"):
        bad.write_text(rules()[code].page.bad)
        main(["check", "--format", "concise", str(bad)])
        assert code in [m["code"] for m in matched("check", capsys.readouterr().out)]
    bad.write_text(plan().replace("use       tp", "use tp"))
    assert main(["fmt", "--check", str(bad)]) == 1
    assert [m["file"] for m in matched("fmt", capsys.readouterr().out)] == [str(bad)]


# The project's own workflows.


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.stem)
def test_a_workflow_names_what_is_there(path: Path) -> None:
    """Commands are targets of the Makefile or files of the tree; no step reads text of a stranger as a command."""
    document = yaml.safe_load(path.read_text())
    assert document["permissions"] is not None, "a job has no more rights than it names"
    targets = set(
        re.findall(
            r"^([\w-]+):", (ROOT / "Makefile").read_text() + (ROOT / "tests/lab/Makefile").read_text(), re.MULTILINE
        )
    )
    for job in document["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            run = step.get("run", "")
            assert "${{" not in run
            assert {
                t for line in re.findall(r"\bmake ([^|&;\n]+)", run) for t in line.split() if t[0] != "-"
            } <= targets
            assert all((ROOT / file).exists() for file in re.findall(r"(?<![\w/])\.ci/\w+(?:\.py)?", run))
            assert re.fullmatch(r"\./|(actions|pypa)/[\w-]+@[0-9a-f]{40}", step.get("uses", "./")), "pinned by commit"
    assert re.findall(r"@[0-9a-f]{40}$", path.read_text(), re.MULTILINE) == [], "the version stands beside"


def test_the_action_runs_nothing_but_planc() -> None:
    """It uses no other action, and installs the commit that it was asked for by, on pinned packages."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert steps[0]["env"]["PIP_CONSTRAINT"] == "${{ github.action_path }}/.ci/pins/main.txt"
    assert all("uses" not in step for step in steps)
