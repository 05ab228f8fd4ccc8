"""Serve plans: what is refused, what fits, and that figures follow from the sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.diag.errors import PlanError
from planc.driver.serving import ServeExamined, examine_serve, lower_serve
from tests.language.test_serve import SERVE

TRAIN = """plan train
model     qwen3_8b
batch     256 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
"""
LAYOUT = """serve rollout of "train.plan"
mesh      dp 4 > tp 2
use       ddp over dp
use       tp  over tp
"""
AWAY = "sleep params, cache while training\nsleep params, grads, optimizer while serving\n"


def examined(folder: Path, text: str, trainer: str = TRAIN) -> ServeExamined:
    """The answer about this serve plan beside this training plan."""
    (folder / "train.plan").write_text(trainer)
    path = folder / "rollout.plan"
    path.write_text(text)
    return examine_serve(path)


def codes(folder: Path, text: str, trainer: str = TRAIN) -> list[str]:
    """The codes found."""
    return [d.code for d in examined(folder, text, trainer).report.diagnostics]


def test_a_serve_plan_has_an_answer(tmp_path: Path) -> None:
    report = examined(tmp_path, LAYOUT + AWAY + "requests 16 x 1024 + 1024 tokens\n").report
    assert report.ok and report.memory and report.peaks and report.sync and report.prefill_s and report.decode_s
    assert report.replicas == 4 and report.memory.tokens > 0
    assert report.sync.bound_s <= report.sync.seconds < report.sync.gathered_s
    assert sum(report.peaks.serving) > sum(report.peaks.training)
    elements = 8190735360 * 2  # each rank of tp 2 lacks all but an eighth of its half, four times
    moved = report.sync.near_bytes + report.sync.far_bytes
    assert moved + report.sync.local_bytes == pytest.approx(4 * elements, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "trainer", "code"),
    [
        (LAYOUT.replace("dp 4", "dp 8"), TRAIN, "E0203"),
        (LAYOUT.replace("use       ddp over dp\n", ""), TRAIN, "E0204"),
        (LAYOUT.replace("dp 4 > tp 2", "dp 1 > tp 16") + "cluster 2 x h100_node\n", TRAIN, "E0301"),
        (LAYOUT.replace("dp 4 > tp 2", "dp 1 > tp 5 > ep 1"), TRAIN, "E0203"),
        (LAYOUT + "override layers.*.attention.wq = embed over tp and heads over tp\n", TRAIN, "E0304"),
        (LAYOUT + "view e 3 > f 2 of dp, tp for experts\n", TRAIN, "E0108"),
        (
            LAYOUT.replace("dp 4 > tp 2", "pp 4 > tp 2").replace("ddp over dp", "pp over pp as interleaved_1f1b"),
            TRAIN,
            "E1503",
        ),
        (LAYOUT + "cluster 1 x h100_node\nsleep params while training\n", TRAIN, "E1503"),
        (LAYOUT + "store params as float8(block = 96)\n", TRAIN, "E1504"),
        (LAYOUT + "cache 4 k tokens\nrequests 8 x 1024 + 1024 tokens\n" + AWAY, TRAIN, "E1505"),
        (LAYOUT.replace("dp 4 > tp 2", "dp 4 > tp 4") + "cluster tpu_v5p(2x2x4)\n", TRAIN, "E1506"),
        (LAYOUT + AWAY + "cache 100 M tokens\n", TRAIN, "E1507"),
        (LAYOUT, TRAIN.replace("qwen3_8b", "qwen3_32b"), "E1507"),
        (LAYOUT + AWAY + "expect cache >= 90 M tokens\n", TRAIN, "E0801"),
        (LAYOUT + AWAY + "expect sync_time <= 1 us\n", TRAIN, "E0801"),
        (LAYOUT, TRAIN.replace("mesh      fsdp 8", "mesh      fsdp 16"), "E1502"),
    ],
)
def test_bad_pairs_have_a_code_each(tmp_path: Path, text: str, trainer: str, code: str) -> None:
    found = codes(tmp_path, text, trainer)
    assert code in found, found


def test_a_generator_apart_receives_all_of_it(tmp_path: Path) -> None:
    report = examined(tmp_path, LAYOUT + "cluster 1 x h100_node\n").report
    assert report.sync is not None and report.peaks is None
    assert report.sync.local_bytes == 0
    assert report.sync.far_bytes == pytest.approx(8190735360 * 2, rel=1e-9)  # each element once over the network
    assert report.sync.seconds < 1.1 * report.sync.bound_s


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_its_program_is_a_module_with_sync(tmp_path: Path, target: str) -> None:
    (tmp_path / "train.plan").write_text(TRAIN)
    (tmp_path / "rollout.plan").write_text(LAYOUT + AWAY)
    text, _ = lower_serve(tmp_path / "rollout.plan", "cuda" if target == "cuda" else "xla")
    compile(text, "sync.py", "exec")
    assert "\ndef sync(" in text and "from planc" not in text and "import planc" not in text


def test_a_serve_plan_is_none_for_other_commands(tmp_path: Path) -> None:
    from planc.driver import check

    (tmp_path / "train.plan").write_text(TRAIN)
    (tmp_path / "rollout.plan").write_text(SERVE)
    assert [d.code for d in check(tmp_path / "rollout.plan").diagnostics] == ["E0106"]


def test_a_trainer_that_a_target_refuses_has_no_sync_there(tmp_path: Path) -> None:
    trainer = TRAIN.replace("fsdp 8", "fsdp 4 > tp 2") + "use tp over tp\noverlap tp as async_matmul\n"
    (tmp_path / "train.plan").write_text(trainer)
    (tmp_path / "rollout.plan").write_text(LAYOUT)
    with pytest.raises(PlanError) as found:
        lower_serve(tmp_path / "rollout.plan", "xla")
    assert "train.plan has a mistake: the xla target cannot do" in found.value.diagnostics[0].message


def test_the_trainer_is_read_for_its_target(tmp_path: Path) -> None:
    trainer = TRAIN + "on cuda: attention.core as flash\non xla: attention.core as unfused\n"
    for target, kernel in (("cuda", "flash"), ("xla", "unfused")):
        found = examined(tmp_path, LAYOUT + AWAY, trainer + f"target {target}\n")
        assert found.serve and found.serve.trainer.attention and found.serve.trainer.attention.method == kernel


def test_a_shard_that_cuts_a_block_has_no_program(tmp_path: Path) -> None:
    found = examined(tmp_path, LAYOUT + "store params as float8(block = 96)\n")
    assert found.sides is None and found.report.sync is not None


def test_a_share_that_changes_is_predicted_and_the_program_sends_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from planc.cli import main

    (tmp_path / "train.plan").write_text(TRAIN)
    file = tmp_path / "rollout.plan"
    texts = []
    for sentence in ("sync every 1 steps changed 3 %\n", "sync every 1 steps\n"):
        file.write_text(LAYOUT + AWAY + sentence)
        said = "3 %" in sentence
        assert main(["sync", str(file)]) == 0
        assert ("planc lower` sends all" in capsys.readouterr().out) == said
        assert main(["lower", str(file), "--target", "cuda"]) == 0
        text, warned = capsys.readouterr()
        assert ("sends all weights at every sync" in warned) == said
        texts.append(text)
    assert texts[0] == texts[1]
