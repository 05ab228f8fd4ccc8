"""Hostile strings in every language that planc writes, read by that language's own parser.

`tests/fuzz/run.py --strings` runs 100,000 in each. A string escapes when the parser finds anything but the string at
its place: another text, one more node, key, word, cell, command, or a screen that is not as harmless text leaves it.
"""

from __future__ import annotations

import ast
import io
import json
import random
import re
import subprocess
import tokenize
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from planc.diag import Diagnostic, Span, quoting
from planc.diag.quoting import printable
from planc.diag.sarif import github, sarif
from planc.diag.text import render
from tests.fuzz.strings_in_files import PLACES

GOAL = 100_000
"""Strings in each language."""
Check = Callable[[list[str]], list[str]]
"""The strings that escape, of some."""

PIECES = (
    *("a", " ", "  ", '"', "'", '"""', "'''", "`", "```", "\\", "\\\\", "\n", "\r", "\r\n", "\t", "\x00",
      "\x0b", "\x0c", "\x1a"),
    *("\x1b[2J", "\x1b]0;x\x07", "\x1b[1;1H", "\x1b(0", "\x1bc", "\x1b[?1049h", "\x9b31m", "\x07", "\x08",
      "\x0e", "\x7f", "\x85"),
    *("\u2028", "\u2029", "\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\ufffe", "\xad", "\xa0",
      "\u3000", "\u0301"),
    *("#", "#{", "{", "}", "{{", "%", "%s", "%0A", "%0D%0A", "%3A", "::", "::error::", "::error file=a::x",
      "::stop-commands::t"),
    *("##[error]", "##[group]", " ::warning file=x,line=1::", "]]>", "<![CDATA[", "<script>", "</svg>",
      "<!--", "-->", "--", "&"),
    *("&amp;", "&#x0;", "&lt;", "<a href='x'>", "${x}", "$(id)", "$x", "`id`", ";", "&&", "||", "|", ">",
      "<", "*", "?", "[", "]"),
    *("(", ")", "~", "!", "!!", "!x", "^", "=", ",", ":", ": ", "- ", "? ", "---", "...", "%YAML", "&a",
      "*a", "!!python/name:os"),
    *("null", "true", "on", "1e3", "0x1", "0o7", "1_000", "2026-11-23", "~", "=", "<<", "x: y", "@",
      "www.x.org", "http://x", "a@b.c"),
    *("[x](http://e)", "![x](y)", "[x]: y", "<http://x>", "*x*", "_x_", "~~x~~", "**", "1. ", "> ", "# ",
      "    x", "-n", "--", "../"),
    *("\U0001f600", "\U0001f468\u200d\U0001f469", "é", "\u05d0", "\u0627", "字", "Ａ", "\udcff", "\udc80",
      "\ue000", "\U0010ffff", "\u0378"),
)  # fmt: skip
COMMANDS = {
    *("add-mask", "add-matcher", "add-path", "debug", "echo", "endgroup", "error", "group", "notice", "remove-matcher"),
    *("save-state", "set-env", "set-output", "stop-commands", "warning", "internal-set-repo-path"),
}
"""Commands that GitHub's runner registers (actions/runner, `ActionCommandManager`)."""


def hostile(seed: int, index: int) -> str:
    """The index-th string of a seed: pieces that mean something somewhere, any characters, or both."""
    rng = random.Random(f"strings {seed}:{index}")
    share = rng.random()
    out = []
    for _ in range(rng.randrange(1, 14)):
        out.append(rng.choice(PIECES) if share < 0.75 or rng.random() < 0.5 else _character(rng))
    return "".join(out)


def _character(rng: random.Random) -> str:
    """A character of any kind that a text, or a file's name, can have."""
    number = rng.choice((rng.randrange(0x80), rng.randrange(0x300), rng.randrange(0x10000), rng.randrange(0x110000)))
    return chr(number) if not 0xD800 <= number < 0xDC80 and not 0xDD00 <= number < 0xE000 else "x"


# Python, by its own parser.


def python_string(texts: list[str]) -> list[str]:
    source = "x = [\n" + "".join(f"    f({quoting.python_string(t)}, 1),\n" for t in texts) + "]\n"
    (assign,) = ast.parse(source).body
    assert isinstance(assign, ast.Assign) and isinstance(assign.value, ast.List)
    found = [ast.dump(call) for call in assign.value.elts]
    return _unlike(texts, found, [ast.dump(_call(text)) for text in texts])


