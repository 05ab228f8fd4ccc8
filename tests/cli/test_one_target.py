"""One question, one target: whatever is asked for a plan's seconds and GiB, it says what `planc check` says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from planc.cli import whole_parser
from planc.ir.target import NO_TARGET
from tests.cli.figures import ASKED, ELSEWHERE, NAMED, as_json, law, names_its_target
from tests.plans import BUNDLED, FIELD
from tests.random_plans.promises import write
from tests.random_plans.run import drawn_of

QUICK = ("tiny_moe", "gpt3_175b_a100", "llama3_8b_uneven", "llama3_70b_v6e")
"""Plans for cuda, for xla, as a framework realises them, and one that its cluster's target refuses."""
PLANS = [*BUNDLED, *FIELD]


@pytest.mark.parametrize("path", [
    pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.long, id=p.stem) for p in PLANS
])  # fmt: skip
def test_every_command_says_what_check_says(path: Path, tmp_path: Path) -> None:
    law(path, tmp_path)
    names_its_target(path, tmp_path)


@pytest.mark.parametrize(
    "seed", [91043, *(pytest.param(n, marks=pytest.mark.long) for n in (91005, 91035, 91050, 91179, 91254))]
)
def test_every_command_says_of_drawn_plans_what_check_says(seed: int, tmp_path: Path) -> None:
    """Hardware of one's own in another folder, a ring of two chips, groups of which the first lies in fewer nodes,
    a layout that does not fit and that its framework cannot run, a number that rounds otherwise after a logarithm."""
    path = write(drawn_of(seed), tmp_path / "plan")
    law(path, tmp_path)
    names_its_target(path, tmp_path)


def test_every_command_is_asked() -> None:
    """The list is the parser's: a new command is held too, and one that takes a costed target has figures."""
    parser = whole_parser()
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    assert set(action.choices) == set(ASKED) | set(ELSEWHERE) and not set(ASKED) & set(ELSEWHERE)
    costed = {name for name, p in action.choices.items() if any(NO_TARGET in (a.choices or ()) for a in p._actions)}
    costed -= {"expand"}  # its target picks sentences, and nothing is costed
    assert costed <= set(ASKED) and set(NAMED) >= set(ASKED) - {"calibrate", "lsp"}


SCRIPT = """torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 128256 \\
  --swiglu --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \\
  --disable-bias-linear --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 \\
  --tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer
"""


def test_an_imported_file_is_costed_as_its_plan(tmp_path: Path) -> None:
    """`check` of another system's file, and of the plan that `import` writes from it."""
    script, plan = tmp_path / "run.sh", tmp_path / "run.plan"
    script.write_text(SCRIPT)
    on = ("--cluster", "2 x h100_node")
    as_json("import", str(script), *on, "-o", str(plan))
    said, own = as_json("check", str(script), *on), as_json("check", str(plan))
    for part in ("target", "framework", "step", "memory"):
        assert said[part] == own[part] and (part == "target" or own[part]), part
