"""Models of the transformers package under the names of the op graph, so that a program can divide them.

One table a family, from their paths to ours. Modules are renamed in place and keep their weights, their
code and their old attributes; around them a small module does what theirs does between blocks, for stages
of a pipeline too. Whatever else is given is the caller's own, and already has our names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

ENDS = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
"""The modules outside the blocks."""

ATTENTION = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "self_attn": "attention",
    "post_attention_layernorm": "ffn_norm",
}
GATED = {
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "mlp": "feed_forward",
}

BLOCKS: dict[str, dict[str, str]] = {
    "llama": {**ATTENTION, **GATED},
    "qwen3": {**ATTENTION, **GATED},
    "mixtral": {**ATTENTION, "mlp": "feed_forward"},
}
"""By `model_type` of the config: the modules of a block. Norms of queries and keys have our names already."""


def bound(model: Any, sequence_tokens: int, *, tied: bool = False) -> Any:
    """The model as the emitted file expects it; a model that is not from transformers is returned as it is.

    `sequence_tokens` are those of a whole sequence, of which a stage of a pipeline may be given a share; `tied` says
    that the plan's head uses the embedding's weight.
    Raises ValueError for a family without a table, or for a head that is not the plan's.
    """
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if not isinstance(kind, str) or not hasattr(model, "lm_head"):
        return model
    if kind not in BLOCKS:
        raise ValueError(f"no table of names for {kind} models; there are {', '.join(BLOCKS)}")
    if (theirs := bool(getattr(config, "tie_word_embeddings", False))) != tied:
        raise ValueError(f"tie_word_embeddings is {theirs} in the model's config, and {tied} in the plan's model")
    return _bound(model, BLOCKS[kind], sequence_tokens)


def our_name(kind: str, name: str) -> str:
    """The name that a parameter of theirs has once it is bound; `kind` is the config's `model_type`."""
    if name.startswith("model.layers."):
        _, layers, index, rest = name.split(".", 3)
        return f"{layers}.{index}.{_planc_path(rest, BLOCKS[kind])}"
    return _planc_path(name, ENDS)


def _planc_path(path: str, names: dict[str, str]) -> str:
    theirs = next((t for t in names if path.startswith(f"{t}.")), "")
    return f"{names[theirs]}{path[len(theirs) :]}" if theirs else path


def _bound(model: Any, names: dict[str, str], sequence_tokens: int) -> Any:
    import torch
    from torch import nn

    from planc.backends.cuda.models.llama import TiedHead

    class Bound(nn.Module):
        """Tokens [B, S] to logits [B, S, V]; a stage without an embedding takes hidden states [B, S, D]."""

        tok_embeddings: Any
        norm: Any
        output: Any

        def __init__(self) -> None:
            super().__init__()
            for theirs, ours in ENDS.items():
                setattr(self, ours, model.get_submodule(theirs))
            self.tied = bool(model.config.tie_word_embeddings)
            if self.tied:
                self.output = TiedHead()
            self.layers = nn.ModuleDict({str(i): block for i, block in enumerate(model.model.layers)})
            self.rotary = model.model.rotary_emb

        def forward(self, tokens: Any) -> Any:
            hidden = tokens if tokens.is_floating_point() else self.tok_embeddings(tokens)
            length = sequence_tokens if tokens.is_floating_point() else tokens.shape[1]
            positions = torch.arange(length, device=tokens.device)[None]
            turns = self.rotary(hidden, position_ids=positions)
            for block in self.layers.values():
                hidden = block(hidden, position_embeddings=turns, attention_mask=None, use_cache=False)
            hidden = hidden if self.norm is None else self.norm(hidden)
            given = (self.tok_embeddings.weight,) if self.tied and self.tok_embeddings is not None else ()
            return hidden if self.output is None else self.output(hidden, *given)

    for block in model.model.layers:
        _rename(block, names)
        block.attention.register_forward_pre_hook(_first_by_position, with_kwargs=True)
    return Bound()


def _rename(block: nn.Module, names: dict[str, str]) -> None:
    """Children under our names, with theirs as plain attributes for their code. Inner ones first."""
    for theirs, ours in names.items():
        parent_path, _, old = theirs.rpartition(".")
        new = ours.rpartition(".")[2]
        parent = block.get_submodule(parent_path)
        child = parent._modules.pop(old)
        assert child is not None, theirs
        parent._modules[new] = child
        parent.__dict__[old] = child


def _first_by_position(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """torch's parallel styles see only what is given by position."""
    if "hidden_states" in kwargs:
        args = (kwargs.pop("hidden_states"), *args)
    return args, kwargs