def _call(text: str) -> ast.expr:
    return ast.Call(ast.Name("f", ast.Load()), [ast.Constant(text), ast.Constant(1)], [])


def python_comment(texts: list[str]) -> list[str]:
    source = "".join(f"x = 1  # {quoting.python_comment(t)}\n" for t in texts)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [t.string for t in tokens if t.type == tokenize.COMMENT]
    statements = [ast.dump(s) for s in ast.parse(source).body]
    wrong = _unlike(texts, statements, [ast.dump(ast.parse("x = 1").body[0])] * len(texts))
    return wrong or _unlike(texts, found, [f"# {printable(t)}" for t in texts])


def python_docstring(texts: list[str]) -> list[str]:
    source = "".join(f'def f():\n    """{quoting.python_docstring(t)}"""\n' for t in texts)
    found = [ast.get_docstring(f, clean=False) for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)]
    return _unlike(texts, found, texts)


# YAML, shell.


def yaml_string(texts: list[str]) -> list[str]:
    import yaml

    quoted = [quoting.yaml_string(t) for t in texts]
    block = "".join(f"k{n}: {q}\nl{n}:\n  - {q}\n" for n, q in enumerate(quoted))
    flow = f"f: [{', '.join(quoted)}]\nend: 1  # {quoting.python_comment(texts[0])}\n"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = yaml.load(block + flow, Loader=loader)
    assert len(found) == 2 * len(texts) + 2 and found["end"] == 1
    values = [(found[f"k{n}"], found[f"l{n}"], found["f"][n]) for n in range(len(texts))]
    return _unlike(texts, values, [(t, [t], t) for t in map(_without_surrogates, texts)])


def _without_surrogates(text: str) -> str:
    """YAML has none; a file's name that is no UTF-8 has some."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def shell_word(texts: list[str]) -> list[str]:
    """By shlex, and by the machine's sh and bash: which words do they see?"""
    import shlex

    texts = [t.replace("\0", "") for t in texts]
    words = [quoting.shell_word(t) for t in texts]
    wrong = _unlike(
        texts, [shlex.split(f"planc embed {w} x.toml") for w in words], [["planc", "embed", t, "x.toml"] for t in texts]
    )
    script = f"printf '%s\\0' {' '.join(words)}".encode("utf-8", "surrogateescape")
    for shell in ("sh", "bash"):
        done = subprocess.run([shell], input=script, capture_output=True, check=True)
        wrong += _unlike(texts, done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1], texts)
    subprocess.run(["bash", "-n"], input=script, check=True)
    return wrong


# XML and HTML.


def xml_text(texts: list[str]) -> list[str]:
    root = ElementTree.fromstring("<r>" + "".join(map(_element, texts)) + "</r>")
    found = [(e.tag, e.attrib, e.text or "", list(e)) for e in root]
    return _unlike(texts, found, [("c", {"b": printable(t)}, printable(t), []) for t in texts])


def _element(text: str) -> str:
    return f'<c b="{quoting.xml_text(text)}">{quoting.xml_text(text)}</c>'


