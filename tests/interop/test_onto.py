"""`planc export PLAN --onto my.sh`: the user's own script with the plan's flags, and nothing else of it changed."""

from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from random import Random

import pytest

from planc.cli import main
from planc.diag.errors import PlanError
from planc.interop.effective import differing
from planc.interop.exporting import export_plan
from planc.interop.importing import Imported, import_
from planc.interop.onto import Patched, onto_script
from planc.interop.plan_text import plan_text
from planc.interop.setup import TrainingSetup
from planc.interop.values import Options
from planc.ir.plan import Plan, Recompute
from planc.language.build import build_file
from tests.interop.scripts import SCRIPT
from tests.interop.test_freeing import EXPERTS

IN_VARIABLES = """#!/bin/bash
# our cluster
TP=${TP:-2}
PP=2
MBS=1; DP=$((WORLD_SIZE / TP / PP))
PARALLEL="--tensor-model-parallel-size ${TP} \\
  --pipeline-model-parallel-size $PP --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel"
MORE=""
[ -n "$WANDB_API_KEY" ] && MORE="--wandb-project mine"
export MODEL="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
 --max-position-embeddings 4096 --vocab-size 50257"
srun python -u pretrain_gpt.py $MODEL $PARALLEL --bf16 --micro-batch-size "$MBS" \\
    --global-batch-size=$((DP * 8)) --use-distributed-optimizer \\
    --lr 1e-4 $MORE  # the rest is ours
"""
SCRIPTS = {"array": SCRIPT, "experts": EXPERTS, "variables": IN_VARIABLES}
GIVEN = {"variables": {"WORLD_SIZE": "8"}}


def plan_in(folder: Path, setup: TrainingSetup) -> Plan | None:
    path = folder / "wanted.plan"
    path.write_text(plan_text(setup))
    return build_file(path).plan if not any(d.severity == "error" for d in build_file(path).diagnostics) else None


def imported(script: Path, given: dict[str, str]) -> Imported:
    return import_(script, cluster="1 x h100_node", set=given)


def drawn(setup: TrainingSetup, random: Random) -> TrainingSetup:
    """Returns another layout of the same model on the same eight devices."""
    pp, tp = random.choice([(1, 1), (1, 2), (1, 8), (2, 1), (2, 2), (4, 2), (8, 1)])
    routed = setup.ep > 1 or "8x7b" in setup.model
    blocks = random.choice([Recompute(), Recompute(ops=("whole_blocks",)), Recompute(ops=("attention.core",))])
    return replace(
        setup,
        pp=pp,
        tp=tp,
        sp=tp > 1 and bool(routed or random.random() < 0.5),
        shard=8 // pp // tp,
        replica=1,
        chunks=random.choice([1, 2]) if pp == 2 else 1,
        ep=random.choice([n for n in (1, 2, 4) if n <= 8 // pp]) if routed else 1,
        microbatch=random.choice([1, 2]),
        sequences=random.choice([64, 256]),
        recompute=blocks,
    )


def patched(folder: Path, name: str, seed: int) -> tuple[Plan, Patched, str] | None:
    """Returns a plan that was drawn, and the script as it became; None if no export says the plan."""
    script, text, given = folder / "my.sh", SCRIPTS[name], GIVEN.get(name, {})
    script.write_text(text)
    first = imported(script, given).setup
    assert first is not None
    plan = plan_in(folder, drawn(first, Random(seed)))
    if plan is None:
        return None
    try:
        exported = export_plan(plan, "megatron")
    except PlanError:
        return None
    return plan, onto_script(plan, exported, script, Options(given=given, folder=folder, approximate=True)), text


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_then_says_the_plan_and_keeps_the_rest(name: str, seed: int, tmp_path: Path) -> None:
    found = patched(tmp_path, name, seed)
    if found is None:
        pytest.skip("Megatron-LM cannot say the layout that was drawn")
    plan, result, before = found
    (tmp_path / "my.sh").write_text(result.text)
    back = imported(tmp_path / "my.sh", GIVEN.get(name, {})).setup
    assert back is not None
    again = plan_in(tmp_path, back)
    assert again is not None and differing(plan, again) == ()
    edits = [e for e in SequenceMatcher(None, before, result.text, autojunk=False).get_opcodes() if e[0] != "equal"]
    changed = {before.count("\n", 0, at) for _, at, *_ in edits}
    assert len(changed) <= len(result.changes) + 1
    assert all(line in result.text for line in before.split("\n") if "#" in line or "wandb" in line)


def test_a_plan_of_the_script_changes_nothing(tmp_path: Path) -> None:
    for name, text in SCRIPTS.items():
        script = tmp_path / "my.sh"
        script.write_text(text)
        setup = imported(script, GIVEN.get(name, {})).setup
        assert setup is not None
        plan = plan_in(tmp_path, setup)
        assert plan is not None
        options = Options(given=GIVEN.get(name, {}), folder=tmp_path, approximate=True)
        result = onto_script(plan, export_plan(plan, "megatron"), script, options)
        assert (result.text, result.changes) == (text, ())


FROM_OUTSIDE = IN_VARIABLES.replace("PP=2", "PP=$1")


def export(tmp_path: Path, text: str, *more: str) -> int:
    (tmp_path / "my.sh").write_bytes(text.encode())
    (tmp_path / "wanted.plan").write_text(WANTED)
    script, out = str(tmp_path / "my.sh"), str(tmp_path / "new.sh")
    words = ["export", str(tmp_path / "wanted.plan"), "--onto", script, "-o", out, "--set", "WORLD_SIZE=8"]
    return main([*words, *more])


WANTED = """plan wanted
model gpt3_175b(layers = 32, embed = 4096, heads = 32, vocab = 50432, positions = 4096)
batch 64 x 4096 tokens microbatch 1
cluster 1 x h100_node
mesh pp 4 > dp 2
shard batch over dp
store optimizer over dp
split layers over pp as 1f1b
compute bf16 reduce fp32
recompute none
realise as megatron
"""


def test_a_value_from_outside_is_shown_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(tmp_path, FROM_OUTSIDE, "--set", "1=2") == 1
    shown = capsys.readouterr().out
    assert "E1317" in shown and "`--pipeline-model-parallel-size 4`" in shown and "my.sh:7" in shown
    assert not (tmp_path / "new.sh").exists()


def test_line_ends_stay_and_the_command_says_what_it_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, IN_VARIABLES) == 0
    shown, text = capsys.readouterr().out, (tmp_path / "new.sh").read_text()
    assert "--pipeline-model-parallel-size: 2 -> 4" in shown and "PP=4" in text
    assert "--sequence-parallel" not in text and "per-virtual" not in text
    assert export(tmp_path, IN_VARIABLES.replace("\\\n", "\n").replace("\n", "\r\n", 1)) == 1, "two kinds of line ends"
    assert "E1317" in capsys.readouterr().out
    with_mark = "\ufeff" + IN_VARIABLES
    assert export(tmp_path, with_mark) == 0
    assert (tmp_path / "new.sh").read_text() == "\ufeff" + text
    assert main(["export", str(tmp_path / "wanted.plan")]) == 2
