"""Quoting: whatever text comes back as data from the language's own parser, and ends nothing that it stands in."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import subprocess
import tokenize
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import planc
from planc.backends.cuda.emit.launch_files import KINDS, launch_file
from planc.cli import main
from planc.diag import Diagnostic, Span
from planc.diag.quoting import (
    markdown_cell,
    printable,
    python_comment,
    python_docstring,
    python_string,
    shell_word,
    uri_path,
    workflow_message,
    workflow_property,
    xml_text,
    yaml_string,
)
from planc.diag.sarif import github, sarif
from planc.diag.text import render
from planc.ir.base import Cause
from planc.trainer.preset.load import embed_command
from planc.trainer.preset.settings import PlanPart
from tests.plans import BODY, HEAD

ROOT = Path(__file__).resolve().parents[2]
PIECES = [
    "a", " ", '"', "'", '"""', "'''", "\\", "\n", "\r", "\t", "\x00", "\x1b[2J", "\x07", "\x85", "\u2028", "\u202e",
    "\ufeff", "#", "{", "}", "%", "%0A", "::error::", "]]>", "<script>", "&", "${x}", "`id`", "$(id)", ";", "null",
    ": ", "---", "|", "\U0001f600", "\xa0", "é", "0x1",
]  # fmt: skip
CHARACTERS = st.characters(exclude_categories=["Cs"])
HOSTILE = st.one_of(st.text(CHARACTERS, max_size=60), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@given(HOSTILE)
@example('x"""\nopen("OWNED", "w")\n"""')
def test_a_python_string_is_its_text(text: str) -> None:
    literal = python_string(text)
    assert ast.literal_eval(literal) == text
    assert literal.isprintable()


@given(HOSTILE)
def test_a_python_comment_is_one_comment(text: str) -> None:
    source = f"# {python_comment(text)}\nx = 1\n"
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse("x = 1"))
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    assert [t.string for t in tokens if t.type == tokenize.COMMENT] == [source.split("\n")[0].rstrip("\r")]
    assert python_comment(text).isprintable()


@given(HOSTILE)
def test_a_docstring_holds_its_text(text: str) -> None:
    (only,) = ast.parse(f'"""{python_docstring(text)}"""\n').body
    assert isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant)
    assert only.value.value == text


@given(HOSTILE)
@example("; rm -rf ~")
@example("'$(id)'")
def test_a_shell_word_is_one_word(text: str) -> None:
    assert shlex.split(f"planc embed {shell_word(text)} x.toml") == ["planc", "embed", text, "x.toml"]


def test_a_real_shell_reads_each_word_as_it_is() -> None:
    words = [*(piece for piece in PIECES if "\0" not in piece), "", "-n", "a b", "*", "~", "!!", "a\nb"]
    command = f"printf '%s\\0' {' '.join(map(shell_word, words))}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_a_command_in_a_message_is_one_command(tmp_path: Path) -> None:
    """A preset's file name, source and settings stand in the command that brings it up to date."""
    folder = tmp_path / "a; touch OWNED #"
    folder.mkdir()
    part = PlanPart(source="$(id).plan", set={"n; id": 3})
    words = shlex.split(embed_command(part, folder / "`x`.toml"))
    expected = [str(folder / "$(id).plan"), str(folder / "`x`.toml")]
    assert words == ["planc", "embed", *expected, "--set", "n; id=3"]


