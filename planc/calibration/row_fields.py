"""The fields of a published run, each marked when it is read, so that none is dropped in silence."""

from __future__ import annotations

from typing import Any

from planc.calibration.rows import Row
from planc.frameworks import NAMES

NO_SENTENCE = {
    "hardware": ("chip", "n_devices", "devices_per_node", "slices", "detail"),
    "model": ("params", "active_params", "seq", "dims"),
    "parallel": ("note", "shard_on_experts"),
    "batch": (
        *("seq", "global_batch_seqs", "global_batch_tokens", "sequences_per_dp_rank", "tokens_per_device"),
        "grad_accum",
    ),
    "options": (
        *("recompute_detail", "moe_force_balanced", "recipe_at_head", "recipe_layout_matches", "cuda_graphs"),
        *("toy", "environment", "optimizer", "flags", "dispatcher_detail", "quantized_detail"),
    ),
}
"""Fields that need no sentence: what the run's identity, its machine (`published_clusters`) or other fields say, which
dim of an expert is stored divided, that experts are evenly loaded (which every plan supposes), names of recipes."""
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


class Fields:
    """Fields of `row` by section. `unused` names those that nobody has read and that say something."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self._read: set[tuple[str, str]] = set()

    def _value(self, section: str, table: Any, key: str) -> Any:
        self._read.add((section, key))
        return (table or {}).get(key)

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

    def unused(self) -> list[str]:
        """Names of the fields that say something and that nothing has read, as `section.field`."""
        facts = self.row.facts
        tables = {name: facts[name] for name in NO_SENTENCE}
        tables |= {"moe": facts["model"].get("moe") or {}, "mla": facts["model"].get("mla") or {}}
        tables["flags"] = facts["options"].get("flags") or {}
        known = {**NO_SENTENCE, "flags": FLAGS}
        return [
            f"{section}.{key}"
            for section, table in tables.items()
            for key, value in table.items()
            if (section, key) not in self._read and key not in known.get(section, ()) and _is_given(value)
        ]


def _is_given(value: Any) -> bool:
    """False for what stands for nothing: no value, no, an axis of one rank."""
    return value is True or value not in (None, False, "", [], {}, 1)


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
