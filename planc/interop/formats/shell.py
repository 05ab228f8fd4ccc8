"""Finds the command of a shell script that starts the training, as flags or `key=value` words.

Text that only a shell can expand stays as written, and is refused if a field needs its value. Each word of a script
belongs to that command, or decides which command runs, or is reported in `Document.left`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from planc.diag.span import Source
from planc.interop.document import MAX_FIELDS, Document, FieldValue, Given, Left, UnreadableError
from planc.interop.formats.interpret import Script, ShellCommand
from planc.interop.formats.variables import closure
from planc.interop.formats.words import ShellWord, Written
from planc.interop.launcher import is_unknown

_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNMENT = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=.*", re.DOTALL)
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "xpk.py", "xpk")
"""Modules and files that launch a program."""
SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash")
"""Extensions of shell scripts; other files may be a list of flags."""


def read_scripts(
    sources: Sequence[Source], given: Mapping[str, str], kinds: Mapping[str, str], *, unset: bool = False
) -> list[Document]:
    """Returns the documents of scripts that together are one configuration. A script that another script sources, or
    that has no command, gets no document: it is read as a part of the others.

    `given` has the values of variables and arguments from the command line. `kinds` has the format of each file,
    `flags` or `assignments`; a file without one gets the format in which its command has more words. With `unset`, a
    test of a variable that nothing sets is decided as a shell does without it, if the script then still starts what it
    certainly starts. Raises UnreadableError for an unclosed quote or bracket.
    """
    found = _documents(sources, given, kinds, unset=False)
    if not unset or all(g.certain for document in found for g in document.fields.values()):
        return found
    assumed = _documents(sources, given, kinds, unset=True)
    return assumed if _certain(assumed) >= _certain(found) else found


def _certain(documents: Sequence[Document]) -> int:
    return sum(given.certain for document in documents for given in document.fields.values())


def _documents(
    sources: Sequence[Source], given: Mapping[str, str], kinds: Mapping[str, str], *, unset: bool
) -> list[Document]:
    beside = {PurePosixPath(source.file).name: source for source in sources}
    scripts = {source.file: Script(source, given, beside, unset=unset) for source in sources}
    inner = {file for script in scripts.values() for file in script.sourced}
    outer = [source for source in sources if source.file not in inner] or list(sources)
    first = [source for source in outer if not scripts[source.file].commands]
    if first and len(first) < len(outer):
        outer = [source for source in outer if source not in first]
        scripts |= {source.file: Script(source, given, beside, first, unset=unset) for source in outer}
    return [_document(source, scripts[source.file], kinds.get(source.file, "")) for source in outer]


def _document(source: Source, script: Script, kind: str) -> Document:
    flags = _chosen(source, script, _is_flag)
    words = _chosen(source, script, _is_assignment) if kind != "flags" else None
    if words and (kind == "assignments" or sum(map(_is_assignment, words.words)) > sum(map(_is_flag, flags.words))):
        return _of_assignments(source, script, words)
    return _of_flags(source, script, flags)


def _chosen(source: Source, script: Script, counts: Callable[[ShellWord], bool]) -> ShellCommand:
    """Returns the command with the most words for which `counts` is true. In a file that is no script, all lines that
    start with a flag are one command."""
    lists = [one for one in script.commands if _is_flag(one.words[0])]
    commands = [one for one in script.commands if not _is_flag(one.words[0])]
    if lists and not source.file.endswith(SCRIPTS):
        words, used = [w for one in lists for w in one.words], [v for one in lists for v in one.used]
        commands.append(ShellCommand(tuple(words), tuple(used), tuple(w for one in lists for w in one.written)))
    return max(commands, key=lambda one: _weight(one, counts), default=ShellCommand((), (), ()))


def _weight(command: ShellCommand, counts: Callable[[ShellWord], bool]) -> tuple[bool, int]:
    return command.words[0].text not in ("echo", "printf"), sum(map(counts, command.words))


def _of_flags(source: Source, script: Script, best: ShellCommand) -> Document:
    words = best.words
    first = next((i for i, word in enumerate(words) if _is_flag(word)), len(words))
    program = _program_index(words)
    start = program if program > first else first
    launcher, _ = _fields(words[first:start])
    fields, more = _fields(words[start:])
    begin = next((i for i in range(start, len(words)) if _is_flag(words[i])), len(words))
    more += [_stray(word) for word in words[start + (program > 0) : begin]]
    named = tuple(w.text for w in words[:first]) + ((words[program].text,) if program > first else ())
    began = next((i for i, word in enumerate(words[:start]) if is_unknown(word.text, "")), start)
    behind = [word for word in words[began:start] if _is_flag(word)]
    wrong = [Left(word.text, word.span, "unknown") for word in behind if is_unknown("torchrun", _name(word))]
    left = (*_left(source, script, best), *more, *wrong)
    return Document(
        source.file, "flags", fields, source, named, launcher, left, _others(script, best), frozenset(script.taken),
        tuple(script.unfound), len(script.written), tuple(script.assumed),
    )  # fmt: skip


def _of_assignments(source: Source, script: Script, best: ShellCommand) -> Document:
    fields: dict[str, Given] = {}
    left = list(_left(source, script, best))
    seen = False
    for index, word in enumerate(best.words):
        if _is_assignment(word):
            name, _, value = word.text.partition("=")
            name, seen = name.lstrip("+"), True
            if name in fields:
                left.append(Left(name, fields[name].span, "twice"))
            fields[name] = Given(value, word.span, word.certain)
        elif seen and not _is_flag(word) and not (_is_flag(best.words[index - 1])):
            left.append(Left(word.text, word.span, "loose"))
    program = tuple(w.text for w in best.words if not _is_assignment(w))
    return Document(
        source.file, "assignments", fields, source, program, None, tuple(left), (), frozenset(script.taken),
        tuple(script.unfound), len(script.written), tuple(script.assumed),
    )  # fmt: skip


def _is_flag(word: ShellWord) -> bool:
    return _FLAG.fullmatch(word.text.partition("=")[0]) is not None


def _is_assignment(word: ShellWord) -> bool:
    return _ASSIGNMENT.fullmatch(word.text) is not None


def _program_index(words: Sequence[ShellWord]) -> int:
    """Returns the index of the Python file or module that a launcher starts; 0 if there is none."""
    for index, word in enumerate(words):
        is_module = bool(index) and words[index - 1].text in ("-m", "--module")
        if (is_module or word.text.endswith(".py")) and PurePosixPath(word.text).name not in _LAUNCHERS:
            return index
    return 0


def _name(word: ShellWord) -> str:
    """Returns the name of a flag, with underscores. `--a-b` and `-a` lose their dashes, `-ab` keeps its dash."""
    flag = word.text.partition("=")[0].replace("-", "_")
    return flag[2:] if flag.startswith("__") else flag[1:] if len(flag) == 2 else f"-{flag[1:]}"


def _fields(words: Sequence[ShellWord]) -> tuple[dict[str, Given], list[Left]]:
    """Parses `--name value ...`, `--name=value` and `--name` (true). Returns the fields, named with underscores, and
    words to report: earlier values of a flag that is given again, and values known only to the shell (after the
    first)."""
    fields: dict[str, Given] = {}
    more: list[Left] = []
    starts = [index for index, word in enumerate(words) if _is_flag(word)]
    for start, end in pairwise([*starts, len(words)]):
        word = words[start]
        _, equals, value = word.text.partition("=")
        values = [*([ShellWord(value, word.span)] if equals else []), *words[start + 1 : end]]
        texts = tuple(one.text for one in values)
        found: FieldValue = True if not texts else texts[0] if len(texts) == 1 else texts
        last = values[-1].span if values else word.span
        joined = last.line == word.span.line and last.file == word.span.file and last.end_column > word.span.column
        name = _name(word)
        if name in fields:
            more.append(Left(word.text.partition("=")[0], fields[name].span, "twice"))
        more += [Left(one.text, one.span, "open") for one in values[1:] if "$" in one.text]
        certain = word.certain and all(one.certain for one in values)
        places = tuple((one.stands or one.span, one.span) for one in (word, *values))
        fields[name] = Given(found, word.span.to(last) if joined else word.span, certain, places)
        if len(fields) > MAX_FIELDS:
            raise UnreadableError(f"more than {MAX_FIELDS:,} flags", word.span)
    return fields, more


def _stray(word: ShellWord) -> Left:
    return Left(word.text, word.span, "open" if "$" in word.text else "unread")


# What is left.


def _left(source: Source, script: Script, best: ShellCommand) -> Iterator[Left]:
    """Yields the words of a script that do not contribute to the command `best`, one item per line of the script."""
    read = {*best.written} | script.read
    for value in closure([*best.used, *script.used]):
        read |= {*value.written}
    loose = {w for one in script.commands if _is_flag(one.words[0]) for w in one.written}
    lines: dict[tuple[str, int], list[Written]] = {}
    for word in [*script.written, *script.directives]:
        if word not in read:
            lines.setdefault((word.span.file, word.span.line), []).append(word)
    if script.without_arguments is not None:
        yield Left("$@, with no argument given by --set 1=VALUE", script.without_arguments, "unread")
    for words in lines.values():
        words.sort(key=lambda word: word.span.column)
        text = " ".join(f"{w.text}(...)" if w.items is not None else w.text for w in words)
        is_loose = words[0] in loose and source.file.endswith(SCRIPTS)
        yield Left(text, words[0].span, "loose" if is_loose else "unread", len(words))


def _others(script: Script, best: ShellCommand) -> tuple[dict[str, Given], ...]:
    others = [one.words for one in script.commands if one is not best and any(_is_flag(word) for word in one.words)]
    return tuple(_fields(words)[0] for words in others)
