"""Finds the buffers that are live at the memory peak of a compiled program, from the schedule in its text.

Instructions run in the order of the text. A buffer is live from its definition to its last use; the state of a loop is
updated in place, and its body adds its own peak. XLA reports no buffer assignment for TPUs. The sum here is close to
its `peak_memory_in_bytes` but not equal: it ignores fragmentation and buffers that share memory in ways that the text
does not show.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planc.backends.xla.audit.hlo import Computation, HloError, Instruction, Module, Shape

SAME_PLACE = ("bitcast", "optimization-barrier", "opt-barrier", "while", "reshape")
"""Opcodes whose results alias their operands."""
TRANSPARENT = ("tuple", "get-tuple-element", "bitcast")
"""Opcodes that are no use of their operands."""
IN_PLACE = ("dynamic-update-slice", "scatter", "all-reduce")
"""Opcodes whose result reuses an operand of the same size after its last use; also fusions that end in one."""
CALLS = ("body", "branch_computations", "true_computation", "false_computation", "to_apply", "calls")


@dataclass(frozen=True)
class Buffer:
    """A buffer of the compiled program that is live at the memory peak."""

    bytes: int
    shape: Shape
    instruction: str
    source: str
    """The `op_name` of its instruction; "" if the compiler writes none."""
    argument: bool = False
    """True for an argument of the step: the state, which the results replace in place."""


@dataclass(frozen=True)
class Fullest:
    """The memory peak of a computation: the bytes, the live buffers, and the instruction that runs then."""

    bytes: int
    buffers: tuple[Buffer, ...]
    """The live buffers, largest first."""
    instruction: str
    """The name of the instruction at the peak."""


def fullest(module: Module) -> Fullest:
    """Return the memory peak of a scheduled `module`. Raises HloError for text that cannot be parsed."""
    found = _Schedule(module, module[module.entry], outermost=True).fullest()
    return Fullest(found.bytes, tuple(sorted(found.buffers, key=lambda b: -b.bytes)), found.instruction)


@dataclass
class _Array:
    """One array of the program: its live range (by number of instruction), and the array whose memory it reuses."""

    buffer: Buffer
    begin: int
    end: int
    instead_of: int | None = None


@dataclass
class _Schedule:
    """The arrays that the instructions of one computation define, in the order in which they run."""

    module: Module
    computation: Computation
    outermost: bool = False
    arrays: list[_Array] = field(default_factory=list)
    values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Indices of the arrays of each instruction's result."""

    def fullest(self) -> Fullest:
        order = list(self.computation.instructions.values())
        for at, i in enumerate(order):
            self.values[i.name] = self._result(i, at)
            if i.opcode not in TRANSPARENT:
                self._read(i.operands, at)
        self._read((self.computation.result.name,), len(order))
        if self.outermost:
            self._read(tuple(i.name for i in self.computation.parameters.values()), len(order))
        for at, i in enumerate(order):
            self._write_in_place(i, at)
        return self._fullest(order)

    def _read(self, names: tuple[str, ...], at: int) -> None:
        for number in self._arrays_of(names):
            self.arrays[number].end = at

    def _arrays_of(self, names: tuple[str, ...]) -> list[int]:
        return [number for name in names for number in self.values.get(name, ())]

    def _result(self, i: Instruction, at: int) -> tuple[int, ...]:
        given = self._arrays_of(i.operands)
        if i.opcode == "tuple" or (i.opcode in SAME_PLACE and len(given) == len(i.shapes)):
            return tuple(given)
        if i.opcode == "get-tuple-element":
            return self._element(i)
        if i.opcode.endswith("-start") and len(i.shapes) > 1:
            return self._begun(i, given, at)
        if i.opcode.endswith("-done"):
            return self._done(i, given)
        return tuple(self._new(i, s, at) for s in i.shapes)

    def _element(self, i: Instruction) -> tuple[int, ...]:
        """Return the array indices of the tuple element that `i` selects; several if the element is a tuple."""
        held, index = self.values[i.operands[0]], i.number("index")
        tuple_of = self.computation[i.operands[0]]
        if tuple_of.opcode != "tuple":
            return held[index : index + 1] if len(i.shapes) == 1 else held
        sizes = [len(self.values[name]) for name in tuple_of.operands]
        begin = sum(sizes[:index])
        return held[begin : begin + sizes[index]]

    def _begun(self, i: Instruction, given: list[int], at: int) -> tuple[int, ...]:
        """Return the array indices of the results of an asynchronous start: its operands `given` where the shapes are
        equal, and new arrays for all other results."""
        lies, out = list(given), []
        for shape in i.shapes:
            same = next((n for n in lies if self.arrays[n].buffer.shape == shape), None)
            if same is not None:
                lies.remove(same)
            out.append(self._new(i, shape, at) if same is None else same)
        return tuple(out)

    def _done(self, i: Instruction, given: list[int]) -> tuple[int, ...]:
        """Return the array indices of a `-done` instruction's results: for each shape, the newest array of `given`."""
        left, out = sorted(given, reverse=True), []
        for shape in i.shapes:
            same = next((n for n in left if self.arrays[n].buffer.shape == shape), None)
            if same is None:
                raise HloError(f"{self.computation.name}: %{i.name} is done and was not begun")
            left.remove(same)
            out.append(same)
        return tuple(out)

    def _new(self, i: Instruction, shape: Shape, at: int) -> int:
        argument = i.opcode == "parameter"
        held = 0 if argument and not self.outermost else _held_bytes(shape)
        self.arrays.append(_Array(Buffer(held, shape, i.name, i.source, argument), at, at))
        return len(self.arrays) - 1

    def _write_in_place(self, i: Instruction, at: int) -> None:
        """Let the results of instruction `i` reuse the memory of operands of the same size whose last use is `i`."""
        if not self._in_place(i):
            return
        free = [n for n in dict.fromkeys(self._arrays_of(i.operands)) if self.arrays[n].end == at]
        for number in self.values[i.name]:
            size = _held_bytes(self.arrays[number].buffer.shape)
            same = next((n for n in free if _held_bytes(self.arrays[n].buffer.shape) == size), None)
            if size and same is not None:
                free.remove(same)
                self.arrays[number].instead_of = same

    def _in_place(self, i: Instruction) -> bool:
        if i.opcode != "fusion":
            return i.opcode in IN_PLACE
        fused = self.module[i.named("calls")[0]]
        ends = [fused[name] for name in fused.result.operands] if fused.result.opcode == "tuple" else [fused.result]
        ends = [fused[e.operands[0]] if e.opcode == "bitcast" else e for e in ends]
        return any(e.opcode in IN_PLACE for e in ends)

    def _place(self, number: int) -> int:
        """Return the index of the array that owns the memory of array `number`, the first in the chain of reuse."""
        while (before := self.arrays[number].instead_of) is not None:
            number = before
        return number

    def _places(self) -> dict[int, _Array]:
        """Return the live range of each memory region, by the index of the array that owns it.

        Results that use memory of the caller are left out: in the entry computation those that replace an argument,
        elsewhere all results, such as the state of a loop.
        """
        made = self.values[self.computation.result.name]
        lain = [n for k, n in enumerate(made) if not self.outermost or k in self.module.replaced]
        results = {self._place(n) for n in lain}
        found: dict[int, _Array] = {}
        for number, array in enumerate(self.arrays):
            place = self._place(number)
            first = self.arrays[place]
            if not first.buffer.bytes or (place in results and not first.buffer.argument):
                continue
            end = max(found[place].end if place in found else 0, array.end)
            found[place] = _Array(first.buffer, first.begin, end)
        return found

    def _fullest(self, order: list[Instruction]) -> Fullest:
        places = self._places().values()
        changes = [0] * (len(order) + 2)
        for p in places:
            changes[p.begin] += p.buffer.bytes
            changes[p.end + 1] -= p.buffer.bytes
        held, best, moment, within = 0, -1, 0, None
        for at, i in enumerate(order):
            held += changes[at]
            inner = self._inner(i)
            total = held + (inner.bytes if inner else 0)
            if total > best:
                best, moment, within = total, at, inner
        there = tuple(p.buffer for p in places if p.begin <= moment <= p.end)
        name = within.instruction if within else order[moment].name
        return Fullest(best, (*there, *(within.buffers if within else ())), name)

    def _inner(self, i: Instruction) -> Fullest | None:
        """Return the largest peak in the computations that a while, conditional or call `i` calls, else None."""
        if i.opcode not in ("while", "conditional", "call"):
            return None
        names = [name for attribute in CALLS for name in i.named(attribute)]
        found = [_Schedule(self.module, self.module[name]).fullest() for name in names]
        return max(found, key=lambda f: f.bytes, default=None)


def _held_bytes(shape: Shape) -> int:
    """Return the bytes that an array of `shape` takes in HBM; 0 if the array is in another memory."""
    return 0 if shape.space else shape.stored_bytes
