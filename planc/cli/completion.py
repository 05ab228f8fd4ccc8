"""Completion scripts for bash, zsh and fish, generated from planc's argument parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import shell_word


@dataclass(frozen=True, kw_only=True)
class CommandOption:
    """An option of a command: its flags, and the values that it may have (`choices`)."""

    flags: tuple[str, ...]
    about: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its options. `words` are the legal values of its first argument; if empty, that is a file."""

    name: str
    about: str
    options: tuple[CommandOption, ...]
    words: tuple[str, ...]


def commands_of(parser: argparse.ArgumentParser, abouts: dict[str, str]) -> list[Command]:
    """Return the commands of `parser` with their options; `abouts` maps a command's name to its description."""
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [_command(name, about, commands.choices[name]) for name, about in abouts.items()]


def _command(name: str, about: str, parser: argparse.ArgumentParser) -> Command:
    options = [_option(a) for a in parser._actions if a.option_strings]
    given = [a for a in parser._actions if not a.option_strings]
    nested = [word for a in given if isinstance(a, argparse._SubParsersAction) for word in a.choices]
    words = nested or [str(c) for a in given[:1] for c in (a.choices or ())]
    return Command(name=name, about=about, options=tuple(options), words=tuple(words))


def _option(action: argparse.Action) -> CommandOption:
    return CommandOption(
        flags=tuple(action.option_strings),
        about=" ".join((action.help or "").replace("%%", "%").split()),
        takes_value=action.nargs != 0,
        choices=tuple(map(str, action.choices or ())),
    )


def bash(commands: Sequence[Command]) -> Iterator[str]:
    """Yield the lines of the bash script that completes `commands`."""
    yield '# bash completion of planc: eval "$(planc completion bash)"'
    yield "_planc() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}"
    yield "  COMPREPLY=()"
    yield '  if [ "$COMP_CWORD" = 1 ]; then'
    yield f'    COMPREPLY=($(compgen -W {_list([c.name for c in commands])} -- "$word"))'
    yield "    return"
    yield "  fi"
    yield '  case "$command:$before" in'
    for c in commands:
        for option in (o for o in c.options if o.choices):
            places = "|".join(f"{c.name}:{flag}" for flag in option.flags)
            yield f'    {places}) COMPREPLY=($(compgen -W {_list(option.choices)} -- "$word")); return ;;'
    yield "  esac"
    yield '  case "$command:$word" in'
    for c in commands:
        flags = [flag for o in c.options for flag in o.flags]
        yield f'    {c.name}:-*) COMPREPLY=($(compgen -W {_list(flags)} -- "$word")); return ;;'
    yield "  esac"
    yield '  case "$command:$COMP_CWORD" in'
    for c in (c for c in commands if c.words):
        yield f'    {c.name}:2) COMPREPLY=($(compgen -W {_list(c.words)} -- "$word")); return ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -f -- "$word"))'
    yield "}"
    yield "complete -o filenames -o bashdefault -F _planc planc"


def zsh(commands: Sequence[Command]) -> Iterator[str]:
    """Yield the lines of the zsh script that completes `commands`."""
    yield "#compdef planc"
    yield '# zsh completion of planc: planc completion zsh > "${fpath[1]}/_planc"'
    yield "_planc() {"
    yield "  local -a commands"
    yield "  commands=("
    yield from (f"    {shell_word(f'{c.name}:{_of_zsh(c.about)}')}" for c in commands)
    yield "  )"
    yield "  if (( CURRENT == 2 )); then"
    yield "    _describe command commands"
    yield "    return"
    yield "  fi"
    yield "  local name=${words[2]}"
    yield "  shift words"
    yield "  (( CURRENT-- ))"
    yield "  case $name in"
    for c in commands:
        yield f"    {c.name})"
        specs = [_spec(flag, o) for o in c.options for flag in o.flags]
        rest = f"1:name:({' '.join(c.words)})" if c.words else "*:file:_files"
        yield f"      _arguments {' '.join(shell_word(s) for s in [*specs, rest])} ;;"
    yield "  esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = _planc ]; then _planc "$@"; else compdef _planc planc; fi'


def _spec(flag: str, option: CommandOption) -> str:
    """Return `option`, under the name `flag`, as zsh's `_arguments` writes it."""
    value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files" if option.takes_value else ""
    return f"*{flag}[{_of_zsh(option.about)}]{value}"


def _of_zsh(text: str) -> str:
    """Return `text` escaped for the specifications of zsh's `_arguments`."""
    return "".join(f"\\{c}" if c in "[]:\\" else c for c in text)


def fish(commands: Sequence[Command]) -> Iterator[str]:
    """Yield the lines of the fish script that completes `commands`."""
    yield "# fish completion of planc: planc completion fish > ~/.config/fish/completions/planc.fish"
    for c in commands:
        yield f"complete -c planc -f -n __fish_use_subcommand -a {c.name} -d {_of_fish(c.about)}"
    for c in commands:
        here = _of_fish(f"__fish_seen_subcommand_from {c.name}")
        if c.words:
            yield f"complete -c planc -f -n {here} -a {_of_fish(' '.join(c.words))}"
        for option in c.options:
            names = [f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in option.flags]
            value = f" -x -a {_of_fish(' '.join(option.choices))}" if option.choices else " -r" * option.takes_value
            yield f"complete -c planc -n {here} {' '.join(names)}{value} -d {_of_fish(option.about)}"


def _of_fish(text: str) -> str:
    """Return `text` quoted as one word of fish."""
    return "'" + "".join(f"\\{c}" if c in "\\'" else c for c in text) + "'"


def _list(words: Sequence[str]) -> str:
    return shell_word(" ".join(words))


SHELLS: dict[str, Callable[[Sequence[Command]], Iterator[str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""The script generator of each shell."""
