"""The rules: each code has a manual page and, if a function looks for the mistake, a module of its own."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from planc.diag.diagnostic import Diagnostic, Severity
from planc.diag.fast_dataclass import dataclass

Reads = Literal["text", "plan", "cost", "target", "preset", "module", "foreign", "graph", "serve"]
FOUND: dict[Reads, str] = {
    "text": "while the file is read",
    "plan": "on the plan, before anything is costed",
    "cost": "on the costed plan",
    "target": "while lowering for a target",
    "preset": "in presets, training and receipts",
    "module": "in a torch module (`planc audit --portability`, `parallelize`) or a JAX tree (`shardings`)",
    "foreign": "in other systems' files, by `planc import` and `planc export`",
    "serve": "in serve plans, by `planc check` and `planc sync`",
    "graph": "in a hardware file's graph of links, and in `--with`",
}
"""When a rule finds its mistake, in the words of its page."""

_PAGE = re.compile(
    r"# (?P<code>[EWN]\d{4}): (?P<title>.+)\n\n(?P<why>.+?)\n\nFound (?P<found>[^\n]+)\.\n(?P<examples>.*)", re.DOTALL
)
_PLAN = re.compile(r"^```plan[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """The manual page of a code. Its source is docs/reference/diagnostics/CODE.md."""

    title: str
    reads: Reads
    why: str
    bad: str
    """A whole file whose only finding is this code; empty where no plan shows the mistake."""
    good: str
    """The same file mended."""


@cache
def page(code: str) -> Page:
    """Return the manual page of `code`. Raises FileNotFoundError if there is none."""
    match = _PAGE.fullmatch(files("planc.diag").joinpath("pages", f"{code}.md").read_text())
    assert match and match["code"] == code, f"the page of {code} has another form than the others"
    reads = next(reads for reads, found in FOUND.items() if found == match["found"])
    bad, good = _PLAN.findall(match["examples"]) or ("", "")
    return Page(match["title"], reads, match["why"], bad, good)


@dataclass(frozen=True)
class Rule:
    """A diagnostic code, and the function that looks for the mistake.

    Its argument is a Plan for rules whose page reads `plan`, a CostedPlan for those that read `cost`. `check` is None
    if other code raises the diagnostic where it meets the mistake.
    """

    code: str
    check: Callable[[Any], Iterable[Diagnostic]] | None = None
    about: tuple[str, ...] = ()
    """Verbs of the sentences that the rule reads; all of them when empty. A rule of a plan is not run while one of
    its sentences cannot be read: its finding might be a consequence of that."""
    of_batch: bool = False
    """True if the finding depends on the batch, the microbatches or the schedule, which a search varies on one mesh; a
    warning of this kind leaves a layout out of the search too."""

    @property
    def severity(self) -> Severity:
        """The severity, by the first letter of the code: E is an error, W a warning, N a note."""
        kinds: dict[str, Severity] = {"E": "error", "W": "warning", "N": "note"}
        return kinds[self.code[0]]

    @property
    def page(self) -> Page:
        """The manual page of the rule's code, read on demand."""
        return page(self.code)

    @property
    def manual(self) -> str:
        """The manual page as Markdown: the documentation's page without planc's output."""
        page = self.page
        parts = [f"# {self.code}: {page.title}", page.why]
        if page.bad:
            parts.append(f"## A plan with this mistake\n\n```plan bad={self.code}\n{page.bad}```")
        if page.good:
            parts.append(f"## The same plan, mended\n\n```plan\n{page.good}```")
        return "\n\n".join(parts)


def codes() -> list[str]:
    """Return every code that has a manual page, in numeric order."""
    names = (item.name.removesuffix(".md") for item in files("planc.diag").joinpath("pages").iterdir())
    return sorted((n for n in names if re.fullmatch(r"[EWN]\d{4}", n)), key=lambda code: (code[1:], code[0]))


def scan(package: str) -> dict[str, Rule]:
    """Return the `RULE` of every module in `package`, by code, in numeric order."""
    root = importlib.import_module(package)
    rules: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(root.__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        rule = getattr(module, "RULE", None)
        if isinstance(rule, Rule):
            assert rule.code not in rules, f"{rule.code} is used twice"
            rules[rule.code] = rule
    return dict(sorted(rules.items(), key=lambda item: (item[0][1:], item[0])))
