"""Write the manual page planc(1) from the arguments of each command: `python -m planc.cli.man_page > docs/man/planc.1`.

It uses the macros of man(7), which groff and mandoc read. The output does not depend on the date or the host.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from planc.cli import COMMANDS, whole_parser
from planc.version import __version__

EXITS = (
    ("0", "yes: no errors, equal, within the budget"),
    ("1", "no: errors, a difference, outside the budget"),
    ("2", "a wrong command line, or input that cannot be read"),
    ("75", "a training run was asked to end, and all is saved"),
    ("130", "interrupted"),
)
ENVIRONMENT = (
    ("NO_COLOR", "no colour and no bold on a terminal"),
    ("COLUMNS", "columns of the terminal, rather than those that it says it has"),
)
EXAMPLES = (
    ("planc check plans/tiny.plan", "memory, step time and mistakes of a plan"),
    ("planc search open.plan \\-o best/", "the best layouts for what the plan leaves free with `?`"),
    ("planc report my.plan \\-o report.html", "one page with pictures"),
    ("planc lower my.plan \\-\\-target cuda \\-o program.py", "the program for PyTorch"),
)


def man_page() -> str:
    """Return the source of the manual page planc(1), in the macros of man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    parser = whole_parser()
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    yield r".\" Made by `python -m planc.cli.man_page`; change the arguments of the commands rather than this file."
    yield f'.TH PLANC 1 "" "planc {__version__}" "User Commands"'
    yield ".SH NAME"
    yield rf"planc \- {escaped(parser.description or '')}"
    yield ".SH SYNOPSIS"
    yield r".B planc"
    yield r"[\-h] [\-\-version] \fICOMMAND\fR ..."
    yield ".SH DESCRIPTION"
    yield escaped(
        "A plan is a text of sentences: the model, the machines, and how tensors are divided over them. planc checks"
        " it, predicts memory and step time, writes the program for PyTorch or JAX, and trains it."
        " `planc explain` lists the codes of all findings, `planc explain CODE` has the page of one."
    )
    yield ".SH COMMANDS"
    for name, about in COMMANDS.items():
        yield from _command(name, about, commands.choices[name])
    yield from _section("EXIT STATUS", EXITS)
    yield from _section("ENVIRONMENT", ENVIRONMENT)
    yield ".SH EXAMPLES"
    for line, about in EXAMPLES:
        yield from (".TP", rf".B {line}", escaped(about))


def _command(name: str, about: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield rf'.SS "planc {escaped(name)}"'
    yield escaped(about[:1].upper() + about[1:] + ".")
    yield ".PP"
    yield rf"planc {escaped(name)} {_usage(parser)}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from _nested(action)
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            yield ".TP"
            yield _named(action)
            yield escaped(" ".join((action.help or "").replace("%%", "%").split())) or r"\&"


def _nested(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> Iterator[str]:
    """Yield roff lines that list the subcommands with their descriptions."""
    abouts = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    for word in commands.choices:
        yield from (".TP", rf"\fB{escaped(word)}\fR", escaped(abouts.get(word, "")) or r"\&")


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the arguments of a command on one line: options together, then the files."""
    given = [a for a in parser._actions if not a.option_strings]
    return " ".join((r"[\fIOPTION\fR]...", *(_operand(a) for a in given)))


def _operand(action: argparse.Action) -> str:
    name = rf"\fI{escaped(_value(action))}\fR"
    if action.nargs in ("?", "*"):
        return f"[{name}]" + ("..." if action.nargs == "*" else "")
    return name + ("..." if action.nargs in ("+", argparse.PARSER) else "")


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        return _operand(action)
    value = "" if action.nargs == 0 else rf" \fI{escaped(_value(action))}\fR"
    return ", ".join(rf"\fB{escaped(flag)}\fR" for flag in action.option_strings) + value


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices and not isinstance(action, argparse._SubParsersAction):
        return "|".join(map(str, action.choices))
    return action.dest.upper()


def _section(title: str, rows: tuple[tuple[str, str], ...]) -> Iterator[str]:
    yield f".SH {title}"
    for name, about in rows:
        yield from (".TP", rf".B {name}", escaped(about))


def escaped(text: str) -> str:
    """Return `text` escaped for roff: hyphens that can be copied, and no request at the beginning of a line.

    >>> print(escaped(".a -b"))
    \\&.a \\-b
    """
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


if __name__ == "__main__":
    print(man_page(), end="")