@given(HOSTILE)
def test_a_yaml_string_is_its_text(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(f"name: {yaml_string(text)}\nother: 1\n") == {"name": text, "other": 1}


@given(HOSTILE)
def test_xml_text_and_attributes_hold_it(text: str) -> None:
    root = ElementTree.fromstring(f'<a b="{xml_text(text)}"><c>{xml_text(text)}</c></a>')
    assert [child.tag for child in root] == ["c"]
    assert root.get("b") == root[0].text == printable(text) or (not text and root[0].text is None)


class Page(HTMLParser):
    """Tags, attributes and text as a browser's tokenizer finds them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(HOSTILE)
def test_html_text_and_attributes_hold_it(text: str) -> None:
    """The same escapes as in XML, for an SVG that stands in a page."""
    page = Page(f'<a b="{xml_text(text)}">{xml_text(text)}</a>')
    assert page.tags == [("a", [("b", printable(text))])]
    assert page.text == printable(text)


@given(HOSTILE, HOSTILE)
def test_sarif_holds_it(file: str, message: str) -> None:
    """As a viewer reads it: printable lines without a link of the message's own, and the file by its URI."""
    log = sarif([Diagnostic("E0101", message, Span(file, 3, 1, 3, 2), help="[x](http://evil)")], {}, "1")
    (result,) = json.loads(json.dumps(log))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(place) == file and place.isascii()
    text = result["message"]["text"]
    assert all(c.isprintable() or c == "\n" for c in text)
    assert re.search(r"(?<!\\)\[[^\[\]]*\]\(", text) is None


@given(HOSTILE)
def test_a_markdown_cell_is_one_cell(text: str) -> None:
    cell = markdown_cell(text)
    unescaped = cell.replace("\\\\", "")
    assert all(unescaped[at - 1 : at] == "\\" for at, c in enumerate(unescaped) if c in "|`<>*_[]")
    assert "\n" not in cell and cell.isprintable()


@given(HOSTILE, HOSTILE)
def test_a_workflow_command_is_one_line_with_its_own_properties(file: str, message: str) -> None:
    """As GitHub's runner reads it: properties end at `::`, are divided at commas, and are unescaped."""
    (line,) = github([Diagnostic("E0101", message, Span(file, 3, 1, 3, 2))]).split("\n")
    assert line.isprintable() and line.startswith("::error ")
    properties, _, said = line.removeprefix("::error ").partition("::")
    found = dict(pair.split("=", 1) for pair in properties.split(","))
    assert list(found) == ["file", "line", "col", "title"]
    lines = {"%0A": "\n", "%0D": "\r"}
    assert runner(found["file"], {**lines, "%3A": ":", "%2C": ","}) == kept(file)
    assert runner(said, lines) == kept(message)
    assert (workflow_property(file), workflow_message(message)) == (found["file"], said)


def runner(text: str, escapes: dict[str, str]) -> str:
    for escape, meant in escapes.items():
        text = text.replace(escape, meant)
    return text.replace("%25", "%")


def kept(text: str) -> str:
    """The text with its line breaks, and all else printable."""
    return "".join(c if c in "\r\n" else printable(c) for c in text)


@given(HOSTILE)
def test_a_uri_is_its_path(path: str) -> None:
    assert unquote(uri_path(path)) == path
    assert uri_path(path).isascii() and " " not in uri_path(path)


@given(HOSTILE, HOSTILE)
def test_a_diagnostic_moves_no_cursor(file: str, message: str) -> None:
    text = render([Diagnostic("E0101", message, Span(file, 1, 1, 1, 2), help=message)], {})
    assert all(c.isprintable() or c == "\n" for c in text)


@given(HOSTILE)
def test_a_cause_is_one_comment(text: str) -> None:
    for cause in (
        Cause(span=Span(text, 1, 1, 1, 2), sentence=text),
        Cause(span=Span("a.plan", 1, 1, 1, 2), sentence="", via=text),
    ):
        assert cause.comment().isprintable()


# The whole: plans, launch files, commands.


@settings(max_examples=12)
@given(HOSTILE)
@example('x"""\nopen("OWNED", "w")\n"""')
@example("0" * 20 + "\x1b" * 3 + "\U0002ebe1" * 7)
def test_programs_of_a_plan_with_hostile_names_only_define_things(text: str) -> None:
    """Past the reader's door: a plan made in Python, with the text as the name of the plan, model and cluster."""
    from dataclasses import replace

    plan = planc.load(ROOT / "plans" / "tiny.plan")
    cause = Cause(span=plan.mesh.cause.span, sentence=f"mesh {text}", via=text)
    cluster = replace(plan.cluster, name=text, cause=replace(cause, via=""))
    mesh, batch = replace(plan.mesh, cause=cause), replace(plan.batch, cause=replace(cause, via=""))
    hostile = replace(plan, name=text, model=replace(plan.model, name=text), cluster=cluster, mesh=mesh, batch=batch)
    assert shape(planc.lower(hostile, "cuda").text) == PLAIN["cuda"]
    assert shape(planc.lower(hostile, "xla").text) == PLAIN["xla"]


def shape(text: str) -> list[str]:
    """The program's statements without its docstring."""
    return [ast.dump(statement) for statement in ast.parse(text).body[1:]]


PLAIN = {
    "cuda": shape(planc.lower(ROOT / "plans" / "tiny.plan", "cuda").text),
    "xla": shape(planc.lower(ROOT / "plans" / "tiny.plan", "xla").text),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["null", "on", "yes", "true", "___", "1e3", "a" * 90, "x\nrm -rf /", "x: {y}"])
def test_launch_files_hold_a_name_as_a_name(kind: str, name: str) -> None:
    from dataclasses import replace

    yaml = pytest.importorskip("yaml")
    plan = replace(planc.load(ROOT / "plans" / "presets" / "llama3_8b_h100.plan"), name=name)
    text = launch_file(plan, kind)
    assert "\nrm -rf" not in text
    if kind == "k8s":
        service, job = yaml.safe_load_all(text)
        for found in (service["metadata"]["name"], job["metadata"]["name"], service["spec"]["selector"]["job-name"]):
            assert isinstance(found, str) and 0 < len(found) <= 50 and found.strip("-") == found


def test_a_model_is_named_after_its_config_without_odd_characters(tmp_path: Path) -> None:
    """S7: the model's name is the config's file name, and stands in messages and programs."""
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "\x1b]0;x\x07.json").write_text(json.dumps(config))
    (tmp_path / "a.plan").write_text(HEAD.replace("model     llama3_8b", 'model from "\x1b]0;x\x07.json"') + BODY)
    report = planc.check(tmp_path / "a.plan")
    assert report.model is not None and report.model.name.isascii() and report.model.name.isprintable()


