"""Sentences become a plan: shorthands, numbers, imports, and what contradicts what."""

import json
from pathlib import Path

import pytest

from planc.driver import load
from planc.ir.read_plan import read_plan
from tests.plans import BODY, BUNDLED, HEAD, codes, found, plan_of

WRITTEN_OUT = """shard     batch over fsdp
store     params, grads, optimizer over fsdp
shard     heads, ffn, vocab over tp
shard     sequence over tp in residual
recompute blocks
"""


def test_a_shorthand_is_its_expansion(tmp_path: Path) -> None:
    assert plan_of(tmp_path, HEAD + BODY).sha256 == plan_of(tmp_path, HEAD + WRITTEN_OUT).sha256


def test_arguments_of_a_method_are_kept(tmp_path: Path) -> None:
    text = (HEAD + BODY).replace("fsdp 8 >", "pp 4 > fsdp 2 >") + "{} over pp as interleaved_1f1b(chunks = 4)\n"
    one, other = (plan_of(tmp_path, text.format(verb)).split for verb in ("use pp", "split layers"))
    assert one is not None and other is not None and (one.chunks, one.stages) == (4, other.stages)
    assert one.cause.sentence.endswith("as interleaved_1f1b(chunks = 4)")
    assert codes(tmp_path, text.format("use pp").replace("interleaved_1f1b(", "zbv(")) == ["E0108"]


def test_heads_carry_the_key_value_heads(tmp_path: Path) -> None:
    assert plan_of(tmp_path, HEAD + BODY).axes_of("kv_heads", "attention") == ("tp",)


def test_a_scoped_rule_holds_in_its_region_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + BODY)
    assert plan.axes_of("sequence", "residual") == ("tp",) and plan.axes_of("sequence", "attention") == ()


def test_params_and_set(tmp_path: Path) -> None:
    text = (HEAD + BODY).replace("cluster   8 x", "let n = 8\ncluster   n x").replace("fsdp 8 >", "fsdp n >")
    assert plan_of(tmp_path, text).mesh.sizes["fsdp"] == 8
    assert plan_of(tmp_path, text, n=4).mesh.devices == 32
    assert codes(tmp_path, text, m=4) == ["E0108"]


def test_division_must_come_out_even(tmp_path: Path) -> None:
    text = HEAD.replace("fsdp 8", "fsdp 17 / 2") + BODY
    (d, *_) = found(tmp_path, text)
    assert d.code == "E0103" and "8.5" in d.message


def test_a_ring_and_its_kernel_are_two_sentences_and_two_rings_are_one_too_many(tmp_path: Path) -> None:
    text = HEAD + BODY + "attention.core as flash\nattention.core as ring(balance = none)\n"
    kernel = plan_of(tmp_path, text).attention
    assert kernel is not None and (kernel.method, kernel.balance, kernel.runs) == ("ring", "none", "flash")
    assert codes(tmp_path, text + "attention.core as cudnn\n") == ["E0107"]
    assert codes(tmp_path, text + "attention.core as all_gather\n") == ["E0107"]
    alone = plan_of(tmp_path, HEAD + BODY + "attention.core as ring\n").to_json()
    assert "kernel" not in alone["attention"], "plans without the second sentence are compiled as before"


def test_a_written_sentence_beats_a_shorthand_with_a_note(tmp_path: Path) -> None:
    text = HEAD + BODY + "shard     batch over tp, fsdp\n"
    assert "N0110" in codes(tmp_path, text)


def test_two_shorthands_that_contradict_are_an_error(tmp_path: Path) -> None:
    assert "E0110" in codes(tmp_path, HEAD + BODY + "use ddp over fsdp\n" + "use ddp over tp\n")


def test_sentences_of_another_target_do_not_count(tmp_path: Path) -> None:
    text = HEAD + BODY.replace("recompute", "on xla: recompute") + "on cuda: recompute blocks\n"
    path = tmp_path / "a.plan"
    path.write_text(text)
    assert not load(path).recompute.ops and load(path, target="xla").recompute.blocks


def test_imported_hardware_and_layouts(tmp_path: Path) -> None:
    (tmp_path / "mine.plan").write_text(
        "hardware mine\nchip c(bf16 = 100 TFLOP/s, memory = 64 GiB, memory_bandwidth = 1 TB/s)\n"
        "link l(bandwidth = 100 GB/s, latency = 1 us)\nnode box = 4 x c over l\n"
    )
    (tmp_path / "both.plan").write_text("layout both over a, b\nuse fsdp over a\nuse tp over b\n")
    text = (
        'plan x\nimport "mine.plan"\nimport "both.plan"\nmodel llama_tiny\nbatch 8 x 128 tokens\n'
        "cluster 1 x box\nmesh fsdp 2 > tp 2\ncompute fp32\nuse both over fsdp, tp\n"
    )
    plan = plan_of(tmp_path, text)
    assert plan.cluster.chip.name == "c" and plan.axes_of("ffn") == ("tp",)
    assert set(plan.sources) == {"example.plan", "mine.plan", "both.plan"}


