"""Interprets shell scripts symbolically, to find the words of their commands: variables, branches, loops, functions.

Nothing is run. Text that only a shell can expand (`$(...)`, an environment variable) stays as written. If only the
shell knows which branch runs, all branches are interpreted, and a variable that they set differently is not certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.interop.document import UnreadableError
from planc.interop.formats.arithmetic import evaluate
from planc.interop.formats.conditions import Operand, fits, holds
from planc.interop.formats.scan import ASSIGNMENT, MOST_LEVELS, Places, Scan
from planc.interop.formats.variables import MAX_EXPANDED, Variables, VariableValue
from planc.interop.formats.words import (
    Case,
    Function,
    If,
    Node,
    PipelineStep,
    ShellGroup,
    ShellLoop,
    ShellWord,
    Simple,
    Steps,
    Test,
    WordPiece,
    Written,
)

_PARAMETER = re.compile(r"\$\{?(#(?=[A-Za-z_]))?([A-Za-z_]\w*|\d+|[@*#])(\[[^\]]{0,40}\])?(:?[-=+?])?", re.DOTALL)
_SET_IN_ARITHMETIC = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_RUNS_TEXT = re.compile(r"-[a-z]*c[a-z]*")
_REFERENCE = re.compile(r"\$\{?(\w+|#)\}?")
_FROM_OUTSIDE = (
    "HOME",
    "USER",
    "PWD",
    "PATH",
    "HOSTNAME",
    "SHELL",
    "RANDOM",
    "SECONDS",
    "LINENO",
    "UID",
    "EUID",
    "OLDPWD",
)
"""Variables that every shell sets."""
_DECLARES = ("export", "local", "declare", "readonly", "typeset")
_SETS = ("let", "read", "getopts", "mapfile", "readarray", "unset", "shift", "set")
_SHELLS = ("bash", "sh", "zsh")
_SUCCEED = {
    *("cd", "pushd", "popd", "mkdir", "source", ".", "module", "echo", "printf", "ulimit", "pip", "conda", "rm", "cp"),
    *("touch", "chmod", "sleep", "eval", "wait", "ln", "mv", "date", "hostname", "cat", *_DECLARES, *_SETS),
}
"""Commands that are assumed to succeed, so that `&&` continues."""
_TESTS = ("[", "[[", "test", "grep", "command", "which", "type", "hash", "diff", "cmp", "expr", "nvidia-smi", "ls")
"""Commands that scripts run to see whether they succeed."""
MOST_COMMANDS = 20_000
"""Maximum number of commands that are interpreted; each call of a function counts."""

WORD = 20
"""Characters that an expanded word counts for beside its own: its place is kept, and what is certain of it."""


@dataclass(frozen=True)
class ShellCommand:
    """A command: its `words` after expansion, the values of variables in them (`used`), and the words of the script
    that were expanded (`written`)."""

    words: tuple[ShellWord, ...]
    used: tuple[VariableValue, ...]
    written: tuple[Written, ...]


class Script:
    """An interpreted script: its `commands` in order, and how its words are used.

    `written` has all words of the script. Control flow depends on the words in `read` and on the variables in `used`.
    `taken` has the names in `given` that the script uses, `sourced` the files in `beside` that it sources, and
    `unfound` the names of other files that it sources.
    """

    def __init__(
        self,
        source: Source,
        given: Mapping[str, str],
        beside: Mapping[str, Source],
        first: Sequence[Source] = (),
        *,
        unset: bool = False,
    ) -> None:
        """Interprets the script `source`, after the scripts in `first`. `given` has values from the command line, of
        variables and of arguments (`1`). `beside` has the files that the script may `source`, by name. With `unset`,
        tests are decided as if all other arguments and environment variables were not set (`assumed`)."""
        self._unset, self._left = unset, {*_FROM_OUTSIDE}
        self.assumed: dict[str, None] = {}
        self.commands: list[ShellCommand] = []
        self.written: list[Written] = []
        self.directives: list[Written] = []
        self.read: set[Written] = set()
        self.used: list[VariableValue] = []
        self.taken: set[str] = set()
        self.sourced: set[str] = set()
        self.unfound: list[str] = []
        self.without_arguments: Span | None = None
        """Place where `$@` expands to nothing."""
        self._start = Span(source.file, 1, 1, 1, 1)
        self._beside: Mapping[str, Source] = beside
        self._places: dict[str, Places] = {}
        self._given = {n: VariableValue([ShellWord(w, self._start) for w in v.split()], v) for n, v in given.items()}
        self._variables = Variables(self._given)
        self._functions: dict[str, Function] = {}
        self._following: list[str] = []
        """The functions being interpreted."""
        self._arguments: list[ShellWord] | None = None
        """Arguments of the running function; None outside functions."""
        self._shifted: int | None = 0
        self._certain, self._ended = True, False
        self._level = self._size = self._count = 0
        for one in (*first, source):
            self._places[one.file] = Places(one)
            self._run(self._scanned(Scan(self._places[one.file], one.text)).steps)

    def _scanned(self, scan: Scan) -> Scan:
        self.written += scan.words
        self.read |= {*scan.reserved}
        self.directives += scan.directives
        return scan

    # Ways through the script.

    def _run(self, steps: Steps) -> bool | None:
        """Interprets `steps`. Returns True if the last command succeeds, False if it fails, None if that is unknown."""
        status: bool | None = True
        ordinary = False
        for step in steps:
            if self._ended:
                break
            runs = {"&&": status, "||": None if status is None else not status}.get(step.joined, True)
            if step.joined == "&&" and runs is None and ordinary and not _only_assigns(step):
                runs = True  # who writes `a && b` takes for granted that `a` succeeds
            if runs:
                status = self._step(step)
                ordinary = _name(step) not in _TESTS and status is None
            elif runs is None:
                self._fork([(step,)], all_of_them=False)
                status, ordinary = None, False
        return status

    def _step(self, step: PipelineStep) -> bool | None:
        """Interprets a pipeline. Returns True if it succeeds, False if it fails, None if that is unknown."""
        status: bool | None = True
        for node in step.pipeline:
            status = self._node(node)
        if status is None and _name(step) in _SUCCEED:
            status = True
        return not status if status is not None and step.negated else status

    def _node(self, node: Node) -> bool | None:
        self._count += 1
        if self._count > MOST_COMMANDS:
            raise UnreadableError(f"it runs more than {MOST_COMMANDS:,} commands", self._start)
        if isinstance(node, Simple):
            return self._simple(node)
        if isinstance(node, Test):
            self.read |= {*node.words}
            if node.arithmetic:
                return self._arithmetic(node.words[0])
            return holds([self._operand(word) for word in node.words], patterns=True)
        if isinstance(node, If):
            return self._if(node)
        if isinstance(node, ShellLoop):
            self._loop(node)
            return None
        if isinstance(node, Case):
            return self._case(node)
        if isinstance(node, ShellGroup):
            if not node.own:
                return self._run(node.body)
            self._variables.fork()
            status = self._run(node.body)
            self._variables.back()
            return status
        self._functions[node.words[-1].plain] = node
        return True

    def _if(self, node: If) -> bool | None:
        open_branches: list[Steps] = []
        decided = False
        for condition, body in node.branches:
            value = self._condition(condition)
            if value is False:
                continue
            open_branches.append(body)
            if value:
                decided = True
                break
        else:
            open_branches += [node.otherwise] if node.otherwise is not None else []
            decided = node.otherwise is not None
        return self._branches(open_branches, decided)

    def _condition(self, steps: Steps) -> bool | None:
        """Interprets a condition and returns its truth; None for a command that is elsewhere assumed to succeed."""
        for node in (node for step in steps for node in step.pipeline if isinstance(node, Simple)):
            self.read |= {*node.words}
        value = self._run(steps)
        return None if steps and _name(steps[-1]) in _SUCCEED else value

    def _branches(self, bodies: Sequence[Steps], all_of_them: bool) -> bool | None:
        """Interprets the alternative branches `bodies`, and merges the variables that they set. The shell runs one of
        them, or perhaps none unless `all_of_them`."""
        if len(bodies) == 1 and all_of_them:
            return self._run(bodies[0])
        if bodies:
            self._fork(bodies, all_of_them=all_of_them)
        return None if bodies else True

    def _fork(self, bodies: Sequence[Steps], *, all_of_them: bool) -> None:
        before, worlds = self._certain, []
        for body in bodies:
            self._certain = False
            self._variables.fork()
            self._run(body)
            worlds.append(self._variables.back())
        self._certain = before
        self._variables.merge(worlds, self._start, all_of_them=all_of_them)

    def _loop(self, node: ShellLoop) -> None:
        if node.name:
            self.read |= {*node.items}
            items, used = self._expanded(node.items)
            words = [replace(word, certain=False) for word in items]
            text = " ".join(word.text for word in words)
            value = VariableValue(words, text, certain=False, used=used, written=node.items)
            self._variables.set(node.name, value, self._start)
        elif node.condition and self._condition(node.condition) is False:
            return
        self._fork([node.body], all_of_them=False)

    def _case(self, node: Case) -> bool | None:
        word = self._operand(node.word)
        self.read.add(node.word)
        ways: list[Steps] = []
        for patterns, body in node.branches:
            self.read |= {*patterns}
            found = [self._operand(pattern) for pattern in patterns]
            matches = [fits(word.text, one.text) if word.known and one.known else None for one in found]
            certain = True in matches or any(one.text == "*" and not one.quoted for one in found)
            if certain or None in matches or node.falls:
                ways.append(body)
            if certain and not node.falls:
                return self._branches(ways, all_of_them=True)
        return self._branches(ways, all_of_them=False)

    # Commands.

    def _simple(self, node: Simple) -> bool | None:
        before = next((i for i, word in enumerate(node.words) if not _assigns(word)), 0)
        words = node.words[before:]  # `NAME=VALUE` before a command is its environment
        name = words[0].plain if words else ""
        if all(_assigns(word) for word in words):
            for word in words:
                self._assign(word)
            return True
        if name in _DECLARES:
            return self._declare(words)
        if name in ("[", "test"):
            self.read |= {*words}
            return holds([self._operand(word) for word in (words[1:-1] if name == "[" else words[1:])])
        if name in _SETS:
            return self._left_to_the_shell(name, words[1:])
        expanded, used = self._expanded(words)
        if not expanded:
            return True
        self._grown(sum(len(word.text) + WORD for word in expanded), words[0].span)
        if not self._certain:
            expanded = [replace(word, certain=False) for word in expanded]
        return self._command(ShellCommand(tuple(expanded), tuple(used), words), node)

    def _grown(self, size: int, place: Span) -> None:
        """Counts characters of expanded words, and raises UnreadableError at `place` if they are too many."""
        self._size += size
        if self._size > 40 * MAX_EXPANDED:
            raise UnreadableError("its variables grow beyond reason", place)

    def _command(self, command: ShellCommand, node: Simple) -> bool | None:
        """Interprets a command that runs another script: a function, a sourced file, `eval`, text for another shell.
        Records any other command."""
        words, name = command.words, command.words[0].text
        if name in ("true", ":", "false"):
            self.read |= {*command.written}
            self.used += command.used
            return name != "false"
        if name in ("exit", "return") and self._certain:
            self._ended = True
        self._level += 1
        if self._level > MOST_LEVELS:
            raise UnreadableError(f"nested more than {MOST_LEVELS} levels deep", words[0].span)
        if name in self._functions and name not in self._following:
            self._called(name, words[1:], command)
        elif name in ("source", ".") and len(words) > 1 and _base(words[1].text) in self._beside:
            self._source(self._beside[_base(words[1].text)], command)
        elif (inner := _inner_script(words)) is not None:
            first, last, text = inner
            own = replace(command, words=(*words[:first], *words[last:]))
            self._inside(text, own, words[last - 1].span, hides=name != "eval")
        elif node.documents and any(w.text in (*_SHELLS, "sbatch", "srun", "ssh") for w in words):
            for document in node.documents:
                self._document(document, command)
        else:
            self.unfound += [_base(words[1].text)] if name in ("source", ".") and len(words) > 1 else []
            self.commands.append(command)
        self._level -= 1
        return None

    def _called(self, name: str, words: Sequence[ShellWord], command: ShellCommand) -> None:
        before, self._arguments = self._arguments, list(words)
        self._following.append(name)
        self.read |= {*self._functions[name].words}
        self._run(self._functions[name].body)
        self._following.pop()
        self._arguments, self._ended = before, False
        self.read |= {*command.written}
        self.used += command.used

    def _source(self, file: Source, command: ShellCommand) -> None:
        self.read |= {*command.written}
        self.used += command.used
        if file.file not in self._places:
            self._places[file.file] = Places(file)
            self.sourced.add(file.file)
            self._run(self._scanned(Scan(self._places[file.file], file.text)).steps)

    def _inside(self, text: str, outer: ShellCommand, place: Span, *, hides: bool) -> None:
        """Interprets `text`, which the command `outer` runs (`bash -c TEXT`). The words of `outer` precede each command
        of `text`. With `hides`, `text` sees only exported variables."""
        first = len(self.commands)
        scan = Scan(self._places[place.file], text, place=place)
        self._count += len(scan.words)
        own = self._variables
        if hides:
            exported = {name: value for name in own.exported if (value := own.get(name)) is not None}
            self._count += len(exported)
            self._variables = Variables(exported)
        self._run(scan.steps)
        self._variables = own
        for index in range(first, len(self.commands)):
            one = self.commands[index]
            words = (*outer.words, *one.words)  # what starts it stands before it
            self._grown(len(words), place)
            self.commands[index] = ShellCommand(words, (*one.used, *outer.used), outer.written)

    def _document(self, document: Written, command: ShellCommand) -> None:
        (piece,) = document.pieces
        scan = Scan(self._places[document.span.file], piece.text, at=piece.at)
        self._scanned(scan)
        self.read |= {document, *command.written}
        self._run(scan.steps)

    # Variables.

    def _assign(self, word: Written) -> None:
        found = ASSIGNMENT.match(word.pieces[0].text)
        assert found is not None
        element = "[" in found[0]  # of an array: which one is not followed
        before = self._variables.get(found[1]) if found[2] or element else None
        rest = _behind(word, found.end())
        known, text = True, ""
        if word.items is not None:
            expanded, used = self._expanded(word.items)
            own = [part for one in expanded for part in _parts(one)]
        else:
            own, used = self._split(rest)
            text, known = self._text(rest, used)
        is_array = word.items is not None or element or (before is not None and before.array)
        certain = all(one.certain for one in own) and all(one.certain for one in used)
        written = (word, *(word.items or ()))
        value = VariableValue(
            own, text, array=is_array, prev=before, certain=certain, known=known, written=written, used=used
        )
        given = self._given.get(found[1])
        if given is not None and not known:  # `TP=$1`: the command line says what the shell would
            self.taken.add(found[1])
            value = VariableValue(given.own, given.own_text, written=written)
        self._variables.set(found[1], value, word.span)

    def _declare(self, words: Sequence[Written]) -> bool:
        """Interprets `export NAME=VALUE NAME`, `local` and `declare`."""
        for word in words[1:]:
            if _assigns(word):
                self._assign(word)
            name = word.text.partition("=")[0].rstrip("+")
            self._variables.exported |= {name} if words[0].plain == "export" else set()
        self.read |= {word for word in words if not _assigns(word)}
        return True

    def _left_to_the_shell(self, name: str, words: Sequence[Written]) -> bool | None:
        """Applies `read NAME`, `unset NAME`, `shift` and `set -- WORDS` to the variables."""
        self.read |= {*words}
        if name in ("shift", "set"):
            if self._arguments is not None and name == "shift" and self._certain:
                self._arguments = self._arguments[1:]
            elif name == "shift" or any(word.text == "--" for word in words):
                is_known = name == "shift" and self._certain and self._shifted is not None
                self._shifted = (self._shifted or 0) + 1 if is_known else None
            return True
        for word in words:
            own = word.text.partition("=")[0]
            if own.isidentifier():
                self._left.add(own)
                left = VariableValue([ShellWord(f"${own}", word.span)], f"${own}", known=False, written=(word,))
                self._variables.set(own, None if name == "unset" else left, word.span)
        return None if name != "unset" else True

    def _arithmetic(self, word: Written) -> bool | None:
        """Returns the truth of `(( ... ))`, None if unknown. Variables that the expression sets become unknown."""
        text = word.text
        if found := _SET_IN_ARITHMETIC.findall(text):
            for name in {name for names in found for name in names if name}:
                self._left.add(name)
                left = VariableValue([ShellWord(f"${name}", word.span)], f"${name}", known=False, written=(word,))
                self._variables.set(name, left, word.span)
            return None
        value = evaluate(text[:1000], self._number)
        return None if value is None else bool(value)

    def _number(self, name: str) -> str | None:
        value = self._value(name)
        if value is None or not (value.certain and value.known):
            return None
        self.used.append(value)
        return value.text()

    # What is put in for variables.

    def _value(self, name: str) -> VariableValue | None:
        """Returns the value of a variable or argument; None if the script does not set `name`."""
        if not name.isdecimal():
            value = self._variables.get(name)
        elif self._arguments is not None:
            index = int(name[:4])
            words = self._arguments[index - 1 : index] if index else []
            return VariableValue(words, words[0].text if words else "", certain=all(w.certain for w in words))
        else:
            name = str(int(name[:4]) + self._shifted) if self._shifted is not None else ""
            value = self._given.get(name)
        if value is not None and value is self._given.get(name):
            self.taken.add(name)
        return value

    def _expanded(self, words: Sequence[Written]) -> tuple[list[ShellWord], list[VariableValue]]:
        """Expands written words; returns the command's words and the variables they use."""
        result: list[ShellWord] = []
        used: list[VariableValue] = []
        size = 0
        for word in words:
            parts: list[ShellWord] = []  # of the word that is put together
            for piece in word.pieces:
                if not piece.expanded:
                    parts.append(ShellWord(piece.text, word.span, piece.quoted))
                    continue
                found = self._put(piece, word.span, used)
                size += sum(len(one.text) + 1 for one in found.words)
                if size > MAX_EXPANDED * 4:
                    raise UnreadableError("its variables grow beyond reason", word.span)
                if len(found.words) == 1 and found.words[0].text == found.text:
                    stands = word.span if len(word.pieces) == 1 else self._piece_span(piece, word.span)
                    parts.append(replace(found.words[0], quoted=piece.quoted, stands=stands))
                elif piece.quoted and not found.apart:
                    certain = all(w.certain for w in found.words)
                    parts.append(ShellWord(found.text, word.span, True, certain))
                elif found.words:
                    parts.append(found.words[0])
                    for one in found.words[1:]:
                        result += _together(parts, word.span)
                        parts = [one]
            result += _together(parts, word.span)
        return result, used

    def _split(self, word: Written) -> tuple[list[ShellWord], list[VariableValue]]:
        """Splits an assigned value into words with places, because scripts expand `ARGS="--a 1 --b 2"` unquoted."""
        result: list[ShellWord] = []
        used: list[VariableValue] = []
        parts: list[ShellWord] = []
        for piece in word.pieces:
            if piece.expanded:
                found = self._put(piece, word.span, used)
                alone = len(found.words) == 1
                self._grown(WORD * len(found.words), word.span)
                for index, word_found in enumerate(found.words):
                    one = replace(word_found, stands=self._piece_span(piece, word.span)) if alone else word_found
                    if index:
                        result += _together(parts, word.span)
                        parts = []
                    parts.append(one)
                continue
            end = 0
            for match in re.finditer(r"\S+", piece.text, re.ASCII):
                if match.start() > end:
                    result += _together(parts, word.span)
                    parts = []
                start, end = piece.at + match.start(), match.end()
                places = self._places[word.span.file]
                span = places.span(start, piece.at + end) if piece.at >= 0 else word.span
                parts.append(ShellWord(match[0].rstrip("\\"), span))
            if piece.text and end < len(piece.text):
                result += _together(parts, word.span)
                parts = []
        result += _together(parts, word.span)
        return [one for one in result if one.text], used

    def _piece_span(self, piece: WordPiece, place: Span) -> Span:
        return self._places[place.file].span(piece.at, piece.at + len(piece.text)) if piece.at >= 0 else place

    def _text(self, word: Written, used: list[VariableValue]) -> tuple[str, bool]:
        """Returns the expansion of `word` in quotes, and True if no part of it depends on the shell."""
        texts, known = [], True
        for piece in word.pieces:
            found = self._put(piece, word.span, used) if piece.expanded else None
            texts.append(found.text if found else piece.text)
            known = known and (found is None or found.known)
        text = "".join(texts)
        self._grown(len(text), word.span)
        if len(text) > 4 * MAX_EXPANDED:
            raise UnreadableError("a variable grows beyond reason", word.span)
        return text, known

    def _operand(self, word: Written) -> Operand:
        used: list[VariableValue] = []
        text, known = self._text(word, used)
        self.used += used
        quoted = bool(word.pieces) and all(piece.quoted for piece in word.pieces)
        if self._unset and not known:
            text, known = self._without(text)
        return Operand(text, known and all(value.certain for value in used), quoted)

    def _without(self, text: str) -> tuple[str, bool]:
        """Returns `text` without the variables in it that nothing sets, and True if nothing else is unknown."""
        names = _REFERENCE.findall(text)
        rest = _REFERENCE.sub(lambda found: "0" if found[1] == "#" else "", text)
        if "$" in rest or "`" in rest or any(name in self._left for name in names):
            return text, False
        self.assumed |= dict.fromkeys(names)
        return rest, True

    def _put(self, piece: WordPiece, place: Span, used: list[VariableValue]) -> _Put:
        text = piece.text
        left = _Put([ShellWord(text, place)], text, known=False)
        if text.startswith("$(("):
            number = evaluate(text[3:-2][:1000], self._number)
            return left if number is None else _one(str(number), place)
        found = None if text.startswith(("$(", "`", "<(", ">(")) else _PARAMETER.match(text)
        if found is None:
            return left
        counted, name, index, how = found.groups()
        rest = text[found.end() :].removesuffix("}") if text.startswith("${") else ""
        if (rest and not how) or (counted and index not in ("[@]", "[*]")):
            return left
        if name in ("@", "*"):
            words = self._all_arguments(place)
            return _Put(words, " ".join(w.text for w in words), apart=name == "@")
        value = self._given.get("#") if name == "#" else self._value(name)
        if counted:
            return left if value is None or not value.certain else _one(str(len(value.words())), place)
        empty = value is None or (":" in (how or "") and value.certain and not value.text())
        if how and (how[-1] == "+" or (how[-1] in "-=" and empty)):
            return self._default("" if how[-1] == "+" and empty else rest, place, used)
        if value is None:
            shown = f"${int(name) + (self._shifted or 0)}" if name.isdecimal() and len(name) < 5 else text
            return _Put([ShellWord(shown, place)], shown, known=False)
        return self._of_value(value, index or "", place, used, left)

    def _of_value(self, value: VariableValue, index: str, place: Span, used: list[VariableValue], left: _Put) -> _Put:
        words = value.words()
        if value.array and index not in ("[@]", "[*]"):  # one element: the first where none is named
            number = int(index[1:-1] or "0") if index[1:-1].isdecimal() and len(index) < 8 else 0 if not index else -1
            if number < 0 or not value.certain:
                used.append(value)
                return replace(left, words=words) if number == 0 else left
            self._grown(number, place)
            used.append(VariableValue((), written=value.chain()[0].written[: 2 + number], used=value.used))
            words = words[number : number + 1]
            return _Put(words, words[0].text if words else "")
        used.append(value)
        return _Put(words, value.text(), apart=value.array and index == "[@]", known=value.known)

    def _default(self, text: str, place: Span, used: list[VariableValue]) -> _Put:
        """Expands the default value in `${NAME:-DEFAULT}`."""
        self._level += 1
        if self._level > MOST_LEVELS:
            raise UnreadableError(f"nested more than {MOST_LEVELS} levels deep", place)
        inside = text.strip("\"'").replace('"', "")
        (word,) = Scan(self._places[place.file], f'"{inside}"', place=place).words
        words, _ = self._split(word)
        text, known = self._text(word, used)
        self._level -= 1
        return _Put(words, text, known=known)

    def _all_arguments(self, place: Span) -> list[ShellWord]:
        if self._arguments is not None:
            return self._arguments
        found: list[ShellWord] = []
        while (value := self._value(str(len(found) + 1))) is not None:
            found.append(ShellWord(value.text(), self._start))
        if not found and self.without_arguments is None:
            self.without_arguments = place
        return found


