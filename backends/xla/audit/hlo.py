"""Parses XLA's HLO text: computations, instructions, shapes. Raises HloError, with the line, for unknown text.

The grammar is that of `HloModule::ToString` (openxla.org, "HLO text"), as jax 0.10 and libtpu 0.0.42 write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

BITS = {
    "pred": 8,
    "s4": 4,
    "u4": 4,
    "s8": 8,
    "u8": 8,
    "s16": 16,
    "u16": 16,
    "s32": 32,
    "u32": 32,
    "s64": 64,
    "u64": 64,
    "bf16": 16,
    "f16": 16,
    "f32": 32,
    "f64": 64,
    "f8e4m3": 8,
    "f8e4m3fn": 8,
    "f8e5m2": 8,
    "token": 0,
}

_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?[^{}]*?(?:S\((\d+)\))?\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")
_TABLES = ("HloModule", "FileNames", "FunctionNames", "FileLocations", "StackFrames")
"""Sections of the text before the computations: the header, and tables of source locations."""
HOST = 5
"""Memory space of the host in layouts: `S(5)`."""
_SOURCE = re.compile(r'op_name="([^"]*)"')
_ALIAS = re.compile(r"\{(\d*)\}: \(\d+, \{[\d,]*\}, \w+-alias\)")
_METADATA = "kernel_metadata={"
_ENTRY_OF_TABLE = re.compile(r"\d+ ")


class HloError(Exception):
    """HLO text of unknown form: no claim about the program can be made."""


@dataclass(frozen=True)
class Shape:
    """One array type: `bf16[2,1024]`."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0
    """Memory space: 0 is HBM, HOST is host memory, others are on-chip."""
    tiled_dims: tuple[int, ...] = field(default=(), compare=False)
    """Sizes of the dims in memory, outermost first, padded to whole tiles; () if the text has no layout."""

    @property
    def bytes(self) -> int:
        return prod(self.dims) * BITS[self.dtype] // 8

    @property
    def stored_bytes(self) -> int:
        """Bytes in memory, tile padding included."""
        return prod(self.tiled_dims or self.dims) * BITS[self.dtype] // 8


@dataclass(frozen=True)
class Instruction:
    """One instruction: `%name = type opcode(operands), attributes`."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    """Shapes of the result; a tuple is flattened."""
    operands: tuple[str, ...]
    argument: str
    """Text between the parentheses: the value of a constant, the number of a parameter."""
    attributes: str

    def named(self, attribute: str) -> tuple[str, ...]:
        """Return the computations that `attribute` names: `body=%a`, `branch_computations={%a, %b}`."""
        found = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%[\w.\-]+)", self.attributes)
        return tuple(_OPERAND.findall(found[1])) if found else ()

    @property
    def source(self) -> str:
        """The `op_name` of the instruction; "" if the compiler writes none."""
        found = _SOURCE.search(self.attributes)
        return found[1].replace("\\'", "'") if found else ""

    def number(self, attribute: str) -> int:
        """Return the integer value of `attribute`: 3 for `index=3`. Raises HloError if it is missing."""
        found = re.search(rf"\b{attribute}=(-?\d+)", self.attributes)
        if found is None:
            raise HloError(f"%{self.name}: no {attribute} in `{self.opcode}`")
        return int(found[1])


@dataclass(frozen=True)
class Computation:
    """One computation of a program: its instructions by name, in the order of the text."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Instruction:
        found = self.instructions.get(name)
        if found is None:
            raise HloError(f"{self.name}: no instruction %{name}")
        return found

    @property
    def result(self) -> Instruction:
        """The root instruction, whose value the computation returns."""
        if not self.root:
            raise HloError(f"{self.name}: no ROOT")
        return self[self.root[0]]

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {int(i.argument): i for i in self.instructions.values() if i.opcode == "parameter"}


@dataclass(frozen=True)
class Module:
    """A whole program; `entry` is the name of its entry computation."""

    computations: dict[str, Computation]
    entry: str
    replaced: frozenset[int] = frozenset()
    """Indices of the results that alias arguments."""

    def __getitem__(self, name: str) -> Computation:
        found = self.computations.get(name)
        if found is None:
            raise HloError(f"no computation %{name}")
        return found


