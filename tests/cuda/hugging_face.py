"""Run by every rank of a launch: models of transformers under plans, each beside the same model undivided.

Rank 0 prints one line of JSON per layout: the largest relative differences of loss and gradients.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.runtime.traced.names import names_of
from planc.backends.cuda.runtime.traced.read import roles_of_module
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.language.build import build_file
from planc.lowering import lower_plan
from planc.trainer.run.launch import leave
from tests.cuda.cases import FSDP, PP, SP, TP

SEQUENCES, TOKENS, VOCAB = 16, 24, 134
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 182,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
HEADS = "shard heads, vocab over tp"

LAYOUTS: dict[str, tuple[str, ...]] = {
    "llama_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "llama_pipeline": ("pp 2 > tp 2", PP.format("1f1b"), TP, SP),
    "llama_recompute": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp", "recompute blocks"),
    "qwen3_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "qwen3_zero2": ("dp 4", "use zero2 over dp"),
    "llama_tied_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "mistral_window_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "qwen3moe_fsdp": ("fsdp 4", FSDP),
    "mixtral_fsdp": ("fsdp 4", FSDP),
    "mixtral_heads": ("fsdp 2 > tp 2", FSDP, HEADS),
}
TIED = ("llama_pipeline", "llama_recompute", "llama_tied_tp_sp")
"""Layouts of models whose head uses the embedding's weight."""
KINDS = {"llama": "Llama", "mistral": "Mistral", "qwen3": "Qwen3", "qwen3moe": "Qwen3Moe", "mixtral": "Mixtral"}


def model_of(name: str) -> Any:
    """The class of transformers that a layout is named after, small, with random weights."""
    kind = KINDS[name.split("_")[0]]
    more: dict[str, dict[str, Any]] = {
        "Mistral": {"sliding_window": 7},
        "Qwen3": {"head_dim": 8},
        "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 52},
        "Mixtral": {"num_local_experts": 4, "intermediate_size": 184},
        "Llama": {"tie_word_embeddings": name in TIED},
    }
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**{**SIZES, **more[kind]})
    )


def plan_of(name: str, config: Any) -> Plan:
    """A layout's plan, with the model read from its config."""
    mesh, *sentences = LAYOUTS[name]
    head = ["plan own", 'model from "config.json"', f"batch {SEQUENCES} x {TOKENS} tokens microbatch 2"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.plan"
        config.to_json_file(path.with_name("config.json"))
        path.write_text("\n".join([*head, "cluster 4 x cpu_local", f"mesh {mesh}", "compute fp32", *sentences]) + "\n")
        built = build_file(path, target="cuda")
    assert built.plan is not None, [d.message for d in built.diagnostics]
    return built.plan


def compared(name: str) -> dict[str, Any]:
    """One step of the divided model beside the whole one, on the same batch."""
    whole, model = model_of(name), model_of(name)
    tokens = torch.randint(0, VOCAB, (SEQUENCES, TOKENS + 1))
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    expected = F.cross_entropy(whole(inputs).logits.flatten(0, 1), labels.flatten())
    expected.backward()

    program = lower_plan(check_plan(plan_of(name, model.config)), "cuda")
    divided = program.parallelize(model)
    emitted = program.load()
    mesh = emitted.build_mesh("cpu")
    index, count = emitted.data_rank(mesh)
    rows = slice(index * SEQUENCES // count, (index + 1) * SEQUENCES // count)
    loss = emitted.build_step(divided, mesh)(inputs[rows], labels[rows])

    modules: list[nn.Module] = divided if isinstance(divided, list) else [divided]
    found = {name: p for module in modules for name, p in module.named_parameters()}
    expected_of = _gradients_of(whole)
    here = [n for n in expected_of if n in found]
    assert set(found) <= set(expected_of) and all(expected_of[n].abs().max() > 0 for n in here)
    gradient = max(_apart(found[n], expected_of[n]) for n in here)
    called = 0.0
    if not isinstance(divided, list):
        found_loss = divided(input_ids=inputs[rows], labels=inputs[rows]).loss.detach()
        called = abs(found_loss.item() / whole(input_ids=inputs[rows], labels=inputs[rows]).loss.item() - 1)
    return {
        "loss": abs(loss.item() - expected.item()) / expected.item(),
        "gradient": gradient,
        "called": called,
        "parameters": [len(here), len(expected_of)],
    }


def _gradients_of(whole: nn.Module) -> dict[str, Tensor]:
    """The undivided model's gradients by the names of the bound one; what a weight holds side by side, apart."""
    found: dict[str, Tensor] = {}
    for theirs, ours in names_of(roles_of_module(whole)).items():
        grad = whole.get_parameter(theirs).grad
        assert grad is not None, theirs
        found |= dict(zip(ours, grad.chunk(len(ours), dim=1 if grad.dim() == 3 else 0), strict=True))
    return found


def _apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference of a parameter's gradient from `expected`, against the largest element of that."""
    assert found.grad is not None
    whole = found.grad.full_tensor() if isinstance(found.grad, DTensor) else found.grad
    return ((whole - expected).abs().max() / expected.abs().max()).item()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in LAYOUTS:
        row = compared(name)
        if dist.get_rank() == 0:
            print("ROW", json.dumps({"name": name, **row}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