@dataclass(frozen=True)
class _Put:
    """An expansion: as words, and as text in quotes. With `apart`, words stay separate even in quotes (`"$@"`)."""

    words: list[ShellWord]
    text: str
    apart: bool = False
    known: bool = True


def _one(text: str, place: Span) -> _Put:
    return _Put([ShellWord(text, place)], text)


def _together(parts: Sequence[ShellWord], place: Span) -> list[ShellWord]:
    """Concatenates `parts` to one word; returns no word if all parts are empty and unquoted."""
    if len(parts) == 1 and (parts[0].stands is not None or not parts[0].quoted):
        return list(parts) if parts[0].text or parts[0].quoted else []
    text, quoted = "".join(part.text for part in parts), any(part.quoted for part in parts)
    span = parts[0].span if parts and all(part.span == parts[0].span for part in parts) else place
    return [ShellWord(text, span, quoted, all(part.certain for part in parts))] if text or quoted else []


def _parts(word: ShellWord) -> list[ShellWord]:
    """Splits an array element such as `"--split 99,1,0"` into words, because scripts expand arrays without quotes."""
    if not (word.quoted and word.text.startswith("--") and " " in word.text):
        return [word]
    span, found = word.span, []
    for match in re.finditer(r"\S+", word.text):
        if span.line == span.end_line and span.end_column - span.column == len(word.text) + 2:
            start = word.span.column + 1 + match.start()
            span = Span(word.span.file, span.line, start, span.line, start + len(match[0]))
        found.append(ShellWord(match[0], span, certain=word.certain))
        span = word.span
    return found