def parse(text: str) -> Module:
    """Return the module in `text`, an HLO dump. Raises HloError for a line of unknown form."""
    computations: dict[str, Computation] = {}
    entry, current, replaced = "", None, frozenset[int]()
    for number, line in _lines(text):
        if not line.strip():
            continue
        if current is None:
            header = _COMPUTATION.match(line)
            if header:
                current = computations[header[2]] = Computation(header[2])
                entry = header[2] if header[1] else entry
            elif line.startswith("HloModule"):
                replaced = _replaced(line)
            elif not line.startswith(_TABLES) and not _ENTRY_OF_TABLE.match(line):
                raise HloError(f"line {number}: neither a computation nor a heading: {line[:120]}")
        elif line.startswith("}"):
            current = None
        else:
            _add(current, line, number)
    if not entry:
        raise HloError("no ENTRY computation")
    return Module(computations, entry, replaced)


def _replaced(heading: str) -> frozenset[int]:
    """Return the indices of results that reuse an argument's memory, by the `heading`; 0 stands for a single result."""
    return frozenset(int(number or 0) for number in _ALIAS.findall(heading))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line). The metadata of a Pallas kernel spans lines, which are joined to the instruction's line."""
    begun: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        first, whole = (begun[0], begun[1] + line) if begun else (number, line)
        ends = line.startswith("}}") if begun else not line.endswith(_METADATA)
        begun = None if ends else (first, whole)
        if ends:
            yield first, whole
    if begun:
        raise HloError(f"line {begun[0]}: no end: {begun[1][:120]}")


def _add(computation: Computation, line: str, number: int) -> None:
    head = _INSTRUCTION.match(line)
    if head is None:
        raise HloError(f"line {number}: not an instruction: {line[:120]}")
    try:
        instruction = _instruction(head[2], line[head.end() :])
    except HloError as error:
        raise HloError(f"line {number}: {error}") from None
    computation.instructions[instruction.name] = instruction
    if head[1]:
        computation.root.append(instruction.name)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing_parenthesis(text) if text.startswith("(") else text.find(" ")
    opcode = _OPCODE.match(text, end + 1 + text.startswith("(")) if end > 0 else None
    if opcode is None:
        raise HloError(f"%{name}: no opcode: {text[:120]}")
    close = _closing_parenthesis(text, opcode.end() - 1)
    argument = text[opcode.end() : close]
    return Instruction(
        name=name,
        opcode=opcode[1],
        shapes=shapes_of(text[: end + 1]),
        operands=tuple(_OPERAND.findall(argument)) if opcode[1] not in ("constant", "parameter") else (),
        argument=argument,
        attributes=text[close + 1 :],
    )


def shapes_of(text: str) -> tuple[Shape, ...]:
    """Return the arrays of the type in `text`. Raises HloError for an unknown element type."""
    found = []
    for dtype, dims, order, tile, space in _SHAPE.findall(text):
        if dtype not in BITS:
            raise HloError(f"element type {dtype} is not known")
        sizes = _numbers(dims.replace("<=", ""))
        found.append(Shape(dtype, sizes, int(space or 0), _tiled(sizes, _numbers(order), _numbers(tile))))
    return tuple(found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _tiled(sizes: tuple[int, ...], order: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    """Return `sizes` in the order of memory, outermost dim first, with the innermost dims padded to the `tile`. `order`
    lists the dims from minor to major. () if `order` does not fit `sizes`, as in a text without layouts."""
    if len(order) != len(sizes) or not order or len(tile) > len(sizes):
        return ()
    laid = [sizes[i] for i in reversed(order)]
    for place, size in enumerate(tile, start=len(laid) - len(tile)):
        laid[place] = -(-laid[place] // size) * size
    return tuple(laid)


def _closing_parenthesis(text: str, start: int = 0) -> int:
    """Return the index of the parenthesis that closes the one at `start`. Parentheses in quoted text do not count."""
    depth, quoted = 0, False
    for place in range(start, len(text)):
        character = text[place]
        if character == '"' and text[place - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return place
    raise HloError(f"no closing parenthesis: {text[start : start + 120]}")
