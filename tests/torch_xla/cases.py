"""Layouts of four devices that torch_xla trains."""

from __future__ import annotations

from planc.ir.plan import Plan
from tests.cuda.moe_cases import CAPACITY, EP
from tests.xla.cases import FSDP, SP, TP, plan_of

KEYS = ("shard sequence over cp", "attention.core as all_gather(balance = none)")
LAYOUTS: dict[str, tuple[str, ...]] = {
    # name: (mesh, sentence, ...)
    "zero1": ("dp 4", "use zero1 over dp"),
    "fsdp": ("fsdp 4", FSDP),
    "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
    "dp_tp": ("dp 2 > tp 2", "use ddp over dp", TP),
    "fsdp_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "recompute": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks"),
    "recompute_every": ("fsdp 4", FSDP, "recompute blocks every 2 layers"),
    "cp": ("cp 4", *KEYS),
    "fsdp_cp": ("fsdp 2 > cp 2", FSDP, *KEYS, "recompute blocks"),
}


STORED_OVER = "shard batch over fsdp, ep", "store params, grads, optimizer over fsdp, ep"
MOE: dict[str, tuple[str, ...]] = {
    "mixtral_ep": ("fsdp 2 > ep 2", *STORED_OVER, EP),
    "mixtral_capacity": ("fsdp 2 > ep 2", *STORED_OVER, EP, CAPACITY, "recompute blocks"),
    "mixtral_fsdp_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, CAPACITY),
    "mixtral_etp": ("fsdp 2 > tp 2", FSDP, TP, SP, "use etp over tp"),
    "deepseek_ep": ("fsdp 2 > ep 2", *STORED_OVER, EP),
    "qwen3_moe_capacity": ("fsdp 2 > ep 2", *STORED_OVER, EP, CAPACITY),
}
LAYOUTS |= MOE


def layout(name: str) -> Plan:
    """The plan of one of these layouts; of a model with experts by the name's first words."""
    models = {f"{model}_micro": name for model in ("mixtral", "deepseek", "qwen3_moe") if name.startswith(model)}
    return plan_of(f"torch_xla_{name}", *LAYOUTS[name], **({"model": next(iter(models))} if models else {}))
