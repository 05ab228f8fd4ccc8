"""Command lines of shell scripts: split into words as a shell would, never run.

Variables that the script itself sets to plain text are put in (`TP=8`, `--tensor-model-parallel-size $TP`), `${X:-8}`
by its default, arrays by their words. Whatever needs a shell to be known (`$(...)`, a variable of the environment)
stays as it is written, and is refused where a field needs its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.diag.span import Source, Span
from planc.interop.document import MAX_FIELDS, Document, FieldValue, Given, UnreadableError
from planc.interop.formats.branches import Branches
from planc.interop.formats.words import ShellWord

_SET = re.compile(r"\s*(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)(\+?)=")
_ARRAY = re.compile(r"\s*(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)(\+?)=\(")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*|\d)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*))")
_ARITHMETIC = re.compile(r"\$\(\(\s*([\d\s+*/()-]{1,80})\s*\)\)")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
MAX_EXPANDED = 100_000
"""Characters that a script's variables may grow to."""


def read_flags(source: Source) -> Document:
    """The flags of the command that a script starts: the one with the most flags.

    A script without a command is read as a list of flags. Raises UnreadableError for a quote or bracket that is never
    closed.
    """
    commands = list(_commands(source))
    best = max(commands, key=lambda words: sum(_is_flag(w) for w in words), default=[])
    first = next((i for i, word in enumerate(best) if _is_flag(word)), len(best))
    program = _program_index(best)
    launcher = _fields(best[first:program]) if program > first else {}
    start = program if program > first else first
    words = tuple(w.text for w in best[:first]) + ((best[program].text,) if program > first else ())
    return Document(source.file, "flags", _fields(best[start:]), source, words, launcher)


def read_assignments(source: Source) -> Document:
    """The `key=value` words of the command that a script starts: the one with the most of them."""
    commands = list(_commands(source))
    best = max(commands, key=lambda words: sum(_is_assignment(w) for w in words), default=[])
    fields: dict[str, Given] = {}
    for word in best:
        if _is_assignment(word):
            name, _, value = word.text.partition("=")
            fields[name.lstrip("+")] = Given(value, word.span)
    program = tuple(w.text for w in best if not _is_assignment(w))
    return Document(source.file, "assignments", fields, source, program)


def _is_flag(word: ShellWord) -> bool:
    return _FLAG.fullmatch(word.text.partition("=")[0]) is not None


def _is_assignment(word: ShellWord) -> bool:
    return re.fullmatch(r"\+?[A-Za-z_][\w.]*=.*", word.text, re.DOTALL) is not None


def _program_index(words: list[ShellWord]) -> int:
    """The index of the Python file or module that a launcher starts; 0 where there is none."""
    for index, word in enumerate(words):
        if word.text.endswith(".py") or (index and words[index - 1].text in ("-m", "--module")):
            return index
    return 0


def _fields(words: list[ShellWord]) -> dict[str, Given]:
    """`--name value ...`, `--name=value` and `--name` alone (true), by name with underscores. Later ones win."""
    fields: dict[str, Given] = {}
    name: str | None = None
    values: list[ShellWord] = []
    place: Span | None = None
    certain = True

    def end() -> None:
        if name is None or place is None:
            return
        value: FieldValue = True if not values else values[0].text
        if len(values) > 1:
            value = tuple(v.text for v in values)
        span = place.to(values[-1].span) if values and values[-1].span.line == place.line else place
        fields[name] = Given(value, span, certain and all(v.certain for v in values))

    for word in words:
        if _is_flag(word) and not word.quoted:
            end()
            flag, equals, value = word.text.partition("=")
            name, place, certain = flag.lstrip("-").replace("-", "_"), word.span, word.certain
            values = [ShellWord(value, word.span)] if equals else []
        elif name is not None:
            values.append(word)
        if len(fields) > MAX_FIELDS:
            raise UnreadableError(f"more than {MAX_FIELDS:,} flags", word.span)
    end()
    return fields


# Words and commands of a script.


