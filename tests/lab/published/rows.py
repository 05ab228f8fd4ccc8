"""Published training runs as facts: one row a run, with its source; and which rows count.

The data files hold what the sources print. `measured_s` turns it into seconds of one step: a step time as it
is, else a rate of tokens, else TFLOP/s with the source's own count of a model's FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.files import MAX_TEXT_BYTES, read_json

DATA = Path(__file__).parent / "data"
ROUNDED = ("(26.04.01", "(26.06.01", "(26.08")
"""Releases of Megatron-Bridge whose tokens/s are rounded to multiples of 8 to 32."""
MUCH_ROUNDED = 3200
"""Below this many tokens/s that is up to a percent: their TFLOP/s are used."""
CAUSAL = ("NVIDIA-NeMo/Megatron-Bridge", "AI-Hypercomputer/tpu-recipes training/ironwood")
"""Sources that count half of the attention's square, as causal attention computes it."""
WHOLE = (
    *("NVIDIA/NeMo-Framework-Launcher", "mosaicml/llm-foundry", "AI-Hypercomputer/maxtext"),
    *("AI-Hypercomputer/tpu-recipes", "NVIDIA/Megatron-LM"),
)
"""Sources that count all of it."""
MOST_UNKNOWN = 1.1
"""A run whose source prints FLOP/s alone, and does not say which of the two it counts, has two step times; where they
are more than so many times apart, it is not compared."""
VALIDATION = "calculon-ai/calculon"
"""Eight runs of Megatron's four large models (Korthikanti et al. 2022, table 5), which another model is published
with: its errors there are known. Four are among the training rows."""
FOUR_PASSES = "images/cases_april2021"
"""Narayanan et al. 2021 count the forward of the layers that full recomputation runs again, not of the head (equation
3)."""


@dataclass(frozen=True)
class Row:
    """One published run. `facts` is the row as the data file has it."""

    facts: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.facts["id"])

    @property
    def source(self) -> str:
        return str(self.facts["source"])

    @property
    def publisher(self) -> str:
        """The repository that the row is from."""
        return self.source.split()[0].removesuffix(",")

    @property
    def chip(self) -> str:
        return str(self.facts["hardware"]["chip"])

    @property
    def model(self) -> dict[str, Any]:
        return dict(self.facts["model"])

    @property
    def moe(self) -> bool:
        return "moe" in self.facts["model"]

    @property
    def devices(self) -> int:
        """Chips, as the source counts them."""
        return int(self.facts["hardware"]["n_devices"])

    @property
    def sequence(self) -> int:
        return int(self.facts["batch"]["seq"])

    @property
    def sequences(self) -> int:
        """Sequences of one optimizer step. A batch given in tokens is that of the nearest whole number."""
        batch = self.facts["batch"]
        if "global_batch_seqs" in batch:
            return int(batch["global_batch_seqs"])
        parallel = self.facts["parallel"]
        return int(batch["sequences_per_dp_rank"]) * int(parallel["dp"])

    @property
    def memory_gib(self) -> float | None:
        """The peak memory that the source prints, if it does."""
        value = self.facts["measured"].get("memory_gib")
        return None if value is None else float(value)


def missing(row: Row) -> str:
    """The reason why `row` cannot be made into a plan, or must not be compared; an empty string for one that counts.

    The rules are those of the data's own notes: dims and layout must be published, recomputation known (a recipe must
    match its row), and the GPT-OSS rows of release 26.06.01 had a regressed kernel.
    """
    options, parallel = row.facts["options"], row.facts["parallel"]
    if "layers" not in row.facts["model"]:
        return "no dims"
    if "layout" in parallel:
        return "no layout"
    said = options.get("activation_checkpointing") if options.get("recompute") is None else options["recompute"]
    if said in (None, "unknown") or options.get("recipe_layout_matches") is False:
        return "recomputation unknown"
    if "GPTOSS" in row.id and "(26.06.01" in row.source:
        return "regressed kernel"
    return "attention's FLOPs counted in an unknown way" if _ratio_of_counts(row) > MOST_UNKNOWN else ""


def _ratio_of_counts(row: Row) -> float:
    """The ratio of the two step times that FLOP/s of an unknown count stand for; 1 where there is one."""
    measured = row.facts["measured"]
    known = {"iter_time_s", "tokens_per_s_per_device"} & {*measured} or row.source.startswith((*CAUSAL, *WHOLE))
    if known or "tflops_per_device" not in measured:
        return 1.0
    rest = 6.0 * matmul_parameters(row.model)
    half, whole = (rest + attention_flops(row.model, row.sequence, causal=causal) for causal in (True, False))
    return whole / half


