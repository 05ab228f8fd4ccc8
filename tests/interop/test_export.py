"""A plan to another system's file and back: the same plan, or a refusal that names the sentence."""

from pathlib import Path

import pytest

from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.driver import load
from planc.interop.effective import differing
from planc.interop.exporting import export_plan
from planc.interop.importing import import_files
from planc.interop.systems import systems
from planc.interop.values import Options
from planc.language.build import build_file
from tests.plans import BUNDLED, FIELD

WRITTEN = [name for name, system in systems().items() if system.text is not None]
PLANS = [*BUNDLED, *FIELD]


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
@pytest.mark.parametrize("to", WRITTEN)
def test_what_is_exported_says_the_plan(to: str, path: Path, tmp_path: Path) -> None:
    plan = load(path)
    refused: tuple[Diagnostic, ...] = ()
    try:
        exported = export_plan(plan, to)
    except PlanError as error:
        refused = tuple(error.diagnostics)
    if refused:
        assert {d.code for d in refused} == {"E1309"}
        assert all(d.span.file == plan.file and d.span.line > 0 for d in refused)
        return
    if exported.system.ending == ".py":
        return  # a function is not read; its fields were, before it was written
    file = tmp_path / f"exported{exported.system.ending}"
    file.write_text(exported.text)
    beside = dict(exported.beside)
    options = Options(
        cluster=exported.setup.cluster, devices=plan.mesh.devices, model=exported.setup.model, given=beside
    )
    found = import_files([file], options, to)
    assert [d for d in found.diagnostics if d.severity == "error"] == []
    (tmp_path / "back.plan").write_text(found.text)
    back = build_file(tmp_path / "back.plan").plan
    assert differing(plan, back) == (("recompute",) if exported.diagnostics else ()), "but for what is warned of"


