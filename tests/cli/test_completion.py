"""Completion: bash runs the script; those of zsh and fish name every command and option, and their quotes close."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from planc.cli import COMMANDS, main, whole_parser
from planc.cli.completion import SHELLS, commands_of
from planc.ir.target import TARGETS

ASKED: dict[str, list[str]] = {
    "che": ["check"],
    "check --str": ["--strict"],
    "check --format c": ["concise"],
    "diff --format m": ["markdown"],
    "lower x.plan --target ": list(TARGETS),
    "completion ": ["bash", "fish", "zsh"],
    "check READ": ["README.md"],
}


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    commands = commands_of(whole_parser(), COMMANDS)
    return {shell: "\n".join(write(commands)) for shell, write in SHELLS.items()}


def test_bash_completes(scripts: dict[str, str]) -> None:
    """Commands, options, their values, and files, by bash itself."""
    lines = [scripts["bash"]]
    for line in ASKED:
        words = ["planc", *shlex.split(line), *([""] if line.endswith(" ") else [])]
        lines.append(f'COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}; _planc; echo "${{COMPREPLY[@]}}"')
    done = subprocess.run(["bash", "-e"], input="\n".join(lines), capture_output=True, text=True, check=True)
    assert [sorted(line.split()) for line in done.stdout.splitlines()] == [sorted(words) for words in ASKED.values()]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_named(scripts: dict[str, str], shell: str) -> None:
    script = scripts[shell]
    for command in commands_of(whole_parser(), COMMANDS):
        assert re.search(rf"\b{command.name}\b", script)
        for flag in (f for o in command.options for f in o.flags if f.startswith("--")):
            spelled = f"-l {flag[2:]}" if shell == "fish" else flag
            assert spelled in script, flag
    if shell != "fish":
        assert shlex.split(script, comments=True), "quotes close"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_shell_reads_its_script(scripts: dict[str, str], shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=scripts[shell], text=True, check=True)


def test_the_command_prints_the_script(scripts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == f"{scripts['bash']}\n"
