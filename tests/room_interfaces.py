"""The functions and classes of a room that others use, found in the source with `ast`.

Used is a top-level function or class that another room imports, or that the room's own `__all__` names; and
the public methods of such a class. Rooms are folders of `planc/` and `backends/`, and each module directly in them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Module:
    """A file's top-level functions and classes, the names that it imports, and the attributes that it reads."""

    place: str
    defined: dict[str, Definition] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # own name: (module, name there)
    read: set[tuple[str, str]] = field(default_factory=set)  # (own name, attribute)
    listed: tuple[str, ...] = ()  # in __all__


def room(place: str) -> str:
    """The room of a file: `planc/costing`, `backends/cuda`, or `planc` for its own modules."""
    parts = Path(place).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def dotted(place: str) -> str:
    """`backends/cuda/emit/program.py` is planc.backends.cuda.emit.program; a package is its folder."""
    parts = Path(place).with_suffix("").parts
    parts = parts if parts[0] == "planc" else ("planc", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def used_elsewhere(texts: Mapping[str, ast.Module]) -> set[tuple[str, str]]:
    """(path, name) of every function and method that is used from other rooms; `texts` has all files by path.

    Left out is what needs no docstring of its own: properties, `to_json`, and methods with the name and the arguments
    of a documented method of a Protocol.
    """
    modules = {dotted(place): _module(place, tree) for place, tree in texts.items()}
    promised = set(_promised(modules.values()))
    return {
        (module.place, name) for module, definition in _used(modules) for name in _functions_of(definition, promised)
    }


def _module(place: str, tree: ast.Module) -> Module:
    module = Module(place, {n.name: n for n in tree.body if isinstance(n, Definition)})
    package = dotted(str(Path(place).parent / "__init__.py")).split(".")
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else []
                origin = ".".join([*above, *filter(None, [node.module])])
                module.imported |= {a.asname or a.name: (origin, a.name) for a in node.names}
            case ast.Attribute(value=ast.Name(id=owner)):
                module.read.add((owner, node.attr))
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                module.listed = tuple(
                    n.value for n in names if isinstance(n, ast.Constant) and isinstance(n.value, str)
                )
    return module


def _used(modules: Mapping[str, Module]) -> Iterator[tuple[Module, Definition]]:
    for module in modules.values():
        own = _house(module.place)
        if module.place.endswith("/__init__.py") and Path(module.place).parent.as_posix() in (own, "planc"):
            yield from (found for name in module.listed if (found := _resolved(modules, dotted(module.place), name)))
        for origin, name in _reached(modules, module):
            found = _resolved(modules, origin, name)
            if found and _house(found[0].place) != own:
                yield found


def _house(place: str) -> str:
    """The room, or the file itself for a module directly in `planc/` or `backends/`."""
    return room(place) if len(Path(place).parts) > 2 else place


def _reached(modules: Mapping[str, Module], module: Module) -> Iterator[tuple[str, str]]:
    """(module, name) of all that a file imports, or reads from a module that it imports."""
    yield from module.imported.values()
    for owner, attribute in module.read:
        origin, name = module.imported.get(owner, ("", ""))
        if f"{origin}.{name}" in modules:
            yield f"{origin}.{name}", attribute


def _resolved(modules: Mapping[str, Module], origin: str, name: str) -> tuple[Module, Definition] | None:
    """The file that defines a name, and its definition, through the packages that only pass it on."""
    while module := modules.get(origin):
        if name in module.defined:
            return module, module.defined[name]
        if name not in module.imported or module.imported[name] == (origin, name):
            return None
        origin, name = module.imported[name]
    return None


def _functions_of(definition: Definition, promised: set[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
    """Names of the functions that a definition gives its users: itself, or `Class.method`."""
    if definition.name.startswith("_"):
        return
    if not isinstance(definition, ast.ClassDef):
        yield definition.name
        return
    own = set() if _is_protocol(definition) else promised
    for method in _methods(definition):
        if method.name != "to_json" and not _is_property(method) and (method.name, arguments(method)) not in own:
            yield f"{definition.name}.{method.name}"


def _promised(modules: Iterable[Module]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, arguments) of the documented methods of every Protocol."""
    for module in modules:
        for node in module.defined.values():
            if isinstance(node, ast.ClassDef) and _is_protocol(node):
                yield from ((m.name, arguments(m)) for m in _methods(node) if ast.get_docstring(m))


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
            yield inner


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(d).split(".")[-1] in ("property", "cached_property", "setter") for d in node.decorator_list)


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """Names of a function's arguments but `self` and `cls`."""
    given = node.args
    return tuple(a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg not in ("self", "cls"))
