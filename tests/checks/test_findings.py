"""Findings in numbers, and the places and words of those that users meet most."""

import shutil
from pathlib import Path

import pytest

from planc.checks import rules
from planc.checks.stages import stages_text
from planc.cli import main
from planc.cli.apply_fixes import fix_file
from planc.diag import PlanError
from planc.diag.diagnostic import MAX_OF_ONE_CODE
from planc.diag.edits import apply_edits
from planc.diag.text import SHOWN, render
from planc.driver import check
from planc.syntax import parse_text
from planc.trainer.preset.load import load_preset
from tests.plans import BODY, HEAD, ROOT, codes, found, written

PLAN = HEAD + BODY


def test_findings_of_one_code_are_bounded_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.plan"
    path.write_text(PLAN + "bogus line\n" * 3000 + "shard foo over tp\n")
    report = check(path)
    assert [d.code for d in report.diagnostics].count("E0101") == MAX_OF_ONE_CODE
    (note,) = [d for d in report.diagnostics if d.code == "N0114"]
    assert "2,900 more E0101" in note.message and note.span.line == len(PLAN.splitlines()) + 3000
    assert "E0108" in [d.code for d in report.diagnostics] and not report.ok


def test_an_open_bracket_is_marked_where_it_was_opened(tmp_path: Path) -> None:
    text = PLAN + "split layers over tp as 1f1b stages [embed + 4, 28 + head\n"
    d, behind = found(tmp_path, text)
    assert behind.code == "E0401"  # two stages for eight ranks: found in the sentence as mended
    assert (d.code, d.span.line, d.span.column) == ("E0102", 11, 37) and "never closed" in d.message
    assert d.fix is not None and "28 + head]\n" in apply_edits(text, d.fix.edits)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("expect no foo", "expect no W0601"),
        ("expect memory 72 GiB", "expect memory <= 72 GiB"),
        ("cluster tpu_v5p 4x4x4", "cluster tpu_v5p(4x4x4)"),
        ("model from config.json", 'model from "config.json"'),
        ("recompute blocks every 2", "recompute blocks every 2 layers"),
        ("on cuda recompute blocks", "on cuda: recompute blocks"),
    ],
)
def test_the_form_shown_is_the_one_that_was_meant(tmp_path: Path, written: str, shown: str) -> None:
    helps = [d.help for d in found(tmp_path, PLAN + written + "\n")]
    assert f"the sentence reads: {shown}" in helps or f"write `{shown}`" in helps


def test_digits_are_those_of_ascii(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert codes(tmp_path, PLAN.replace("batch     64", "batch     \u0666\u0664")) == ["E0102"]
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path / "example.plan"), "--set", "n=\u0666"])
    assert "NAME=NUMBER" in capsys.readouterr().err


def test_a_long_line_prints_short() -> None:
    text = f"plan x\nbatch {'9' * 9000} {'(' * 9000}\n"
    parsed = parse_text(text, "x.plan")
    shown = render(parsed.diagnostics, {"x.plan": parsed.source})
    assert "E0102" in shown and max(map(len, shown.splitlines())) <= SHOWN + 16


def test_the_nearest_lengths(tmp_path: Path) -> None:
    (d,) = found(tmp_path, PLAN.replace("8192", "8190"))
    assert (d.code, d.fix is not None) == ("E0302", True) and "8184 or 8192" in d.help


@pytest.mark.parametrize(("vocab", "codes_found"), [(50257, []), (10, ["E0302"]), (16, [])])
def test_an_uneven_vocab_has_rows_for_every_rank(vocab: int, codes_found: list[str], tmp_path: Path) -> None:
    """Over eight ranks: 6,283 rows each and 6,276 for the last; of ten tokens, two each for five ranks."""
    text = PLAN.replace("llama3_8b", f"llama3_8b(vocab = {vocab})")
    assert [c for c in codes(tmp_path, text) if c.startswith("E")] == codes_found


def test_the_batch_in_the_words_of_other_tools(tmp_path: Path) -> None:
    (d,) = found(tmp_path, PLAN.replace("64 x 8192", "60 x 8192"))
    assert d.code == "E0205"
    assert all(word in d.help for word in ("train_batch_size", "global-batch-size", "per_device_batch_size 0.125,"))