def measured_s(row: Row) -> float:
    """Seconds of one optimizer step of `row` as published. Raises ValueError when the row has no rate."""
    measured = row.facts["measured"]
    tokens = row.sequences * row.sequence
    if "iter_time_s" in measured:
        return float(measured["iter_time_s"])
    rate = float(measured.get("tokens_per_s_per_device", 0.0))
    rounded = rate < MUCH_ROUNDED and any(release in row.source for release in ROUNDED)
    if rate and not rounded:
        return tokens / (rate * row.devices)
    if "tflops_per_device" in measured:
        return counted_flops_per_token(row) * tokens / (float(measured["tflops_per_device"]) * 1e12 * row.devices)
    raise ValueError(f"{row.id} has no step time and no rate")


def counted_flops_per_token(row: Row) -> float:
    """FLOPs of the model for one token as the source of `row` counts them: 6 a matmul parameter, and attention."""
    causal = row.source.startswith(CAUSAL)
    passes = 4 / 3 if FOUR_PASSES in row.source else 1.0
    head = float(row.model["d_model"] * row.model["vocab"])
    layers = 6.0 * (matmul_parameters(row.model) - head) + attention_flops(row.model, row.sequence, causal=causal)
    return passes * layers + 6.0 * head


def matmul_parameters(model: dict[str, Any]) -> float:
    """Parameters that one token multiplies with: `top_k` of the experts, the head, not the embedding.

    `model` are a row's facts of its model.
    """
    embed, layers = model["d_model"], model["layers"]
    moe = model.get("moe") or {}
    plain = 3 if model.get("gated_mlp", True) else 2
    every = moe.get("moe_every_n_layers", 1)
    routed = (layers - moe.get("dense_layers", 0)) / every if moe else 0
    dense = (layers - routed) * plain * embed * model["ffn"]
    each = moe.get("top_k", 0) + moe.get("shared_experts", 0)
    experts = routed * (each * plain * embed * moe.get("expert_ffn", 0) + embed * moe.get("experts", 0))
    return float(layers * _attention_parameters(model) + dense + experts + embed * model["vocab"])


def _attention_parameters(model: dict[str, Any]) -> float:
    embed, heads = model["d_model"], model["n_heads"]
    mla = model.get("mla")
    if not mla:
        return float(2 * embed * model["head_dim"] * (heads + model["n_kv_heads"]))
    wide = mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
    queries = mla["q_lora_rank"] * (embed + heads * wide)
    keys = embed * (mla["kv_lora_rank"] + mla["qk_rope_head_dim"])
    keys += mla["kv_lora_rank"] * heads * (mla["qk_nope_head_dim"] + mla["v_head_dim"])
    return float(queries + keys + heads * mla["v_head_dim"] * embed)


def attention_flops(model: dict[str, Any], sequence: int, *, causal: bool) -> float:
    """FLOPs a token of scores and values, forward and backward, over all layers.

    `model` are a row's facts of its model, `sequence` is in tokens; `causal` counts half of the products.
    """
    mla = model.get("mla")
    width = mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"] + mla["v_head_dim"] if mla else 2 * model["head_dim"]
    context = sequence / 2 if causal else sequence
    return float(6 * model["layers"] * model["n_heads"] * width * context)


def read_rows(path: Path) -> list[Row]:
    """Training rows of the file at `path`, in the same format. Raises OSError or ValueError."""
    return _rows(read_json(path, MAX_TEXT_BYTES))


@cache
def training_rows() -> tuple[Row, ...]:
    """The bundled training runs."""
    return tuple(_rows(bundled("training.json")))


@cache
def validation_rows() -> tuple[Row, ...]:
    """The published validation of another model: what the bundled runs have of it, and the rest, never fitted to."""
    return tuple(row for row in (*training_rows(), *_rows(bundled("validation.json"))) if row.publisher == VALIDATION)


@cache
def sweep_rows() -> tuple[Row, ...]:
    """The bundled sweep of layouts in one node (VIA-Research/vTrain), from its compact table."""
    table = bundled("sweep.json")
    return tuple(Row(_row_of_sweep(table, values)) for values in table["rows"])


def _row_of_sweep(table: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """One row of the sweep in the format of the others."""
    at = dict(zip(table["columns"], values, strict=True))
    embed = at["d_model"]
    return {
        "id": f"vtrain-single-{at['id']}",
        "source": table["source"],
        "framework": table["framework"],
        "hardware": {**table["hardware"], "n_devices": at["n_devices"]},
        "model": {
            **table["model"],
            "layers": at["layers"],
            "d_model": embed,
            "ffn": 4 * embed,
            "head_dim": embed // table["model"]["n_heads"],
        },
        "parallel": {**table["parallel"], "tp": at["tp"], "dp": at["dp"], "pp": at["pp"]},
        "batch": {
            "global_batch_seqs": at["global_batch_seqs"],
            "micro_batch_seqs": at["micro_batch_seqs"],
            "seq": table["model"]["seq"],
        },
        "options": table["options"],
        "measured": {"iter_time_s": at["iter_time_s"]},
    }


def _rows(found: Iterable[dict[str, Any]]) -> list[Row]:
    return [Row(facts) for facts in found if facts.get("kind", "training") == "training"]


def bundled(name: str) -> Any:
    """The content of the JSON file `name` among the published runs."""
    return json.loads((DATA / name).read_text())
