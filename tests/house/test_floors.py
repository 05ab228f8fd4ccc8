"""The floors of the house: a room imports only from its own floor and those below, and only the
libraries it is allowed. Read from the source with `ast`; nothing is imported."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[2]

ROOMS: dict[str, tuple[int, set[str]]] = {
    # room: (floor, libraries beside the standard one)
    "planc.diag": (0, set()),
    "planc.files": (0, set()),
    "planc.cache": (0, set()),
    "planc.allowed": (0, set()),
    "planc.version": (0, set()),
    "planc.syntax": (1, {"lark"}),
    "planc.picture": (1, {"jinja2"}),  # inside the functions that write
    "planc.ir": (2, {"pydantic", "numpy"}),  # numpy in the types of a session alone
    "planc.catalog": (2, set()),
    "planc.frameworks": (2, set()),
    "planc.graph": (2, {"networkx"}),  # inside the functions that make a networkx graph
    "planc.language": (3, {"pydantic"}),
    "planc.pipeline": (3, set()),
    "planc.sharding": (3, set()),
    "planc.costing": (4, {"networkx"}),  # inside the smallest cut, which nothing on the way to a cost asks for
    "planc.checks": (5, set()),
    "planc.searching": (5, set()),
    "planc.calibration": (5, {"numpy"}),  # inside functions that fit
    "planc.backends.cuda": (6, {"torch", "torchao", "numpy", "transformers"}),  # the last in functions
    "planc.backends.xla": (6, {"jax", "jaxlib", "optax", "numpy"}),
    "planc.backends.torch_xla": (6, {"torch", "torch_xla", "numpy"}),  # over both: their modules, their layouts
    "planc.backends": (6, {"numpy", "safetensors"}),  # common: what they share; both in functions
    "planc.lowering": (6, set()),
    "planc.driver": (7, set()),
    "planc.trainer": (
        8,
        {"torch", "jax", "numpy", "safetensors", "tomlkit", "pydantic", "pydantic_core"}
        | {"tokenizers", "tensorboard", "wandb", "torchtitan"},  # inside functions, where a preset asks for them
    ),
    "planc.interop": (8, {"yaml"}),  # inside the reader of YAML
    "planc.compare": (9, set()),
    "planc.editor": (9, {"pygls", "lsprotocol"}),
    "planc.report": (9, {"pydantic", "markupsafe"}),  # loaded where a page is written
    "planc.cli": (10, {"pygls", "lsprotocol"}),  # loaded by `planc lsp` alone
}

IMPORTED_BY_NAME = {
    "planc/lowering.py": "load_backend: the one import of a backend by name",
    "planc/__init__.py": "the library's names, from a table of constants in the same file",
    "planc/cli/commands/bench.py": "a table of the laboratory, in a checkout",
    "planc/picture/notebook.py": "what shows a value in a notebook, when one asks for it: always the same module",
    "planc/diag/registry.py": "one file a rule: the folder that it is given",
    "backends/cuda/runtime/traced/read.py": "the user's own module, by the name that `--allow-code` lets in",
    "backends/torch_xla/audit/modules.py": "the user's own module, by the name on the command line",
}
"""The files that may import a module whose name is not in their text, and what they import so. Every other import
is a constant, or a file of the importing package's own folder (`f"{__name__}.{name}"`): the floors can see both."""

FRAMEWORKS = {"torch", "torch_xla", "jax", "jaxlib", "optax", "numpy"}
MAY_LOAD_FRAMEWORKS = (
    "backends/*/runtime/*.py",
    "backends/*/models/*.py",
    "backends/*/program/*.py",
    "backends/*/audit/*.py",
    "planc/trainer/*.py",
)
"""The side of the house that runs; lowering and everything before it does without."""


def source_files(root: Path) -> dict[str, str]:
    """Path from the root to text, for every Python file of `planc/` and `backends/` (links not followed)."""
    files = [*(root / "planc").rglob("*.py"), *(root / "backends").rglob("*.py")]
    inside = [f for f in files if f.resolve().relative_to(root).parts[0] == f.relative_to(root).parts[0]]
    return {str(f.relative_to(root)): f.read_text() for f in sorted(inside)}


