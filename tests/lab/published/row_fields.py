"""The fields of a published run, each marked when it is read, so that none is dropped in silence."""

from __future__ import annotations

from typing import Any

from planc.frameworks import NAMES
from tests.lab.published.rows import Row

ANY = object()
"""Whatever the field says."""
NO_SENTENCE: dict[str, dict[str, Any]] = {
    "hardware": dict.fromkeys(("chip", "n_devices", "devices_per_node", "slices", "detail"), ANY),
    "model": dict.fromkeys(("name", "params", "active_params", "seq", "dims", "padded_vocab"), ANY),
    "moe": dict.fromkeys(("layer_freq", "shared_ffn"), ANY),
    "parallel": {"note": ANY, "shard_on_experts": True},
    "batch": dict.fromkeys(
        (
            *("seq", "global_batch_seqs", "global_batch_tokens", "sequences_per_dp_rank", "tokens_per_device"),
            "grad_accum",
        ),
        ANY,
    ),
    "options": {
        **dict.fromkeys(("recompute_detail", "recipe_at_head", "dispatcher_detail", "quantized_detail"), ANY),
        **dict.fromkeys(("moe_force_balanced", "recipe_layout_matches", "toy", "flags"), ANY),
        "cpu_offload": False,
        "cuda_graphs": (False, "moe_router, moe_preprocess"),
        "environment": ANY,
    },
    "environment": dict.fromkeys(("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF"), ANY),
}
"""Fields that need no sentence, and the values of which that holds: what the run's identity, its machine
(`published_clusters`) or other fields say, which dim of an expert is stored divided, that experts are evenly loaded
(which every plan supposes), names of recipes; graphs of the few small ops before experts' tokens are sent."""
FLAGS = (
    *("num-layers", "hidden-size", "num-attention-heads", "group-query-attention", "num-query-groups", "seq-length"),
    *("untie-embeddings-and-output-weights", "micro-batch-size", "global-batch-size", "tokenizer-type", "vocab-size"),
    *("log-interval", "transformer-impl", "tensor-model-parallel-size", "pipeline-model-parallel-size", "bf16"),
    *("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "use-distributed-optimizer"),
    *("overlap-grad-reduce", "overlap-param-gather", "deterministic-mode", "no-gradient-accumulation-fusion"),
    *("context-parallel-size", "sequence-parallel", "expert-model-parallel-size", "expert-tensor-parallel-size"),
    *("attention-backend", "position-embedding-type", "swiglu", "normalization", "disable-bias-linear", "qk-layernorm"),
    *("make-vocab-size-divisible-by", "ffn-hidden-size", "kv-channels", "num-experts", "moe-router-topk"),
    *("moe-grouped-gemm", "moe-token-dispatcher-type", "moe-layer-freq", "moe-ffn-hidden-size", "fp8-format"),
    *("moe-shared-expert-intermediate-size", "multi-latent-attention", "q-lora-rank", "kv-lora-rank", "qk-head-dim"),
    *("qk-pos-emb-head-dim", "v-head-dim", "cross-entropy-loss-fusion", "fp8-recipe", "recompute-granularity"),
    *("recompute-modules", "use-tp-pp-dp-mapping", "microbatch-group-size-per-virtual-pipeline-stage"),
    *("use-flash-attn", "disable-bias-linear", "untie-embeddings-and-output-weights"),
    *("rotary-base", "use-rotary-position-embeddings", "rotary-percent", "squared-relu", "no-position-embedding"),
)
"""Flags of Megatron-LM that a row's other fields say, that change no kernel and no byte, or that a framework's rules
cover."""


KNOWN_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "model": {
        **dict.fromkeys(("gated_mlp", "tied_embeddings", "learned_pos_emb", "bias"), (True, False)),
        "norm": ("LayerNorm", "RMSNorm"),
    },
    "parallel": {"zero": (0, 1, 2, 3)},
    "options": {
        **dict.fromkeys(("sequence_parallel", "ep_overlap", "flash_attention", "whole_grads"), (True, False)),
        **dict.fromkeys(("async_tp", "gradient_bucket"), (True, False)),
        "zero": (0, 1, 2, 3),
        "fsdp_mixed_precision": ("DEFAULT", "PURE"),
        "attention_backend": ("auto", "unfused", "local", "flash", "cudnn", "fused"),
    },
}
"""Fields of a few values, whose other values nobody would read."""
NUMBERS: dict[str, tuple[str, ...]] = {
    "hardware": ("n_devices", "devices_per_node", "slices", "network_gb_s_per_node"),
    "model": ("layers", "d_model", "ffn", "n_heads", "n_kv_heads", "head_dim", "vocab"),
    "parallel": (
        *("tp", "pp", "cp", "dp", "ep", "etp", "vpp", "fsdp", "dp_replicate", "model_parallel", "fsdp_transpose"),
        *("ici_fsdp", "ici_fsdp_transpose", "ici_tp", "ici_cp", "ici_ep", "dcn_dp"),
    ),
    "batch": (
        *("seq", "global_batch_seqs", "micro_batch_seqs", "local_batch_seqs", "sequences_per_dp_rank", "grad_accum"),
        *("per_device_batch_seqs", "per_jax_device_batch_seqs", "global_batch_tokens", "tokens_per_device"),
    ),
    "options": ("mtp", "moe_capacity_factor"),
}
"""Fields that are numbers from 0."""


class UnusedFieldError(ValueError):
    """A row says something that its plan does not."""


