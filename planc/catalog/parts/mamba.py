"""A Mamba-2 mixer: a state-space layer over heads (Dao and Gu 2024, "Transformers are SSMs", arXiv:2405.21060)."""

from __future__ import annotations

from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import add, hidden, matmul, norm
from planc.ir.model import Op, Param, Tensor

MODULE = "layers.*.mixer"
HEADS = ("ssm_heads", "ssm_head_dim")
STATES = ("ssm_groups", "ssm_state")


def mamba() -> Part:
    """Return a Mamba-2 layer: norm, projections, convolution and scan, gated norm, output projection and residual add.
    It reads and writes the tensor `hidden`.

    The projections are the gate `z`, the values `x`, the state input `b` and output `c` (one per group of heads), and
    the step size `dt` of each head.
    """
    part = norm("mixer.norm", "layers.*.mixer_norm", "hidden", hidden("mixer.in"))
    for letter, width in (("z", HEADS), ("x", HEADS), ("b", STATES), ("c", STATES), ("dt", HEADS[:1])):
        target = _tensor(f"mixer.{letter}", width)
        part += matmul(f"mixer.{letter}", "projection", f"{MODULE}.w{letter}", (width, ("embed",)), "mixer.in", target)
    part += _scan() + _gated_norm()
    wo = f"{MODULE}.wo"
    part += matmul("mixer.out", "projection", wo, (("embed",), HEADS), "mixer.gated", hidden("mixer.out"))
    return part + add("mixer.add", "layers.*", ("hidden", "mixer.out"), hidden("hidden"))


def _scan() -> Part:
    """Return one op for the causal convolution of `x`, `b` and `c`, its SiLU, and the recurrence over the sequence.

    Its inputs are saved before the convolution, which the backward recomputes, as the fused kernels do
    (mamba_ssm/ops/triton/ssd_combined.py of state-spaces/mamba, `mamba_split_conv1d_scan_combined`).
    """
    taken = tuple(f"mixer.{letter}" for letter in ("x", "b", "c", "dt"))
    params: list[Param] = []
    for letter, width in (("x", HEADS), ("b", STATES), ("c", STATES)):
        kernel = f"{MODULE}.conv_{letter}"
        params.append(Param(name=f"{kernel}.weight", shape_dims=(width, ("ssm_conv",)), section=""))
        params.append(Param(name=f"{kernel}.bias", shape_dims=(width,), section="", decay=False))
    for name in ("a_log", "d", "dt_bias"):
        params.append(Param(name=f"{MODULE}.{name}", shape_dims=(HEADS[:1],), section="", init="ones", decay=False))
    op = Op(
        name="mixer.scan",
        kind="scan",
        region="mixer",
        module=MODULE,
        inputs=taken,
        params=tuple(p.name for p in params),
        output="mixer.y",
        whole=("sequence", "ssm_head_dim", "ssm_state"),
        saves=taken,
    )
    return Part(params=tuple(params), tensors=(_tensor("mixer.y", HEADS),), ops=(op,))


def _gated_norm() -> Part:
    """Return the RMSNorm of `y` times SiLU of the gate, over the heads of each group."""
    scale = Param(name=f"{MODULE}.norm.weight", shape_dims=(HEADS,), section="", init="ones", decay=False)
    inputs = ("mixer.y", "mixer.z")
    op = Op(
        name="mixer.gated_norm",
        kind="norm",
        region="mixer",
        module=f"{MODULE}.norm",
        inputs=inputs,
        params=(scale.name,),
        output="mixer.gated",
        whole=("ssm_head_dim",),
        saves=inputs,
    )
    return Part(params=(scale,), tensors=(_tensor("mixer.gated", HEADS),), ops=(op,))


def _tensor(name: str, width: tuple[str, ...]) -> Tensor:
    return Tensor(name=name, dims=(*HIDDEN[:2], *width), region="mixer")
