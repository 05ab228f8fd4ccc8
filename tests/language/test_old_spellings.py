"""Old spellings keep their meaning, are warned of, and are rewritten by `planc fmt`."""

from pathlib import Path

import pytest

from planc.catalog import build_model, model_names
from planc.cli import main
from planc.driver import check
from planc.language.build import build_file
from planc.language.modernize import _edits, modernize
from planc.language.op_names import beginnings, covering
from planc.sharding.recompute import names_op
from planc.syntax import parse_text
from planc.syntax.fmt import format_text
from planc.syntax.old_words import PLAIN, may_hold_old_spellings

SAVED = sorted((Path(__file__).parent / "old_spellings").glob("*.plan"))
"""Plans of the first draft of the language, as they were written."""

HEAD = """plan example
model     llama3_8b
batch     512 x 8192 tokens microbatch 1
cluster   4 x h100_node
mesh      pp 4 > fsdp 8
compute   fp32
"""
EXPERTS = """plan example
model     mixtral_8x7b
batch     512 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
shard     experts over fsdp
compute   fp32
"""
SHARED = EXPERTS.replace("mixtral_8x7b", "llama4_scout")
FSDP = "use fsdp over fsdp\n"
STAGES = FSDP + "split layers over pp as 1f1b stages "
PAIRS = {
    "let": (HEAD, "use fsdp over fsdp\nparam n = 8\n", "use fsdp over fsdp\nlet n = 8\n"),
    "attention.core": (HEAD, FSDP + "attention core as flash\n", FSDP + "attention.core as flash\n"),
    "on a target": (HEAD, FSDP + "on cuda: attention  core as flash\n", FSDP + "on cuda: attention.core as flash\n"),
    "a dim in a region": (EXPERTS, "shard sequence over fsdp for residual\n", "shard sequence over fsdp in residual\n"),
    "whole in a region": (EXPERTS, "replicate vocab over fsdp for head\n", "replicate vocab over fsdp in head\n"),
    "state of a region": (EXPERTS, "store params over fsdp in experts\n", "store params over fsdp for experts\n"),
    "a layout for a region": (HEAD, "use zero1 over fsdp in ffn\n", "use zero1 over fsdp for ffn\n"),
    "ddp": (HEAD, "use dp over fsdp\n", "use ddp over fsdp\n"),
    "fsdp": (HEAD, "use zero3 over fsdp\n", FSDP),
    "stages": (HEAD, STAGES + "[embed + 7, 9 x 2, 7 + head]\n", STAGES + "[embed + 7, 2 x 9 layers, 7 + head]\n"),
    "stages, as many as layers": (
        HEAD,
        FSDP + "split layers over pp as interleaved_1f1b(chunks = 8) stages [1 x 32]\n",
        FSDP + "split layers over pp as interleaved_1f1b(chunks = 8) stages [32 x 1 layers]\n",
    ),
    "a sum of layers": (
        HEAD,
        STAGES + "[embed + 7, 4 + 5 x 2, 7 + head]\n",
        STAGES + "[embed + 7, 2 x 9 layers, 7 + head]\n",
    ),
    "an end again": (
        HEAD,
        STAGES + "[embed + 8 x 2, 8 + head x 2]\n",
        STAGES + "[embed + 8, 1 x 8 layers, 1 x 8 layers, 8 + head]\n",
    ),
    "a kind of op": (HEAD, FSDP + "recompute norm\n", FSDP + "recompute attention.norm, ffn.norm\n"),
    "a last part": (HEAD, FSDP + "recompute swiglu\n", FSDP + "recompute ffn.swiglu\n"),
    "what is kept": (
        HEAD,
        FSDP + "recompute blocks except matmul\n",
        FSDP
        + "recompute blocks except attention.q, attention.k, attention.v, attention.out, ffn.gate, ffn.up, ffn.down\n",
    ),
    "projections": (
        HEAD,
        FSDP + "quantize ffn, attention.proj as float8(rowwise)\n",
        FSDP + "quantize ffn, attention as float8(rowwise)\n",
    ),
    "a region of ops": (
        EXPERTS,
        "quantize experts as float8(rowwise) except router\n",
        "quantize moe.gate, moe.up, moe.down as float8(rowwise) except moe.router\n",
    ),
    "a beginning that was a region, too": (
        SHARED,
        "recompute ffn\n",
        "recompute ffn, shared.gate, shared.up, shared.swiglu, shared.down\n",
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_an_old_spelling_means_what_the_new_one_does(tmp_path: Path, pair: str) -> None:
    head, old, new = PAIRS[pair]
    paths = [tmp_path / "old.plan", tmp_path / "new.plan"]
    for path, text in zip(paths, (old, new), strict=True):
        path.write_text(head + text)
    before, after = (check(p) for p in paths)
    assert [d.code for d in after.diagnostics] == [d.code for d in before.diagnostics if d.code != "W0116"]
    target = "cuda" if "on cuda" in old else ""
    built = [build_file(p, target=target) for p in paths]
    assert {d.code for d in built[0].diagnostics} == {"W0116"} and not built[1].diagnostics
    assert built[0].plan and built[1].plan and built[0].plan.sha256 == built[1].plan.sha256
    assert modernize(paths[0], head + old) == head + new == modernize(paths[1], head + new)


def test_fmt_rewrites_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.plan"
    path.write_text(HEAD + PAIRS["stages"][1] + "recompute norm  # kept divided\n")
    assert main(["fmt", "--check", str(path)]) == 1 and "9 x 2" in path.read_text()
    assert main(["fmt", str(path)]) == 0
    assert (
        "2 x 9 layers" in path.read_text() and "recompute attention.norm, ffn.norm  # kept divided" in path.read_text()
    )
    assert main(["fmt", "--check", str(path)]) == 0 and check(path, target="none").ok


def test_a_layout_of_ones_own_may_have_an_old_name(tmp_path: Path) -> None:
    (tmp_path / "own.plan").write_text("layout dp over a\nshard batch over a\nstore optimizer over a\n")
    text = HEAD.replace("plan example\n", 'plan example\nimport "own.plan"\n') + "use dp over fsdp\n"
    path = tmp_path / "x.plan"
    path.write_text(text)
    assert "W0116" not in [d.code for d in check(path).diagnostics] and modernize(path, text) == text
    plan = build_file(path).plan
    assert plan and plan.store("optimizer") == ("fsdp",)


def test_old_spellings_of_a_layout_file_are_rewritten_there(tmp_path: Path) -> None:
    text = "layout own over a\nuse dp over a\nstore optimizer over a in experts\n"
    assert (
        modernize(tmp_path / "own.plan", text)
        == "layout own over a\nuse ddp over a\nstore optimizer over a for experts\n"
    )


@pytest.mark.parametrize("path", SAVED, ids=lambda p: p.stem)
def test_plans_of_the_first_draft_are_read(path: Path) -> None:
    text = path.read_text()
    old = parse_text(text, path.name)
    assert {d.code for d in old.diagnostics} <= {"W0116"} and not old.unread
    new = parse_text(format_text(modernize(path, text)), path.name)
    assert not new.diagnostics and [s.node.kind for s in new.sentences] == [s.node.kind for s in old.sentences]


BUNDLED = sorted((Path(__file__).parents[2] / "plans").rglob("*.plan"))


@pytest.mark.parametrize("path", [*SAVED, *BUNDLED], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_file_that_need_not_be_built_holds_no_old_spelling(path: Path) -> None:
    """Line by line too: each sentence that passes the quick test has no edit in the whole file."""
    text = path.read_text()
    lines = {edit.span.line for edit in _edits(path, text)}
    assert may_hold_old_spellings(text) >= bool(lines)
    assert all(may_hold_old_spellings(text.split("\n")[line - 1]) for line in lines)


def test_most_bundled_plans_need_not_be_built() -> None:
    quick = [path for path in BUNDLED if not may_hold_old_spellings(path.read_text())]
    assert len(quick) > 0.9 * len(BUNDLED)


@pytest.mark.parametrize("name", sorted({file: name for name, file in model_names().items()}.values()))
def test_plain_words_never_named_an_op(name: str) -> None:
    model = build_model(name)
    ops = [op for section in model.ops.values() for op in section]
    assert all("." not in word for op in ops for word in (op.kind, op.region, op.name.rsplit(".", 1)[-1]))
    assert PLAIN.isdisjoint({word for op in ops for word in (op.kind, op.region, *op.name.split("."))})


def test_no_plan_of_the_first_draft_says_more_mistakes_than_it_did() -> None:
    assert len(SAVED) == 10
    found = {p.stem: {d.code for d in check(p).diagnostics if d.severity == "error"} for p in SAVED}
    assert found == {
        "acme_hardware": {"E0106"},
        "deepseek_v3_h800": {"E0108"},  # `vocab` is no matmul
        "gpt3_zero2": set(),
        "hsdp_layout": {"E0106"},
        "llama3_405b_128k": {"E0501", "E0801"},
        "llama3_70b_v5p_2slices": set(),
        "llama3_8b_fp8_offload": {"E0104", "E0115"},
        "llama_uneven_stages": set(),
        "mixtral_8x22b_hsdp": {"E0108"},  # an override names an axis that is not there
        "qwen3_ulysses": {"E0104"},
    }


@pytest.mark.parametrize("name", sorted({file: name for name, file in model_names().items()}.values()))
def test_names_cover_exactly_what_they_stand_for(name: str) -> None:
    """Every old word of every family, as names of today."""
    model = build_model(name)
    ops = [op for kind in model.blocks for op in model.ops[kind]]
    words = {w for op in ops for w in (op.kind, op.region, op.name.rsplit(".", 1)[-1], op.name)}
    for word in words | set(beginnings(op.name for op in ops)):
        meant = {
            op.name for op in ops if names_op(word, op) or word in (op.kind, op.region, op.name.rsplit(".", 1)[-1])
        }
        names = covering(meant, ops)
        assert {op.name for op in ops if any(names_op(n, op) for n in names)} == meant
