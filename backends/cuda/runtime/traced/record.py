"""Records one forward of a module on the meta device: each function call, with its tensors, parameters and source line.

Nothing is computed: meta tensors only have shapes. Experts are not run, because they index by value: their output gets
the shape of their input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from planc.backends.cuda.models import moe
from planc.backends.cuda.runtime.traced.loops import PartProxy
from planc.backends.cuda.runtime.traced.roles import Shape
from planc.backends.cuda.runtime.traced.shell import place, shown_file


@dataclass(frozen=True)
class RecordedCall:
    """One function call on tensors that depend on the tokens. `inputs` and `outputs` are numbers of tensors."""

    function: str
    inputs: tuple[int, ...]
    """The tensors that depend on the tokens, in the order of the arguments."""
    params: tuple[str, ...]
    """Parameters among the other arguments, and those that other arguments were computed from."""
    beside: tuple[Shape, ...]
    """Shapes of the arguments that depend on neither tokens nor parameters: masks, positions, rotary angles."""
    outputs: tuple[int, ...]
    module: str
    """Path of the innermost module that was running."""
    line: str
    """`FILE:LINE` of the model's source."""
    direct: tuple[str, ...] = ()
    """Parameters passed directly, not transposed or scaled."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    again: Any = field(default=None, compare=False, repr=False)
    """The function and its arguments, with `Numbered` for tensors that depend on the tokens, to repeat the call."""


@dataclass(frozen=True)
class Numbered:
    """Stands for tensor number `number` among the arguments of a call."""

    number: int


@dataclass(frozen=True)
class ModuleRun:
    """One call of a module: the numbers of its first tensor argument (`taken`) and first tensor result (`given`), -1
    for a tensor that does not depend on the tokens, and the range of recorded calls inside it."""

    module: str
    taken: int
    given: int
    begin: int
    end: int
    returns: int = 0
    """Length of the tuple that the module returns; 0 if it returns no tuple."""
    caller: str = ""
    """Path of the module whose code called this one."""


@dataclass
class ForwardRecord:
    """All function calls and module runs of one forward, with the tensors' shapes and the number of the result."""

    calls: list[RecordedCall] = field(default_factory=list)
    runs: list[ModuleRun] = field(default_factory=list)
    shapes: dict[int, Shape] = field(default_factory=dict)
    result: int = -1


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, record: ForwardRecord, tokens: Tensor, *, skips: bool) -> None:
        """With `skips`, a module whose code reads tensor values is recorded as one call; else its error is raised."""
        super().__init__()
        self.record, self.inside = record, [""]
        self.params = {id(p): n for n, p in model.named_parameters()}
        self.alive: list[Any] = [tokens]
        self.numbers: dict[int, int] = {}
        self.made_from: dict[int, tuple[str, ...]] = {}
        """Parameters that a tensor independent of the tokens was computed from, by the tensor's id."""
        self.number(tokens)
        self.skips = skips
        self.mask_shape = (tokens.shape[0], 1, tokens.shape[1], tokens.shape[1])

    def number(self, tensor: Tensor) -> int:
        """Gives `tensor` a new number, even if it has one: an in-place change makes a new value."""
        self.alive.append(tensor)
        number = self.numbers[id(tensor)] = len(self.alive)
        self.record.shapes[number] = tuple(tensor.shape)
        return number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__contains__":  # would read values, for a warning about padding
            return False
        result = func(*args, **kwargs)
        made = _tensors(result)
        name = getattr(func, "__name__", "")
        if made:
            again = (func, self.numbered(args), self.numbered(kwargs))
            self.add("view" if name == "__get__" else name, (args, kwargs), made, again=again)
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            self.write(args[0], (args, kwargs))
        return result

    def write(self, target: Tensor, given: Any) -> None:
        """Records an in-place change of `target`, and if it is a view, of the tensor that it views."""
        self.add("write", (given, target), [target])
        if target._base is not None:
            self.add("write", (target._base, target), [target._base])

    def numbered(self, value: Any) -> Any:
        """Returns nested arguments with every tensor that depends on the tokens replaced by `Numbered`."""
        if isinstance(value, Tensor):
            return Numbered(self.numbers[id(value)]) if id(value) in self.numbers else value
        if isinstance(value, dict):
            return {k: self.numbered(v) for k, v in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.numbered(v) for v in value)
        return value

    def stub(self, name: str, given: Any, whole: Tensor, line: str = "") -> Tensor:
        """Records code that is not run as one call of `name`, and returns an empty output with the shape of `whole`."""
        with torch._C.DisableTorchFunction():
            result = torch.empty_like(whole)
        self.add(name, given, [result], line=line)
        return result

    def add(
        self,
        name: str,
        given: Any,
        made: list[Tensor],
        facts: Mapping[str, Any] | None = None,
        again: Any = None,
        line: str = "",
    ) -> None:
        """Records a call of function `name` with the arguments `given` and the outputs `made`. A call without an
        argument that depends on the tokens is not recorded."""
        inputs: list[int] = []
        params: list[str] = []
        direct: list[str] = []
        beside: list[Shape] = []
        for tensor in _tensors(given):
            if id(tensor) in self.numbers:
                inputs.append(self.numbers[id(tensor)])
            elif found := ([self.params[id(tensor)]] if id(tensor) in self.params else self.made_from.get(id(tensor))):
                params += found
                direct += found if id(tensor) in self.params else ()
            else:
                beside.append(tuple(tensor.shape))
        if not inputs:
            for tensor in made:
                self.alive.append(tensor)
                if params:
                    self.made_from[id(tensor)] = tuple(dict.fromkeys(params))
            return
        outputs = tuple(self.number(tensor) for tensor in made)
        unique = tuple(dict.fromkeys(params))
        call = RecordedCall(name, tuple(inputs), unique, tuple(beside), outputs, self.inside[-1], line or _line())
        call = replace(call, direct=tuple(direct), facts=facts or {}, again=again)
        self.record.calls.append(call)


