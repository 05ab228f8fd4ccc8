"""The rules: one file each, found by scanning a folder; a code is never used twice."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, Literal

from planc.diag.diagnostic import Diagnostic, Severity
from planc.diag.fast_dataclass import dataclass

Reads = Literal["text", "plan", "cost", "target", "preset", "module", "foreign", "graph"]


@dataclass(frozen=True)
class Rule:
    """A rule and its manual page.

    `reads` says what the rule looks at: `text` (raised while a file is read and built), `plan` (runs on
    the checked plan), `cost` (runs on the costed plan), `target` (raised while lowering), `preset`
    (raised by the trainer), `module` (raised by the audit of a torch module), `foreign` (raised while another
    system's file is read or written) or `graph` (raised while a hardware file's graph is read).
    `check` is None for the rules that are raised where the mistake is met.
    `bad` is a whole file whose only finding is this code; `good` is the same file mended.
    """

    code: str
    title: str
    reads: Reads
    why: str
    bad: str
    good: str
    check: Callable[[Any], Iterable[Diagnostic]] | None = None
    about: tuple[str, ...] = ()
    """Verbs of the sentences that the rule reads; all of them when empty. A rule of a plan is not run while one of
    its sentences cannot be read: its finding might be a consequence of that."""

    @property
    def severity(self) -> Severity:
        kinds: dict[str, Severity] = {"E": "error", "W": "warning", "N": "note"}
        return kinds[self.code[0]]


def scan(package: str) -> dict[str, Rule]:
    """Every `RULE` of the modules in `package`, by code, in order of code."""
    root = importlib.import_module(package)
    rules: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(root.__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        rule = getattr(module, "RULE", None)
        if isinstance(rule, Rule):
            assert rule.code not in rules, f"{rule.code} is used twice"
            rules[rule.code] = rule
    return dict(sorted(rules.items(), key=lambda item: (item[0][1:], item[0])))