@pytest.mark.parametrize("name", ["../secret.plan", "/etc/passwd", "missing.plan", "example.plan", "."])
def test_imports_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.plan").write_text("layout l over a\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    assert set(codes(inner, HEAD.replace("model", f'import "{name}"\nmodel') + BODY)) <= {"E0111", "E0104"}


def test_a_layout_that_uses_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "loop.plan").write_text("layout loop over a\nuse loop over a\n")
    text = HEAD.replace("model", 'import "loop.plan"\nmodel') + "use loop over fsdp\n" + BODY
    assert set(codes(tmp_path, text)) == {"E0111"}


@pytest.mark.parametrize("path", BUNDLED, ids=lambda p: p.stem)
def test_the_compiled_form_is_canonical_and_comes_back(path: Path) -> None:
    plan = load(path)
    again = read_plan(json.loads(plan.canonical()))
    assert again == plan and again.canonical() == plan.canonical() and again.sha256 == plan.sha256


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("attention.cor", "E0108"),
        ("blocks except attention.cor", "E0108"),
        ("blocks every 0 layers", "E0103"),
        ("blocks except layers 0, 3", "E0109"),
    ],
)
def test_recompute_names_ops(tmp_path: Path, words: str, code: str) -> None:
    assert codes(tmp_path, HEAD + BODY.replace("recompute blocks", f"recompute {words}")) == [code]


def test_order_of_sentences_does_not_matter(tmp_path: Path) -> None:
    lines = (HEAD + BODY).splitlines()
    turned = "\n".join([lines[0], *reversed(lines[1:])]) + "\n"
    assert plan_of(tmp_path, turned).sha256 != ""
    assert plan_of(tmp_path, turned).mesh.sizes == plan_of(tmp_path, HEAD + BODY).mesh.sizes


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("store params as float7 over fsdp", "E0108"),
        ("store momentum over fsdp", "E0108"),
        ("gather params per day", "E0108"),
        ("gather grads per step", "E0108"),
        ("gather params per pass bucket 0 layers", "E0103"),
        ("gather params per pass prefetch 3/2 layers", "E0103"),
        ("optimizer sgd", "E0108"),
        ("optimizer adamw(lr = 3)", "E0109"),
        ("compute int4", "E0108"),
        ("recompute attention.core", "E0107"),
        ("shard sequence over tp in residul", "E0108"),
        ("shard experts over tp", "E0108"),
        ("shard heads over tp, tp", "E0108"),
        ("split layers over fsdp as 2f2b", "E0108"),
        ("override layers.*.ffn = replicated", "E0701"),
        ("override output = ffn over tp", "E0108"),
        ("expect speed >= 3", "E0108"),
        ("expect mfu >= 40", "E0103"),
        ("expect memory <= 99999999999999999999999 GiB", "E0103"),
        ("quantize ffm as float8", "E0108"),
        ("quantize ffn as float7", "E0108"),
        ("quantize ffn as float8(tile = 0)", "E0103"),
        ("quantize ffn as float8(rowwise, recipe = tensorwise)", "E0108"),
        ("quantize ffn as float8 except layers 30..40", "E0108"),
        ("view a 2 > b 4 of fsdp for experts", "E0108"),
        ("replicate kv_heads over pt", "E0108"),
        ("replicate experts over tp", "E0108"),
        ("route experts as dropless", "E0108"),
        ("attention.core as rings", "E0108"),
        ("attention.core as ring(balance = head)", "E0108"),
        ("attention.core as ring(2)", "E0108"),
        ("offload optimizer to disk", "E0108"),
        ("offload attention.inn to host", "E0108"),
        ("overlap tp as magic", "E0108"),
        ("compile layers", "E0108"),
        ("on tpu: recompute blocks", "E0108"),
    ],
)
def test_one_wrong_line(tmp_path: Path, line: str, code: str) -> None:
    text = (HEAD + BODY).replace("compute   fp32\n", "") if line.startswith("compute") else HEAD + BODY
    reported = found(tmp_path, text + line + "\n")
    assert code in [d.code for d in reported], reported
    assert all(d.span.line == text.count("\n") + 1 for d in reported if d.code == code)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("** = head_dim over edp", ["E0209"]),
        ("layers.*.attention.wq = heads over edp", ["E0209"]),
        ("layers.*.moe.experts.w1 = embed over dp", ["E0209"]),
        ("layers.*.moe.experts.w1 = expert_ffn over edp", []),
        ("** = expert_ffn over edp", []),
    ],
)
def test_an_override_names_axes_that_exist_where_its_parameters_are_used(
    tmp_path: Path, override: str, expected: list[str]
) -> None:
    text = f"""plan experts
model     mixtral_micro(layers = 2)
batch     8 x 16 tokens
cluster   4 x cpu_local
mesh      dp 4
view      edp 2 > ep 2 of dp for experts
shard     batch over dp
shard     experts over ep
compute   fp32
override  {override}
"""
    assert [code for code in codes(tmp_path, text) if code.startswith("E")] == expected