def _behind(word: Written, length: int) -> Written:
    first, *others = word.pieces
    shift = length if first.at >= 0 else 0
    rest = WordPiece(first.text[length:], first.at + shift, first.quoted)
    return Written((*((rest,) if rest.text else ()), *others), word.span)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _assigns(word: Written) -> bool:
    first = word.pieces[0] if word.pieces else None
    return first is not None and not (first.quoted or first.expanded) and ASSIGNMENT.match(first.text) is not None


def _only_assigns(step: PipelineStep) -> bool:
    return all(
        isinstance(node, Simple) and (all(map(_assigns, node.words)) or node.words[0].plain in (*_DECLARES, *_SETS))
        for node in step.pipeline
    )


def _name(step: PipelineStep) -> str:
    """Returns the first word of the last command of a pipeline; `[[` for a test, "" for a compound command."""
    last = step.pipeline[-1]
    return last.words[0].plain if isinstance(last, Simple) and last.words else "[[" if isinstance(last, Test) else ""


def _inner_script(words: Sequence[ShellWord]) -> tuple[int, int, str] | None:
    """Finds the script that a command passes to another shell: `bash -c TEXT`, `eval WORDS`, `--command=TEXT`. Returns
    the index of the first word of that part of the command, the index after its last word, and the script's text."""
    texts = [word.text for word in words]
    if texts[0] == "eval":
        return 0, len(texts), " ".join(texts[1:])
    for index, text in enumerate(texts):
        shell = _base(text) in _SHELLS
        if shell and (at := next((i for i in range(index + 1, len(texts)) if texts[i][:1] != "-"), None)) is not None:
            if _RUNS_TEXT.fullmatch(texts[at - 1]):
                return index, at + 1, texts[at]
            return None
        own, equals, value = text.partition("=")
        if own == "--command":
            more = [value] if equals else texts[index + 1 : index + 2]
            return (index, index + (1 if equals else 2), more[0]) if more and " " in more[0] else None
    return None
