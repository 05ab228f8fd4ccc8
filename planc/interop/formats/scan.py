"""Parses a shell script to commands, branches and loops, by the shell's lexical rules. Nothing is run.

`Scan.words` has every word of the script in order; the interpreter decides how each word is used.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

from planc.diag.span import Source, Span
from planc.interop.document import UnreadableError
from planc.interop.formats.words import (
    Case,
    Function,
    If,
    Node,
    PipelineStep,
    ShellGroup,
    ShellLoop,
    Simple,
    Steps,
    Test,
    WordPiece,
    Written,
)

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\s]{0,40}\])?(\+?)=")
_REDIRECTION = re.compile(r"(?:\d{0,3}|&)(?:<<<|<<-|<<|>>|>\||>&|<&|<>|>(?!\()|<(?!\())")
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&(?!>)|\|\||\|&|\||\(|\)|\n")
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[\d#?@*!$-])")
_PLAIN = re.compile(r"[^\s'\"\\$`;|&()<>]+", re.ASCII)
_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_NO_ARGUMENTS = re.compile(r"\(\s*\)")
_WORD = re.compile(r"[^\s;|&()<>'\"\\$`]++(?=[\s;|&()<>]|\Z)", re.ASCII)  # the shell parts words at no other blank
MOST_LEVELS = 60
"""Maximum nesting of branches, loops and groups."""
MOST_WORDS = 20_000
"""Maximum number of words of a script."""
_CLOSING = ("fi", "done", "esac", "}", "then", "else", "elif", "do")


class Places:
    """Converts offsets of a text to lines and columns."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._starts = list(accumulate((len(line) + 1 for line in source.lines), initial=0))

    def span(self, start: int, end: int) -> Span:
        """Returns the span of the text from offset `start` to offset `end`, cut off at the end of its first line."""
        line = bisect_right(self._starts, start)
        column = start - self._starts[line - 1] + 1
        last = max(min(end, self._starts[line] - 1), start) if line < len(self._starts) else end
        return Span(self.source.file, line, column, line, column + last - start)


