"""Trained parameters go back into a whole module of the user's class: each to its place, under its name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import planc
from planc.ir.program import Program

pytestmark = pytest.mark.long
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 136, "hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 2, "pad_token_id": 0}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
GPT2 = {"vocab_size": 136, "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 24}
CLASSES: dict[str, dict[str, Any]] = {
    "Qwen2": {**SIZES, **HEADS, "tie_word_embeddings": True},
    "Phi3": {**SIZES, **HEADS, "eos_token_id": 1},  # queries, keys and values in one layer, gate and up in another
    "GPT2": GPT2,  # so too, and stored transposed
    "Mixtral": {**SIZES, **HEADS, "num_local_experts": 4},
}


def made(name: str, folder: Path, *sentences: str) -> tuple[Any, Any, Program]:
    """A module with random weights, another of its class, and the program of a plan for it."""
    config = getattr(transformers, f"{name}Config")(**CLASSES[name])
    cls = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    trained, empty = cls(config), cls(config)
    planc.model_of(copy.deepcopy(trained)).write(folder / "m.model.json")
    rest = ["batch 8 x 24 tokens microbatch 2", "cluster 4 x cpu_local", "mesh fsdp 4", "use fsdp over fsdp"]
    lines = ["plan m", 'model from code "m"', *rest, "compute fp32", *sentences]
    (folder / "m.plan").write_text("\n".join(lines) + "\n")
    return trained, empty, planc.lower(folder / "m.plan", target="cuda")


def state_of(model: Any, program: Program) -> dict[str, Any]:
    """The parameters by the names that they have after `parallelize`."""
    from planc.backends.cuda.runtime.compare_module import named

    return {n: p.detach().clone() for n, p in named(copy.deepcopy(model), program).named_parameters()}


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_comes_back(name: str, tmp_path: Path) -> None:
    trained, empty, program = made(name, tmp_path)
    program.fill(empty, state_of(trained, program))
    own = empty.state_dict()
    assert all(torch.equal(own[n], value) for n, value in trained.state_dict().items())
    assert type(empty) is type(trained) and own.keys() == trained.state_dict().keys()


def test_updates_are_added_and_a_part_is_refused(tmp_path: Path) -> None:
    trained, empty, program = made("Qwen2", tmp_path, "lora rank 2 alpha 6 on q_proj")
    state = state_of(trained, program)
    a, b = torch.randn(2, 64), torch.randn(64, 2)
    for layer in range(2):
        state |= {f"layers.{layer}.attention.wq.lora_a": a, f"layers.{layer}.attention.wq.lora_b": b}
    program.fill(empty, state)
    own = "model.layers.1.self_attn.q_proj.weight"
    expected = trained.state_dict()[own] + 3 * (b @ a)  # alpha over rank
    assert (empty.state_dict()[own] - expected).abs().max() < 1e-5
    with pytest.raises(ValueError, match=r"1 names, \['norm.weight'\]"):
        program.fill(empty, {n: value for n, value in state.items() if n != "norm.weight"})
