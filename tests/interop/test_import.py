"""A configuration to a plan: sentences with their origins, the batch's arithmetic, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

import planc
from planc.frameworks import NAMES
from planc.interop.importing import COMMENT, Imported, import_files
from planc.interop.systems import systems
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
    def sentences(options: Options) -> list[str]:
        text = imported(tmp_path, options=options).text
        return [line for line in text.splitlines() if line and not line.startswith(("plan", "#"))]

    short, whole = sentences(OPTIONS), sentences(replace(OPTIONS, sources=True))
    assert len(whole) >= 10
    assert all("  # " in line and line.partition("  # ")[2].strip() for line in (*short, *whole))
    assert all(len(line.partition("  # ")[2]) <= COMMENT + len(", and 99 more") for line in short)
    assert any("default of Megatron-LM" in line and "use_tp_pp_dp_mapping = False" in line for line in whole)


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
        ("--bf16", "--fp16", "", 0),
        ("RMSNorm", "LayerNorm", "E1304", 5),
        ("--bf16", "--bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", "E1304", 19),
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


def test_values_of_the_environment_are_asked_for_at_once(tmp_path: Path) -> None:
    """One finding names every variable that the shell alone knows; one of them alone keeps its own."""
    text = SCRIPT.replace("--hidden-size 4096", "--hidden-size $((HEADS * 128))")
    text = text.replace("--seq-length 8192", "--seq-length $SEQ")
    found = [d for d in imported(tmp_path, text).diagnostics if d.severity == "error"]
    assert [d.code for d in found] == ["E1305"] and "--set HEADS=VALUE" in found[0].help
    assert "--set SEQ=VALUE" in found[0].help and "leaves 2 values to the shell" in found[0].message


def test_a_flag_in_a_branch_of_the_shell_is_asked_for(tmp_path: Path) -> None:
    branch = 'if [ -n "${KEY}" ]; then\nMODEL_ARGS+=(--wandb-project x --kv-channels 64)\nfi\ntorchrun'
    found = imported(tmp_path, SCRIPT.replace("torchrun", branch))
    assert codes(found) == ["E1305"] and "kv_channels" in next(
        d.message for d in found.diagnostics if d.code == "E1305"
    )
    given = Options(cluster="1 x h100_node", devices=8, given={"kv_channels": "128"})
    assert codes(imported(tmp_path, SCRIPT.replace("torchrun", branch), given)) == []


def test_what_is_left_out_knowingly_is_said_in_the_plan(tmp_path: Path) -> None:
    text = SCRIPT.replace("--bf16", "--bf16 --fp8-param-gather --brand-new")
    options = Options(cluster="1 x h100_node", devices=8, ignored=("fp8_param_gather", "brand_new"))
    assert sorted(codes(imported(tmp_path, text))) == ["E1303", "E1304"]
    assert "left out by --ignore: fp8_param_gather, brand_new" in imported(tmp_path, text, options).text


def test_the_cluster_has_as_many_devices_as_the_script_starts(tmp_path: Path) -> None:
    found = imported(tmp_path, SCRIPT.replace("--nproc_per_node 8", "--nproc_per_node 8 --nnodes 2"))
    assert codes(found) == ["E1307"] and "16" in next(d.message for d in found.diagnostics if d.code == "E1307")
    assert codes(imported(tmp_path, SCRIPT.replace("--nproc_per_node 8", "--nproc_per_node $N"))) == []
    part = Options(cluster="1 x h100_node(4)", devices=4)
    left_out = replace(part, ignored=("nproc_per_node",))
    text = SCRIPT.replace("--nproc_per_node 8", "--nproc_per_node 2")
    assert codes(imported(tmp_path, text, part)) == ["E1307"] and codes(imported(tmp_path, text, left_out)) == []


@pytest.mark.parametrize(
    ("flags", "cluster", "devices", "words"),
    [
        ("--nproc_per_node 4", "1 x h100_node", 8, "1 x h100_node(4)"),
        ("--nproc_per_node 4", "h100_node", 8, "1 x h100_node(4)"),
        ("--nnodes 2 --nproc_per_node 2", "2 x h100_node", 16, "2 x h100_node(2)"),
        ("--nproc_per_node 4", "2 x h100_node", 16, ""),
    ],
)
def test_a_launch_of_fewer_ranks_has_a_part_of_each_node(
    tmp_path: Path, flags: str, cluster: str, devices: int, words: str
) -> None:
    """Said in the plan with the flag that starts them; ranks on fewer nodes than the cluster's are a contradiction."""
    text = SCRIPT.replace("--nproc_per_node 8", flags)
    found = imported(tmp_path, text, Options(cluster=cluster, devices=devices))
    assert codes(found) == ([] if words else ["E1307"])
    sentence = next((line for line in found.text.splitlines() if line.startswith("cluster")), "")
    assert (f"cluster   {words} " in sentence and "nproc_per_node = " in sentence) if words else not sentence


