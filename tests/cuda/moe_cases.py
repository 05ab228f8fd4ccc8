"""Layouts of models with experts."""

from __future__ import annotations

from planc.ir.plan import Plan

from .cases import FSDP, PP, SP, plan_of

TP = "shard heads, vocab over tp"
EP = "use ep over ep"
BOTH = "shard batch over fsdp, ep"
STORED = "store params, grads, optimizer over fsdp, ep"
EFSDP = "store params, grads, optimizer over efsdp for experts"
CAPACITY = "route experts as capacity(factor = 1.25)"

MIXTRAL: dict[str, tuple[str, ...]] = {
    "moe_fsdp": ("fsdp 4", FSDP),
    "moe_dp_tp_sp": ("dp 2 > tp 2", "use ddp over dp", TP, SP),
    "ep": ("ep 4", "use ddp over ep", EP),
    "ep_fsdp": ("fsdp 2 > ep 2", BOTH, STORED, EP),
    "ep_outside": ("ep 2 > fsdp 2", "shard batch over ep, fsdp", "store params, grads, optimizer over fsdp", EP),
    "ep_recomputed": ("fsdp 2 > ep 2", BOTH, STORED, EP, "recompute blocks"),
    "ep_hsdp": ("replica 2 > ep 2", "shard batch over replica, ep", "store params, grads, optimizer over ep", EP),
    "ep_zero1": ("dp 2 > ep 2", "shard batch over dp, ep", "store optimizer over dp, ep", EP),
    "ep_pipeline": ("pp 2 > ep 2", PP.format("1f1b"), "use fsdp over ep", EP),
    "ep_over_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "use ep over tp"),
    "etp": ("fsdp 2 > tp 2", FSDP, TP, SP, "use etp over tp"),
    "etp_balanced": ("fsdp 2 > tp 2", FSDP, TP, SP, "use etp over tp", "recompute blocks"),
    "etp_outside_ep": ("tp 2 > ep 2", "use ddp over ep", SP, EP, "use etp over tp"),
    "etp_same_tokens": ("fsdp 2 > tp 2", FSDP, TP, "use etp over tp"),
    "ep_tp_view": ("fsdp 2 > tp 2", "view efsdp 2 > ep 2 of fsdp, tp for experts", FSDP, TP, SP, EP, EFSDP),
    "ep_etp_view": ("fsdp 2 > tp 2", "view ep 2 > etp 2 of fsdp, tp for experts", FSDP, TP, SP, EP, "use etp over etp"),
    "ep_view_crossed": ("fsdp 4", "view ep 2 > efsdp 2 of fsdp for experts", FSDP, EP, EFSDP),
    "compile_ep": ("fsdp 2 > ep 2", BOTH, STORED, EP, "recompute blocks", "compile blocks"),
    "compile_ep_tp": (
        "fsdp 2 > tp 2",
        "view efsdp 2 > ep 2 of fsdp, tp for experts",
        FSDP,
        TP,
        SP,
        EP,
        EFSDP,
        "compile blocks",
    ),
    "compile_capacity": ("fsdp 2 > ep 2", BOTH, STORED, EP, CAPACITY, "compile blocks"),
    "capacity": ("fsdp 2 > ep 2", BOTH, STORED, EP, CAPACITY),
    "capacity_alone": ("fsdp 4", FSDP, CAPACITY),
    "capacity_cp": ("cp 2 > dp 2", "use ddp over dp", "use cp over cp", CAPACITY),
    "capacity_etp": (
        "fsdp 2 > tp 2",
        "view ep 2 > etp 2 of fsdp, tp for experts",
        FSDP,
        TP,
        SP,
        EP,
        "use etp over etp",
        CAPACITY,
    ),
}
"""Dropless unless it says so. Tokens are divided by batch, and by sequence where tp divides it."""

LORA = "lora rank 3 alpha 6 on attention"

