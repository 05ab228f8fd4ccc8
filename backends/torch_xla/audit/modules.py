"""Loads the module that `--portability` names, and makes the steps of the audit."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from planc.backends.cuda.models import family
from planc.backends.torch_xla.audit.places import Place
from planc.catalog import build_model, model_names

SEQUENCES, TOKENS = 2, 32
MAKER, INPUTS = "build", "example_inputs"
FAMILIES = Path(__file__).parents[2] / "cuda" / "models"


class NoModuleError(LookupError):
    """The name given to `--portability` names no module that can be built. The message is for the user."""


def bundled() -> tuple[str, ...]:
    """Returns the families with a bundled module."""
    return tuple(sorted({file.stem for file in FAMILIES.glob("*.py")} & set(model_names().values())))


def found(name: str) -> tuple[nn.Module, Callable[[int], tuple[Any, ...]]]:
    """Returns the module that `name` names, and a function that returns the inputs of a step from the step's number.

    `name` is a bundled family, or a file or dotted path. After a colon it names the class or function that makes the
    module without arguments (by default `build`). A function `example_inputs(step)` in the same file returns the
    arguments of a call; without that function the input is a batch of random tokens. Raises NoModuleError.
    """
    if name in bundled():
        return _family(name), _tokens(build_model(_smallest_model(name)).sizes["vocab"])
    source, _, maker = name.partition(":")
    holder = _loaded(source)
    made = _build_module(holder, maker or MAKER, name)
    inputs = getattr(holder, INPUTS, None)
    return made, inputs or _tokens(_vocabulary(made))


def origin(module: nn.Module) -> Place:
    """Returns the file and line of the class of `module`; without source, the name of its Python module and line 1."""
    kind = type(module)
    try:
        return Place(inspect.getfile(kind), inspect.getsourcelines(kind)[1], kind.__qualname__)
    except (OSError, TypeError):
        return Place(kind.__module__, 1, kind.__qualname__)


def step_of(module: nn.Module, inputs: Callable[[int], tuple[Any, ...]]) -> Callable[[int], None]:
    """Returns a function of the step number (1 to 3) that runs a forward and a backward of `module`.

    `inputs` returns the positional arguments of a step; `step_of` calls it for all three steps at once.
    """
    given = {number: inputs(number) for number in range(1, 4)}

    def step(number: int) -> None:
        module.zero_grad()
        _sum_of_outputs(module(*given[number])).backward()  # type: ignore[no-untyped-call]

    return step


def _sum_of_outputs(made: Any) -> Tensor:
    """Returns the sum of all floating-point outputs, a scalar from which a backward can start."""
    parts = made if isinstance(made, list | tuple) else made.values() if isinstance(made, dict) else [made]
    total: Tensor = sum(p.float().sum() for p in parts if isinstance(p, Tensor) and p.is_floating_point())  # type: ignore[assignment]
    return total


def _family(name: str) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = family(name).build(build_model(_smallest_model(name)))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.02)
    return module


def _smallest_model(family: str) -> str:
    names = [model for model, of in model_names().items() if of == family]
    return min(names, key=lambda model: build_model(model).parameters)


def _tokens(vocabulary: int) -> Callable[[int], tuple[Tensor]]:
    def inputs(step: int) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(step)
        return (torch.randint(vocabulary, (SEQUENCES, TOKENS), generator=generator),)

    return inputs


def _vocabulary(module: nn.Module) -> int:
    sizes = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    if not sizes:
        raise NoModuleError(f"it has no embedding to give tokens to: write `def {INPUTS}(step)` beside it")
    return sizes[0]


def _loaded(source: str) -> ModuleType:
    if not source.endswith(".py"):
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{source}.".startswith(f"{error.name}."):
                raise
            families = ", ".join(bundled())
            raise NoModuleError(f"{source} is no file, no module, and none of the families {families}") from None
    path = Path(source)
    if not path.is_file():
        raise NoModuleError(f"{source} is not there")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, source
    holder = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = holder
    spec.loader.exec_module(holder)
    return holder


def _build_module(holder: ModuleType, maker: str, name: str) -> nn.Module:
    make = getattr(holder, maker, None)
    if not callable(make):
        raise NoModuleError(f"{name.partition(':')[0]} has no `{maker}`: write MODULE:NAME of what makes the module")
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise NoModuleError(f"`{maker}` must make the module without arguments: {error}") from None
    made = make()
    if not isinstance(made, nn.Module):
        raise NoModuleError(f"`{maker}` makes a {type(made).__name__}, not a torch module")
    return made
