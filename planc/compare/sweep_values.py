"""The numbers that a sweep varies: `devices=8,16`, `batch=64..1024`, `sequence=...`, a mesh axis, or a `let` number.

For each value one or two numbers in the plan's text are replaced; the new text is then checked like any plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from planc.compare.plan_edit import NotWrittenError, own_sentence, rewritten
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.ir.plan import Plan
from planc.searching.holes import filled
from planc.syntax.tree import Sentence

WORDS = ("devices", "batch", "sequence", "microbatch")
MOST_VALUES = 64
LARGEST = 10**9


@dataclass(frozen=True)
class Over:
    """The name of the number to vary, and its values."""

    name: str
    values: tuple[int, ...]


def parse_over(text: str) -> Over:
    """Parse `text`: NAME=8,16,32, or NAME=8..128, which doubles from the first value to the last.

    NAME is `devices`, `batch`, `sequence`, `microbatch`, a mesh axis, a `let` name, or a figure of the machine such as
    `nvlink4.bandwidth` (percent of what it is). Raises ValueError if malformed.
    """
    name, equals, rest = text.removeprefix("axis ").partition("=")
    values = [n for part in rest.split(",") for n in _numbers(part)] if equals else []
    if not all(part.isidentifier() for part in name.split(".")) or not values:
        raise ValueError(f"{text!r} is not NAME=N,N,... or NAME=N..N")
    if len(values) > MOST_VALUES:
        raise ValueError(f"{len(values)} values are more than {MOST_VALUES}")
    return Over(name, tuple(dict.fromkeys(values)))


def _numbers(part: str) -> list[int]:
    first, dots, last = part.strip().partition("..")
    ends = [int(n) if n.isascii() and n.isdigit() and len(n) < 10 else 0 for n in ((first, last) if dots else (first,))]
    if 0 in ends:
        raise ValueError(f"{part!r} is not a whole number from 1 to {LARGEST:,}, nor two of them")
    found, n = [], ends[0]
    while n <= ends[-1]:
        found.append(n)
        n *= 2
    return found if dots else ends


@dataclass(frozen=True)
class Varied:
    """A plan file to vary: its text and the unchanged plan."""

    text: str
    plan: Plan
    axis: str = ""
    """The axis whose size follows the number of devices; empty: the outermost axis that shards the batch."""
    weak: bool = False
    """Weak scaling: the batch grows with the devices."""

    def grown(self) -> str:
        """Return the mesh axis that grows with the devices. Raises NotWrittenError if the mesh has no axis `axis`."""
        mesh = self.plan.mesh
        names = list(mesh.sizes)
        chosen = self.axis or next(iter(self.plan.data_axes), names[0])
        if chosen not in mesh.sizes:
            raise NotWrittenError(f"the mesh has no axis `{chosen}`, only {', '.join(names)}")
        return chosen


def at(varied: Varied, name: str, value: int) -> str:
    """Return the plan's text with the number `name` set to `value`. Raises NotWrittenError if that is impossible."""
    plan = varied.plan
    if name in ("batch", "sequence", "microbatch"):
        return _batch(varied.text, plan, **{name: value})
    if name == "devices":
        return _devices(varied, varied.grown(), value)
    return _devices(varied, name, plan.mesh.devices // plan.mesh.sizes[name] * value)


def _batch(text: str, plan: Plan, *, batch: int = 0, sequence: int = 0, microbatch: int = 0) -> str:
    now = plan.batch
    sizes = (batch or now.sequences, sequence or now.sequence_tokens, microbatch or now.microbatch_sequences)
    return rewritten(text, "batch", f"{sizes[0]} x {sizes[1]} tokens microbatch {sizes[2]}")


def _devices(varied: Varied, axis: str, devices: int) -> str:
    """Return the plan's text for `devices` devices: with another size of `axis`, another cluster, and for weak scaling
    another batch."""
    plan = varied.plan
    size = _scaled(plan.mesh.sizes[axis], devices, plan.mesh.devices, f"axis `{axis}` of {plan.mesh.sizes[axis]}")
    text = filled(varied.text, _factors(varied.text, "mesh", {axis: size}))
    for view in plan.mesh.views:
        if axis in view.of:
            outer = view.axes[0]
            more = _scaled(outer.size, devices, plan.mesh.devices, f"axis `{outer.name}` of {outer.size}")
            text = filled(text, _factors(text, "view", {outer.name: more}))
    text = _machines(text, plan, devices)
    if varied.weak:
        text = _batch(text, plan, batch=_scaled(plan.batch.sequences, devices, plan.mesh.devices, "the batch"))
    return text


def _scaled(number: int, devices: int, before: int, what: str) -> int:
    if number * devices % before:
        raise NotWrittenError(f"{what} does not go evenly from {before} devices to {devices}")
    return number * devices // before


def _factors(text: str, verb: str, sizes: Mapping[str, int]) -> dict[Span, str]:
    """Return the new text of each axis size in `sizes`, by the span of the old one in the sentence of `verb`."""
    factors = own_sentence(text, verb).factors()
    return {f.parts[1].span: str(sizes[name]) for f in factors if (name := f.words()[0].text) in sizes}


def _machines(text: str, plan: Plan, devices: int) -> str:
    """Return the plan `text` with a `cluster` of enough whole nodes for `devices`, or part of one node."""
    cluster, each = plan.cluster, plan.cluster.devices_per_node
    sentence = own_sentence(text, "cluster")
    if devices % each == 0:
        return _with_count(text, sentence, devices // each)
    if not cluster.is_torus and devices < each and devices % cluster.chip.devices == 0:
        return rewritten(text, "cluster", f"{cluster.name}({devices // cluster.chip.devices})")
    what = f"{cluster.unit}s"
    raise NotWrittenError(f"{devices} devices are not whole {what} of {each}")


def _with_count(text: str, sentence: Sentence, count: int) -> str:
    first = sentence.node.parts[0]
    call = sentence.node.node("call")
    assert call is not None
    if first is call:
        place = Span(call.span.file, call.span.line, call.span.column, call.span.line, call.span.column)
        return filled(text, {place: f"{count} x "})
    return filled(text, {first.span: str(count)})
