"""Ops and parameters from which parts are built: weights, norms, matmuls, elementwise ops, adds."""

from __future__ import annotations

from planc.catalog.parts.part import HIDDEN, Part
from planc.ir.model import Op, Param, Tensor
from planc.ir.saved_by_code import Elements

Shape = tuple[tuple[str, ...], ...]
NormParams = tuple[str, ...]
"""The parameters of a norm: those of an RMSNorm, of a LayerNorm with a bias, or none."""
RMS: NormParams = ("weight",)
LAYER: NormParams = ("weight", "bias")


def weight(module: str, shape_dims: Shape, *, region: str = "") -> Param:
    """Return the weight of `module`. `shape_dims` are its dims in storage order; `region` is the part of the model that
    a sentence of the plan must name to shard it separately ("": none)."""
    return Param(name=f"{module}.weight", shape_dims=shape_dims, section="", region=region)


def bias(module: str, shape_dims: Shape, *, region: str = "") -> Param:
    """Return the bias of `module`, a parameter without weight decay."""
    return Param(name=f"{module}.bias", shape_dims=shape_dims, section="", region=region, decay=False)


def hidden(name: str) -> Tensor:
    """Return a tensor of the residual stream called `name`, with dims [batch, sequence, embed]."""
    return Tensor(name=name, dims=HIDDEN, region="residual")


def norm(
    name: str,
    module: str,
    source: str,
    target: Tensor,
    params: NormParams = RMS,
    *,
    over: tuple[str, ...] = ("embed",),
    shape_dims: Shape = (),
) -> Part:
    """Return a norm of the tensor `source` over the dims `over`, which is saved for the backward. Its `params` have
    the dims `shape_dims`, () for one parameter of each element of `over`."""
    made = tuple(
        Param(
            name=f"{module}.{word}",
            shape_dims=shape_dims or (over,),
            section="",
            init="ones" if word == "weight" else "normal",
            decay=False,
        )
        for word in params
    )
    op = Op(
        name=name,
        kind="norm",
        region=target.region,
        module=module,
        inputs=(source,),
        params=tuple(p.name for p in made),
        output=target.name,
        whole=over,
        saves=(source,),
    )
    return Part(params=made, tensors=(target,), ops=(op,))


def matmul(
    name: str,
    region: str,
    module: str,
    shape_dims: Shape,
    source: str,
    target: Tensor,
    *,
    biased: bool = False,
    whole: tuple[str, ...] = (),
    param_region: str = "",
    weight_of: str = "",
) -> Part:
    """Return a linear layer of the tensor `source`, which is saved for wgrad. `weight_of`: the module whose weight it
    shares.

    `biased` adds a bias over the output dims. The bias of a row-parallel layer belongs to the next `add` instead.
    """
    made = tuple(group for group in shape_dims if set(group) <= set(target.dims))
    params = [weight(weight_of or module, shape_dims, region=param_region)]
    if biased:
        params.append(bias(module, made, region=param_region))
    op = Op(
        name=name,
        kind="matmul",
        region=region,
        module=module,
        inputs=(source,),
        params=tuple(p.name for p in params),
        output=target.name,
        whole=whole,
        saves=(source,),
    )
    return Part(params=tuple(params), tensors=(target,), ops=(op,))


def elementwise(name: str, region: str, module: str, inputs: tuple[str, ...], target: Tensor) -> Part:
    """Return a pointwise function that reads the tensors `inputs`, saved for backward, and writes `target`."""
    op = Op(
        name=name,
        kind="elementwise",
        region=region,
        module=module,
        inputs=inputs,
        output=target.name,
        saves=inputs,
    )
    return Part(tensors=(target,), ops=(op,))


def add(name: str, module: str, inputs: tuple[str, ...], target: Tensor, *, bias_of: str = "") -> Part:
    """Return the sum of the tensors `inputs`, in the residual stream. `bias_of` is a row-parallel layer whose bias is
    added too: only once, after the layer's partial sums ("": none)."""
    params = (bias(bias_of, (("embed",),)),) if bias_of else ()
    op = Op(
        name=name,
        kind="add",
        region="residual",
        module=module,
        inputs=inputs,
        params=tuple(p.name for p in params),
        output=target.name,
    )
    return Part(params=params, tensors=(target,), ops=(op,))


def to_stream(
    name: str, *, stream: str, target: str, out: str = "", after: NormParams | None = None, bias_of: str = ""
) -> Part:
    """Return the residual add of the half block `name`: the tensor `out` ("": NAME.out), behind a norm with the
    parameters `after` if it has one, is added to the tensor `stream` as `target`. `bias_of` as in `add`."""
    out, part = out or f"{name}.out", Part()
    if after is not None:
        normed = hidden(f"{name}.out_normed")
        part, out = norm(f"{name}.post_norm", f"layers.*.{name}_post_norm", out, normed, after), normed.name
    return part + add(f"{name}.add", "layers.*", (stream, out), hidden(target), bias_of=bias_of)


def code(
    name: str,
    module: str,
    source: str,
    target: Tensor,
    params: tuple[Param, ...],
    *,
    line: str,
    why: str,
    multiply_adds: float,
) -> Part:
    """Return an opaque op, i.e. the model's own code: it reads `source`, which is saved, and writes `target`. It cannot
    be sharded, for the reason `why`. `line` is the `FILE:LINE` of the code; `multiply_adds` are per token."""
    op = Op(
        name=name,
        kind="code",
        region="code",
        module=module,
        inputs=(source,),
        params=tuple(p.name for p in params),
        output=target.name,
        whole=("sequence", *(d for p in params for d in p.dims), *target.dims[2:]),
        saves=(source,),
        code_line=line,
        code_why=why,
        multiply_adds=(Elements(dims=("batch", "sequence"), copies=multiply_adds),) if multiply_adds else (),
    )
    return Part(params=params, tensors=(target,), ops=(op,))
