"""A guess is not costed: after "did you mean", no seconds and no GiB of the name that was guessed are shown."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from planc.driver import examine
from planc.editor.hover import hover
from planc.editor.opened import EditorSettings, open_file
from planc.ir.report import Report
from planc.language.build import build_file
from planc.report.plan_page import plan_page
from tests.plans import BODY, BUNDLED, FIELD, HEAD, ROOT, codes, written
from tests.random_plans.promises import write
from tests.random_plans.run import drawn_of

FIGURE = re.compile(r"\d (GiB|s|ms|us)\b|MFU|\d% of the step")
FACT = re.compile(r"(?m)^- .*\d (GiB|s|ms|us)\b")
"""A line of a hover with a figure; manuals, which it shows too, have such words in prose."""
COSTED = ("step", "memory", "limits", "model", "cluster", "collectives", "axes", "goodput", "run", "uncertainty")
DRAWN = range(0, 60, 2)
"""Seeds of drawn plans, which have hardware files of their own."""


def misspelled(path: Path, seen: set[str]) -> Iterator[tuple[str, Path, str]]:
    """For each kind of name that the plan looks up, and none of `seen`: what it is, and the file with its last letter
    doubled."""
    for lookup in build_file(path).lookups:
        word, file = lookup.word, path.parent / lookup.word.span.file
        kind = lookup.what.split(" of ")[0]
        if kind in seen or len(word.text) < 2 or not file.is_file():
            continue
        lines = file.read_text().split("\n")
        line, start, end = lines[word.span.line - 1], word.span.column - 1, word.span.end_column - 1
        if line[start:end] == word.text:
            lines[word.span.line - 1] = line[:end] + word.text[-1] + line[end:]
            yield kind, file, "\n".join(lines)


def is_wrong_without_figures(path: Path) -> bool:
    """True where the plan has a mistake; raises AssertionError where a figure is shown beside it."""
    examined = examine(path)
    if examined.plan is not None:
        return False
    report: Report = examined.report
    assert not any(getattr(report, part) for part in COSTED)
    page, opened = plan_page(examined, ""), open_file(path, path.read_text(), {}, EditorSettings())
    shown = [d.message + d.help + d.label for d in report.diagnostics]
    for said in (*shown, page.verdict.sentence, page.verdict.headline, page.findings.summary):
        assert not FIGURE.search(said), said
    for sentence in opened.sentences:
        found = hover(opened, sentence.span.line, sentence.span.column)
        assert found is None or not FACT.search(found[0]), found[0]
    return True


def test_no_kind_of_name_is_costed_as_guessed(tmp_path: Path) -> None:
    """Every kind of name that bundled and drawn plans look up: models, chips, clusters, layouts, axes, dtypes."""
    plans = [Path(shutil.copy(p, tmp_path / p.name)) for p in (*BUNDLED, *FIELD)]
    plans += [write(drawn_of(seed), tmp_path / str(seed)) for seed in DRAWN]
    kinds = set[str]()
    for path in plans:
        for kind, file, text in misspelled(path, kinds):
            right = file.read_text()
            file.write_text(text)
            if is_wrong_without_figures(path):
                kinds.add(kind)
            file.write_text(right)
    wanted = {"a model", "a layout", "an axis", "a node or torus", "a dtype", "a pipeline schedule"}
    assert kinds >= wanted and len(kinds) >= 35, sorted(kinds)


@pytest.mark.parametrize("wrong", ["h100h over nvlink4", "h100 over nvlink44"])
def test_a_chip_or_a_link_of_ones_own_hardware_file(tmp_path: Path, wrong: str) -> None:
    hardware = (ROOT / "plans" / "hardware" / "h100.plan").read_text()
    (tmp_path / "mine.plan").write_text(hardware.replace("= 8 x h100 over nvlink4", f"= 8 x {wrong}"))
    assert is_wrong_without_figures(written(tmp_path, f'{HEAD}{BODY}import "mine.plan"\n'))


def test_rules_about_the_model_wait_for_its_name(tmp_path: Path) -> None:
    """24 ranks divide no heads of the guess, and the plan may be right about the model that it means."""
    text = (HEAD + BODY).replace("fsdp 8 > tp 8", "fsdp 2 > tp 32")
    assert "E0301" in codes(tmp_path, text)
    assert codes(tmp_path, text.replace("llama3_8b", "llama3_8bb")) == ["E0108"]
