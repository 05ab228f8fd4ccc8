"""The ops and parameters that parts consist of: weights, norms, matmuls, elementwise ops, adds."""

from __future__ import annotations

from planc.catalog.parts.part import HIDDEN, Part
from planc.ir.model import Op, Param, Tensor
from planc.ir.saved_by_code import Elements

Shape = tuple[tuple[str, ...], ...]


def weight(module: str, shape_dims: Shape, *, region: str = "") -> Param:
    """Return the weight of `module`, stored with this order of dims, for the ops of `region` ("" if no sentence is
    scoped to it)."""
    return Param(name=f"{module}.weight", shape_dims=shape_dims, section="", region=region)


def bias(module: str, shape_dims: Shape, *, region: str = "") -> Param:
    """Return the bias of `module`, without weight decay. It is initialized as the weights are."""
    return Param(name=f"{module}.bias", shape_dims=shape_dims, section="", region=region, decay=False)


def hidden(name: str) -> Tensor:
    """Return the tensor `name` of the residual stream, [batch, sequence, embed]."""
    return Tensor(name=name, dims=HIDDEN, region="residual")


def norm(name: str, module: str, source: str, target: Tensor, *, over: str = "embed", biased: bool = False) -> Part:
    """Return a norm from tensor `source` to `target` over one dim: RMSNorm, or LayerNorm if `biased`. Its input is
    saved."""
    scale = Param(name=f"{module}.weight", shape_dims=((over,),), section="", init="ones", decay=False)
    params = (scale, bias(module, ((over,),))) if biased else (scale,)
    return norm_with(name, module, source, target, params, over=(over,))


def norm_with(
    name: str, module: str, source: str, target: Tensor, params: tuple[Param, ...], *, over: tuple[str, ...]
) -> Part:
    """Return a norm from tensor `source` to `target` over the dims `over`, with these parameters: none, a scale, or a
    scale and a bias. Its input is saved."""
    op = Op(
        name=name,
        kind="norm",
        region=target.region,
        module=module,
        inputs=(source,),
        params=tuple(p.name for p in params),
        output=target.name,
        whole=over,
        saves=(source,),
    )
    return Part(params=params, tensors=(target,), ops=(op,))


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
    """Return a linear layer. Its input is saved, for wgrad. `weight_of` names the module whose weight it shares.

    A bias here is over the output dims; one that must be added after a partial sum belongs to the following `add`.
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
    """Return a pointwise function of the tensors `inputs`, which are saved, to `target`."""
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
    """Return a sum in the residual stream; with the bias of the row-parallel layer `bias_of`, which must be added once,
    after that layer's partial sums."""
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
    """Return a model's own code that matches no other op, from tensor `source` to `target`. It cannot be sharded; `why`
    gives the reason. `line` is `FILE:LINE` of its source, and `multiply_adds` are per token. Its input is saved."""
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
