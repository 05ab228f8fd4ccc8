"""Layouts of models with experts: those of the cuda target, which says the same with the same sentences."""

from __future__ import annotations

from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from tests.cuda.moe_cases import BOTH, CAPACITY, DEEPSEEK, EP, MIXTRAL, QWEN3, STORED
from tests.cuda.moe_cases import TP as CUDA_TP
from tests.plans import propagated
from tests.xla.cases import ALL_BF16, BF16, SP, SPLASH, TP, plan_of

UNFUSED = "attention.core as unfused"
LEFT_OUT = (
    *("deepseek_pipeline", "deepseek_tp_pipeline", "etp_balanced"),
    *("compile_ep", "compile_ep_tp", "compile_capacity"),
)
"""The target refuses pipelines of several kinds of layers, and compiles whole programs; others here are balanced."""

MOE: dict[str, tuple[str, ...]] = {
    **{name: case for name, case in {**MIXTRAL, **QWEN3, **DEEPSEEK}.items() if name not in LEFT_OUT},
    "ep_per_step": ("fsdp 2 > ep 2", BOTH, STORED, EP, "gather params per step"),
    "qwen3_moe_capacity": ("fsdp 2 > ep 2", BOTH, STORED, EP, CAPACITY, "recompute blocks"),
    "ep_fsdp_v5p": ("fsdp 2 > ep 2", BOTH, STORED, EP, UNFUSED),
    "ep_etp_view_v5p": (*MIXTRAL["ep_etp_view"], UNFUSED),
    "ep_splash": ("fsdp 2 > ep 2", BOTH, STORED, EP, "recompute blocks", SPLASH),
    "ep_pipeline_interleaved": (
        *("pp 2 > fsdp 2 > ep 2", BOTH, STORED, EP, "recompute blocks"),
        "split layers over pp as interleaved_1f1b(chunks = 2)",
    ),
    "etp_same_tokens_pipeline": (
        *("pp 2 > fsdp 2 > tp 2", "use fsdp over fsdp", CUDA_TP, "use etp over tp", "use pp over pp as 1f1b"),
    ),
    "etp_pipeline_capacity": (
        *("pp 2 > fsdp 2 > tp 2", "use fsdp over fsdp", CUDA_TP, SP, "use etp over tp", CAPACITY),
        "use pp over pp as gpipe",
    ),
    "deepseek_every": ("fsdp 2 > ep 2", BOTH, STORED, EP, "recompute blocks every 3 layers"),
    "ep_offload": ("fsdp 2 > ep 2", BOTH, STORED, EP, "recompute blocks", "offload params, optimizer, hidden to host"),
    "deepseek_offload": ("dp 2 > tp 2", "use zero1 over dp", TP, "offload optimizer to host"),
    "deepseek_ulysses": ("fsdp 2 > cp 2", "use fsdp over fsdp", "use ulysses over cp", "recompute blocks"),
    "ulysses_ep": ("ep 2 > cp 2", "shard batch over ep", EP, "use ulysses over cp"),
    "deepseek_splash": ("dp 2 > tp 2", "use ddp over dp", TP, SPLASH),
    "deepseek_cut_view": (
        "a 4 > b 2",
        "view etp 2 > ep 4 of a, b for experts",
        "shard batch over a, b",
        EP,
        "use etp over etp",
    ),
}
"""By mesh and sentences. Tokens are divided by batch, and by sequence where tp divides it. Those that end in `_v5p` are
written for TPUs, whose exchange is played by gathers here."""

MOE_ROUNDED: dict[str, tuple[str, ...]] = {
    "ep_float8": (
        *("fsdp 2 > ep 2", BOTH, STORED, EP, BF16, "recompute blocks"),
        "quantize attention, head as float8(rowwise) except layers 0",
    ),
    "deepseek_float8_tp": (
        *("dp 2 > tp 2", "use zero1 over dp", TP, BF16),
        "quantize mla, attention, ffn, shared as float8(tensorwise) except layers 0",
    ),
    "ep_state_bf16": ("fsdp 2 > ep 2", BOTH, f"{ALL_BF16} over fsdp, ep", EP),
    "capacity_state_bf16_step": (
        *("fsdp 2 > ep 2", BOTH, f"{ALL_BF16} over fsdp, ep", EP, CAPACITY, "gather params per step"),
        "compute bf16 reduce fp32",
    ),
}
"""Those that round: beside one device in fp64 that rounds as often."""

CI = (
    "ep_view_crossed",
    "qwen3_moe_capacity",
    "deepseek_ep",
    "ep_pipeline",
)
"""Those that CI trains."""

BALANCED = ("ep_etp_view", "deepseek_ep", "qwen3_moe_view", "ep_pipeline_interleaved", "etp_same_tokens_pipeline")
"""Those that train with a load-balancing loss too."""
BALANCE = 0.3

OWN_ROWS = (
    "XLA multiplies a rank's own rows by the whole weights of attention and gathers what that makes, "
    "where the plan gathers the rows; so their gradients and the embedding's are sums over tensor ranks"
)
ON_TPU = "its rows are exchanged as TPUs do, and counted as those of an even choice"
NOT_PREDICTED = {
    "deepseek_every": "not explained: layers with experts in no loop gather half as much over fsdp, more over both",
    "ep_fsdp_v5p": ON_TPU,
    "ep_etp_view_v5p": ON_TPU,
    "ep_etp_view": "its balance loss, which no plan says, sums counts of picks over tensor ranks; all else is right",
    "etp_outside_ep": OWN_ROWS,
    "deepseek_tp_sequence": OWN_ROWS,
    "etp_same_tokens_pipeline": "as etp_same_tokens",
    "etp_same_tokens": "XLA divides the gradient of the router, which all tensor ranks have, among these",
}
"""Layouts whose collectives the rules miss, outside the experts, and why."""


def moe_plan(name: str, *more: str) -> Plan:
    """The plan of a named layout. Its name begins with the model's, if that is not Mixtral."""
    mesh, *sentences = {**MOE, **MOE_ROUNDED}[name]
    model = next((m for m in ("qwen3_moe", "deepseek") if name.startswith(m)), "mixtral") + "_micro"
    cluster = {"cluster": "tpu_v5p(2x2x1)"} if name.endswith("_v5p") else {}
    return plan_of(name, mesh, *sentences, *more, model=model, **cluster)


def moe_sharded(name: str) -> Sharded:
    return propagated(moe_plan(name))