CONFIG = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 61
  --hidden-size: 7168
  --ffn-hidden-size: 18432
  --num-attention-heads: 128
  --kv-channels: 128
  --seq-length: 4096
  --max-position-embeddings: 4096
  --position-embedding-type: rope
  --normalization: RMSNorm
  --swiglu: true
  --disable-bias-linear: true
  --untie-embeddings-and-output-weights: true
  --vocab-size: 129280
  --make-vocab-size-divisible-by: 3232
  --multi-latent-attention: true
  --qk-layernorm: true
  --q-lora-rank: 1536
  --kv-lora-rank: 512
  --num-experts: 256
  --moe-layer-freq: ([0]*3+[1]*58)
  --moe-ffn-hidden-size: 2048
  --moe-shared-expert-intermediate-size: 2048
  --moe-router-topk: 8
  --moe-token-dispatcher-type: flex
  --recompute-granularity: selective
  --recompute-modules: "[layernorm mla_up_proj moe_act]"
  --tensor-model-parallel-size: 1
  --pipeline-model-parallel-size: 8
  --pipeline-model-parallel-layout: Et*3|(t*4|)*13t*4|t*2L
  --expert-model-parallel-size: 32
  --expert-tensor-parallel-size: 1
  --use-distributed-optimizer: true
  --overlap-grad-reduce: true
  --overlap-param-gather: true
  --use-precision-aware-optimizer: true
  --exp-avg-dtype: bf16
  --exp-avg-sq-dtype: bf16
  --fp8-format: hybrid
  --fp8-recipe: blockwise
  --bf16: true
  --micro-batch-size: 1
  --global-batch-size: 1024
