"""Hostile strings: a few hundred in every language, and the checks notice a quoting that does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planc.diag import Diagnostic, Span, quoting, text
from planc.diag.quoting import log_line, uri_path
from planc.diag.text import render
from tests.fuzz import strings
from tests.fuzz.strings import GOAL, LANGUAGES, commands, escaping, hostile
from tests.fuzz.tally import summed

MOST = {"terminal": 100}
QUOTES = {
    "python-strings": "python_string", "python-comments": "python_comment", "python-docstrings": "python_docstring",
    "yaml": "yaml_string", "shell": "shell_word", "xml": "xml_text", "html": "xml_text", "markdown": "markdown_cell",
}  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_string_escapes(language: str) -> None:
    texts = [hostile(20, index) for index in range(MOST.get(language, 250))]
    assert list(map(ascii, escaping(language, texts))) == []


@pytest.mark.parametrize("language", QUOTES)
def test_a_quoting_that_does_nothing_is_noticed(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quoting, QUOTES[language], lambda text: f'"{text}"' if "string" in QUOTES[language] else text)
    assert escaping(language, ['x"""\n<a>\x1b '])


def test_text_that_is_printed_as_it_is_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (strings, text):
        monkeypatch.setattr(module, "printable", str)
    monkeypatch.setattr(text, "log_line", str)
    assert escaping("terminal", ["\x1b[5;5H"]) and escaping("findings", ["a\x1bb"])
    assert escaping("log-of-a-workflow", ["##[error]x"])


def test_every_language_has_held() -> None:
    """`results.toml` has how many strings were run."""
    sums = summed(Path("nowhere"))
    for language in LANGUAGES:
        one = sums[f"strings-{language}"]
        assert one.reached["held"] == one.inputs >= GOAL, language


@pytest.mark.parametrize("said", ["::warning file=a::x", "  ::error::x", "a ##[group]b", "::stop-commands::t"])
def test_a_finding_in_a_log_is_no_command(said: str) -> None:
    """Wrapped at 40 columns, a message's words begin lines."""
    assert list(commands(said)) != [] == list(commands(log_line(said)))
    for before in range(40):
        message = f"{'a ' * before}{said}"
        shown = render([Diagnostic("E0101", message, Span(said, 1, 1, 1, 2), help=message)], {}, width=40)
        assert list(commands(shown)) == []


def test_a_command_is_read_as_the_runner_reads_it() -> None:
    (found,) = commands("x\r\n ::error file=a%2Cb,line=3,col=::m%0An%25\n::unknown::x\n::error")
    assert found == ("error", {"file": "a,b", "line": "3"}, "m\nn%")


@pytest.mark.parametrize("format", ["text", "json", "sarif", "github"])
def test_a_file_whose_name_is_no_text_is_checked(format: str, tmp_path: Path) -> None:
    path = tmp_path / "\udcff.plan"
    path.write_text("plam x\n")
    command = [sys.executable, "-m", "planc.cli", "check", str(path), "--format", format]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"plan" in done.stdout


def test_a_path_of_two_slashes_names_no_host() -> None:
    assert uri_path("//host/a b.plan") == "/.//host/a%20b.plan"
    assert uri_path("a/\udcff.plan") == "a/%FF.plan"
