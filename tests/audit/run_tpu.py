"""`make audit-tpu`: compile every TPU plan, and write tests/audit/tpu_results.json and docs/measured/audit-tpu.md.

`run_tpu.py NAME...` compiles these alone and puts them among the results; `run_tpu.py --page` writes the page from
the results there are. A plan that was compiled before is not compiled again (answers are kept by content).
"""

from __future__ import annotations

import json
import re
import sys
import time
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from planc.backends.xla.audit.compile import compiled  # noqa: E402
from planc.backends.xla.audit.run import audit_of_answer  # noqa: E402
from planc.backends.xla.audit.topology import topology_of  # noqa: E402
from planc.checks import check_plan  # noqa: E402
from planc.costing import cost_plan  # noqa: E402
from planc.diag import PlanError  # noqa: E402
from planc.ir.audit import AXES_WITHIN, Audit, AxisWire, judged  # noqa: E402
from planc.lowering import load_backend, lower_plan  # noqa: E402
from tests.audit.tpu_cases import CASES, LATER, NEWER, PRESETS, plan_of  # noqa: E402
from tests.audit.tpu_predictions import FIRST, as_compiled, peaks, prediction  # noqa: E402
from tests.plans import propagated  # noqa: E402

PAGE = ROOT / "docs" / "measured" / "audit-tpu.md"
RESULTS = Path(__file__).with_name("tpu_results.json")
TIMEOUT_S = 1800.0
SHAPE = re.compile(r"\b(?:f32|bf16|f16|pred|s32)\[([\d,]+)\]")
"""A tensor's dims in the compiler's text."""
GIB, GB = 2.0**30, 1e9
OPEN: dict[str, dict[str, str]] = {}
"""Axes that the rules of today do not explain, with what was seen."""


def main(arguments: list[str]) -> int:
    found = results()
    names = [] if arguments == ["--page"] else arguments or list(CASES)
    for name in names:
        began = time.monotonic()
        found[name] = result(name)
        print(f"{name}: {found[name]['said']} ({time.monotonic() - began:.0f} s)", flush=True)
        RESULTS.write_text(json.dumps({n: found[n] for n in CASES if n in found}, indent=1) + "\n")
    PAGE.write_text(page(found))
    return 0


def results() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def result(name: str) -> dict[str, Any]:
    """The compiler's answer to a plan: bytes by axis and operation, memory, or its refusal, or no answer."""
    try:
        plan = plan_of(name)
        answer = compiled(plan, topology_of(plan, None), TIMEOUT_S)
        seen = audit_of_answer(lower_plan(check_plan(plan), "xla").sharded, answer)
        heads = plan.model.sizes["heads"] // plan.mesh.size(*plan.axes_of("heads"))
        return facts(seen, full_scores(answer.hlo, CASES[name].tokens, heads))
    except PlanError as error:
        return {"said": "no answer", "why": [d.message for d in error.diagnostics]}


def full_scores(hlo: str, tokens: int, heads: int) -> int:
    """The largest number of elements of a tensor in `hlo` with two dims of `tokens` each, as many times as a device has
    `heads` or more: scores of every row and key; 0 without one. A weight may be as wide as a sequence is long."""
    shapes = ([int(n) for n in found.split(",")] for found in set(SHAPE.findall(hlo)))
    sizes = [prod(shape) for shape in shapes if shape.count(tokens) > 1]
    return max((size for size in sizes if size >= heads * tokens**2), default=0)


def facts(seen: Audit, scores: int) -> dict[str, Any]:
    """The facts of an audit that are saved: none depends on the predictions, but for whether it should fit."""
    compiler = seen.compiler
    assert compiler is not None
    return {
        "said": "fits" if compiler.fits else "refused",
        "wire_bytes": {w.axis: w.observed_bytes for w in seen.wire},
        "rows": [
            f"{r.op} over {r.axis} in {r.dtype}: {r.observed.count} calls, {r.observed.bytes} bytes sent"
            for r in seen.rows
            if r.observed.count
        ],
        "peak_bytes": next((m.observed_bytes for m in seen.memory), None),
        "predicted_to_fit": compiler.predicted_to_fit,
        "message": compiler.message.splitlines()[0] if compiler.message else "",
        "cycles": compiler.cycles,
        "full_scores": scores,
        "on_torus": compiler.on_torus,
        "options": compiler.options,
        "compile_s": round(compiler.compile_s),
        "versions": compiler.versions,
    }


def wires(name: str, expected: dict[str, int], found: dict[str, Any]) -> tuple[AxisWire, ...]:
    """The axes of a plan that carry more than a small part of its bytes."""
    seen = found["wire_bytes"]
    every = [
        AxisWire(axis=a, predicted_bytes=expected.get(a, 0), observed_bytes=seen.get(a, 0))
        for a in dict.fromkeys((*CASES[name].sizes, *expected, *seen))
        if a in expected or a in seen
    ]
    return judged(tuple(every))


