"""Builds the data flow graph of a recorded model. A norm or a linear layer is one node, with all its calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planc.backends.cuda.runtime.traced.record import ForwardRecord, ModuleRun, RecordedCall
from planc.backends.cuda.runtime.traced.roles import CORES, LINEAR, REARRANGING, Linear, Norm, Shape

REDUCTIONS = ("rms_norm", "layer_norm", "mean", "var", "norm", "vector_norm", "sum", "group_norm")


@dataclass(frozen=True)
class FlowNode:
    """A node of the data flow graph: a norm, a linear layer, experts, the core of attention, or any other function
    call, whose `kind` is the function's name. `inputs` and `outputs` are the numbers of tensors in the record."""

    kind: str
    call: RecordedCall
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    norm: Norm | None = None
    linear: Linear | None = None


class Flow:
    """The data flow graph of the calls inside `run`. `params` are the shapes of all parameters by name, `prefix` is
    removed from their names, and `batch` is the number of sequences."""

    def __init__(
        self, record: ForwardRecord, run: ModuleRun, params: Mapping[str, Shape], prefix: str, batch: int
    ) -> None:
        self.record, self.params, self.prefix, self.batch = record, params, prefix, batch
        self.nodes = list(self._nodes(run))
        self.maker = {value: node for node in self.nodes for value in node.outputs}
        self.users: dict[int, list[FlowNode]] = {}
        for node in self.nodes:
            for value in node.inputs:
                self.users.setdefault(value, []).append(node)

    def shape(self, value: int) -> Shape:
        return self.record.shapes[value]

    def _nodes(self, run: ModuleRun) -> Iterator[FlowNode]:
        norms = {r.begin: r for r in self.record.runs if run.begin <= r.begin < r.end <= run.end and self._is_norm(r)}
        calls, at = self.record.calls, run.begin
        while at < run.end:
            if at in norms:
                found = norms[at]
                names = dict.fromkeys(p for c in calls[found.begin : found.end] for p in c.params)
                norm = Norm(self._own(found.module), tuple((self._own(n), self.params[n]) for n in names))
                yield FlowNode("norm", calls[at], (found.taken,), (found.given,), norm=norm)
                at = found.end
                continue
            call = calls[at]
            linear = self._linear(call)
            kind = "linear" if linear else "core" if call.function in CORES else call.function
            yield FlowNode(kind, call, call.inputs, call.outputs, linear=linear)
            at += 1

    def _is_norm(self, run: ModuleRun) -> bool:
        calls = self.record.calls[run.begin : run.end]
        if not calls or run.taken < 0 or run.given < 0 or self.shape(run.taken) != self.shape(run.given):
            return False
        names = {p for c in calls for p in c.params}
        small = all(len(self.params[n]) <= 2 and math.prod(self.params[n]) <= 2**20 for n in names)
        plain = not any(c.function in (*LINEAR, *CORES, "experts", "softmax") for c in calls)
        wide = self.shape(run.taken)[-1]
        fits = all(self.params[n][-1] == wide or math.prod(self.params[n]) == wide for n in names)
        return small and plain and fits and any(c.function in REDUCTIONS for c in calls)

    def _own(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    def _linear(self, call: RecordedCall) -> Linear | None:
        matrices = [p for p in call.params if len(self.params[p]) == 2]
        if call.function not in LINEAR or len(matrices) != 1 or len(call.inputs) != 1:
            return None
        taken, made = self.shape(call.inputs[0])[-1], self.shape(call.outputs[0])[-1]
        stored = self.params[matrices[0]]
        if sorted(stored) != sorted((taken, made)):
            return None
        biases = [p for p in call.params if len(self.params[p]) == 1]
        transposed = call.function != "linear" and stored == (taken, made) and matrices[0] in call.direct
        bias = self._own(biases[0]) if biases else ""
        return Linear(self._own(matrices[0]), bias, made, taken, transposed, self._is_alone(call, matrices[0]))

    def _is_alone(self, linear: RecordedCall, weight: str) -> bool:
        """True if the module with `weight` does nothing but this matmul."""
        own = weight.rpartition(".")[0]
        inside = [c for c in self.record.calls if c.module == own or c.module.startswith(f"{own}.")]
        others = [c for c in inside if c is not linear]
        return bool(own) and linear.module == own and all(c.function in REARRANGING and not c.params for c in others)

    def back(self, value: int, stops: tuple[str, ...]) -> tuple[list[FlowNode], list[FlowNode]]:
        """Returns the nearest nodes of the kinds `stops` that tensor `value` depends on, and the nodes in between."""
        found: list[FlowNode] = []
        passed: list[FlowNode] = []
        open_values, seen = [value], set()
        while open_values:
            here = open_values.pop()
            node = self.maker.get(here)
            if here in seen or node is None:
                continue
            seen.add(here)
            if node.kind in stops:
                found += [node] if node not in found else []
            else:
                passed.append(node)
                open_values += node.inputs
        return sorted(found, key=self.nodes.index), passed

    def depends(self, value: int, on: int) -> bool:
        """True if tensor `value` is computed from tensor `on`."""
        seen, open_values = set(), [value]
        while open_values:
            here = open_values.pop()
            if here == on:
                return True
            if here not in seen and (node := self.maker.get(here)):
                open_values += node.inputs
            seen.add(here)
        return False

    def ahead(self, value: int, kinds: tuple[str, ...]) -> tuple[FlowNode | None, list[FlowNode]]:
        """Returns the first node of these `kinds` that depends on tensor `value` (None if there is none), and the nodes
        in between."""
        reached: set[int] = {value}
        passed: list[FlowNode] = []
        start = self.nodes.index(self.maker[value]) if value in self.maker else -1
        for node in self.nodes[start + 1 :]:
            if reached & set(node.inputs):
                if node.kind in kinds:
                    return node, passed
                passed.append(node)
                reached |= set(node.outputs)
        return None, passed


def reached(flow: Flow, value: int) -> set[int]:
    """Returns `value` and the tensors that it is computed from, following only the first input of each node."""
    seen = {value}
    while (maker := flow.maker.get(value)) is not None and maker.kind != "embedding":
        value = maker.inputs[0]
        seen.add(value)
    return seen
