"""Untrusted text inside other languages: one function for each context in which such text may stand.

Names, sentences and file names come from plans, presets and configs that anybody may have written. Each function
returns its argument as data of the language: it cannot end a string, comment, line or tag.
"""

from __future__ import annotations

import json
import re


def printable(text: str) -> str:
    r"""Return `text` on one line for a terminal or a log, with escapes for unprintable characters (`\n`, `\x1b`)."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def python_string(text: str) -> str:
    """Return `text` as a Python string literal, in double quotes if it needs no escapes."""
    plain = text.isprintable() and not set('"\\') & set(text)
    return f'"{text}"' if plain else repr(text)


def python_comment(text: str) -> str:
    """Return `text` on one line, safe after a `#` in Python, in a shell script or in YAML."""
    return printable(text)


def python_docstring(text: str) -> str:
    """Return `text` safe inside a docstring between three double quotes."""
    return printable(text.replace("\\", "\\\\")).replace('"', '\\"')


def shell_word(text: str) -> str:
    """Return `text` as one word of a POSIX shell, such as an argument of a command that a message shows."""
    from shlex import quote

    return quote(text)


def yaml_string(text: str) -> str:
    """Return `text` as a YAML scalar in double quotes, which is never read as a number, null or boolean. Bytes of a
    file name that are not text are replaced, since YAML has no such bytes."""
    quoted = json.dumps(re.sub("[\ud800-\udfff]", "\ufffd", text), ensure_ascii=False)
    return "".join(c if c.isprintable() else _escape(c) for c in quoted)


def dot_string(text: str) -> str:
    """Return `text` as a quoted ID of Graphviz's DOT, on one line. Its labels read `\\\\` as one backslash."""
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def xml_text(text: str) -> str:
    """Return `text` as element text or as an attribute's value in XML, such as SVG."""
    names = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"}
    return "".join(names.get(c, c) for c in printable(text))


def markdown_cell(text: str) -> str:
    """Return `text` for a cell of a Markdown table. None of its characters act as markup."""
    escaped = re.sub(r"([\\`*_{}\[\]()<>#+!|~&$:@])", r"\\\1", printable(text))
    return re.sub(r"(?i)(www)\.", r"\1\\.", escaped)  # GitHub makes a link of such a word


def markdown_code(text: str) -> str:
    """Return `text` as inline code of Markdown, for a line or a table cell, without markup or GitHub mentions."""
    shown = printable(text)
    if not shown.strip() or "|" in shown:  # a bar ends a cell even there
        return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in shown)}</code>"
    marks = "`" * (_longest_run(shown) + 1)
    room = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{marks}{room}{shown}{room}{marks}"


def markdown_block(text: str, language: str = "text") -> str:
    """Return `text` as a code block of Markdown, highlighted as `language`, which is never from a user."""
    lines = [printable(line) for line in text.split("\n")]
    fence = "`" * max(3, _longest_run("\n".join(lines)) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def _longest_run(text: str) -> int:
    """Return the length of the longest run of backticks in `text`."""
    return max(map(len, re.findall("`+", text)), default=0)


def uri_path(path: str) -> str:
    """Return the file name `path` as a relative or absolute URI reference, as SARIF requires it."""
    from urllib.parse import quote

    quoted = quote(path, safe="/", errors="surrogateescape")
    return f"/.{quoted}" if quoted.startswith("//") else quoted  # two slashes would begin the name of a host


def sarif_text(text: str) -> str:
    """Return `text` as a plain-text message of SARIF 2.1.0: printable lines without embedded links (3.11.6)."""
    lines = map(printable, text.split("\n"))
    return re.sub(r"\[(?=[^\[\]]*\]\()", r"\\[", "\n".join(lines))


def workflow_message(text: str) -> str:
    """Return `text` as the message of one of GitHub's workflow commands."""
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def workflow_property(text: str) -> str:
    """Return `text` as the value of a property of one of GitHub's workflow commands, such as `file=`."""
    return workflow_message(text).replace(":", "%3A").replace(",", "%2C")


def log_line(text: str) -> str:
    """Return `text` as a line of a log that GitHub's runner reads. It contains none of the runner's commands
    (actions/runner, `ActionCommand.TryParseV2` and `TryParse`: `::` at the start of a line, `##[` anywhere)."""
    text = text.replace("##[", "# [")
    inner = text.lstrip()
    return f"{text[: len(text) - len(inner)]}: :{inner[2:]}" if inner.startswith("::") and "::" in inner[2:] else text


def _escape(character: str) -> str:
    r"""Return an escape of `character` that Python and YAML read in the same way."""
    number = ord(character)
    named = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
    if character in named:
        return named[character]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
