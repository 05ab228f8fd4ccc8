"""Renames the user's submodules whose names collide with planc's names for parts of a block.

A user's `w1` may be planc's `w3`, so all of them are renamed before the first one gets its new name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import nn

from planc.backends.cuda.runtime.traced.roles import BlockLayers, Linear, Norm

OURS = frozenset(
    (
        *("attention_norm", "attention", "attention_post_norm", "ffn_norm", "feed_forward", "ffn_post_norm"),
        *("wq", "wk", "wv", "wo", "q_norm", "k_norm", "core", "head_sinks"),
        *("wq_a", "wq_b", "wkv_a", "wk_rope", "wk_b", "wv_b", "kv_norm", "keys", "w1", "w2", "w3"),
    )
)
"""The op graph's names of modules in a block."""
THEIRS = "theirs_"
"""Prefix of a user's name that collides with one of ours."""


def with_free_names(block: nn.Module, role: BlockLayers) -> BlockLayers:
    """Renames the submodules of `block` whose names are in `OURS`, and returns `role` with the new paths. The user's
    code finds these submodules under their old names, as plain attributes."""
    owners = {"", *(path.rpartition(".")[0] for path in _places(role))}
    renamed: set[str] = set()
    for path in sorted(owners, key=len, reverse=True):
        owner = block.get_submodule(path)
        if isinstance(owner, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            continue
        for name in [n for n, part in owner._modules.items() if n in OURS and part is not None]:
            part = owner._modules.pop(name)
            owner._modules[f"{THEIRS}{name}"] = part
            owner.__dict__[name] = part
            renamed.add(f"{path}.{name}".lstrip("."))
    found: BlockLayers = _renamed(role, renamed) if renamed else role
    return found


def name_in_code(name: str) -> str:
    """Returns the user's name of a submodule, whose current `name` may have the prefix `THEIRS`.

    >>> name_in_code("theirs_w1"), name_in_code("up")
    ('w1', 'up')
    """
    return name.removeprefix(THEIRS)


def part_at(module: nn.Module, path: str) -> nn.Module:
    """Returns the registered child of `module` at `path`, not a plain attribute. Raises KeyError if there is none."""
    for name in path.split("."):
        part = module._modules[name]
        assert part is not None, path
        module = part
    return module


def _places(part: Any) -> Iterator[str]:
    """Yields the module paths of all layers and norms in `part`, a dataclass or tuple."""
    if isinstance(part, Linear | Norm):
        yield part.path
    elif is_dataclass(part):
        for field in fields(part):
            yield from _places(getattr(part, field.name))
    elif isinstance(part, tuple):
        for inner in part:
            yield from _places(inner)


def _renamed(part: Any, renamed: set[str]) -> Any:
    """Returns `part` with the paths of the modules in `renamed` changed to the new names."""
    if isinstance(part, str):
        words = part.split(".")
        paths = (".".join(words[: n + 1]) for n in range(len(words)))
        return ".".join(f"{THEIRS}{w}" if path in renamed else w for w, path in zip(words, paths, strict=True))
    if isinstance(part, tuple):
        return tuple(_renamed(inner, renamed) for inner in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: _renamed(getattr(part, f.name), renamed) for f in fields(part)})
    return part