"""


def test_a_model_config_is_read_as_its_flags(tmp_path: Path) -> None:
    found = imported(tmp_path, CONFIG, Options(cluster="32 x h100_node", devices=256), "model_config.yaml")
    setup = found.setup
    assert codes(found) == [] and found.system.name == "megatron"
    assert setup.model == "deepseek_v3" and (setup.pp, setup.chunks, setup.shard, setup.ep, setup.etp) == (
        8,
        2,
        32,
        32,
        1,
    )
    assert setup.stages == (3, *[4] * 14, 2)
    assert setup.recompute.ops == ("attention.norm", "ffn.norm", "mla.up_proj", "moe.swiglu")
    assert setup.stored == (("optimizer", "bf16"),) and setup.quantized[0].method == "float8(tile = 128)"
    (tmp_path / "run.plan").write_text(found.text)
    assert build_file(tmp_path / "run.plan").plan is not None


FIRST = (5, 8, 8, 8, 8, 8, 8, 9)
AHEAD = "--bf16: true\n  --mtp-num-layers: 1"


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ((("t*2L", "t*2mL"),), (3, *[4] * 14, 3)),
        (
            (("--pipeline-model-parallel-layout: Et*3|(t*4|)*13t*4|t*2L", "--decoder-first-pipeline-num-layers: 5"),),
            FIRST,
        ),
    ],
)
def test_modules_for_further_tokens_are_layers_of_their_stage(
    changes: tuple[tuple[str, str], ...], stages: tuple[int, ...], tmp_path: Path
) -> None:
    """A layout places them; else they are the last stage's. Dispatchers of the flex kind send once to each node."""
    text = CONFIG.replace("--bf16: true", AHEAD, 1)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    found = imported(tmp_path, text, Options(cluster="32 x h100_node", devices=256), "model_config.yaml")
    assert codes(found) == [] and found.setup.model == "deepseek_v3(mtp_layers = 1)"
    assert found.setup.stages == stages and found.setup.route.copies == "node"
    (tmp_path / "run.plan").write_text(found.text)
    plan = build_file(tmp_path / "run.plan").plan
    assert plan is not None and plan.model.kinds[-1] == "mtp" and plan.model.layers == 62


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("--moe-layer-freq: ([0]*3+[1]*58)", "--moe-layer-freq: ([0]*3+[1]*57)", "E1305"),
        ("--moe-layer-freq: ([0]*3+[1]*58)", "--moe-layer-freq: ([1]*58+[0]*3)", "E1304"),
        ("t*2L", "t*2mL", "E1307"),
        ("t*2L", "t*1mtL", "E1304"),
        ("t*2L", "t*3L", "E1307"),
        ("flex", "allgather", "E1304"),
        ("--moe-router-topk: 8", "--moe-router-topk: 4", "E1304"),
        ("--bf16: true", "--bf16: true\n  --mtp-num-layers: 1", "E1307"),
        ("--exp-avg-dtype: bf16", "--exp-avg-dtype: fp8", "E1304"),
        ("--overlap-param-gather: true", "--overlap-param-gather: false", "E1304"),
    ],
)
def test_a_model_config_that_a_plan_cannot_say_has_a_code(old: str, new: str, code: str, tmp_path: Path) -> None:
    assert old in CONFIG
    options = Options(cluster="32 x h100_node", devices=256)
    assert codes(imported(tmp_path, CONFIG.replace(old, new, 1), options, "model_config.yaml")) == [code]


def test_files_that_cannot_be_read_have_a_code(tmp_path: Path) -> None:
    (tmp_path / "out.sh").symlink_to("/dev/zero")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for name in ("out.sh", "folder.yaml", "bytes.json", "absent.toml"):
        assert codes(import_files([tmp_path / name], OPTIONS)) == ["E1301"], name
    (tmp_path / "other.yaml").write_text("a: 1\n")
    assert codes(import_files([tmp_path / "other.yaml"], OPTIONS)) == ["E1302"]


def test_the_library_reads_files_too(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    found = planc.import_(tmp_path / "run.sh", cluster="1 x h100_node")
    assert found.text.startswith("plan run\n") and found.setup.tp == 4
    with pytest.raises(planc.PlanError, match="E1306"):
        planc.import_(tmp_path / "run.sh")
    with pytest.raises(planc.PlanError, match="E0108"):
        planc.import_(tmp_path / "run.sh", cluster="1 x h100_nod")


def test_a_python_file_is_refused_with_the_way_to_dump_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text("raise SystemExit\n")
    found = import_files([tmp_path / "recipe.py"], OPTIONS)
    assert codes(found) == ["E1301"] and "run_config.yaml" in found.diagnostics[0].message


def test_an_imported_plan_has_the_rules_of_its_framework(tmp_path: Path) -> None:
    """The sentence, and what follows from it: the kernel of attention. Other padding is no rule of Megatron-LM's."""
    found = imported(tmp_path)
    assert "\nrealise   as megatron" in found.text and found.setup is not None and found.setup.framework == "megatron"
    (tmp_path / "run.plan").write_text(found.text)
    plan = build_file(tmp_path / "run.plan").plan
    assert plan is not None and plan.framework == "megatron" and plan.attention is not None
    other = imported(tmp_path, SCRIPT.replace("--swiglu", "--swiglu --make-vocab-size-divisible-by 64"))
    assert "realise" not in other.text


@pytest.mark.parametrize("name", [n for n, s in systems().items() if n != "levanter"])
def test_systems_and_frameworks_have_one_table_of_names(name: str) -> None:
    """Each system that is read says a framework of `planc.frameworks`."""
    assert "framework" in systems()[name].settings
    assert name in NAMES or name == "hugging_face"