class Scan:
    """Parses a script: its commands (`steps`), all its words (`words`) and its `#SBATCH` lines (`directives`)."""

    def __init__(self, places: Places, text: str, at: int = 0, place: Span | None = None) -> None:
        """Parses `text`, which begins at offset `at` of the source of `places`. For text that was assembled from
        several words, `place` is the place to report for every word of it."""
        self.places = places
        self._text, self._shift, self._place = text, at, place
        self._at = self._depth = 0
        self._line_end = -1
        self._documents: dict[int, int] = {}
        """End of the here-documents after each line end, by its offset."""
        self.words: list[Written] = []
        self.reserved: list[Written] = []
        """Reserved words: `if`, `done`."""
        self.directives: list[Written] = []
        steps = [*self._steps(())]
        while self._at < len(self._text):  # a closing word without an opening one: a shell stops here
            if self._word() is None:
                self._at += 1
            steps += self._steps(())
        self.steps: Steps = tuple(steps)

    # Commands.

    def _steps(self, ends: tuple[str, ...]) -> Steps:
        """Parses commands up to one of the words `ends`, which is not consumed. Without `ends`, parses to the end of
        the text."""
        found: list[PipelineStep] = []
        joined = ""
        while True:
            self._skip(lines=True)
            here, word = self._operator(), self._upcoming()
            if here in (";", "&", "|", "|&"):
                self._at += len(here)
            elif self._at >= len(self._text) or here in (")", ";;", ";&", ";;&") or word in (ends or _CLOSING):
                return tuple(found)
            else:
                before = self._at
                found.append(self._pipeline(joined))
                self._skip(lines=False)
                joined = here if (here := self._operator()) in ("&&", "||") else ""
                self._at += len(joined) or int(self._at == before)  # at least a character that belongs to no word

    def _pipeline(self, joined: str) -> PipelineStep:
        negated = self._take("!")
        nodes = [self._node()]
        while True:
            self._skip(lines=False)
            if (here := self._operator()) not in ("|", "|&"):
                return PipelineStep(joined, negated, tuple(nodes))
            self._at += len(here)
            self._skip(lines=True)
            nodes.append(self._node())

    def _node(self) -> Node:
        self._deeper()
        node = self._compound()
        if not isinstance(node, Simple):
            while self._redirection([]):
                pass
        self._depth -= 1
        return node

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MOST_LEVELS:
            raise UnreadableError(f"nested more than {MOST_LEVELS} levels deep", self._span(self._at, self._at))

    def _compound(self) -> Node:
        if self._text.startswith("((", self._at):
            return Test((self._double_bracket(),), arithmetic=True)
        if self._operator() == "(":
            self._at += 1
            body = self._steps((")",))
            self._at += len(self._operator())
            return ShellGroup(body, own=True)
        word = self._upcoming()
        if word == "if":
            return self._if()
        if word in ("for", "select"):
            return self._for()
        if word in ("while", "until"):
            self._reserved()
            condition = self._steps(("do",))
            self._take("do")
            return ShellLoop("", (), condition, self._until("done"))
        if word == "case":
            return self._case()
        if word == "{":
            self._reserved()
            return ShellGroup(self._until("}"), own=False)
        return self._test() if word == "[[" else self._simple()

    def _until(self, end: str) -> Steps:
        body = self._steps((end,))
        self._take(end)
        return body

    def _if(self) -> If:
        branches: list[tuple[Steps, Steps]] = []
        while self._take("if") or self._take("elif"):
            condition = self._steps(("then",))
            self._take("then")
            branches.append((condition, self._steps(("elif", "else", "fi"))))
        otherwise = self._steps(("fi",)) if self._take("else") else None
        self._take("fi")
        return If(tuple(branches), otherwise)

    def _for(self) -> ShellLoop:
        self._reserved()
        self._skip(lines=False)
        name, items = "", []
        if self._text.startswith("((", self._at):
            self.reserved.append(self._double_bracket())
        else:
            named = self._word()
            name = named.plain if named else ""
            self.reserved += [named] if named else []
            self._skip(lines=True)
            items = self._line()[0] if self._take("in") else []
        self._skip(lines=True)
        self._at += self._operator() == ";"
        self._skip(lines=True)
        self._take("do")
        return ShellLoop(name, tuple(items), (), self._until("done"))

    def _case(self) -> Case:
        self._reserved()
        self._skip(lines=False)
        word = self._word() or Written((), self._span(self._at, self._at))
        self._skip(lines=True)
        self._take("in")
        branches: list[tuple[tuple[Written, ...], Steps]] = []
        falls = False
        while True:
            self._skip(lines=True)
            if self._at >= len(self._text) or self._take("esac"):
                return Case(word, tuple(branches), falls)
            before = self._at
            patterns: list[Written] = []
            while (here := self._operator()) in ("", "(", "|"):
                self._at += len(here)
                self._skip(lines=False)
                if (pattern := self._word()) is None:
                    break
                patterns.append(pattern)
                self._skip(lines=False)
            self._at += int(self._operator() == ")")
            branches.append((tuple(patterns), self._steps(("esac",))))
            self._at += len(here) if (here := self._operator()) in (";;", ";&", ";;&") else 0
            falls = falls or here in (";&", ";;&")
            self._at += int(self._at == before)

    def _test(self) -> Test:
        """Parses `[[ ... ]]`, in which operators are words."""
        self._reserved()
        words: list[Written] = []
        while self._at < len(self._text):
            self._skip(lines=True)
            if (word := self._word()) is None:
                start = self._at
                self._at += max(len(self._operator()), 1)
                word = self._listed(start, (WordPiece(self._text[start : self._at], start),))
            if word.plain == "]]":
                self.reserved.append(word)
                break
            words.append(word)
        return Test(tuple(words))

    def _double_bracket(self) -> Written:
        start = self._at
        self._at = self._closing(start)
        return self._listed(start, (WordPiece(self._text[start + 2 : self._at - 2], start + 2, expanded=True),))

    def _simple(self) -> Node:
        words, documents = self._line()
        named = words[0].plain if words else ""
        brackets = _NO_ARGUMENTS.match(self._text, self._at)
        if not (named == "function" and len(words) == 2) and not (named and len(words) == 1 and brackets):
            return Simple(tuple(words), tuple(documents))
        self._at = brackets.end() if brackets else self._at
        self._skip(lines=True)
        return Function(tuple(words), (PipelineStep("", False, (self._node(),)),))

    def _line(self) -> tuple[list[Written], list[Written]]:
        words: list[Written] = []
        documents: list[Written] = []
        while True:
            self._skip(lines=False)
            if self._redirection(documents):
                continue
            if (word := self._word()) is None:
                return words, documents
            words.append(word)

    def _redirection(self, documents: list[Written]) -> bool:
        self._skip(lines=False)
        found = _REDIRECTION.match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        self._skip(lines=False)
        target = self._word()
        if found[0].endswith(("<<", "<<-")) and not found[0].endswith("<<<") and target is not None:
            documents.append(self._document(target, indented=found[0].endswith("-")))
        return True

    def _document(self, mark: Written, indented: bool) -> Written:
        """Parses the here-document that begins on the next line and ends at the line `mark`."""
        if self._line_end < self._at:
            end = self._text.find("\n", self._at)
            self._line_end = len(self._text) if end < 0 else end
        end = self._line_end
        start = at = after = min(self._documents.get(end, end + 1), len(self._text))
        while at < len(self._text):
            after = self._text.find("\n", at)
            after = len(self._text) if after < 0 else after
            line = self._text[at:after].rstrip("\r")
            if (line.lstrip("\t") if indented else line) == mark.text:
                break
            at = after + 1
        self._documents[end] = after + 1
        at = min(at, len(self._text))
        literal = any(piece.quoted for piece in mark.pieces)
        text = self._text[start:at]
        return self._listed(start, (self._piece(text, start, quoted=literal),), end=at)

    # Words.

    def _take(self, word: str) -> bool:
        self._skip(lines=False)
        if self._upcoming() != word:
            return False
        self._reserved()
        return True

    def _reserved(self) -> None:
        if (word := self._word()) is not None:
            self.reserved.append(word)

    def _upcoming(self) -> str:
        """Returns the next word if it is unquoted, else ""."""
        found = _WORD.match(self._text, self._at)
        return found[0] if found else ""

    def _operator(self) -> str:
        found = _OPERATOR.match(self._text, self._at)
        return found[0] if found else ""

    def _skip(self, *, lines: bool) -> None:
        """Skips blanks and comments; with `lines`, also line ends and here-documents. Collects `#SBATCH` comments."""
        while self._at < len(self._text):
            if found := _BLANK.match(self._text, self._at):
                self._at = found.end()
            elif self._text[self._at] == "#":
                found = _COMMENT.match(self._text, self._at)
                assert found is not None
                if found[0].startswith("#SBATCH"):
                    self.directives.append(self._made(self._at, (WordPiece(found[0], self._at),), found.end()))
                self._at = found.end()
            elif lines and self._text[self._at] == "\n":
                self._at = self._documents.get(self._at, self._at + 1)
            else:
                return

    def _word(self) -> Written | None:
        """Parses the next word; None before an operator or a line end."""
        start, pieces = self._at, []
        items: tuple[Written, ...] | None = None
        while self._at < len(self._text):
            here = self._text[self._at]
            if here == "(" and items is None and ASSIGNMENT.fullmatch(self._text, start, self._at):
                items = self._items()
                break
            if here in "'\"":
                pieces += self._quotation(here)
            elif here == "\\":
                pieces += self._escaped()
            elif here in "$`" or (here in "<>" and self._text.startswith("(", self._at + 1)):
                pieces.append(self._expanded(quoted=False))
            elif found := _PLAIN.match(self._text, self._at):
                pieces.append(self._piece(found[0], self._at))
                self._at = found.end()
            else:
                break
        return None if self._at == start else self._listed(start, tuple(pieces), items)

    def _items(self) -> tuple[Written, ...]:
        start = self._at
        self._at += 1
        self._deeper()
        items: list[Written] = []
        while True:
            self._skip(lines=True)
            if self._at >= len(self._text):
                raise UnreadableError("a bracket is never closed", self._span(start, start))
            if self._text[self._at] == ")":
                self._at += 1
                self._depth -= 1
                return tuple(items)
            if (word := self._word()) is not None:
                items.append(word)
            else:  # an operator, which has no place here
                self._at += 1

    def _quotation(self, mark: str) -> list[WordPiece]:
        start = self._at
        self._at += 1
        pieces = []
        if mark == "'":
            end = self._text.find("'", self._at)
            self._at = len(self._text) if end < 0 else end
            pieces.append(self._piece(self._text[start + 1 : self._at], start + 1, quoted=True))
        while self._at < len(self._text) and self._text[self._at] != mark:
            if self._text[self._at] == "\\":
                pieces += self._escaped(in_quotes=True)
            elif self._text[self._at] in "$`":
                pieces.append(self._expanded(quoted=True))
            else:
                found = _IN_QUOTES.match(self._text, self._at)
                assert found is not None
                pieces.append(self._piece(found[0], self._at, quoted=True))
                self._at = found.end()
        if self._at >= len(self._text):
            raise UnreadableError("a quote is never closed", self._span(start, start))
        self._at += 1
        return pieces or [self._piece("", start, quoted=True)]

    def _escaped(self, in_quotes: bool = False) -> list[WordPiece]:
        """Parses a backslash and the next character; nothing for an escaped line end."""
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 1 + len(following)
        if following == "\n":
            return []
        text = "\\" + following if in_quotes and following not in '"\\$`' else following
        return [self._piece(text, self._at - len(text), quoted=True)]

    def _expanded(self, quoted: bool) -> WordPiece:
        """Parses `$NAME`, `${...}`, `$(...)`, `<(...)` or backticks; a `$` alone is text."""
        start = self._at
        if self._text.startswith(("$(", "<(", ">(", "${"), start):
            self._at = self._closing(start + 1)
        elif self._text[start] == "`":
            end = self._text.find("`", start + 1)
            self._at = len(self._text) if end < 0 else end + 1
        elif found := _NAME.match(self._text, start):
            self._at = found.end()
        else:
            self._at += 1
            return self._piece("$", start, quoted)
        return self._piece(self._text[start : self._at], start, quoted, expanded=True)

    def _closing(self, start: int) -> int:
        """Returns the offset after the bracket that closes the bracket at `start`. Brackets in quotes do not count."""
        opening = self._text[start]
        closing = {"(": ")", "{": "}"}[opening]
        marks = _BRACKETS[opening]
        depth, at = 0, start
        while found := marks.search(self._text, at):
            at = found.end()
            depth += {opening: 1, closing: -1}.get(found[0], 0)
            if depth == 0:
                return at
        return len(self._text)

    # Places.

    def _piece(self, text: str, start: int, quoted: bool = False, expanded: bool = False) -> WordPiece:
        return WordPiece(text, -1 if self._place else start + self._shift, quoted, expanded)

    def _listed(
        self, start: int, pieces: tuple[WordPiece, ...], items: tuple[Written, ...] | None = None, end: int = 0
    ) -> Written:
        word = self._made(start, pieces, end or self._at, items)
        self.words.append(word)
        if len(self.words) > MOST_WORDS:
            raise UnreadableError(f"more than {MOST_WORDS:,} words", word.span)
        return word

    def _made(
        self, start: int, pieces: tuple[WordPiece, ...], end: int, items: tuple[Written, ...] | None = None
    ) -> Written:
        return Written(pieces, self._span(start, end), items)

    def _span(self, start: int, end: int) -> Span:
        return self._place or self.places.span(start + self._shift, end + self._shift)


_BRACKETS = {
    "(": re.compile(r"[()]|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.", re.DOTALL),
    "{": re.compile(r"[{}]|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.", re.DOTALL),
}
