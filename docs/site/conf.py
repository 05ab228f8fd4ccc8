"""Sphinx's settings for the site: Markdown as it stands in docs/, API pages from docstrings, no request to anywhere."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text
from sphinx.application import Sphinx

from planc.cli.commit import commit
from planc.syntax.lines import OLD_VERBS, VERBS
from planc.version import __version__

project = "planc"
author = "the planc developers"
version = release = __version__
html_title = f"planc {__version__}" + (f" ({found[:12]})" if (found := commit()) else "")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_copy_source = False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.strikethrough"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
add_module_names = False
default_role = "code"
"""Docstrings say code as Markdown does, between single backticks."""


class PlanLexer(RegexLexer):
    """Colours of a plan: verbs, names, numbers with units, comments."""

    name = "plan"
    aliases: ClassVar[list[str]] = ["plan"]
    verbs = "|".join(re.escape(v) for v in sorted((*VERBS, *OLD_VERBS), key=len, reverse=True))
    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r"#.*", Comment),
            (r'"[^"\n]*"', String),
            (rf"^\s*(?:{verbs})\b", Keyword),
            (r"\b(?:and|as|at|every|except|for|from|hour|in|no|of|over|per|reduce|stages|to|tokens|x)\b", Keyword.Type),
            (r"\b\d[\w.]*", Number),
            (r"<=|>=|[<>=+\-*/?]", Operator),
            (r"[A-Za-z_][\w.]*", Name),
            (r"\s+|.", Text),
        ]
    }


def setup(app: Sphinx) -> None:
    app.add_lexer("plan", PlanLexer)
