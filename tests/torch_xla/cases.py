"""Layouts of four devices that torch_xla trains."""

from __future__ import annotations

from planc.ir.plan import Plan
from tests.xla.cases import FSDP, SP, TP, plan_of

LAYOUTS: dict[str, tuple[str, ...]] = {
    # name: (mesh, sentence, ...)
    "zero1": ("dp 4", "use zero1 over dp"),
    "fsdp": ("fsdp 4", FSDP),
    "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
    "dp_tp": ("dp 2 > tp 2", "use ddp over dp", TP),
    "fsdp_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP),
}


def layout(name: str) -> Plan:
    """The plan of one of these layouts."""
    return plan_of(f"torch_xla_{name}", *LAYOUTS[name])
