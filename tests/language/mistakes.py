"""Sixty mistakes of the first hour (`mistakes.toml`), and the points of planc's answer to each.

An answer has a point for each of: a finding at the line of the mistake (`where`), its text names what is wrong
(`word`), it says what helps (`helps`), and its edit leaves a plan without an error (`mends`).
"""

from __future__ import annotations

import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, has_errors
from planc.diag.edits import apply_edits
from planc.driver import examine
from planc.driver.request import checked_or_found
from planc.language.build import build_file

ROOM = Path(__file__).parent
RIGHT = """plan p
model     llama3_8b
batch     128 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      fsdp 2 > tp 8
use fsdp  over fsdp
use tp    over tp
use sp    over tp
compute   bf16 reduce fp32
recompute blocks
"""
CONFIG = '{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, '
CONFIG += '"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0}'
POINTS = ("where", "word", "helps", "mends")


@dataclass(frozen=True)
class Mistake:
    """One mistake: `wrong` takes the place of the sentence that begins with `at`; `word` and `helps` are what the
    answer has to name and to say."""

    group: str
    wrong: str
    word: str
    helps: str
    at: str = ""

    def written(self) -> tuple[str, int]:
        """Return the plan with the mistake, and its line; a missing sentence has none (any line will do)."""
        lines = RIGHT.splitlines()
        at = self.at.split()
        number = next((i for i, line in enumerate(lines) if at and line.split()[: len(at)] == at), len(lines))
        lines[number : number + 1] = [self.wrong] if self.wrong else []
        return "\n".join(lines) + "\n", number + 1


@dataclass(frozen=True)
class Rated:
    """The answer to a mistake: the finding with the most points, and the points that it has."""

    mistake: Mistake
    finding: Diagnostic | None
    points: tuple[str, ...]


def mistakes() -> list[Mistake]:
    return [Mistake(**m) for m in tomllib.loads((ROOM / "mistakes.toml").read_text())["mistake"]]


def all_rated() -> list[Rated]:
    """Return planc's answer to every mistake."""
    with tempfile.TemporaryDirectory() as folder:
        return [rated(m, Path(folder)) for m in mistakes()]


def rated(mistake: Mistake, folder: Path) -> Rated:
    """Check the plan with `mistake` in `folder`, and rate each error and warning; the best is the answer."""
    text, line = mistake.written()
    path = folder / "p.plan"
    path.write_text(text)
    (folder / "config.json").write_text(CONFIG)
    found = [d for d in examine(path).report.diagnostics if d.severity != "note"]
    if not found and _is_taken_as_meant(mistake, path):
        return Rated(mistake, None, POINTS)
    answers = [Rated(mistake, d, tuple(_points(mistake, d, line, path, text))) for d in found]
    return max(answers, key=lambda r: len(r.points), default=Rated(mistake, None, ()))


def _is_taken_as_meant(mistake: Mistake, path: Path) -> bool:
    """True if the plan with the sentence of `helps` in place of `wrong` has the same memory and step time."""
    wrong, right = examine(path).report, path.with_name("right.plan")
    right.write_text(path.read_text().replace(mistake.wrong, mistake.helps.strip("`")))
    meant = examine(right).report
    return meant.ok and (wrong.memory, wrong.step) == (meant.memory, meant.step)


def _is_without_error(path: Path) -> bool:
    """True if the plan is read and no rule refuses it; it is not costed."""
    plan = build_file(path).plan
    return plan is not None and not has_errors(checked_or_found(plan)[1])


def _points(mistake: Mistake, d: Diagnostic, line: int, path: Path, text: str) -> list[str]:
    said = " ".join(f"{d.message} {d.label} {d.help} {d.fix.title if d.fix else ''}".split())
    got = ["where"] if not mistake.wrong or d.span.line == line else []
    if mistake.word.lower() in said.lower():
        got.append("word")
    mended = apply_edits(text, d.fix.edits) if d.fix and all(e.span.file == str(path) for e in d.fix.edits) else text
    lines = [" ".join(line.split()) for line in mended.splitlines() if line not in text.splitlines()]
    if mistake.helps in said or mistake.helps.strip("`") in lines:
        got.append("helps")
    if mended != text:
        path.write_text(mended)
        got += ["mends"] if _is_without_error(path) else []
    return got