def record(model: nn.Module, call: Callable[[Tensor], Any], tokens: Tensor, *, skips: bool = False) -> ForwardRecord:
    """Returns a record of the calls that `call(tokens)` makes; `model` and `tokens` are on the meta device.

    With `skips`, a module whose code reads values counts as one call, with an output of the shape of its input.
    """
    made = ForwardRecord()
    recorder = _Recorder(model, made, tokens, skips=skips)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_watched(model, recorder))
        stack.enter_context(_attention_of_transformers(model, recorder))
        stack.enter_context(recorder)
        result = call(tokens)
    made.result = next((recorder.numbers[id(t)] for t in _tensors(result) if id(t) in recorder.numbers), -1)
    return made


@contextmanager
def _watched(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """A context in which `recorder` records each call of a module of `model`, and experts are not run."""
    changed = []
    for path, module in model.named_modules():
        if isinstance(module, PartProxy):  # the part itself is wrapped at its own path
            continue
        changed.append((module, module.__dict__.get("forward")))
        module.forward = _noted(path, module.forward, recorder, own=list(module.parameters(recurse=False)))
    try:
        yield
    finally:
        for module, before in changed:
            if before is None:
                del module.forward
            else:
                module.forward = before


def _noted(path: str, forward: Callable[..., Any], recorder: _Recorder, *, own: list[Tensor]) -> Callable[..., Any]:
    module = getattr(forward, "__self__", None)
    picks = any(p.dim() == 3 for p in own) and not isinstance(module, nn.modules.conv._ConvNd)
    stub = picks or isinstance(module, moe.Experts)

    def noted(*args: Any, **kwargs: Any) -> Any:
        record, numbers = recorder.record, recorder.numbers
        begin = len(record.calls)
        taken = next((numbers[id(t)] for t in _tensors((args, kwargs)) if id(t) in numbers), -1)
        caller = recorder.inside[-1]
        recorder.inside.append(path)
        result: Any
        given = [t for t in _tensors((args, kwargs)) if t.is_floating_point()]
        try:
            if stub and given:
                result = recorder.stub("experts", (args, kwargs, own), given[0])
            else:
                result = forward(*args, **kwargs)
        except Exception as error:
            if not (given and recorder.skips and module is not None and asks_values(error)):
                raise
            del record.calls[begin:]
            record.runs[:] = [r for r in record.runs if r.begin < begin]
            result = recorder.stub("code", (args, kwargs, list(module.parameters())), given[0], line=place(error))
        finally:
            recorder.inside.pop()
        given_number = next((numbers[id(t)] for t in _tensors(result) if id(t) in numbers), -1)
        returns = len(list(result)) if isinstance(result, tuple) else 0
        record.runs.append(ModuleRun(path, taken, given_number, begin, len(record.calls), returns, caller))
        return result

    return noted


@contextmanager
def _attention_of_transformers(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """A context in which attention in transformers' code is recorded as one call, with its window and sinks."""
    own: Any = model.__dict__.get("model", model)  # for a bound model, the model it was made from
    configs = {id(c): c for m in (*model.modules(), own) if (c := getattr(m, "config", None)) is not None}
    configs = {n: c for n, c in configs.items() if hasattr(c, "_attn_implementation")}
    if not configs:
        yield
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def core(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **given: Any) -> Any:
        facts = {"window": int(given.get("sliding_window") or 0)}
        with torch._C.DisableTorchFunction():
            result = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1])
        recorder.add("attention", (q, k, v, given.get("s_aux")), [result], facts)
        return result, None

    def mask(*args: Any, **kwargs: Any) -> Tensor:
        return torch.empty(recorder.mask_shape, device="meta")

    def no_mask(*args: Any, **kwargs: Any) -> None:
        return None

    before = [(c, c._attn_implementation) for c in configs.values()]
    sources = {type(m).__module__ for m in (*model.modules(), own)}
    masks = [
        (vars(sys.modules[s]), name, value)
        for s in sources
        if "transformers" in s
        for name, value in vars(sys.modules[s]).items()
        if name.startswith("create_") and "mask" in name
    ]
    ALL_ATTENTION_FUNCTIONS.register(NAME, core)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *args, **kwargs: None)
    try:
        for config in configs.values():
            config._attn_implementation_internal = NAME
        for names, name, _ in masks:
            names[name] = no_mask if "recurrent" in name else mask
        yield
    finally:
        for config, name in before:
            config._attn_implementation_internal = name
        for interface in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            interface._global_mapping.pop(NAME, None)
        for names, name, value in masks:
            names[name] = value


NAME = "planc_records"
ASKS_VALUES = ("item()", "nonzero", "meta tensor", "data-dependent", "Boolean value", "no data")
"""Words in the errors of code that reads the values of meta tensors."""


def asks_values(error: Exception) -> bool:
    """True if `error` comes from code that reads a tensor's values."""
    return any(word in str(error) for word in ASKS_VALUES)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    return []


def _line() -> str:
    """Returns `FILE:LINE` of the innermost running code outside torch and this file; "" if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and "/torch/" not in file:
            return f"{shown_file(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
