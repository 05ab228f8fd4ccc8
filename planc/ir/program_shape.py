"""Checks the syntax of emitted programs before import: a second barrier, after the checks of the plan's texts.

Text that escapes its quotes would introduce what no emitter writes: calls for files, processes, imports, reflection.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

PACKAGES = frozenset(
    {
        "__future__", "collections", "contextlib", "contextvars", "copy", "functools", "itertools", "jax", "math",
        "numpy", "optax", "re", "torch", "torch_xla", "torchao", "typing", "warnings",
    }
)  # fmt: skip
"""Packages that emitted programs import from."""
BUILTINS = frozenset(
    {
        "NotImplementedError", "RuntimeError", "ValueError", "abs", "all", "any", "bool", "dict", "enumerate", "float",
        "frozenset", "getattr", "hasattr", "id", "int", "isinstance", "len", "list", "map", "max", "min", "next",
        "print", "property", "range", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum",
        "super", "tuple", "type", "zip",
    }
)  # fmt: skip
"""Names that a program may use without defining them."""
SPECIAL = frozenset({"__init__", "__version__"})
"""Dunder names that programs define."""
REFUSED = frozenset(
    {
        "builtins", "classes", "cpp_extension", "ctypes", "ctypeslib", "exec", "f2py", "fromfile", "hub", "importlib",
        "inspect", "io", "load", "load_library", "loads", "marshal", "memmap", "multiprocessing", "open", "os",
        "package", "pathlib", "pickle", "popen", "runpy", "save", "savez", "serialization", "shutil", "socket",
        "subprocess", "sys", "system", "tofile",
    }
)  # fmt: skip
"""Attributes that reach files, processes or code through modules that programs do import."""
OUTERMOST = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.If)


def foreign(text: str) -> str:
    """Return the first construct in the program `text` that planc does not emit, and its line; "" if there is none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"it is no Python: {type(error).__name__}"
    found = min(_findings(tree), default=(0, ""))
    return f"line {found[0]}: {found[1]}" if found[1] else ""


def _findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, description) of each node that is not allowed."""
    for place, statement in enumerate(tree.body):
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not docstring and not isinstance(statement, OUTERMOST) and not _gives_derivative(statement):
            yield statement.lineno, f"a statement {type(statement).__name__} outside of functions"
    known = BUILTINS | _bound(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and (node.id not in known or _hidden(node.id)):
            yield node.lineno, f"the name {node.id}"
        elif isinstance(node, ast.Attribute) and (node.attr in REFUSED or _hidden(node.attr)):
            yield node.lineno, f"the attribute {node.attr}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, f"an import of {name}") for name in _imported(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            yield from _reflection(node)


def _gives_derivative(statement: ast.stmt) -> bool:
    """True for a call `function.defvjp(forward, backward)`, which JAX requires at module level."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "defvjp"


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the names that an import statement imports and that are not allowed."""
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    names = [alias.name for alias in node.names]
    dotted = [f"{module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
    for name in dotted:
        first, *rest = name.split(".")
        if first not in PACKAGES or any(part in REFUSED or _hidden(part) for part in rest):
            yield name


def _reflection(call: ast.Call) -> Iterator[tuple[int, str]]:
    """Yield (line, description) for a `getattr` whose name is computed or refused."""
    name = call.args[1] if len(call.args) > 1 else None
    text = name.value if isinstance(name, ast.Constant) else None
    plain = isinstance(name, ast.Name) or (isinstance(text, str) and text not in REFUSED and not _hidden(text))
    if not plain:
        yield call.lineno, "getattr of another name than programs ask for"


def _bound(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found


def _hidden(name: str) -> bool:
    return name.startswith("__") and name not in SPECIAL
