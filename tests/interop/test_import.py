"""A configuration to a plan: sentences with their origins, the batch's arithmetic, and what is refused."""

from pathlib import Path

import pytest

from planc.interop.importing import Imported, import_files
from planc.interop.values import Options
from planc.language.build import build_file
from tests.interop.scripts import SCRIPT

OPTIONS = Options(cluster="1 x h100_node", devices=8)


def imported(tmp_path: Path, text: str = SCRIPT, options: Options = OPTIONS, name: str = "run.sh") -> Imported:
    file = tmp_path / name
    file.write_text(text)
    return import_files([file], options)


def codes(found: Imported) -> list[str]:
    return [d.code for d in found.diagnostics if d.severity != "note"]


def test_a_script_becomes_a_plan_that_the_language_reads(tmp_path: Path) -> None:
    found = imported(tmp_path)
    assert codes(found) == [] and found.system.name == "megatron"
    (tmp_path / "run.plan").write_text(found.text)
    plan = build_file(tmp_path / "run.plan").plan
    assert plan.mesh.sizes == {"dp": 2, "tp": 4} and plan.store("optimizer") == ("dp",) and not plan.store("params")
    assert plan.batch.tokens == 128 * 8192 and plan.microbatches == 64
    assert plan.recompute.whole and plan.precision.compute == "bf16" and plan.precision.reduce == "fp32"
    assert plan.model.name == "llama3_8b" and plan.model.sizes["vocab"] == 128512, "padded to a multiple of 128 x 4"


def test_every_sentence_says_which_field_or_default_it_is_from(tmp_path: Path) -> None:
    sentences = [line for line in imported(tmp_path).text.splitlines() if line and not line.startswith(("plan", "#"))]
    assert len(sentences) >= 10
    assert all("  # " in line and line.partition("  # ")[2].strip() for line in sentences)
    assert any("default of Megatron-LM" in line and "use_tp_pp_dp_mapping = False" in line for line in sentences)


def test_the_batch_is_told_as_a_chain(tmp_path: Path) -> None:
    assert imported(tmp_path).chain == (
        "batch: global_batch_size = 128, micro_batch_size = 1, seq_length = 8192 -> 128 sequences a step"
        " = 2 data-parallel ranks x 64 microbatches x 1 sequences"
    )


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("--swiglu", "--swigglu", "E1303", 14),
        ("--lr 1e-4", "--rampup-batch-size 16 16 1000", "E1304", 20),
        ("--hidden-size 4096", "--hidden-size many", "E1305", 6),
        ("--hidden-size 4096", "--hidden-size $HIDDEN", "E1305", 6),
        ("--num-layers 32", "", "E1306", 1),
        ("--global-batch-size 128", "--global-batch-size 127", "E1307", 19),
        ("TP=4", "TP=3", "E1307", 18),
        ("--fp16", "--fp16", "", 0),
        ("--bf16", "--fp16", "E1304", 19),
        ("RMSNorm", "LayerNorm", "E1304", 5),
    ],
)
def test_what_a_plan_cannot_say_has_a_code_and_a_place(
    old: str, new: str, code: str, line: int, tmp_path: Path
) -> None:
    found = imported(tmp_path, SCRIPT.replace(old, new))
    assert code in codes(found) if code else codes(found) == []
    if code:
        assert next(d.span.line for d in found.diagnostics if d.code == code) == line and not found.text


def test_fields_without_effect_are_listed(tmp_path: Path) -> None:
    notes = [d for d in imported(tmp_path).diagnostics if d.code == "N1308"]
    assert len(notes) == 1 and "lr" in notes[0].message


def test_a_value_that_the_shell_would_know_is_given_by_an_option(tmp_path: Path) -> None:
    open_script = SCRIPT.replace("--seq-length 8192", "--seq-length $SEQ")
    given = Options(cluster="1 x h100_node", devices=8, given={"seq_length": "4096"})
    assert codes(imported(tmp_path, open_script)) == ["E1305"]
    assert imported(tmp_path, open_script, given).setup.sequence_tokens == 4096


def test_files_that_cannot_be_read_have_a_code(tmp_path: Path) -> None:
    (tmp_path / "out.sh").symlink_to("/dev/zero")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for name in ("out.sh", "folder.yaml", "bytes.json", "absent.toml"):
        assert codes(import_files([tmp_path / name], OPTIONS)) == ["E1301"], name
    (tmp_path / "other.yaml").write_text("a: 1\n")
    assert codes(import_files([tmp_path / "other.yaml"], OPTIONS)) == ["E1302"]
