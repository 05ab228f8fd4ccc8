"""Trip counts of loops: annotated by the CPU compiler, derived for the TPU compiler.

A small interpreter of integers follows the loop counter: its initial value, condition and step. A loop that it cannot
follow is an error, never "once".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import cached_property
from typing import Union

from planc.backends.xla.audit.hlo import Computation, HloError, Instruction, Module

Value = Union[int, "Values"]
Values = Callable[[int], "Value"]
"""A tuple, as a function from index to element; elements are evaluated lazily."""

LONGEST = 1_000_000
"""A larger trip count is taken for a parse error."""

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_UNCHANGED = ("copy", "bitcast", "convert", "reshape", "broadcast", "optimization-barrier", "opt-barrier", "copy-done")
_WORD = 2**32 - 1
"""Mask of a 32-bit counter."""
_TWO: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "minimum": min,
    "maximum": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "divide": lambda a, b: _towards_zero(a, b),
    "remainder": lambda a, b: a - _towards_zero(a, b) * b,
    "shift-left": operator.lshift,
    "shift-right-arithmetic": operator.rshift,
    "shift-right-logical": lambda a, b: (a & _WORD) >> b,
}
_ONE: dict[str, Callable[[int], int]] = {
    "not": operator.invert,
    "negate": operator.neg,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
}
_DIRECTIONS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


def _towards_zero(a: int, b: int) -> int:
    """Return `a` / `b` rounded towards zero, as XLA divides integers. Raises HloError if `b` is zero, although XLA
    defines a value for this case."""
    if b == 0:
        raise HloError("a division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def trips(module: Module, where: Computation, loop: Instruction) -> int:
    """Return the trip count of `loop`, a `while` in computation `where`. Raises HloError if it cannot be derived."""
    known = _KNOWN.search(loop.attributes)
    if known:
        return int(known[1])
    (condition,), (body,) = loop.named("condition"), loop.named("body")
    state = _State(module, where, loop, module[body])
    try:
        for count in range(LONGEST):
            if not _integer(_result(module, module[condition], [state.at(count)])):
                return count
    except HloError as error:
        raise HloError(f"{where.name}: the trip count of %{loop.name}: {error}") from None
    raise HloError(f"{where.name}: %{loop.name} runs more than {LONGEST} times")


class WhileLoop:
    """A `while` loop whose iterations can be evaluated one by one."""

    def __init__(self, module: Module, where: Computation, loop: Instruction) -> None:
        self._module = module
        (body,) = loop.named("body")
        self._body = module[body]
        self._state = _State(module, where, loop, self._body)
        self.count = trips(module, where, loop)

    def values(self, name: str) -> list[int]:
        """Return the integer value in each iteration of the instruction `name` of the loop body. Raises HloError if the
        value cannot be derived."""
        states = [self._state.at(iteration) for iteration in range(self.count)]
        return [_integer(_value(self._module, self._body, name, [state])) for state in states]


class _State:
    """The tuple that a loop carries, before each iteration; its elements are evaluated when they are needed."""

    def __init__(self, module: Module, where: Computation, loop: Instruction, body: Computation) -> None:
        self._module, self._where, self._loop, self._body = module, where, loop, body
        self._known: dict[tuple[int, int], Value] = {}

    @cached_property
    def _first(self) -> Values:
        return _tuple(_value(self._module, self._where, self._loop.operands[0], []))

    def at(self, iteration: int) -> Values:
        return lambda place: self._element(place, iteration)

    def _element(self, place: int, iteration: int) -> Value:
        if (place, iteration) not in self._known:
            found = self._first(place) if iteration == 0 else self._value_after(place, iteration)
            self._known[place, iteration] = found
        return self._known[place, iteration]

    def _value_after(self, place: int, iteration: int) -> Value:
        return _tuple(_result(self._module, self._body, [self.at(iteration - 1)]))(place)


def _result(module: Module, computation: Computation, arguments: list[Value]) -> Value:
    return _value(module, computation, computation.result.name, arguments)


def _value(module: Module, computation: Computation, name: str, arguments: list[Value]) -> Value:
    """Return the value of instruction `name`, an integer or a tuple. Raises HloError for anything else."""
    i = computation[name]

    def operand(place: int) -> Value:
        return _value(module, computation, i.operands[place], arguments)

    if i.opcode == "constant":
        return _constant(i)
    if i.opcode == "parameter":
        number = int(i.argument)
        if number >= len(arguments):
            raise HloError(f"%{name} comes from outside")
        return arguments[number]
    if i.opcode == "get-tuple-element":
        return _tuple(operand(0))(i.number("index"))
    if i.opcode == "tuple":
        return operand
    if i.opcode == "copy-start":
        return lambda _: operand(0)
    if i.opcode in _UNCHANGED:
        held = operand(0)
        return held(0) if i.opcode == "copy-done" and callable(held) else held
    if i.opcode in _TWO:
        return _TWO[i.opcode](_integer(operand(0)), _integer(operand(1)))
    if i.opcode == "compare":
        return int(_DIRECTIONS[_direction(i)](_integer(operand(0)), _integer(operand(1))))
    if i.opcode in _ONE:
        value = _ONE[i.opcode](_integer(operand(0)))
        return value & 1 if i.shapes[0].dtype == "pred" else value
    if i.opcode == "clamp":
        return min(max(_integer(operand(0)), _integer(operand(1))), _integer(operand(2)))
    if i.opcode == "select":
        return operand(1) if _integer(operand(0)) else operand(2)
    if i.opcode in ("fusion", "call"):
        (called,) = i.named("calls") or i.named("to_apply")
        return _result(module, module[called], [_LazyArgument(operand, n) for n in range(len(i.operands))])
    raise HloError(f"%{name} is a `{i.opcode}`")


class _LazyArgument:
    """An argument of a called computation, an integer or a tuple, which is evaluated when it is needed."""

    def __init__(self, operand: Callable[[int], Value], place: int) -> None:
        self._operand, self._place = operand, place

    def __call__(self, place: int) -> Value:
        return _tuple(self._operand(self._place))(place)

    def number(self) -> int:
        return _integer(self._operand(self._place))


def _constant(i: Instruction) -> int:
    words = {"true": 1, "false": 0}
    text = i.argument.strip("{} ")
    if text in words:
        return words[text]
    if not re.fullmatch(r"-?\d+", text):
        raise HloError(f"%{i.name} is no integer")
    return int(text)


def _direction(i: Instruction) -> str:
    found = re.search(r"direction=(\w+)", i.attributes)
    if found is None or found[1] not in _DIRECTIONS:
        raise HloError(f"%{i.name} compares in an unknown direction")
    return found[1]


def _integer(value: Value) -> int:
    if isinstance(value, _LazyArgument):
        return value.number()
    if not isinstance(value, int):
        raise HloError("a tuple where a number is needed")
    return value


def _tuple(value: Value) -> Values:
    if isinstance(value, int):
        raise HloError("a number where a tuple is needed")
    return value