def test_changes_are_added_up_when_one_is_not_enough(tmp_path: Path) -> None:
    text = HEAD.replace("llama3_8b", "llama3_70b").replace("fsdp", "dp") + "use zero1 over dp\nuse tp over tp\n"
    text = text.replace("8 x h100", "16 x h100").replace("dp 8", "dp 16").replace("microbatch 1", "microbatch 2")
    text = text.replace("compute   fp32", "compute   bf16 reduce fp32")
    (d,) = [d for d in found(tmp_path, text) if d.code == "E0501"]
    assert d.fix is not None and len(d.fix.edits) >= 2 and "together fit" in d.help
    assert "E0501" not in codes(tmp_path, apply_edits(text, d.fix.edits))


def test_lowering_says_that_memory_does_not_suffice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.plan"
    path.write_text(
        PLAN.replace("8 x h100_node", "1 x h100_node").replace("fsdp 8 > tp 8", "fsdp 1 > tp 8")
        + "gather params per step\n"
    )
    assert main(["lower", str(path), "--target", "cuda"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    path.write_text(path.read_text().replace("llama3_8b", "llama3_70b"))
    assert main(["lower", str(path), "--target", "cuda"]) == 0
    output = capsys.readouterr()
    assert output.err.startswith("warning: E0501 ") and "E0501" not in output.out


@pytest.mark.parametrize(
    ("old", "new", "code", "word"),
    [
        ("warmup_steps = 10", "warmup_steps = 1000", "E1003", "warmup_steps"),
        ("set = {}", "set = {nodes = 4}", "E1006", "its sum differs"),
        ('source = "../tiny.plan"', 'source = "../other.plan"', "E1003", "not among the files"),
    ],
)
def test_a_preset_describes_what_it_holds(tmp_path: Path, old: str, new: str, code: str, word: str) -> None:
    (tmp_path / "presets").mkdir()
    shutil.copy(ROOT / "plans" / "tiny.plan", tmp_path)
    text = (ROOT / "plans" / "presets" / "tiny.toml").read_text()
    path = tmp_path / "presets" / "tiny.toml"
    path.write_text(text)
    assert load_preset(path).notes == ()
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PlanError) as raised:
        load_preset(path)
    (d,) = raised.value.diagnostics
    assert d.code == code and word in d.message


@pytest.mark.parametrize(("number", "message"), [("0", "`0` is below 1"), ("3 - 5", "the value = -2 is below 1")])
def test_a_number_out_of_range_says_the_range(tmp_path: Path, number: str, message: str) -> None:
    (d,) = found(tmp_path, PLAN.replace("batch     64", f"batch     {number}"))
    assert (d.code, d.message) == ("E0103", message) and "from 1 to" in d.help


@pytest.mark.parametrize("verb", ["model", "batch", "cluster", "mesh", "compute"])
def test_what_decides_the_answer_is_said(tmp_path: Path, verb: str) -> None:
    """No sentence that every figure depends on has a default; the edit of one that is missing makes a plan."""
    text = "".join(line for line in PLAN.splitlines(keepends=True) if not line.startswith(f"{verb} "))
    report = check(written(tmp_path, text))
    (d,) = [d for d in report.diagnostics if d.code == "E0107"]
    assert f"`{verb}`" in d.message and report.step is None
    if d.fix is not None:
        assert "E0107" not in codes(tmp_path, apply_edits(text, d.fix.edits))


HARDWARE = """hardware own
chip      c(bf16 = 989 TFLOP/s, memory = 80 GiB, memory_bandwidth = 3350 GB/s)
link      l(bandwidth = 450 GB/s, latency = 3 us)
node      box = 8 x c over l
network   n = leaf 32 at 400 GB/s
"""


def test_hardware_is_declared_once(tmp_path: Path) -> None:
    plan = (
        PLAN.replace("model ", 'import "own.plan"\nmodel ')
        .replace("h100_node", "box")
        .replace("compute   fp32", "compute   bf16")
    )
    (tmp_path / "own.plan").write_text(HARDWARE)
    assert "E0107" not in codes(tmp_path, plan)
    (tmp_path / "own.plan").write_text(
        HARDWARE + "chip c(bf16 = 1 TFLOP/s, memory = 8 GiB, memory_bandwidth = 9 GB/s)\n"
    )
    (d,) = [d for d in found(tmp_path, plan) if d.code == "E0107"]
    assert d.span.line == 6 and d.related[0].span.line == 2


def test_a_layout_is_imported_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.plan").write_text("layout mine over d\nshard batch over d\n")
    plan = PLAN.replace("model ", 'import "a.plan"\nimport "b.plan"\nmodel ')
    assert codes(tmp_path, plan) == ["E0107"]


def test_an_axis_of_a_view_that_does_not_divide_is_a_finding(tmp_path: Path) -> None:
    text = (
        HEAD.replace("llama3_8b", "mixtral_8x7b(expert_ffn = 14337)")
        + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n"
    )
    text += "view efsdp 32 > etp 2 of fsdp, tp for experts\nuse etp over etp\n"
    text += "store params, grads, optimizer over efsdp for experts\n"
    assert "E0302" in codes(tmp_path, text)


def test_layers_are_not_split_over_an_axis_of_a_view(tmp_path: Path) -> None:
    text = (ROOT / "plans/presets/mixtral_8x7b_b200.plan").read_text() + "split layers over efsdp as 1f1b\n"
    assert "E0404" in codes(tmp_path, text)


def test_advice_is_not_applied_unasked(tmp_path: Path) -> None:
    (advice,) = [r for r in rules().values() if r.code == "N0512"]
    path = tmp_path / "x.plan"
    path.write_text(advice.page.bad)
    assert [d.code for d in check(path).diagnostics if d.fix is not None] == ["N0512"]
    assert fix_file(str(path), {}, None).applied == () and path.read_text() == advice.page.bad


def test_an_edit_keeps_what_a_sentence_was_written_for(tmp_path: Path) -> None:
    text = PLAN.replace("recompute blocks", "on xla: recompute attention.core, ffn.down")
    path = tmp_path / "x.plan"
    path.write_text(text)
    (d,) = [d for d in check(path, target="xla").diagnostics if d.code == "W0502"]
    assert d.fix is not None and "on xla: recompute attention.core\n" in apply_edits(text, d.fix.edits)


def test_better_stages_keep_the_schedule_as_it_was_written(tmp_path: Path) -> None:
    text = HEAD.replace("fsdp 8 > tp 8", "pp 4 > fsdp 2 > tp 8").replace("llama3_8b", "llama3_8b(layers = 16)")
    text += "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\nsplit layers over pp as zbv\n"
    (d,) = [d for d in found(tmp_path, text) if d.code == "W0405"]
    assert d.fix is not None
    mended = apply_edits(text, d.fix.edits)
    assert "as zbv stages [" in mended and not {"W0405", "E0108", "E0401"} & set(codes(tmp_path, mended))


def test_offered_stages_are_in_the_spelling_of_today(tmp_path: Path) -> None:
    text = stages_text(((0, 3), (3, 7), (7, 11), (11, 13)))
    assert text == "[embed + 3, 2 x 4 layers, 2 + head]"
    assert "W0116" not in codes(tmp_path, PLAN + f"split layers over tp as 1f1b stages {text}\n")


def test_a_batch_over_a_view_has_a_mesh_that_does_not_fit(tmp_path: Path) -> None:
    """The fix changes no axis that a view divides."""
    text = (
        HEAD.replace("fsdp 8 > tp 8", "pp 3 > dp 16")
        + "view edp 2 > ep 8 of dp for experts\nshard batch over edp, ep\n"
    )
    (finding,) = [d for d in found(tmp_path, text) if d.code == "E0203"]
    assert finding.help == "pp 4 fits (4 x 16 = 64); or `cluster 6 x h100_node` has 48"


@pytest.mark.parametrize(
    ("cluster", "mesh", "part"),
    [
        ("1 x h100_node", "fsdp 2", "`cluster 1 x h100_node(2)` has 2"),
        ("8 x h100_node", "fsdp 8 > tp 2", "`cluster 2 x h100_node` has 16"),
        ("3 x h100_node", "fsdp 9", "`cluster 3 x h100_node(3)` has 9"),
        ("2 x gb200_nvl72", "fsdp 72", "`cluster 1 x gb200_nvl72` has 72"),
        ("tpu_v5p(4x4x4)", "fsdp 8", ""),
    ],
)
def test_a_mesh_that_fills_a_part_of_the_nodes_is_offered_that_part(
    tmp_path: Path, cluster: str, mesh: str, part: str
) -> None:
    head = HEAD.replace("8 x h100_node", cluster).replace("fsdp 8 > tp 8", mesh)
    (finding,) = [d for d in found(tmp_path, head + "use fsdp over fsdp\n") if d.code == "E0203"]
    assert finding.help.endswith(part) and ("`cluster" in finding.help) == bool(part)
    if part:
        there = head.replace(f"cluster   {cluster}", part.split("`")[1])
        assert "E0203" not in codes(tmp_path, there + "use fsdp over fsdp\n")