def module_of(path: str) -> str:
    """`backends/cuda/emit/program.py` is planc.backends.cuda.emit.program."""
    parts = Path(path).with_suffix("").parts
    parts = parts if parts[0] == "planc" else ("planc", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    return next((room for room in ROOMS if module == room or module.startswith(room + ".")), None)


@cache
def imports(path: str, text: str) -> list[tuple[int, str, bool]]:
    """(line, imported module or DYNAMIC, True if it is imported when the file is loaded)."""
    return list(_imports(path, ast.parse(text), at_load=True))


def _imports(path: str, node: ast.AST, *, at_load: bool) -> Iterator[tuple[int, str, bool]]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{_origin(path, node)}.{alias.name}" for alias in node.names]
    else:
        names = [name] if (name := _imported_by_call(node, path)) is not None else []
    yield from ((getattr(node, "lineno", 0), name, at_load) for name in names)
    at_load &= not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node))
    for inner in ast.iter_child_nodes(node):
        yield from _imports(path, inner, at_load=at_load)


def _origin(path: str, node: ast.ImportFrom) -> str:
    """The module a `from ... import` names; the leading dots of a relative one are resolved."""
    if node.level == 0:
        return node.module or ""
    package = module_of(str(Path(path).parent / "__init__.py")).split(".")
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imported_by_call(node: ast.AST, path: str) -> str | None:
    """The module that a call imports, or its package where a file of one's own folder is imported by name.

    DYNAMIC where the name is computed otherwise, or relative to a package.
    """
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in IMPORTERS:
            pass
        case _:
            return None
    match node:
        case ast.Call(args=[ast.Constant(value=str(module))], keywords=[]) if not module.startswith("."):
            return module
        case ast.Call(args=[ast.JoinedStr(values=[own, ast.Constant(value="."), ast.FormattedValue()])], keywords=[]):
            if path.endswith("/__init__.py") and _is_own_name(own):
                return module_of(path)
    return DYNAMIC


def _is_own_name(part: ast.expr) -> bool:
    return isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and part.value.id == "__name__"


IMPORTERS = ("import_module", "__import__", "run_module")
DYNAMIC = "*"


def broken_floors(files: dict[str, str]) -> list[str]:
    """Every import that goes up the house, or brings in a library its room may not have."""
    found = []
    for path, text in files.items():
        module = module_of(path)
        room = room_of(module)
        if room is None:
            continue  # planc/__init__.py and the empty planc/backends/__init__.py: the doors
        floor, libraries = ROOMS[room]
        for line, name, at_load in imports(path, text):
            top = name.split(".")[0]
            if name == DYNAMIC:
                found += [] if path in IMPORTED_BY_NAME else [f"{path}:{line} imports a module by a computed name"]
            elif top == "planc":
                found += _upwards(f"{path}:{line}", room, floor, name)
            elif top in FRAMEWORKS:
                allowed = not at_load or any(fnmatch(path, pattern) for pattern in MAY_LOAD_FRAMEWORKS)
                if not allowed or top not in libraries:
                    found.append(f"{path}:{line} loads {top}")
            elif top not in sys.stdlib_module_names and top not in libraries:
                found.append(f"{path}:{line} imports {top}, which {room} does without")
    return found


def _upwards(place: str, room: str, floor: int, name: str) -> list[str]:
    target = room_of(name)
    if target is None:
        return [f"{place} imports {name}, which is in no room"]
    other_backend = target != room and {target, room} == {"planc.backends.cuda", "planc.backends.xla"}
    if ROOMS[target][0] > floor or other_backend:
        return [f"{place} ({room}, floor {floor}) imports {name} (floor {ROOMS[target][0]})"]
    return []


def test_no_room_imports_from_above() -> None:
    assert broken_floors(source_files(ROOT)) == []


def circles(files: dict[str, str]) -> list[list[str]]:
    """Files that import each other in a circle, inside functions or for types alone too, by networkx."""
    modules = {module_of(path) for path in files}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for path, text in files.items():
        for _, name, _ in imports(path, text):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module_of(path):
                graph.add_edge(module_of(path), target)
    return sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)


def test_no_files_import_each_other() -> None:
    assert circles(source_files(ROOT)) == []


def test_files_that_import_each_other_are_found() -> None:
    files = {
        "planc/costing/a.py": "from planc.costing.b import x\n",
        "planc/costing/b.py": "import planc.costing.c\n",
        "planc/costing/c.py": "def f():\n    from planc.costing import a\n",
        "planc/costing/d.py": "from planc.costing import a\n",
        "planc/costing/e.py": "if TYPE_CHECKING:\n    from planc.costing.f import F\n",
        "planc/costing/f.py": "from planc.costing.e import E\n",
    }
    assert circles(files) == [
        ["planc.costing.a", "planc.costing.b", "planc.costing.c"],
        ["planc.costing.e", "planc.costing.f"],
    ]


