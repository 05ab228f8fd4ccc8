"""Traces the op graph of a torch module, in one run of its code on the meta device."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from planc.backends.cuda.runtime.traced.find_roles import roles_of
from planc.backends.cuda.runtime.traced.graph import model_of_roles
from planc.backends.cuda.runtime.traced.keep import with_own_code
from planc.backends.cuda.runtime.traced.loops import loops_of, with_blocks
from planc.backends.cuda.runtime.traced.record import ForwardRecord, asks_values, record
from planc.backends.cuda.runtime.traced.roles import DecoderRoles, UnknownError
from planc.backends.cuda.runtime.traced.shell import first_line, place, without_weights
from planc.diag import Diagnostic, PlanError
from planc.diag.span import Span
from planc.ir.base import plain_name
from planc.ir.saved_by_code import Unseen
from planc.ir.saved_model import SavedModel, config_sha256

# torchao, which transformers imports, registers its enums in a way that torch warns of: no concern of a plan's reader.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)

SEQUENCES, TOKENS = 2, 24
"""The batch size and sequence length (tokens) of the traced run; the values of the tokens are not used."""
NOWHERE = Span("", 1, 1, 1, 1)


def model_of(source: Any, example: Any = None, name: str = "") -> SavedModel:
    """Returns the op graph of `source`: a module, a config's fields, or `package.module:function`, which builds a
    module.

    `example` are the module's inputs, tokens first; None for a module called with tokens only. `name` is the name of
    the returned model; "" for the name of its class. Raises PlanError: E1207 for a part that planc does not recognize,
    E1208 for code that reads tensor values, E1209 for classes that transformers does not have, E1210 for inputs that
    the module rejects, E1009 for a missing package.
    """
    module, digest = module_of(source)
    kind = type(module)
    package = kind.__module__.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "")
    title = name or plain_name(source.replace(":", ".") if isinstance(source, str) else kind.__name__)
    try:
        roles = roles_of_module(module, example)
        model = model_of_roles(title, roles)
    except UnknownError as error:
        raise _refused("E1207", f"{kind.__name__}: {error}") from None
    except ValueError as error:
        raise _refused("E1207", f"{kind.__name__} is not a model that planc supports: {error}") from None
    if isinstance(example, tuple | list) and len(example) > 1:
        model = replace(model, unseen=(Unseen(why="it is called with more than tokens"),))
    else:
        model = with_own_code(model, module, roles)
    made_from = f"{kind.__name__} of {package} {version}".strip()
    return SavedModel(made_from=made_from, source_sha256=digest, model=model)


def module_of(source: Any) -> tuple[nn.Module, str]:
    """Returns the module of `source` (a module, `MODULE:FUNCTION` that builds one, or the fields of a Hugging Face
    config), and the sha256 of the config ("" if `source` is not a config).

    Raises PlanError: E1009, E1209, E1210.
    """
    try:
        if isinstance(source, str):
            return _built(source), ""
        if isinstance(source, Mapping):
            return causal_model(source), config_sha256(dict(source))
    except ModuleNotFoundError as error:
        raise _refused("E1009", f"{source} needs {error.name}, which is not installed") from None
    return source, ""


def roles_of_module(module: nn.Module, example: Any = None) -> DecoderRoles:
    """Returns what each part of `module` is (embedding, attention, ...), from a run without weights on the inputs
    `example`. Blocks are modules in a list or iterations of a loop; the reading that recognizes most of the code is
    returned. Raises UnknownError, PlanError."""
    shell = without_weights(module).eval()
    given = example if isinstance(example, tuple | list) else () if example is None else (example,)
    tokens = next((t for t in given if isinstance(t, Tensor)), None)
    shape = (SEQUENCES, TOKENS) if tokens is None else tuple(tokens.shape)
    rest = tuple(t.to("meta") if isinstance(t, Tensor) else t for t in given[1:])
    more = {"use_cache": False} if _of_transformers(module) else {}
    inputs = torch.zeros(shape, dtype=torch.long, device="meta")

    def run(model: nn.Module) -> ForwardRecord:
        made: ForwardRecord = _run(
            lambda x: record(model, lambda t: _logits(model(t, *rest, **more)), x, skips=True), inputs
        )
        return made

    def found(model: nn.Module) -> DecoderRoles:
        return roles_of(run(model), {n: tuple(p.shape) for n, p in model.named_parameters()}, shape[0])

    why, readings = UnknownError(), list[DecoderRoles]()
    try:
        readings.append(found(shell))
    except UnknownError as error:
        why = error
    for loop in () if readings and not readings[0].whole_numbers else loops_of(shell, run):
        try:
            readings.append(replace(found(with_blocks(without_weights(shell), loop)), loop=loop))
        except UnknownError as error:
            why = error
    if not readings:
        raise why
    return min(readings, key=lambda roles: roles.whole_numbers)


def causal_model(config: Mapping[str, Any]) -> nn.Module:
    """Returns transformers' causal language model for the fields of a `config`, on the meta device. Raises PlanError
    (E1209, E1210)."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        remote = " and its own code (`auto_map`) is not run" if "auto_map" in config else ""
        raise _refused("E1209", f"transformers has no {kind!r} models{remote}")
    fields = {k: v for k, v in config.items() if k != "auto_map"}
    try:
        made = CONFIG_MAPPING[kind].from_dict(fields)
        found = MODEL_FOR_CAUSAL_LM_MAPPING[type(made)]
        with torch.device("meta"):
            kind_of_model: Any = found[0] if isinstance(found, tuple) else found
            model: nn.Module = kind_of_model(made)
    except KeyError:
        raise _refused("E1209", f"transformers has no causal language model for {kind!r}") from None
    except Exception as error:  # raised by a config's classes for fields that do not fit
        raise _refused("E1210", f"transformers makes no {kind} model of this config: {first_line(error)}") from None
    return model


def _built(source: str) -> nn.Module:
    path, _, function = source.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = importlib.import_module(path)
    build = getattr(module, function, None)
    if not callable(build):
        raise _refused("E1210", f"{path} has no function {function or '(none was named)'}")
    with torch.device("meta"):
        made = build()
    if not isinstance(made, nn.Module):
        raise _refused("E1210", f"{source} gives a {type(made).__name__}, not a torch module")
    return made


def _of_transformers(module: nn.Module) -> bool:
    """True for a model with the call signature of transformers models."""
    return (hasattr(module, "config") and hasattr(module, "lm_head")) or hasattr(module, "get_output_embeddings")


def _run(call: Callable[[Tensor], Any], tokens: Tensor) -> Any:
    try:
        return call(tokens)
    except (UnknownError, PlanError):
        raise
    except Exception as error:
        where = place(error)
        if asks_values(error):
            raise _refused("E1208", f"{where}: its code reads a tensor's values: {first_line(error)}") from None
        raise _refused("E1210", f"{where}: it cannot be called with tokens: {first_line(error)}") from None


def _logits(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    logits = getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    first: Tensor = next(t for t in result if isinstance(t, Tensor))
    return first


def _refused(code: str, message: str) -> PlanError:
    return PlanError([Diagnostic(code, message, NOWHERE)])