class Page(HTMLParser):
    """Every tag with its attributes and the text after it, as a browser's tokenizer finds them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, list[tuple[str, str | None]], str]] = []
        self.others = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs, ""))

    def handle_data(self, data: str) -> None:
        tag, attrs, before = self.found[-1]
        self.found[-1] = (tag, attrs, before + data)

    def handle_comment(self, data: str) -> None:
        self.others += 1

    def unknown_decl(self, data: str) -> None:
        self.others += 1

    def handle_decl(self, decl: str) -> None:
        self.others += 1

    def handle_pi(self, data: str) -> None:
        self.others += 1


def html_text(texts: list[str]) -> list[str]:
    page = Page("".join(map(_element, texts)))
    assert page.others == 0, "a comment or a declaration"
    return _unlike(texts, page.found, [("c", [("b", printable(t))], printable(t)) for t in texts])


# Markdown, by CommonMark with GitHub's tables and strikethrough.


@cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def markdown_cell(texts: list[str]) -> list[str]:
    rows = "".join(f"| {quoting.markdown_cell(t)} | x |\n" for t in texts)
    tokens = _markdown().parse("| a | b |\n|---|---|\n" + rows)
    cells = [tokens[n + 1] for n, token in enumerate(tokens) if token.type == "td_open"]
    found = [_plain(c) for c in cells[::2]]
    wrong = _unlike(texts, found, [" ".join(printable(t).split(" ")).strip() for t in texts])
    wrong += _code_of_markdown(texts)
    links = [t for t in texts if re.search(r"(?i)(?<!\w)www\.|\w:/|\w@", quoting.markdown_cell(t))]
    return wrong + links + (texts if {c.content for c in cells[1::2]} != {"x"} else [])


def _code_of_markdown(texts: list[str]) -> list[str]:
    """Texts that are more or less than one piece of code in a cell, in a line, or as a block."""
    wrong = []
    for text in texts:
        code, block = quoting.markdown_code(text), quoting.markdown_block(text)
        parsed = _markdown().parse(f"| a | b |\n|---|---|\n| {code} | x |\n\nx {code} y\n\n{block}\n\nend\n")
        cell, _, line, end = [token for token in parsed if token.type == "inline"][2:]
        (fence,) = [token for token in parsed if token.type == "fence"]
        lines = "".join(f"{printable(one)}\n" for one in text.split("\n"))
        seen = (_coded(cell), _coded(line), fence.content, end.content)
        wrong += [] if seen == (printable(text), f"x {printable(text)} y", lines, "end") else [text]
    return wrong


def _coded(inline: Any) -> str:
    """The text of a line, its code included; tags of code alone are left out."""
    kinds = ("text", "text_special", "code_inline")
    return "".join(t.content if t.type in kinds else re.sub("^</?code>$", "", t.content) for t in inline.children or [])


def _plain(cell: Any) -> str | None:
    """The text of a cell; None when there is anything else in it."""
    inner = cell.children or []
    return "".join(t.content for t in inner) if all(t.type in ("text", "text_special") for t in inner) else None


# SARIF, which is JSON, and the URIs in it.


def sarif_log(texts: list[str]) -> list[str]:
    found = [Diagnostic("E0101", f"it is {t}", Span(t or "a", 3, 1, 3, 2), help=t) for t in texts]
    log = json.loads(json.dumps(sarif(found, {}, "1"), allow_nan=False), parse_constant=_none)
    results = log["runs"][0]["results"]
    assert len(results) == len(texts)
    return [t for t, result in zip(texts, results, strict=True) if not _is_sarif(result, t)]


def _is_sarif(result: dict[str, Any], text: str) -> bool:
    """Printable lines without a link of the text's own, and a URI that leads nowhere but to the file."""
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    parts, said = urlsplit(uri), result["message"]["text"]
    return (
        unquote(uri, errors="surrogateescape").removeprefix("/.") in (text or "a", (text or "a").removeprefix("/."))
        and uri.isascii() and uri.isprintable() and not {'"', "<", ">", "\\", " ", "#", "?"} & set(uri)
        and (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
        and all(c.isprintable() or c == "\n" for c in said)
        and re.search(r"(?<!\\)\[[^\[\]]*\]\(", said) is None
    )  # fmt: skip


def _none(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# Workflow commands, by the rule of GitHub's runner.

Command = tuple[str, dict[str, str], str]


def commands(text: str) -> Iterator[Command]:
    """The commands that GitHub's runner finds in what a step prints (actions/runner, `ActionCommand.TryParseV2`, then
    `TryParse`): `::name key=value::data` at the start of a line, `##[name key=value]data` anywhere in one."""
    for line in re.split(r"\r\n|\r|\n", text):
        found = _second(line.lstrip()) or _first(line)
        if found is not None:
            yield found


def _second(line: str) -> Command | None:
    if not line.startswith("::") or "::" not in line[2:]:
        return None
    info, _, data = line[2:].partition("::")
    name, _, given = info.partition(" ")
    pairs = [p.split("=", 1) for p in given.strip().split(",") if p]
    properties = {p[0]: _unescaped(p[1], {"%3A": ":", "%2C": ","}) for p in pairs if len(p) == 2 and p[1]}
    return (name, properties, _unescaped(data, {})) if name in COMMANDS else None


def _first(line: str) -> Command | None:
    start = line.find("##[")
    end = line.find("]", start)
    if start < 0 or end < 0:
        return None
    name, _, _ = line[start + 3 : end].partition(" ")
    return (name, {}, line[end + 1 :]) if name in COMMANDS else None


def _unescaped(text: str, more: dict[str, str]) -> str:
    for escape, meant in {"%0D": "\r", "%0A": "\n", **more, "%25": "%"}.items():
        text = text.replace(escape, meant)
    return text


def workflow_command(texts: list[str]) -> list[str]:
    found = list(commands(github(Diagnostic("E0101", t, Span(t or "a", 3, 1, 3, 2)) for t in texts)))
    wanted = [("error", {"file": _kept(t or "a"), "line": "3", "col": "1", "title": "E0101"}, _kept(t)) for t in texts]
    return _unlike(texts, found, wanted)


def _kept(text: str) -> str:
    """The text with its line breaks, and all else printable."""
    return "".join(c if c in "\r\n" else printable(c) for c in text)


def message_in_a_log(texts: list[str]) -> list[str]:
    """Findings as text hold no command of the runner, in whatever width they are wrapped."""
    return [t for t in texts if list(commands(_shown(t, 40 + len(t) % 60)))]


def _shown(text: str, width: int) -> str:
    return render(
        [Diagnostic("E0101", f"it is {text} there", Span(text or "a", 1, 1, 1, 2), help=text)], {}, width=width
    )


# The terminal, by an emulator.

COLUMNS, ROWS = 120, 60


def terminal(texts: list[str]) -> list[str]:
    """Printed text leaves the screen as harmless text of the same width does, but for the characters."""
    wrong = []
    for start in range(0, len(texts), 8):
        some = texts[start : start + 8]
        if not _is_harmless([printable(t) for t in some]):
            wrong += [t for t in some if not _is_harmless([printable(t)])] or some
    return wrong


def _is_harmless(lines: list[str]) -> bool:
    return _state(lines) == _state(["".join(map(_like, line)) for line in lines])


def _like(character: str) -> str:
    """A plain character as wide as this one: an accent, or a mark that stands alone, for one without width."""
    from wcwidth import wcwidth

    without = "\u0301" if unicodedata.combining(character) else "\u1160"
    return {0: without, 2: "\uff21"}.get(wcwidth(character), "a")


def _state(lines: list[str]) -> tuple[Any, ...]:
    """The state of a screen but for the characters on it."""
    import pyte

    screen = pyte.Screen(COLUMNS, ROWS)
    pyte.Stream(screen).feed("\r\n".join([*lines, "end"]))
    styles = {cell._replace(data="") for row in screen.buffer.values() for cell in row.values()}
    return (
        (screen.cursor.x, screen.cursor.y, screen.cursor.hidden, screen.cursor.attrs), screen.mode, screen.title,
        screen.icon_name, screen.charset, screen.g0_charset, screen.g1_charset, screen.margins, screen.savepoints,
        screen.tabstops, screen.columns, screen.lines, styles,
        [sorted(row) for _, row in sorted(screen.buffer.items())],
    )  # fmt: skip


def finding_on_a_terminal(texts: list[str]) -> list[str]:
    """A whole finding: nothing but printable characters and line ends."""
    return [
        t for t in texts if any(not c.isprintable() and c != "\n" for c in _shown(t, 100)) or _reorders(_shown(t, 100))
    ]


def _reorders(text: str) -> bool:
    """True for characters that only change the direction of others."""
    return any(
        unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI") for c in text
    )


LANGUAGES: dict[str, Check] = {
    "python-strings": python_string, "python-comments": python_comment, "python-docstrings": python_docstring,
    "yaml": yaml_string, "shell": shell_word, "xml": xml_text, "html": html_text, "markdown": markdown_cell,
    "sarif": sarif_log, "workflow-commands": workflow_command, "log-of-a-workflow": message_in_a_log,
    "terminal": terminal, "findings": finding_on_a_terminal, **PLACES,
}  # fmt: skip


def _unlike(texts: list[str], found: list[Any], wanted: list[Any]) -> list[str]:
    """The texts whose value is not the wanted one; all of them when there are more or fewer values."""
    if len(found) != len(wanted):
        return texts
    return [text for text, a, b in zip(texts, found, wanted, strict=True) if a != b]


def escaping(language: str, texts: list[str]) -> list[str]:
    """The strings that escape: together, and when the parser fails on all, one by one."""
    check = LANGUAGES[language]
    try:
        wrong = check(texts)
    except Exception:
        if len(texts) == 1:
            return texts
        half = len(texts) // 2
        return escaping(language, texts[:half]) + escaping(language, texts[half:])
    if wrong == texts and len(texts) > 1:
        return [t for t in texts if escaping(language, [t])]
    return wrong
