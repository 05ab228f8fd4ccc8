"""The manual page: as the commands' arguments are today, with every option, without a warning from groff and man."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess

import pytest

from planc.cli import COMMANDS, whole_parser
from planc.cli.man_page import escaped, man_page
from tests.plans import ROOT

PAGE = ROOT / "docs/man/planc.1"
TEXT = re.compile(r"(?:[^\\]|\\[-e&]|\\f[BIR])+")
REQUESTS = {r".\"", ".TH", ".SH", ".SS", ".TP", ".PP", ".B"}


def test_the_committed_page_is_that_of_the_arguments() -> None:
    assert PAGE.read_text() == man_page(), "python -m planc.cli.man_page > docs/man/planc.1"


def test_every_option_of_every_command_stands_in_its_section() -> None:
    sections = dict(re.findall(r'^\.SS "planc (\S+)"\n(.*?)(?=^\.S[SH] )', man_page(), re.MULTILINE | re.DOTALL))
    (commands,) = [a for a in whole_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert list(sections) == list(COMMANDS)
    for name, parser in commands.choices.items():
        for flag in {flag for a in parser._actions for flag in a.option_strings} - {"-h", "--help"}:
            assert rf"\fB{escaped(flag)}\fR" in sections[name], (name, flag)


def test_a_line_is_a_known_request_or_text() -> None:
    for line in man_page().splitlines():
        assert line
        assert line.split()[0] in REQUESTS if line[0] in ".'" else TEXT.fullmatch(line)


@pytest.mark.parametrize("command", [["groff", "-man", "-ww", "-Tutf8"], ["man", "--warnings=w", "--local-file"]])
def test_a_reader_has_no_complaint(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    done = subprocess.run([*command, str(PAGE)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub("\x1b\\[[0-9;]*m|.\x08", "", done.stdout)
    assert all(f"planc {name}" in shown for name in COMMANDS)
    assert "--unsafe-fixes" in shown and "EXIT STATUS" in shown
