"""Events of a JAX trace are named by the plan's sentences, from the compiled program's own text."""

import gzip
import json
from pathlib import Path

import pytest

from planc.checks import check_plan
from planc.lowering import lower_plan
from tests.xla.test_audit import CORPUS, small

pytest.importorskip("jax")

from planc.backends.xla.runtime.named_trace import instruction_names, rename_events

EVENTS = [
    {"ph": "X", "name": "all-gather.3", "ts": 1.0, "dur": 2.0, "args": {"hlo_op": "all-gather.3"}},
    {"ph": "X", "name": "fusion.1", "ts": 3.0, "dur": 2.0, "args": {"hlo_op": "fusion.1"}},
    {"ph": "M", "name": "process_name", "args": {"name": "/host:CPU"}},
    {"ph": "X", "name": "Rendezvous", "ts": 3.0, "dur": 2.0},
]


def compiled(source: str) -> str:
    """A program that the compiler made of `small`, whose instructions come from the operation `source` of JAX."""
    lines = (CORPUS / "layers_v5p.hlo").read_text().splitlines()
    named = [f'{line}, metadata={{op_name="{source}"}}' if line.startswith("  ") else line for line in lines]
    return "\n".join(named)


def test_the_instructions_of_a_compiled_program_have_the_sentences_of_its_plan() -> None:
    plan = small()
    program = lower_plan(check_plan(plan), "xla")
    stored, replayed = plan.cause_of_store("params"), plan.recompute.cause
    assert stored is not None and replayed is not None
    sentences = {"forward": "", "backward": "", "recompute": f": {replayed.comment()}"}
    sources = {"forward": "jvp()", "backward": "transpose(jvp())", "recompute": "checkpoint/rematted_computation"}
    for part, source in sources.items():
        names = instruction_names(program, compiled(f"jit(step)/{source}/dot_general"))
        assert {name.part for name in names.values()} == {part + sentences[part]}
        way = "forward" if part == "forward" else "backward"
        gathered = f"all_gather of params over fsdp, {way}: {stored.comment()}"
        assert gathered in {name.transfer for name in names.values()}, part
    assert instruction_names(program, "not a program") == {}


def test_a_trace_keeps_everything_but_the_names_of_its_collectives(tmp_path: Path) -> None:
    program = lower_plan(check_plan(small()), "xla")
    names = instruction_names(program, compiled("jit(step)/jvp()/while"))
    known = next(n for n, name in names.items() if name.transfer)
    plain = next(n for n, name in names.items() if not name.transfer)
    events = json.loads(json.dumps(EVENTS).replace("all-gather.3", known).replace("fusion.1", plain))
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}).encode()))
    rename_events(path, names)
    made = json.loads(gzip.decompress(path.read_bytes()))
    first, second, *rest = made["traceEvents"]
    assert made["displayTimeUnit"] == "ns" and rest == events[2:]
    assert first == events[0] | {"name": names[known].transfer, "args": {"hlo_op": known, "part": names[known].part}}
    assert second == events[1] | {"args": {"hlo_op": plain, "part": names[plain].part}}