def test_every_import_by_name_is_still_made() -> None:
    """A line of IMPORTED_BY_NAME whose file no longer imports so is a door left open."""
    files = source_files(ROOT)
    unused = [p for p in IMPORTED_BY_NAME if DYNAMIC not in {name for _, name, _ in imports(p, files.get(p, ""))}]
    assert unused == []


def test_one_place_imports_a_backend_by_name() -> None:
    """No other computed name is made from the name of a target."""
    made = [
        path
        for path, text in source_files(ROOT).items()
        if re.search(r"""import_module\(\s*f["']planc\.backends\.\{""", text)
    ]
    assert made == ["planc/lowering.py"]


def test_the_compiler_never_imports_the_trainer() -> None:
    """Nothing but the commands, and what stands beside them, is above the trainer."""
    above = {room for room, (floor, _) in ROOMS.items() if floor > ROOMS["planc.trainer"][0]}
    assert above == {"planc.cli", "planc.compare", "planc.editor", "planc.report"}


def test_architecture_lists_every_room() -> None:
    """The table of ARCHITECTURE.md is ROOMS, floor by floor."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    listed = {
        room: int(floor) for floor, cell in rows for room in map(_room_named, re.findall(r"`([^`]+)`", cell)) if room
    }
    assert listed == {room: floor for room, (floor, _) in ROOMS.items()}


def _room_named(path: str) -> str:
    """`backends/cuda/` is planc.backends.cuda; "" for a folder without Python."""
    return "" if path == "grammar/" else module_of(path.rstrip("/") + ("" if path.endswith(".py") else ".py"))


def test_every_file_is_in_a_room() -> None:
    doors = {"planc", "planc.backends"}
    homeless = [m for m in map(module_of, source_files(ROOT)) if room_of(m) is None and m not in doors]
    assert homeless == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("planc/diag/span.py", "import planc.ir.plan"),
        ("planc/costing/memory.py", "from planc.checks import memory"),
        ("planc/ir/plan.py", "def f():\n    from planc.driver import check"),
        ("planc/sharding/local.py", "importlib.import_module('planc.backends.cuda.lower')"),
        ("planc/diag/span.py", "import lark"),
        ("planc/ir/plan.py", "from planc import check"),
        ("planc/driver.py", "import torch"),
        ("planc/driver.py", "from planc.trainer.run import train"),
        ("planc/lowering.py", "def f():\n    from planc.trainer.preset.load import load_preset"),
        ("planc/ir/program.py", "def f(target):\n    import_module(f'planc.backends.{target}.runtime')"),
        ("planc/trainer/run/worker.py", "importlib.import_module(name)"),
        ("planc/compare/diff.py", "import_module('.roles', package)"),
        ("backends/cuda/runtime/start_up.py", "import_module(f'planc.backends.cuda.models.{family}')"),
        ("planc/cli/commands/check.py", "import_module(f'{__name__}.{name}')"),
        ("planc/catalog/__init__.py", "import_module(f'{__package__}.{name}')"),
        ("planc/costing/memory.py", "__import__('planc.' + name)"),
        ("backends/cuda/emit/program.py", "from torch import nn"),
        ("backends/cuda/runtime/start_up.py", "import jax"),
        ("backends/xla/emit/step.py", "from planc.backends.cuda import emit"),
        ("backends/xla/emit/step.py", "from ...cuda.emit import lines"),
        ("planc/costing/memory.py", "if True:\n    import numpy"),
    ],
)
def test_a_planted_import_is_found(path: str, line: str) -> None:
    """The test above can fail: each of these is one finding."""
    assert len(broken_floors({path: line})) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("planc/checks/memory.py", "from planc.costing import memory"),
        ("backends/cuda/runtime/start_up.py", "import torch.distributed"),
        ("backends/xla/models/llama.py", "import jax.numpy"),
        ("backends/xla/emit/step.py", "from . import program\nfrom ..rules import ORDER"),
        ("planc/ir/base.py", "from pydantic import BaseModel"),
        ("backends/cuda/emit/step.py", "def f():\n    import torch"),
        ("planc/lowering.py", "import_module(f'planc.backends.{name}')"),
        ("backends/xla/models/__init__.py", "def family(name):\n    importlib.import_module(f'{__name__}.{name}')"),
        ("planc/trainer/run/train.py", "from planc.lowering import lower_plan"),
    ],
)
def test_a_fair_import_is_not(path: str, line: str) -> None:
    assert broken_floors({path: line}) == []