def _commands(source: Source) -> Iterator[list[ShellWord]]:
    """Each command of the script as words, with the script's own variables put in."""
    variables: dict[str, list[ShellWord]] = {}
    size = 0
    branches = Branches()
    for words, array, end in _logical_lines(source):
        words = branches.inside(words, _expanded(words, variables), end)
        if not branches.reached:
            continue
        if array is not None:
            name, more = array
            put = branches.marked(_expanded([w for v in words for w in _inner(v)], variables))
            variables[name] = [*variables.get(name, ()), *put] if more else put
            size += sum(len(w.text) + 1 for w in put)
        elif len(words) == 1 and (found := _SET.match(words[0].text)):
            value = ShellWord(words[0].text[found.end() :], words[0].span, words[0].quoted)
            put = branches.marked(_expanded(_split(value), variables))
            variables[found[1]] = [*variables.get(found[1], ()), *put] if found[2] else put
            size += sum(len(w.text) + 1 for w in put)
        else:
            command = branches.marked(_expanded(words, variables))
            size += sum(len(w.text) + 1 for w in command)
            if command:
                yield command
        if size > 40 * MAX_EXPANDED:
            raise UnreadableError("its variables grow beyond reason", words[0].span if words else _start(source))


def _inner(word: ShellWord) -> list[ShellWord]:
    """The words of an array's element: `"--split 99,1,0"` is two, as scripts use their arrays without quotes."""
    return _split(word) if word.quoted and word.text.startswith("--") else [word]


def _split(word: ShellWord) -> list[ShellWord]:
    """The words of a variable's value: `ARGS="--a 1 --b 2"` is used unquoted by every script that sets it so.

    Each keeps its place in a text that stands in one line.
    """
    found = []
    for match in re.finditer(r"\S+", word.text):
        span = word.span
        offset = span.end_column - 1 - len(word.text) - word.quoted
        if span.line == span.end_line and offset >= 0 and "\n" not in word.text:
            start = offset + match.start() + 1
            span = Span(span.file, span.line, start, span.line, start + len(match[0]))
        found.append(ShellWord(match[0].rstrip("\\"), span))
    return [w for w in found if w.text]


def _expanded(words: list[ShellWord], variables: dict[str, list[ShellWord]]) -> list[ShellWord]:
    result: list[ShellWord] = []
    for word in words:
        whole = _VARIABLE.fullmatch(word.text)
        known = variables.get(whole[1] or whole[3]) if whole else None
        if known is not None:
            result += known
            continue
        text = _VARIABLE.sub(lambda m: _value(m, variables), word.text)
        text = _ARITHMETIC.sub(_computed, text)
        if len(text) > MAX_EXPANDED:
            raise UnreadableError("a variable grows beyond reason", word.span)
        certain = all(w.certain for m in _VARIABLE.finditer(word.text) for w in variables.get(m[1] or m[3], ()))
        result.append(ShellWord(text, word.span, word.quoted, word.certain and certain))
    if sum(len(w.text) for w in result) > MAX_EXPANDED * 4:
        raise UnreadableError("its variables grow beyond reason", words[0].span)
    return result


def _value(match: re.Match[str], variables: dict[str, list[ShellWord]]) -> str:
    known = variables.get(match[1] or match[3])
    if known is not None:
        return " ".join(w.text for w in known)
    return match[2].strip("\"'") if match[2] is not None else match[0]


def _computed(match: re.Match[str]) -> str:
    """`$((8 * 4))`: whole numbers with + - * / and brackets, by a parser of our own."""
    from planc.interop.formats.arithmetic import evaluate

    value = evaluate(match[1])
    return match[0] if value is None else str(value)


def _start(source: Source) -> Span:
    return Span(source.file, 1, 1, 1, 1)


def _logical_lines(source: Source) -> Iterator[tuple[list[ShellWord], tuple[str, bool] | None, str]]:
    """The words of each command; for `NAME=(...)`, the words inside and (name, True for `+=`); and what ends it, such
    as `&&`."""
    scanner = _Scanner(source)
    while not scanner.at_end():
        words, array = scanner.command()
        if words or array:
            yield words, array, scanner.end