HEAD = """# Audited plans, TPU

Written by `make audit-tpu`. The training step that planc emits for each plan was compiled by the TPU's own
compiler (libtpu {libtpu}, jax {jax}) for the plan's topology, without a TPU and without running it; on two cores
that were shared with much else, so the times are long. Bytes are those
that one device sends in a step over each mesh axis, all operations together, with ring algorithms; memory is
`peak_memory_in_bytes`. An axis with less than half a percent of a plan's bytes is not judged.

The predictions *as first made* were committed before any of these plans was compiled
(`tests/audit/tpu_first_predictions.json`); the rules behind them were read from small programs and from four-layer
models that are not in this table. Mixtral joined later, and v4 was predicted anew when its chip became one device
(megacore): both before they were compiled. The nine whose sequences lie over tp too were predicted anew, and compiled
again, when the sum of what ranks look up in their rows of the table got a layout of its own: before that the compiler
made the whole table in each microbatch and summed its gradient over fsdp and tp (33 GB of llama3_70b_v5p_256, 8.6 GiB
of the peak of llama3_405b_v5p_preset). The rule was read from llama3_70b_v5p_2_layers, which is no blind prediction
for that; the other eight were predicted before. Three were compiled again when the program learnt from their texts,
with the predictions that they had: llama3_8b_7x_64_hsdp, whose gradients 7x summed whole over replica and fsdp (15.56
GB over both), until the program said to scatter them first; llama3_8b_v5p_every_2_layers, whose layers were gathered
in fp32 (37.16 GB), until it rounded them first; and llama3_8b_v4_state_bf16, which kept a gathered table in fp32 for
the update (a peak of 8.19 GiB), until that took the parameters from where they rest. Windowed einsum is off, as it
hides gathers in matmul loops. Every plan computes in bf16 with whole
blocks recomputed. The first {plain} say `attention.core as unfused`; the others run splash attention: presets, some
cut to a few layers, and the last {newer}, of two to eight layers, which say what the target learnt last and were
predicted before any of them was compiled.

Programs have options for their compiler by now, and the links that wrap around the torus are described to it. {recent}
compiled so; *now off* of the others is by the rules for programs without.

| plan | chips | mesh | axis | first predicted GB | found GB | off | now off |
|---|--:|---|---|--:|--:|--:|--:|
"""
MEMORY = """
| plan | the compiler | its peak | predicted first | off | now off | estimated cycles | compiled in |
|---|---|--:|--:|--:|--:|--:|--:|
"""


KERNELS = """
Attention with its kernel and without, of the same plans. Scores are tensors in the compiled text with two dims of a
sequence's length, one for each head; seconds of a step are planc's. The moments of the peak were read from
llama3_8b_v5p_2_layers and from another plan of two layers (fsdp 16 > tp 4): that one peak was no blind prediction.

| plan | plain: predicted peak | splash: predicted first | its peak | its scores | plain: a step | splash: a step |
|---|--:|--:|--:|---|--:|--:|
"""


def page(found: dict[str, Any]) -> str:
    first = json.loads(FIRST.read_text())
    now = {}
    for name in CASES:
        with as_compiled(found.get(name)):
            now[name] = prediction(name)
    versions = next((r["versions"] for r in found.values() if "versions" in r), {"libtpu": "?", "jax": "?"})
    recent = [name for name in CASES if "options" in found.get(name, {})]
    said = f"{', '.join(recent)} {'was' if len(recent) == 1 else 'were'}" if recent else "None of these was"
    text = HEAD.format(**versions, plain=len(CASES) - len(PRESETS), newer=len(NEWER), recent=said)
    offs: dict[str, list[float]] = {"first": [], "now": []}
    for name in CASES:
        text += _axes(name, first[name], now[name], found.get(name), offs)
    text += MEMORY + "".join(_memory(name, first[name], now[name], found.get(name)) for name in CASES)
    text += KERNELS + "".join(_kernel(name, first[name], found.get(name)) for name in PRESETS)
    return text + _summary(found, first, now, offs)


def _axes(name: str, first: Any, now: Any, found: Any, offs: dict[str, list[float]]) -> str:
    case = CASES[name]
    chips = plan_of(name).cluster.chips
    if not found or not found.get("wire_bytes"):
        said = found["said"] if found else "not compiled yet"
        return f"| {name} | {chips:,} | {case.mesh} | | | | {said} | |\n"
    again = {w.axis: w for w in wires(name, now["wire_bytes"], found)}
    text = ""
    for w in wires(name, first["wire_bytes"], found):
        later = again[w.axis].relative if w.axis in again else w.relative
        offs["first"].append(abs(w.relative))
        offs["now"].append(abs(later))
        off, now_off = (f"{x:+.1%}" if x < float("inf") else "none sent" for x in (w.relative, later))
        sizes = f"{w.predicted_bytes / GB:.2f} | {w.observed_bytes / GB:.2f}"
        text += f"| {name} | {chips:,} | {case.mesh} | {w.axis} | {sizes} | {off} | {now_off} |\n"
    return text


