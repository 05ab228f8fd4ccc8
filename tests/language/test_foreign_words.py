"""Lines in the words of other systems: the answer names the sentence to write, and its fix is a line that parses."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import pytest

from planc.language.build import build_alone
from planc.language.foreign_words import LONGEST, REFUSED, translation
from planc.syntax.parse import parse_text

LINES = tomllib.loads((Path(__file__).parent / "foreign_words.toml").read_text())
BEFORE = "plan p\nmodel llama3_8b\n"
REST = ("batch 64 x 8192 tokens microbatch 1", "cluster 1 x h100_node", "mesh dp 8", "compute bf16 reduce fp32")


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_another_system_is_answered_with_the_sentence(line: str) -> None:
    rest = [sentence for sentence in REST if sentence.split()[0] not in line]
    found = [d for d in build_alone("\n".join([BEFORE + line, *rest]), "p.plan", {}).diagnostics if d.span.line == 3]
    answers = [d for d in found if d.code in REFUSED and LINES[line] in d.help]
    assert answers, [(d.code, d.help) for d in found]
    for fix in [d.fix for d in answers if d.fix and d.help.startswith("write `")]:
        mended = parse_text(f"plan p\n{fix.edits[0].text}\n", "p.plan").diagnostics
        assert not [d for d in mended if d.code.startswith("E")], fix


def test_a_line_of_the_language_is_no_foreign_word() -> None:
    """A sentence with a mistake of its own keeps its own advice: a name that is not known, a mesh that does not fit."""
    text = BEFORE + "batch 64 x 8192 tokens microbatch 1\ncluster 1 x h100_nod\nmesh dp 8\nuse ddp over dq\n"
    helps = [d.help for d in build_alone(text, "p.plan", {}).diagnostics]
    assert helps and not [h for h in helps if h.startswith("write `")]


@pytest.mark.parametrize(
    "line",
    [
        "cpu_offload false",
        "attn_implementation eager",
        "use_dist_ckpt",
        "dtype full",
        "dp_size -1",
        "schedule interleaved",
    ],
)
def test_a_line_that_says_something_else_is_not_translated(line: str) -> None:
    assert translation(line) == ""


def test_hostile_lines_are_answered_at_once() -> None:
    """Every pattern is tried on lines that almost match for long."""
    began = time.process_time()
    for part in ("mesh a1 x ", "a1 x b1 ", "x1", "1 x ", "-", "=", "h100 ", "  "):
        translation("mesh " + part * (LONGEST // len(part)) + "!")
        translation((part * LONGEST)[:LONGEST] + "!")
    assert time.process_time() - began < 2


def test_rates_in_other_units_are_written_in_ours(tmp_path: Path) -> None:
    chip = "chip mine(bf16 = 1307 TFLOPS, memory = 80 GB, memory_bandwidth = 2 TB/s)"
    link = "link nvl(bandwidth = 400 Gbit/s, latency = 3 us)"
    machine = f"hardware h\n{chip}\n{link}\nnode box = 8 x mine over nvl\n"
    text = 'plan p\nimport "h.plan"\n' + "\n".join(REST).replace("h100_node", "box") + "\nmodel llama3_8b\n"
    helps = [d.help for d in build_alone(text, "p.plan", {"h.plan": machine}).diagnostics]
    assert any("1307 TFLOP/s" in h for h in helps) and any("50 GB/s" in h for h in helps), helps