class _Scanner:
    """Splits a script into words by the shell's quoting rules, with places."""

    def __init__(self, source: Source) -> None:
        self._source, self._text = source, source.text
        self._at, self._line, self._column = 0, 1, 1
        self.end = ""
        """The end of the last command: a new line, `;`, `&&`, `||`, `|` or `&`."""

    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def command(self) -> tuple[list[ShellWord], tuple[str, bool] | None]:
        """Words up to the next end of a command; an array's words come with its name."""
        words: list[ShellWord] = []
        array = None
        start = self._position()
        if (found := _ARRAY.match(self._text, self._at)) and "\n" not in found[0]:
            self._skip(found.end() - self._at)
            array = (found[1], bool(found[2]))
        while not self.at_end():
            here = self._peek()
            if here == "\\" and self._text[self._at + 1 : self._at + 2] == "\n":
                self._skip(2)
            elif here in " \t\r":
                self._skip(1)
            elif here == "#":
                self._skip_line()
            elif here == ")" and array is not None:
                self._skip(1)
                return words, array
            elif here in "\n;|&":
                double = here in "|&" and self._text.startswith(here, self._at + 1)
                self.end = here * 2 if double else here
                self._skip(len(self.end))
                if array is None:
                    return words, None
            elif here in "()" and array is None:
                self._skip(1)
                return words, None
            else:
                words.append(self._word(array is not None))
        if array is not None:
            raise UnreadableError("a bracket is never closed", self._span(start))
        return words, array

    def _word(self, inside: bool) -> ShellWord:
        start, text, quoted = self._position(), [], False
        while not self.at_end():
            here = self._peek()
            if here in "'\"":
                quoted = True
                text.append(self._quotation(here))
            elif here == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                text.append("" if following == "\n" else following)
                self._skip(2)
            elif self._text.startswith("$(", self._at):
                text.append(self._bracketed())
            elif here == "`":
                text.append(self._until("`"))
            elif self._text.startswith("${", self._at):
                text.append(self._until("}"))
            elif here in " \t\r\n;|&" or (here in "()" and (inside or here == "(")) or here == ")":
                break
            else:
                text.append(here)
                self._skip(1)
        if start[0] == self._at:  # a character that belongs to no word
            self._skip(1)
        return ShellWord("".join(text), self._span(start), quoted)

    def _quotation(self, mark: str) -> str:
        start = self._position()
        self._skip(1)
        text = []
        while not self.at_end() and self._peek() != mark:
            if mark == '"' and self._peek() == "\\" and self._text[self._at + 1 : self._at + 2] in '"\\$`\n':
                following = self._text[self._at + 1]
                text.append("" if following == "\n" else following)
                self._skip(2)
            else:
                text.append(self._peek())
                self._skip(1)
        if self.at_end():
            raise UnreadableError("a quote is never closed", self._span(start))
        self._skip(1)
        return "".join(text)

    def _bracketed(self) -> str:
        """From `$(` to the bracket that closes it."""
        start, depth = self._at, 0
        for index in range(start, min(len(self._text), start + MAX_EXPANDED)):
            depth += {"(": 1, ")": -1}.get(self._text[index], 0)
            if not depth and index > start:
                break
        self._skip(index + 1 - start)
        return self._text[start : self._at]

    def _until(self, close: str) -> str:
        end = self._text.find(close, self._at + 1)
        length = (end + len(close) if end >= 0 else len(self._text)) - self._at
        text = self._text[self._at : self._at + length]
        self._skip(length)
        return text

    def _peek(self) -> str:
        return self._text[self._at]

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._skip((len(self._text) if end < 0 else end) - self._at)

    def _skip(self, count: int) -> None:
        passed = self._text[self._at : self._at + count]
        self._at += len(passed)
        lines = passed.count("\n")
        self._line += lines
        self._column = len(passed) - passed.rfind("\n") if lines else self._column + len(passed)

    def _position(self) -> tuple[int, int, int]:
        return self._at, self._line, self._column

    def _span(self, start: tuple[int, int, int]) -> Span:
        _, line, column = start
        if self._line == line:
            return Span(self._source.file, line, column, line, self._column)
        return Span(self._source.file, line, column, line, len(self._source.line(line)) + 1)
