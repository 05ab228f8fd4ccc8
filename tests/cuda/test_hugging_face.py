"""Models of the transformers package train under a plan as they do undivided."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.backends.cuda.runtime.traced.bind import BoundModel
from planc.backends.cuda.runtime.traced.names import names_of
from planc.backends.cuda.runtime.traced.read import roles_of_module
from planc.trainer.run.launch import run
from tests.cuda.families import FAMILIES, config_of, model_on
from tests.rows import rows_of

WORKER = Path(__file__).with_name("hugging_face.py")
BUDGET = 1e-5


@pytest.mark.launch
@pytest.mark.long
def test_models_of_transformers_train_as_undivided_ones() -> None:
    pytest.importorskip("transformers")
    finished = run([sys.executable, str(WORKER)], 4, timeout_s=600)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    rows = rows_of(finished.outputs[0])
    assert {row["name"].split("_")[0] for row in rows} == {"llama", "mistral", "qwen3", "qwen3moe", "mixtral"}
    for row in rows:
        assert row["loss"] <= BUDGET, row
        assert row["gradient"] <= BUDGET, row
        assert row["called"] <= BUDGET, row
        here, whole = row["parameters"]
        assert here == whole or "pipeline" in row["name"], row


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("model.embed_tokens.weight", ("tok_embeddings.weight",)),
        ("model.layers.3.self_attn.qkv_proj.weight", ("wq", "wk", "wv")),
        ("model.layers.0.self_attn.o_proj.weight", ("layers.0.attention.wo.weight",)),
        ("model.layers.2.post_attention_layernorm.weight", ("layers.2.ffn_norm.weight",)),
        ("model.layers.1.mlp.down_proj.weight", ("layers.1.feed_forward.w2.weight",)),
        ("lm_head.weight", ("output.weight",)),
    ],
)
def test_names(theirs: str, ours: tuple[str, ...]) -> None:
    pytest.importorskip("transformers")
    whole = ours if len(ours) == 1 else tuple(f"layers.3.attention.{n}.weight" for n in ours)
    assert names_of(roles_of_module(model_on("meta", config_of("phi3"))))[theirs] == whole


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("kind", "window"), [("Llama", None), pytest.param("Mistral", 7, marks=pytest.mark.long), ("Qwen3", 7)]
)
def test_each_block_sees_what_its_class_lets_it_see(kind: str, window: int | None, kernel: str) -> None:
    """Undivided, the bound model's logits are those of its class: causal, and inside the window."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "vocab_size": 50,
        "tie_word_embeddings": False,
    }
    windows = {} if window is None else {"sliding_window": window}
    if kind == "Qwen3":
        windows |= {"head_dim": 8, "use_sliding_window": True, "max_window_layers": 1}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes, **windows, attn_implementation=kernel)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    tokens = torch.arange(48).view(2, 24)
    expected = model(tokens).logits
    assert torch.allclose(BoundModel(model, roles_of_module(model), 24)(tokens), expected, atol=1e-6)


FUSED_LATENTS = ("deepseek_v2", "deepseek_v3")
"""Families whose latents come from fused layers: they are read, and not bound yet."""
BOUND = tuple(f for f in FAMILIES if f not in (*FUSED_LATENTS, "nanochat"))


@pytest.mark.parametrize("family", BOUND)
def test_a_bound_model_is_what_it_was(family: str) -> None:
    """Under the op graph's names a model gives what it gave, called either way, and has each parameter once."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = model_on("cpu", config_of(family)).eval()
    tokens = torch.randint(0, 50, (2, 24))
    before = model(input_ids=tokens, labels=tokens, use_cache=False)
    number = sum(p.numel() for p in model.parameters())
    bound = BoundModel(model, roles_of_module(model), 24)
    assert sum(p.numel() for p in bound.parameters()) == number
    largest = max(1.0, before.logits.detach().abs().max().item())
    assert torch.allclose(bound(tokens), before.logits, atol=1e-6 * largest)
    assert torch.allclose(bound(input_ids=tokens, labels=tokens).loss, before.loss, atol=1e-6)