FINE_TUNED: dict[str, tuple[str, ...]] = {
    "tuned_fsdp": ("fsdp 4", FSDP, LORA),
    "tuned_ep_fsdp": ("fsdp 2 > ep 2", BOTH, STORED, EP, LORA),
    "tuned_ep_recomputed": ("fsdp 2 > ep 2", BOTH, STORED, EP, LORA, "recompute blocks"),
    "tuned_ep_tp_view": (
        "fsdp 2 > tp 2",
        "view efsdp 2 > ep 2 of fsdp, tp for experts",
        *(FSDP, TP, SP, EP, EFSDP, LORA, "recompute blocks"),
    ),
    "tuned_frozen_experts": ("fsdp 2 > ep 2", BOTH, STORED, EP, "freeze experts"),
    "tuned_router_too": ("fsdp 2 > ep 2", BOTH, STORED, EP, LORA, "freeze model except router"),
    "tuned_capacity": ("fsdp 2 > ep 2", BOTH, STORED, EP, CAPACITY, LORA),
    "tuned_etp": ("fsdp 2 > tp 2", FSDP, TP, SP, "use etp over tp", LORA),
}
"""LoRA of attention beside frozen experts, and parts of the experts frozen."""

QWEN3: dict[str, tuple[str, ...]] = {
    "qwen3_moe_ep": ("fsdp 2 > ep 2", BOTH, STORED, EP),
    "qwen3_moe_view": ("fsdp 4", "view efsdp 2 > ep 2 of fsdp for experts", FSDP, EP, EFSDP, "gather params per step"),
}

DEEPSEEK: dict[str, tuple[str, ...]] = {
    "deepseek_ep": ("fsdp 2 > ep 2", BOTH, STORED, EP),
    "deepseek_pipeline": ("pp 2 > ep 2", PP.format("interleaved_1f1b(chunks = 2)"), "use zero1 over ep", EP),
    "deepseek_recomputed": ("fsdp 2 > ep 2", BOTH, STORED, EP, "recompute blocks"),
    "deepseek_tp": ("dp 2 > tp 2", "use zero2 over dp", "use tp over tp"),
    "deepseek_tp_sp": ("fsdp 2 > tp 2", FSDP, "use tp over tp", SP),
    "deepseek_tp_ep": (
        "fsdp 2 > tp 2",
        "view efsdp 2 > ep 2 of fsdp, tp for experts",
        FSDP,
        "use tp over tp",
        SP,
        EP,
        EFSDP,
        "recompute blocks",
    ),
    "deepseek_tp_pipeline": ("pp 2 > tp 2", PP.format("1f1b"), "use tp over tp", SP, "use ep over tp"),
    "deepseek_tp_cp": ("cp 2 > tp 2", "use cp over cp", "use tp over tp", SP),
    "deepseek_ring": ("cp 4", "use cp over cp as ring"),
    "deepseek_tp_ring": ("cp 2 > tp 2", "use cp over cp as ring", "use tp over tp", SP),
    "deepseek_tp_sequence": ("ep 2 > tp 2", "use ddp over ep", SP, EP),
}
"""A dense first layer, latent attention, and a shared expert beside the routed ones. Tensor parallelism divides the
heads, and the narrow projections by the sequence where it is divided, or not at all."""

CI = (*("tuned_ep_tp_view", "ep_recomputed", "capacity_etp", "qwen3_moe_view", "deepseek_pipeline", "deepseek_tp_ep"),)
"""Those that CI trains beside them."""
QUICK = ("ep_fsdp",)
"""Those that `make test` trains."""

BALANCED = ("ep_recomputed", "etp_balanced", "deepseek_pipeline")
"""Those that train with a load-balancing loss too."""
BALANCE = 0.3

MOE = {**MIXTRAL, **FINE_TUNED, **QWEN3, **DEEPSEEK}


def moe_case(name: str, *more: str) -> Plan:
    """The plan of a named layout, and `more` sentences. Its name begins with the model's, if that is not Mixtral."""
    mesh, *sentences = MOE[name]
    model = next((m for m in ("qwen3_moe", "deepseek") if name.startswith(m)), "mixtral") + "_micro"
    small = name.startswith(("deepseek_tp", "deepseek_ring"))
    layers, sequences = ("(layers = 2)", 8) if small else ("", 16)
    batch = f"{sequences} x 24 tokens microbatch 2"
    return plan_of(f"case_{name}", mesh, *sentences, *more, model=model + layers, batch=batch)
