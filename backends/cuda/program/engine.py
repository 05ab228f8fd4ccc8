"""The generator's weights under the names of vLLM and SGLang.

Both engines have the same names: their loaders take those of Hugging Face's checkpoints, and their own parameters hold
queries, keys and values, gate and up, one after the other.
"""

from collections.abc import Iterator, Mapping

import torch

from planc.backends.cuda.program.facts import FACTS
from planc.backends.cuda.program.sync import block_of, tensors
from planc.backends.cuda.program.sync_names import NAMES, NARROW
from planc.sharding.transfer_core import runs_of, shape_of


def engine_views(parameters: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """Return the tensors that `sync` and `load` fill, as views of the engine's own parameters.

    Args:
        parameters: those of the engine's model on this rank (`named_parameters`), as its loader fills them. Kernels that
            arrange weights anew after loading need `load_weights` instead: see `checkpoint_names`.
        rank: this rank of the generator, from 0.

    Raises:
        ValueError: a parameter is absent, or not as large as what this plan puts there.
    """
    wanted: dict[str, list[tuple[str, tuple[int, ...], bool]]] = {}
    for name, transfer, layer in tensors():
        stride, size = transfer.target.stage
        if rank // stride % size not in transfer.target.stages:
            continue
        theirs, shape = NAMES[transfer.name][1].replace("*", str(layer)), shape_of(transfer.target)
        runs = [runs_of(transfer.target, dim, rank) for dim in range(len(shape))]
        own = tuple(sum(b - a for a, b in held) for held in runs)
        wanted.setdefault(theirs, []).append((name, own, own == shape))
        if FACTS.float8 and transfer.name in NARROW:
            steps = [block_of(shape, dim) for dim in range(len(shape))]
            grid = tuple(sum(-(-b // n) - a // n for a, b in held) for held, n in zip(runs, steps, strict=True))
            wanted.setdefault(f"{theirs}_scale_inv", []).append((f"{name}_scale_inv", grid, False))
    given = {name.replace(".routed_experts.", "."): tensor for name, tensor in parameters.items()}
    found: dict[str, torch.Tensor] = {}
    for theirs, parts in wanted.items():
        if theirs not in given:
            raise ValueError(f"the engine has no parameter {theirs}")
        whole, first = given[theirs].detach(), 0
        dim = max(0, whole.ndim - 2)
        for name, shape, _ in parts:
            found[name] = whole.narrow(dim, first, min(shape[dim], whole.shape[dim] - first))
            first += shape[dim]
            if found[name].shape != shape:
                raise ValueError(f"{theirs} is {tuple(whole.shape)}, and this plan puts {name}, {shape}, there")
        padded = len(parts) == 1 and parts[0][2]  # an engine pads the rows of a vocabulary
        if first != whole.shape[dim] and not padded:
            raise ValueError(f"{theirs} is {tuple(whole.shape)}, and this plan has {first} rows for it")
    return found


def checkpoint_names(weights: Mapping[str, torch.Tensor], rank: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the generator's weights as `load_weights` of an engine takes them: whole tensors by their names in Hugging
    Face's checkpoints, each expert its own.

    Args:
        weights: what `sync` or `load` has filled, by the training program's names.
        rank: this rank of the generator, from 0.

    Raises:
        ValueError: this plan divides a tensor other than by layers and experts, which loaders do themselves.
    """
    for name, transfer, layer in tensors():
        if name not in weights:
            continue
        theirs, shape = NAMES[transfer.name][0].replace("*", str(layer)), shape_of(transfer.target)
        by_expert = "{}" in theirs
        if tuple(weights[name].shape[by_expert:]) != shape[by_expert:]:
            raise ValueError(f"{name} is divided: {tuple(weights[name].shape)} of {shape}; use engine_views")
        suffixes = ("", "_scale_inv") if FACTS.float8 and transfer.name in NARROW else ("",)
        for suffix in suffixes:
            values = weights[name + suffix]
            if by_expert:
                experts = [number for run in runs_of(transfer.target, 0, rank) for number in range(*run)]
                yield from ((theirs.format(n) + suffix, part) for n, part in zip(experts, values, strict=True))
            else:
                yield theirs + suffix, values
