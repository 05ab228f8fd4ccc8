"""torchtitan: TOML of v0.2.2, dumps of today, and a function that its own classes would take."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from planc.driver import load
from planc.interop.effective import differing
from planc.interop.exporting import export_plan
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options
from planc.language.build import build_file

HEADER = '[model]\nname = "llama3"\nflavor = "8B"\n'
OPTIONS = Options(cluster="2 x h100_node", devices=16)


def imported(tmp_path: Path, sections: str, name: str = "run.toml", options: Options = OPTIONS) -> Imported:
    file = tmp_path / name
    file.write_text(sections)
    return import_files([file], options)


@pytest.mark.parametrize(
    ("sections", "names", "values"),
    [
        ("", ("shard", "zero", "sequences", "sequence_tokens", "microbatch"), (16, 3, 128, 2048, 8)),
        ("", ("precision.compute", "gather", "compiled"), ("bf16", "pass", ())),
        (
            "[training]\nlocal_batch_size = 2\nglobal_batch_size = 64\nseq_len = 8192",
            ("sequences", "microbatch"),
            (64, 2),
        ),
        ("[parallelism]\ntensor_parallel_degree = 8", ("tp", "shard", "sp", "vocab_over_tp"), (8, 2, True, True)),
        ("[parallelism]\ndata_parallel_replicate_degree = 2", ("replica", "shard"), (2, 8)),
        (
            "[parallelism]\ndata_parallel_replicate_degree = 16\ndata_parallel_shard_degree = 1",
            ("replica", "zero"),
            (16, 0),
        ),
        ("[parallelism]\ncontext_parallel_degree = 2", ("cp", "cp_method", "zero_over_cp"), (2, "all_gather", True)),
        (
            '[parallelism]\ncontext_parallel_degree = 2\ncontext_parallel_rotate_method = "alltoall"',
            ("cp_method",),
            ("ring",),
        ),
        (
            "[parallelism]\npipeline_parallel_degree = 4\n[training]\nlocal_batch_size = 8",
            ("pp", "schedule", "chunks", "stages", "gather", "whole_grads", "microbatch", "sequences"),
            (4, "1f1b", 1, (8, 9, 8, 7), "step", True, 1, 32),
        ),
        (
            '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"',
            ("schedule", "chunks"),
            ("interleaved_1f1b", 2),
        ),
        ('[parallelism]\nfsdp_reshard_after_forward = "never"', ("gather",), ("microbatch",)),
        ('[activation_checkpoint]\nmode = "full"', ("recompute.ops", "recompute.every"), (("whole_blocks",), 1)),
        ("", ("recompute.ops", "recompute.every"), (("whole_blocks",), 2)),
        ('[activation_checkpoint]\nmode = "none"', ("recompute.ops",), ((),)),
        ("[compile]\nenable = true", ("compiled",), (("blocks", "loss"),)),
        ("[training]\nenable_cpu_offload = true", ("offloaded",), (("params", "optimizer"),)),
    ],
)
def test_a_toml_says_what_torchtitan_does(
    sections: str, names: tuple[str, ...], values: tuple[object, ...], tmp_path: Path
) -> None:
    found = imported(tmp_path, HEADER + sections)
    assert found.setup is not None, found.diagnostics
    read = []
    for name in names:
        value: object = found.setup
        for part in name.split("."):
            value = getattr(value, part)
        read.append(value)
    assert tuple(read) == values


@pytest.mark.parametrize(
    ("sections", "code"),
    [
        ("[parallelism]\ntensor_parallel_degree = 3", "E1307"),
        ("[parallelism]\ndata_parallel_shard_degree = 4", "E1307"),
        ("[training]\nglobal_batch_size = 100", "E1307"),
        ("[parallelism]\ntensor_parallel_degree = 2\ndisable_loss_parallel = true", "E1304"),
        ("[parallelism]\npipeline_parallel_degree = 2\n[training]\nglobal_batch_size = 256", "E1304"),
        ('[activation_checkpoint]\nmode = "memory_budget"', "E1304"),
        ('[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"', "W1310"),
        ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "2F2B"', "E1305"),
        ("[parallelism]\ntensor_paralel_degree = 2", "E1303"),
    ],
)
def test_what_has_no_sentence_has_a_code(sections: str, code: str, tmp_path: Path) -> None:
    assert code in [d.code for d in imported(tmp_path, HEADER + sections).diagnostics]


PLAN = """plan titan
model     llama3_8b
batch     64 x 4096 tokens microbatch 1
cluster   2 x h100_node
LAYOUT
compute   bf16 reduce fp32
"""
STAGED = "mesh pp 2 > fsdp 8\nshard batch over fsdp\nstore params, optimizer over fsdp\ngather params per step"
LAYOUTS = {
    "fsdp": "mesh fsdp 16\nuse fsdp over fsdp",
    "hsdp": "mesh replica 2 > fsdp 8\nuse hsdp over replica, fsdp",
    "ddp": "mesh dp 16\nuse ddp over dp",
    "tp": "mesh fsdp 2 > tp 8\nuse fsdp over fsdp\nuse tp over tp\nuse sp over tp\noverlap tp as async_matmul",
    "tp_alone": "mesh fsdp 2 > tp 8\nuse fsdp over fsdp\nuse tp over tp",
    "cp": "mesh fsdp 8 > cp 2\nshard batch over fsdp\nstore params, grads, optimizer over fsdp, cp\n"
    "use cp over cp as all_gather",
    "pp": f"{STAGED}\nsplit layers over pp as 1f1b",
    "pp_looped": f"{STAGED}\nsplit layers over pp as interleaved_1f1b(chunks = 2)",
    "never": "mesh fsdp 16\nuse fsdp over fsdp\ngather params per microbatch",
    "whole_blocks": "mesh fsdp 16\nuse fsdp over fsdp\nrecompute whole_blocks\ncompile blocks, loss",
    "blocks": "mesh fsdp 16\nuse fsdp over fsdp\nrecompute blocks\ncompile blocks",
    "offload": "mesh fsdp 16\nuse fsdp over fsdp\noffload params, optimizer to host",
    "chunks": "mesh fsdp 2 > tp 8\nuse fsdp over fsdp\nuse tp over tp\nloss in 8 chunks",
    "bf16": "mesh fsdp 16\nuse fsdp over fsdp\nstore params, grads, optimizer as bf16",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torchtitan_says_its_own_layouts(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "titan.plan"
    path.write_text(PLAN.replace("LAYOUT", LAYOUTS[layout]))
    exported = export_plan(load(path), "torchtitan")
    function = ast.parse(exported.text).body[-1]
    assert isinstance(function, ast.FunctionDef) and function.name == "titan"
    assert ("loss=ChunkedLossWrapper.Config(num_chunks=8)" in exported.text) == (layout == "chunks")
    assert [d.code for d in exported.diagnostics] == (["W1310"] if layout == "blocks" else [])


def test_a_layout_of_megatron_is_said_to_torchtitan_where_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "titan.plan"
    path.write_text(
        PLAN.replace("LAYOUT", LAYOUTS["ddp"].replace("dp 16", "dp 2 > tp 8") + "\nuse tp over tp\nuse sp over tp")
    )
    script = tmp_path / "run.sh"
    script.write_text(export_plan(load(path), "megatron").text)
    back = tmp_path / "back.plan"
    options = Options(cluster="2 x h100_node", devices=16, model="llama3_8b")
    back.write_text(import_files([script], options).text)
    again = export_plan(load(back), "torchtitan")
    assert again.fields["parallelism.data_parallel_replicate_degree"] == 2
    assert differing(load(path), build_file(back).plan) == ()


REAL = json.loads((Path(__file__).parent / "facts" / "torchtitan_real.json").read_text())["files"]


@pytest.mark.parametrize("real", REAL, ids=lambda real: Path(real["path"]).stem)
def test_real_files_mean_what_torchtitans_own_dataclasses_say(real: dict[str, Any], tmp_path: Path) -> None:
    """Files of v0.2.2: degrees, batch and precision are those of JobConfig; experts in narrow types are refused."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in real["given"].items()]
    options = Options(cluster=f"{real['devices'] // 8} x h100_node", devices=real["devices"])
    found = imported(tmp_path, "\n".join(lines), options=options)
    assert found.setup is not None, found.diagnostics
    setup, effective = found.setup, real["effective"]
    assert {
        "dp_shard": setup.shard,
        "dp_replicate": setup.replica,
        "tp": setup.tp,
        "pp": setup.pp,
        "cp": setup.cp,
        "ep": setup.ep,
        "global_batch_size": setup.sequences,
        "seq_len": setup.sequence_tokens,
        "microbatch": setup.microbatch,
        "param": {"bf16": "bfloat16", "fp32": "float32"}[setup.precision.compute],
        "ac": "full" if setup.recompute.blocks else "selective" if setup.recompute.ops else "none",
        "compile": bool(setup.compiled),
    } == effective


def test_there_are_as_many_as_were_compared() -> None:
    assert len(REAL) == 10
