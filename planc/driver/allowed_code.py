"""Runs the module that a plan names in a process of its own (`planc.allowed`); what comes back is data."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from planc.allowed import ANSWER, Allowance, run_allowed
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import printable
from planc.diag.span import Span
from planc.driver.examining import examine
from planc.files import parse_json
from planc.ir.audit import Audit, AuditOptions
from planc.ir.field_types import Line
from planc.ir.installed import framework_needed
from planc.ir.plain_values import read_noun
from planc.ir.saved_model import SavedModel
from planc.lowering import load_backend

START = "import sys; sys.path[:] = sys.argv[1:]; from planc.driver.allowed_code import answer; answer()"
NOWHERE = Span("", 1, 1, 1, 1)
AUDIT = Allowance(time_s=3600.0, processes=64 + 4 * (os.cpu_count() or 1), memory_bytes=64 * 2**30)
"""An audit traces every stage of a pipeline in a process of its own."""
LAST_CHARACTERS = 300
"""Characters of what the code printed that a message quotes."""
T = TypeVar("T")


@dataclass(frozen=True)
class ForeignError:
    """A diagnostic from the other process, without its place."""

    code: Line
    message: Line
    help: Line = ""


def traced_model(of: dict[str, Any] | str, name: str, span: Span) -> SavedModel:
    """Return the op graph of the module that `of` builds (a config's fields, or `package.module:function`).

    Raises PlanError at `span`: what the trace finds (E1207 to E1210, E1009), or E1211.
    """
    request = {"what": "model", "of": of, "name": name}
    return _answer_to(request, lambda found: SavedModel.parse(found), span)


def audited_module(file: Path, given: dict[str, int], options: AuditOptions, span: Span) -> Audit:
    """Return the audit of the module in `options.source`, divided by the plan in `file`. Raises PlanError."""
    request: dict[str, Any] = {"what": "audit", "of": options.source, "file": str(file.absolute()), "set": given}
    request |= {"world_scale": options.world_scale}
    return _answer_to(request, lambda found: read_noun(Audit, found), span, AUDIT)


def _answer_to(request: dict[str, Any], read: Callable[[Any], T], span: Span, limits: Allowance | None = None) -> T:
    path = [os.path.abspath(folder) for folder in sys.path]
    ended = run_allowed(
        [sys.executable, "-I", "-c", START, *path], given=json.dumps(request).encode(), cwd=Path.cwd(), limits=limits
    )
    if ended.open_walls:
        print(f"planc: the code ran, but this system does not close off {', '.join(ended.open_walls)}", file=sys.stderr)
    try:
        answer = parse_json(ended.answer) if ended.answer and not ended.why else {}
        if "refused" in answer:
            refused = read_noun(tuple[ForeignError, ...], answer["refused"])
            if not refused or not all(re.fullmatch(r"E\d{4}", r.code, re.ASCII) for r in refused):
                raise ValueError("a code is none")
            raise PlanError([Diagnostic(r.code, r.message, span, help=r.help) for r in refused])
        return read(answer["found"])
    except (ValueError, KeyError, TypeError) as error:
        why = ended.why or (str(error) if ended.answer else f"it ended with status {ended.status} and no answer")
        printed = printable(ended.output.strip()[-LAST_CHARACTERS:])
        message = f"the model's code gave no answer: {printable(why)}"
        raise PlanError(
            [Diagnostic("E1211", message, span, help=f"it printed: {printed}" if printed else "")]
        ) from None


def answer() -> None:
    """Answer the question on standard input, in the process where the module's code runs."""
    request, path = json.load(sys.stdin), Path(os.environ[ANSWER])
    answer: dict[str, Any]
    try:
        answer = {"found": _model(request) if request["what"] == "model" else _audit(request)}
    except PlanError as error:
        answer = {"refused": [{"code": d.code, "message": d.message, "help": d.help} for d in error.diagnostics]}
    path.write_text(json.dumps(answer))


def _model(request: dict[str, Any]) -> str:
    with framework_needed("cuda", NOWHERE):
        return load_backend("cuda").model_of(request["of"], None, request["name"]).text()


def _audit(request: dict[str, Any]) -> dict[str, Any]:
    plan = examine(request["file"], set=request["set"], target="cuda").plan
    assert plan is not None, "it was read before this process was started"
    with framework_needed("cuda", NOWHERE):
        return asdict(load_backend("cuda").audit(plan, AuditOptions(request["world_scale"], source=request["of"])))