def test_control_characters_of_a_plan_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.plan").write_text('plan p\nimport "\033]0;x\007\033[2J\u202e"\n')
    for format in ("text", "github"):
        assert main(["check", str(tmp_path / "a.plan"), "--format", format]) == 1
        assert all(c.isprintable() or c == "\n" for c in capsys.readouterr().out)


# One reader of outside files.


@pytest.mark.parametrize("target", ["../secret", "/proc/self/environ", "/dev/zero"])
def test_a_plan_that_is_a_link_out_of_its_folder_is_not_quoted(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("user alice\nhunter2 password\n")
    (tmp_path / "folder").mkdir()
    plan = tmp_path / "folder" / "a.plan"
    plan.symlink_to(target)
    for format in ("text", "github"):
        assert main(["check", str(plan), "--format", format]) in (1, 2)
        printed = capsys.readouterr().out
        assert "E0111" in printed
        assert not {"hunter2", "alice", "PATH="} & set(printed.replace("\n", " ").split())
        assert "hunter2" not in printed and "PATH=" not in printed


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.plan").write_text(HEAD + BODY)
    (tmp_path / "a.plan").symlink_to("real.plan")
    assert planc.check(tmp_path / "a.plan").plan is not None


@pytest.mark.parametrize("kind", ["pipe", "sparse", "circle"])
def test_files_that_are_no_plans_are_answered_at_once(kind: str, tmp_path: Path) -> None:
    plan = tmp_path / "a.plan"
    if kind == "pipe":
        os.mkfifo(plan)
    elif kind == "sparse":
        with plan.open("wb") as file:
            file.truncate(1 << 30)
    else:
        plan.symlink_to("a.plan")
    assert main(["check", str(plan)]) in (1, 2)


def test_a_config_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.json")
    (tmp_path / "a.plan").write_text(HEAD.replace("model     llama3_8b", 'model from "c.json"') + BODY)
    assert "E0104" in [d.code for d in planc.check(tmp_path / "a.plan").diagnostics]