class Fields:
    """Fields of `row` by section. `unused` names those that nobody has read and that say something."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self._read: set[tuple[str, str]] = set()

    def _value(self, section: str, table: Any, key: str) -> Any:
        self._read.add((section, key))
        return (table or {}).get(key)

    def hardware(self, key: str) -> Any:
        """The value of `key` among the machine's fields; None where the row has none."""
        return self._value("hardware", self.row.facts["hardware"], key)

    def parallel(self, key: str) -> Any:
        """The value of `key` among the layout's fields; None where the row has none."""
        return self._value("parallel", self.row.facts["parallel"], key)

    def size(self, key: str) -> int:
        """The number of ranks along `key` of the layout; 1 where the row has none."""
        return int(self.parallel(key) or 1)

    def batch(self, key: str) -> Any:
        """The value of `key` among the batch's fields, in sequences or tokens; None where the row has none."""
        return self._value("batch", self.row.facts["batch"], key)

    def option(self, key: str) -> Any:
        """The value of `key` among the options; None where the row has none."""
        return self._value("options", self.row.facts["options"], key)

    def flag(self, key: str) -> Any:
        """The value of flag `key` of the framework's own command line, where the row has them; else None."""
        return self._value("flags", self.row.facts["options"].get("flags"), key)

    def model(self, key: str) -> Any:
        """The value of `key` among the model's fields; None where the row has none."""
        return self._value("model", self.row.facts["model"], key)

    def moe(self, key: str) -> Any:
        """The value of `key` among the experts' fields; None where the row has none."""
        return self._value("moe", self.row.facts["model"].get("moe"), key)

    def latent(self, key: str) -> Any:
        """The value of `key` among the fields of latent attention; None where the row has none."""
        return self._value("mla", self.row.facts["model"].get("mla"), key)

    def check(self) -> None:
        """Raise UnusedFieldError for a section that is missing, and a value that is none of `KNOWN_VALUES` or one of
        `NUMBERS` that is no number."""
        for section in ("hardware", "model", "parallel", "batch", "options"):
            if not isinstance(self.row.facts.get(section), dict):
                raise UnusedFieldError(f"{section}: the row has no such section")
        for section, fields in KNOWN_VALUES.items():
            for key, known in fields.items():
                value = self.row.facts[section].get(key)
                if value is not None and value not in known and not str(value).startswith("ZeRO-1"):
                    raise UnusedFieldError(f"{section}.{key} {str(value)[:40]!r}: none of {', '.join(map(str, known))}")
        tables = {name: [(key, self.row.facts[name].get(key)) for key in keys] for name, keys in NUMBERS.items()}
        for name in ("moe", "mla"):
            rest = (self.row.facts["model"].get(name) or {}).items()
            tables[name] = [(key, value) for key, value in rest if key not in NO_SENTENCE.get(name, {})]
        for section, pairs in tables.items():
            for key, value in pairs:
                if value is not None and (not isinstance(value, int | float) or not value >= 0):
                    raise UnusedFieldError(f"{section}.{key} {str(value)[:40]!r}: no number")

    def unused(self) -> list[str]:
        """Names of the fields that say something and that nothing has read, as `section.field`."""
        facts = self.row.facts
        tables = {name: facts[name] for name in ("hardware", "model", "parallel", "batch", "options")}
        tables |= {"moe": facts["model"].get("moe") or {}, "mla": facts["model"].get("mla") or {}}
        tables |= {name: facts["options"].get(name) or {} for name in ("flags", "environment")}
        return [
            f"{section}.{key}"
            for section, table in tables.items()
            for key, value in table.items()
            if (section, key) not in self._read and not _without_effect(section, key, value)
        ]


def _without_effect(section: str, key: str, value: Any) -> bool:
    """True for no value, for an axis of one rank, and for what `NO_SENTENCE` and `FLAGS` list."""
    if value is None or value in ("", [], {}) or (section == "flags" and (key in FLAGS or value is False)):
        return True
    if section == "parallel" and not isinstance(value, str) and value in (0, 1) and value is not True:
        return True
    known = NO_SENTENCE.get(section, {}).get(key, ())
    return known is ANY or any(
        value is one or value == one for one in (known if isinstance(known, tuple) else (known,))
    )


def framework_of(fields: Fields) -> str:
    """The framework of the row in `fields`: its field `framework`, else the one whose words its fields are.

    A row without either ran on something that planc has no rules for; it is taken as plain torch.
    """
    facts = fields.row.facts
    given = facts.get("framework")
    if given is not None:
        if given not in NAMES:
            raise ValueError(f"framework {given!r} is not one of {', '.join(NAMES)}")
        return str(given)
    words = {*facts["parallel"], *facts["batch"], *facts["options"]}
    for name, own in OWN_WORDS.items():
        if words & own:
            return name
    return "torch"


OWN_WORDS = {
    "maxtext": {
        "ici_fsdp",
        "ici_tp",
        "dcn_dp",
        "ici_fsdp_transpose",
        "per_device_batch_seqs",
        "per_jax_device_batch_seqs",
    },
    "llm_foundry": {"fsdp_mixed_precision"},
    "bridge": {"recipe_at_head"},
    "torchtitan": {"local_batch_seqs"},
    "megatron": {"pp_schedule", "vpp", "micro_batch_seqs"},
}
"""Names of fields that only one framework's configuration has, in the order in which they are looked for."""
