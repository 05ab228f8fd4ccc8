"""`hugging_face_round.py FOLDER CLASS`: a small model of transformers imported, trained one step, exported.

Prints one line of JSON: how far logits are apart before and after, and how far the step moved them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.runtime.start_up import start_single
from planc.checks import check_plan
from planc.diag import Span
from planc.ir.session import Settings
from planc.language.build import build_file
from planc.lowering import lower_plan
from planc.trainer.checkpoint.hugging_face import exported, imported

SIZES = {
    "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "head_dim": 8,
    "intermediate_size": 182, "vocab_size": 134, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}  # fmt: skip
OF_KIND: dict[str, dict[str, Any]] = {
    "Llama": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "Mistral": {
        "sliding_window": 16, "tie_word_embeddings": False, "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
    },
    "Qwen3": {
        "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1,
    },
}  # fmt: skip
"""Where a kind differs from its class's defaults beside the sizes."""
PLAN = """plan own
model from "config.json"
batch 4 x 24 tokens microbatch 2
cluster 1 x cpu_local
mesh dp 1
use ddp over dp
compute fp32
"""


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = model(tokens)
    found: torch.Tensor = getattr(out, "logits", out)
    return found


def main(root: Path, kind: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **OF_KIND[kind]})
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    theirs.save_pretrained(root / "theirs", max_shard_size="200KB")
    (root / "own.plan").write_text(PLAN.replace("config.json", "theirs/config.json"))
    built = build_file(root / "own.plan", target="cuda")
    assert built.plan is not None, [d.message for d in built.diagnostics]
    model = built.plan.model
    initial = imported(model, root / "theirs", Span("own.plan", 1, 1, 1, 1))
    session = start_single(lower_plan(check_plan(built.plan), "cuda"), Settings(), initial)
    stream = np.random.default_rng(0)
    rows = stream.integers(0, model.sizes["vocab"], (4, 25), dtype=np.int32)
    tokens = torch.from_numpy(rows[:, :-1].astype(np.int64))
    (ours,) = session._modules
    before, first = logits(theirs, tokens), logits(ours, tokens)
    session.step(rows[:, :-1], rows[:, 1:], 1e-3)
    after = logits(ours, tokens)
    exported(model, session.parameters(), root / "ours", most_bytes=300_000)
    back = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(root / "ours", dtype=torch.float32).eval()
    scale = before.abs().max()
    print("ROW", json.dumps({
        "shards": [len(list((root / side).glob("*.safetensors"))) for side in ("theirs", "ours")],
        "before": float((first - before).abs().max() / scale),
        "after": float((logits(back, tokens) - after).abs().max() / scale),
        "moved": float((after - first).abs().max() / scale),
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), sys.argv[1])