MEGATRON = """plan on_gpus
model     MODEL
batch     64 x 4096 tokens microbatch 1
cluster   2 x h100_node
SENTENCES
compute   bf16 reduce fp32
"""
LAYOUTS = {
    "ddp": ("llama3_8b", "mesh dp 16\nuse ddp over dp"),
    "zero1": ("llama3_8b", "mesh dp 16\nuse zero1 over dp"),
    "tp": ("llama3_8b", "mesh dp 4 > tp 4\nuse zero1 over dp\nuse tp over tp"),
    "sp": ("llama3_8b", "mesh dp 4 > tp 4\nuse zero1 over dp\nuse tp over tp\nuse sp over tp"),
    "ring": ("llama3_8b", "mesh dp 8 > cp 2\nshard batch over dp\nstore optimizer over dp, cp\nuse cp over cp as ring"),
    "pp": ("llama3_8b", "mesh pp 4 > dp 4\nuse zero1 over dp\nsplit layers over pp as 1f1b"),
    "interleaved": (
        "llama3_8b",
        "mesh pp 4 > dp 4\nuse zero1 over dp\nsplit layers over pp as interleaved_1f1b(chunks = 2)",
    ),
    "uneven": (
        "llama3_8b",
        "mesh pp 4 > dp 4\nuse zero1 over dp\nsplit layers over pp as 1f1b stages [7, 2 x 9 layers, 7]",
    ),
    "whole_blocks": ("llama3_8b", "mesh dp 16\nuse zero1 over dp\nrecompute whole_blocks"),
    "core": ("llama3_8b", "mesh dp 16\nuse zero1 over dp\nrecompute attention.core"),
    "gpt": (
        "gpt3_6_7b(vocab = 51200, positions = 4096)",
        "mesh dp 4 > tp 4\nuse zero1 over dp\nuse tp over tp\nuse sp over tp",
    ),
    "replicas": ("llama3_8b", "mesh replica 2 > dp 8\nshard batch over replica, dp\nstore optimizer over dp"),
    "fsdp": ("llama3_8b", "mesh fsdp 16\nuse fsdp over fsdp"),
    "zero2": ("llama3_8b", "mesh dp 16\nuse zero2 over dp"),
    "outer": (
        "llama3_8b",
        "mesh dp 4 > pp 4\nuse zero1 over dp\nsplit layers over pp as 1f1b",
    ),
    "ulysses": ("llama3_8b", "mesh dp 8 > cp 2\nshard batch over dp\nstore optimizer over dp, cp\nuse ulysses over cp"),
    "moments": ("llama3_8b", "mesh dp 16\nshard batch over dp\nstore optimizer as bf16 over dp"),
    "grads": (
        "llama3_8b",
        "mesh dp 16\nshard batch over dp\nstore optimizer over dp\nstore grads as bf16\ncompute bf16 reduce bf16",
    ),
    "float8": ("llama3_8b", "mesh dp 16\nuse zero1 over dp\nquantize attention, ffn as float8(tile = 32)"),
    "kernel": ("llama3_8b", "mesh dp 16\nuse zero1 over dp\nattention.core as cudnn\ncompile loss"),
    "exposed": ("llama3_8b", "mesh dp 16\nuse zero1 over dp\noverlap dp as none"),
    "offload": ("llama3_8b", "mesh dp 16\nuse zero1 over dp\noffload optimizer to host"),
    "muon": ("llama3_8b", "mesh dp 16\nuse ddp over dp\noptimizer muon"),
    "capacity": ("mixtral_8x7b", "mesh dp 16\nuse zero1 over dp\nroute experts as capacity(factor = 1.5)"),
    "latent": (
        "deepseek_v3(layers = 8)",
        "mesh pp 2 > dp 8\nuse zero1 over dp\nview ep 8 of dp for experts\nuse ep over ep\n"
        "split layers over pp as 1f1b stages [embed + 5, 3 + head]\nrecompute mla.up_proj, moe.swiglu",
    ),
    "further_tokens": (
        "deepseek_v3(layers = 8, mtp_layers = 1)",
        "mesh pp 2 > dp 8\nuse zero1 over dp\nview ep 8 of dp for experts\nuse ep over ep\n"
        "split layers over pp as 1f1b",
    ),
    "further_tokens_placed": (
        "deepseek_v3(layers = 8, mtp_layers = 1)",
        "mesh pp 2 > dp 8\nuse zero1 over dp\nview ep 8 of dp for experts\nuse ep over ep\n"
        "split layers over pp as interleaved_1f1b(chunks = 2) stages [embed + 3, 3, 2, 1 + head]",
    ),
    "once_a_node": ("mixtral_8x7b", "mesh dp 16\nuse zero1 over dp\nroute experts as dropless(copies = node)"),
    "experts": (
        "mixtral_8x7b",
        "mesh dp 16\nuse zero1 over dp\nview edp 2 > ep 8 of dp for experts\nuse ep over ep\n"
        "store optimizer over edp for experts",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_megatron_says_its_own_layouts(layout: str, tmp_path: Path) -> None:
    model, sentences = LAYOUTS[layout]
    path = tmp_path / "on_gpus.plan"
    whole = MEGATRON.removesuffix("compute   bf16 reduce fp32\n") if "\ncompute" in sentences else MEGATRON
    path.write_text(whole.replace("MODEL", model).replace("SENTENCES", sentences))
    exported = export_plan(load(path), "megatron")
    assert "pretrain_gpt.py" in exported.text and exported.fields["global_batch_size"] == 64


@pytest.mark.parametrize(
    ("sentence", "line"),
    [
        ("override layers.*.attention.wq = replicated", 7),
        ("gather params per microbatch", 7),
        ("offload params to host", 7),
        ("compile blocks", 7),
        ("freeze embedding", 7),
        ("lora rank 4 on heads", 7),
    ],
)
def test_a_sentence_that_megatron_has_not_is_refused_by_its_line(sentence: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "on_gpus.plan"
    path.write_text(
        MEGATRON.replace("MODEL", "llama3_8b").replace("SENTENCES", f"mesh fsdp 16\nuse fsdp over fsdp\n{sentence}")
    )
    with pytest.raises(PlanError) as refused:
        export_plan(load(path), "megatron")
    assert ("E1309", line) in [(d.code, d.span.line) for d in refused.value.diagnostics]


def test_a_system_that_is_not_written_yet_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    from planc.cli import main
    from planc.cli.commands import export

    missing = [name for name in export.WRITTEN if name not in WRITTEN]
    for name in missing:
        assert main(["export", str(BUNDLED[0]), "--to", name]) == 2
        assert name in capsys.readouterr().err
    assert set(WRITTEN) <= set(export.WRITTEN)


def test_a_plan_of_another_framework_is_exported_with_a_warning(tmp_path: Path) -> None:
    """Its layout goes through, and that its runs have other rules is said. Its own framework has nothing to say."""
    path = tmp_path / "m.plan"
    path.write_text(
        "plan m\nmodel llama3_8b\nbatch 64 x 4096 tokens microbatch 2\ncluster 2 x h100_node\nmesh dp 8 > tp 2\n"
        "use ddp over dp\nuse tp over tp\nuse sp over tp\ncompute fp32\nrecompute whole_blocks\nrealise as megatron\n"
    )
    plan = load(path)
    own, other = export_plan(plan, "megatron"), export_plan(plan, "torchtitan")
    assert own.diagnostics == () and own.setup.framework == "megatron" and own.setup.kernel == ""
    assert [d.code for d in other.diagnostics if "realise" in d.message] == ["W1310"]
    assert "attention_backend" not in own.fields
