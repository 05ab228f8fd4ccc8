"""Models that are read from code: running the code, and saving its op graph beside the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planc.diag.span import Span
from planc.files import read_json
from planc.ir.base import plain_name
from planc.ir.installed import framework_needed
from planc.ir.saved_model import SavedModel, saved_path
from planc.language.build import build_file
from planc.language.verbs.model_from import MAX_BYTES, ORIGINS
from planc.lowering import load_backend

NOWHERE = Span("", 1, 1, 1, 1)


def model_of(module: Any, example_inputs: Any = None, *, name: str = "") -> SavedModel:
    """Return the op graph of a torch module, read from one run of its code on the meta device.

    Args:
        module: the module, on any device; its weights are not read.
        example_inputs: inputs of the run, the tokens [sequences, tokens] first; None: tokens alone.
        name: the model's name in reports; "" takes the name of its class.

    Returns:
        The op graph. `model_of(module).write("mine.model.json")` saves it beside a plan, in which
        `model from code "mine"` reads it.

    Raises:
        PlanError: the module has no op graph (E1207 to E1210), or torch is not installed (E1009).

    >>> from planc.backends.cuda.models.llama import build
    >>> from planc import load
    >>> module = build(load("plans/tiny.plan").model)
    >>> model_of(module).model.parameters == sum(p.numel() for p in module.parameters())
    True
    """
    with framework_needed("cuda", NOWHERE):
        return load_backend("cuda").model_of(module, example_inputs, name)


def save_models(source: str | Path, *, set: dict[str, int] | None = None, target: str = "") -> list[Path]:
    """Run the code that a plan's `model from` sentence names, in a process of its own, and save the model's op graph in
    a file beside the plan.

    Args:
        source: path of the plan.
        set: values of its `let` numbers.
        target: the target whose `on TARGET:` sentences are read.

    Returns:
        The files written; [] for a plan with a model of the catalog.

    Raises:
        PlanError: there is no op graph for this code, or what it needs is missing.
    """
    from planc.driver.allowed_code import traced_model  # processes, which only this needs

    path, written = Path(source), []
    for named, of, span in _own_models(path, set, target):
        traced_model(of, plain_name(Path(named).stem), span).write(path.parent / saved_path(named))
        written.append(path.parent / saved_path(named))
    return written


def module_source(
    source: str | Path, *, set: dict[str, int] | None = None, target: str = ""
) -> dict[str, Any] | str | None:
    """Return what builds the module of a plan with `model from transformers` or `model from code`; no code runs here.

    Args:
        source: path of the plan.
        set: values of its `let` numbers.
        target: the target whose `on TARGET:` sentences are read.

    Returns:
        The config's fields (transformers) or `package.module:function` (code); None for a model of the catalog.
    """
    return next((of for _, of, _ in _own_models(Path(source), set, target)), None)


def _own_models(
    path: Path, set: dict[str, int] | None, target: str
) -> Iterator[tuple[str, dict[str, Any] | str, Span]]:
    """Yield the sentences that read a model from code: the name in the sentence, the config or function that builds the
    module, and the sentence's span. Sentences with a mistake are left out, since reading the plan reports them."""
    for sentence in build_file(path, set, target).sentences:
        names = sentence.node.words("NAME") if sentence.verb == "model_from" else []
        if not names or names[0].text not in ORIGINS:
            continue
        named = sentence.node.words("STRING")[0].text.strip('"')
        if not (path.parent / saved_path(named)).resolve().is_relative_to(path.parent.resolve()):
            continue
        try:
            of = read_json(path.parent / named, MAX_BYTES) if names[0].text == "transformers" else named
        except (OSError, ValueError):
            continue
        yield named, of, sentence.span
