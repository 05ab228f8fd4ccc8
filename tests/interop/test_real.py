"""Real configurations of public trees: what planc reads in their flags is what the system's own parser says of them.

`facts/megatron_real.json` holds the flags of each file that planc reads or could refuse, and the values that
Megatron-LM's own parser gave to its arguments.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from planc.interop.importing import import_files
from planc.interop.setup import TrainingSetup
from planc.interop.values import Options
from planc.interop.words import read_model
from planc.ir.model import Model

FILES = json.loads((Path(__file__).parent / "facts" / "megatron_real.json").read_text())["files"]


def effective(setup: TrainingSetup, folder: Path) -> dict[str, Any]:
    """The setup in Megatron-LM's names."""
    model = read_model(setup.model, folder)
    assert isinstance(model, Model)
    found = {
        "data_parallel_size": setup.data_parallel,
        "tensor_model_parallel_size": setup.tp,
        "pipeline_model_parallel_size": setup.pp,
        "context_parallel_size": setup.cp,
        "expert_model_parallel_size": setup.ep,
        "global_batch_size": setup.sequences,
        "micro_batch_size": setup.microbatch,
        "seq_length": setup.sequence_tokens,
        "sequence_parallel": setup.sp,
        "virtual_pipeline_model_parallel_size": setup.chunks if setup.chunks > 1 else None,
        "num_layers": model.layers,
        "padded_vocab_size": model.sizes["vocab"],
        "use_distributed_optimizer": setup.zero > 0,
        "recompute_granularity": "full" if setup.recompute.blocks else "selective" if setup.recompute.ops else None,
        "kv_channels": model.sizes["head_dim"],
        "untie_embeddings_and_output_weights": not model.tied,
    }
    if model.top_k:
        return found | {"moe_ffn_hidden_size": model.sizes["expert_ffn"], "expert_tensor_parallel_size": setup.etp}
    return found | {"ffn_hidden_size": model.sizes["ffn"]}


def script(flags: dict[str, Any]) -> str:
    words = ["pretrain_gpt.py"]
    for name, value in flags.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return " ".join(words) + "\n"


@pytest.mark.parametrize("real", FILES, ids=lambda real: real["path"].split("/")[-2])
def test_the_effective_values_are_those_of_the_systems_parser(real: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(script(real["flags"]))
    options = Options(cluster=f"{real['devices'] // 8} x h100_node", devices=real["devices"], folder=tmp_path)
    found = import_files([tmp_path / "run.sh"], options, "megatron")
    assert found.setup is not None, found.diagnostics
    mine = effective(found.setup, tmp_path)
    assert {
        name: (value, real["effective"][name]) for name, value in mine.items() if value != real["effective"][name]
    } == {}


def test_there_are_as_many_as_were_compared() -> None:
    assert len(FILES) >= 30 and len({real["path"] for real in FILES}) == len(FILES)