def _memory(name: str, first: Any, now: Any, found: Any) -> str:
    expected = f"{first['peak_bytes'] / GIB:.2f} GiB"
    if not found or found["said"] == "no answer":
        return f"| {name} | {found['said'] if found else 'not compiled yet'} | | {expected} | | | | |\n"
    said = found["said"] + ("" if (found["said"] == "fits") == found["predicted_to_fit"] else ", not as predicted")
    peak = found["peak_bytes"]
    cells = [f"{peak / GIB:.2f} GiB" if peak else "", expected]
    cells += [f"{p['peak_bytes'] / peak - 1:+.1%}" if peak else "" for p in (first, now)]
    cells += [f"{found['cycles']:,}" if found["cycles"] else "", f"{found['compile_s']} s"]
    return f"| {name} | {said} | {' | '.join(cells)} |\n"


def _kernel(name: str, first: Any, found: Any) -> str:
    """A preset's row of the table of kernels."""
    plain = propagated(plan_of(name, plain=True))
    (held,) = peaks(plain)
    seconds = [cost_plan(p, backend=load_backend("xla")).step.time_s for p in (plain, propagated(plan_of(name)))]
    answered = found is not None and found["said"] == "fits"
    peak = f"{found['peak_bytes'] / GIB:.2f} GiB" if answered else "not compiled yet"
    seen = ("none" if not found["full_scores"] else f"{found['full_scores']:,} elements") if answered else ""
    sizes = f"{held.total / GIB:.2f} GiB | {first['peak_bytes'] / GIB:.2f} GiB | {peak} | {seen}"
    return f"| {name} | {sizes} | {seconds[0]:.2f} s | {seconds[1]:.2f} s |\n"


def _summary(found: dict[str, Any], first: Any, now: Any, offs: dict[str, list[float]]) -> str:
    answered = {n: r for n, r in found.items() if r["said"] != "no answer"}
    text = f"\n{len(answered)} of {len(CASES)} plans have an answer of the compiler"
    text += f", {len(found) - len(answered)} had none in {TIMEOUT_S / 60:.0f} minutes.\n"
    for when, said in (("first", "As first predicted"), ("now", "With the rules of today")):
        if offs[when]:
            near = sum(off <= AXES_WITHIN for off in offs[when])
            text += f"{said}, bytes by axis are off by {median(offs[when]):.1%} in the median and {_most(offs[when])} "
            text += f"at most; {near} of {len(offs[when])} axes are within {AXES_WITHIN:.0%}.\n"
    for names, said in ((LATER, "chosen after the last change of a rule"), (NEWER, "of the newest sentences")):
        blind = [
            abs(w.relative)
            for n in names
            if answered.get(n, {}).get("wire_bytes")
            for w in wires(n, first[n]["wire_bytes"], answered[n])
        ]
        if blind:
            near = sum(off <= AXES_WITHIN for off in blind)
            seen = sum(n in answered for n in names)
            text += f"{seen} of the {len(names)} plans {said}, as predicted then: {median(blind):.1%} in the median, "
            text += f"{near} of {len(blind)} axes within {AXES_WITHIN:.0%}.\n"
    peaks = {n: r["peak_bytes"] for n, r in answered.items() if r["peak_bytes"]}
    for expected, said in ((first, "As first predicted"), (now, "With the rules of today")):
        off = [abs(expected[n]["peak_bytes"] / p - 1) for n, p in peaks.items()]
        near = sum(o <= 0.1 for o in off)
        text += f"{said}, peaks are off by {median(off):.1%} in the median and {max(off):.1%} at most; {near} of "
        text += f"{len(peaks)} are within 10 %.\n"
    agreed = sum((r["said"] == "fits") == r["predicted_to_fit"] for r in answered.values())
    text += f"Fit or refusal is as predicted for {agreed} of {len(answered)}.\n"
    for name in (n for n in OPEN if n in answered):
        for said in dict.fromkeys(OPEN[name].values()):
            axes = ", ".join(axis for axis, why in OPEN[name].items() if why == said)
            text += f"Open: {name}, {axes}: {said}.\n"
    flat = [n for n, r in answered.items() if r["on_torus"] is False]
    return text + (f"Without a way to lie along the torus: {', '.join(flat)}.\n" if flat else "")


def _most(offs: list[float]) -> str:
    """The largest difference; an axis that carried nothing has none."""
    finite = [off for off in offs if off < float("inf")]
    silent = len(offs) - len(finite)
    return f"{max(finite):.1%}" + (f" (and {silent} with bytes where none were sent)" if silent else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
