"""The fullest moment of a compiled program by the order of its instructions, and what its buffers are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.backends.xla.audit.buffer_names import BufferNames
from planc.backends.xla.audit.hlo import HloError, Shape, parse, shapes_of
from planc.backends.xla.audit.live_buffers import Buffer, fullest
from planc.ir.audit import LiveBuffer
from tests.audit.tpu_cases import plan_of as audited_plan
from tests.plans import propagated

CORPUS = Path(__file__).with_name("hlo")
KIB = 1024
"""Bytes of f32[256], the arrays of the texts below."""

STEP = """HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }
%body (state: (s32[], f32[256], f32[256])) -> (s32[], f32[256], f32[256]) {
  %state = (s32[], f32[256], f32[256]) parameter(0)
  %turn = s32[] get-tuple-element(%state), index=0
  %sum = f32[256] get-tuple-element(%state), index=1
  %kept = f32[256] get-tuple-element(%state), index=2
  %twice = f32[256] add(%kept, %kept)
  %square = f32[256] multiply(%twice, %twice)
  %next = f32[256] add(%sum, %square)
  ROOT %out = (s32[], f32[256], f32[256]) tuple(%turn, %next, %kept)
}
%more (state.1: (s32[], f32[256], f32[256])) -> pred[] {
  %state.1 = (s32[], f32[256], f32[256]) parameter(0)
  ROOT %yes = pred[] constant(false)
}
ENTRY %main (a: f32[256], b: f32[256]) -> (f32[256], f32[256]) {
  %a = f32[256] parameter(0)
  %b = f32[256] parameter(1)
  %zero = s32[] constant(0)
  %copied = f32[256] copy(%a)
  %given = (s32[], f32[256], f32[256]) tuple(%zero, %copied, %b)
  %loop = (s32[], f32[256], f32[256]) while(%given), condition=%more, body=%body
  %made = f32[256] get-tuple-element(%loop), index=1
  %new = f32[256] add(%made, %made)
  ROOT %results = (f32[256], f32[256]) tuple(%new, %made)
}
"""


def peak(text: str) -> int:
    return fullest(parse(text)).bytes


def entry(*lines: str, results: str = "f32[256]") -> str:
    head = "HloModule one, is_scheduled=true\n" + f"ENTRY %main (a: f32[256]) -> {results} {{\n"
    return head + "".join(f"  {line}\n" for line in ("%a = f32[256] parameter(0)", *lines)) + "}\n"


def test_a_loop_holds_its_state_once_and_what_its_body_makes() -> None:
    """Arguments (two), the copy that is the loop's, and two at a time of the body's three: the third is the state."""
    found = fullest(parse(STEP))
    names = sorted(b.instruction for b in found.buffers if b.bytes == KIB)
    assert names == ["a", "b", "copied", "square", "twice"] and found.instruction == "square"
    assert [b.argument for b in found.buffers if b.instruction in ("a", "b")] == [True, True]


def test_a_result_that_takes_an_arguments_place_is_counted_with_it() -> None:
    text = entry("%b = f32[256] negate(%a)", "ROOT %c = f32[256] negate(%b)")
    given_up = text.replace("is_scheduled=true", "is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }")
    assert (peak(text), peak(given_up)) == (3 * KIB, 2 * KIB)


def test_an_array_of_a_tuple_is_dropped_when_it_alone_is_not_read_any_more() -> None:
    two = (
        "%b = f32[256] negate(%a)",
        "%c = f32[256] negate(%a)",
        "%both = (f32[256], f32[256]) tuple(%b, %c)",
        "%first = f32[256] get-tuple-element(%both), index=0",
        "%d = f32[256] negate(%first)",
        "%second = f32[256] get-tuple-element(%both), index=1",
        "%e = f32[256] negate(%d)",
    )
    assert peak(entry(*two, "ROOT %f = f32[256] negate(%second)")) == 4 * KIB
    assert peak(entry(*two, "ROOT %f = f32[256] add(%second, %first)")) == 5 * KIB


@pytest.mark.parametrize(("op", "places"), [("dynamic-update-slice", 2), ("all-reduce", 2), ("negate", 3)])
def test_what_is_written_in_place_takes_no_place_of_its_own(op: str, places: int) -> None:
    lines = ("%b = f32[256] negate(%a)", f"%c = f32[256] {op}(%b)", "ROOT %d = s32[] constant(0)")
    assert peak(entry(*lines, results="s32[]")) == places * KIB


def test_a_fusion_writes_in_place_where_it_ends_in_such_a_write() -> None:
    fused = """%fused (p: f32[256]) -> f32[256] {
  %p = f32[256] parameter(0)
  ROOT %end = f32[256] {op}(%p)
}
"""
    lines = (
        "%b = f32[256] negate(%a)",
        "%c = f32[256] fusion(%b), kind=kLoop, calls=%fused",
        "ROOT %d = s32[] constant(0)",
    )
    head, main = entry(*lines, results="s32[]").split("ENTRY")
    found = [peak(head + fused.replace("{op}", op) + "ENTRY" + main) for op in ("scatter", "negate")]
    assert found == [2 * KIB, 3 * KIB]


def test_what_is_begun_is_there_until_it_is_done_with() -> None:
    lines = (
        "%s = (f32[256], f32[256], u32[]) copy-start(%a)",
        "%d = f32[256] copy-done(%s)",
        "ROOT %r = s32[] constant(0)",
    )
    assert peak(entry(*lines, results="s32[]")) == 2 * KIB + 4  # and the u32 that marks it
    with pytest.raises(HloError, match="was not begun"):
        peak(entry("%d = f32[512] copy-done(%a)", "ROOT %r = s32[] constant(0)", results="s32[]"))


def test_memory_beside_the_cores_does_not_count_and_tiles_are_filled_up() -> None:
    (fast,) = shapes_of("bf16[256]{0:T(256)(128)(2,1)S(1)}")
    (tiled,) = shapes_of("bf16[2,64,100]{1,2,0:T(8,128)(2,1)}")
    assert (fast.space, tiled.space) == (1, 0)
    assert tiled.stored_bytes == 2 * 104 * 128 * 2 and tiled.bytes == 2 * 64 * 100 * 2
    assert peak(entry("%b = f32[256]{0:T(256)S(1)} negate(%a)", "ROOT %c = f32[256] negate(%b)")) == 2 * KIB


def test_a_small_program_is_near_what_its_compiler_says() -> None:
    """`peak_memory_in_bytes` of layers_v5p.hlo, libtpu 0.0.42.1."""
    assert peak((CORPUS / "layers_v5p.hlo").read_text()) == pytest.approx(4_429_824, rel=0.01)


def named(plan: str, dtype: str, *dims: int, source: str = "", argument: bool = False) -> LiveBuffer:
    buffer = Buffer(1, Shape(dtype, dims), "fusion.1", source, argument)
    return BufferNames(propagated(audited_plan(plan))).named(buffer)


def test_buffers_are_named_by_their_sizes() -> None:
    """As read from the compiled texts of these plans."""
    found = named("llama3_8b_v4_state_bf16", "bf16", 8192, 128256)
    assert (found.tensor, found.sentence) == ("logits", "shard batch over fsdp")
    found = named("llama3_8b_7x_64_hsdp", "bf16", 32, 1, 8192, 4096)
    assert (found.tensor, found.sentence) == ("hidden of all layers", "recompute blocks")
    found = named("llama3_8b_7x_64_hsdp", "f32", 2, 8192, 4, 8192)
    assert found.tensor == "scores of attention.core" and "use tp over tp" in found.sentence
    found = named("llama3_70b_v6e_ulysses_tp", "f32", 128256, 8192)
    assert "the whole gradient of output.weight" in found.tensor and found.sentence.startswith("store params, grads")
    assert named("llama3_70b_v6e_ulysses_tp", "f32", 12, 345) == LiveBuffer(
        bytes=1, dtype="fp32", shape=(12, 345), tensor="", sentence="", operation=""
    )


def test_the_state_is_named_as_the_program_names_it() -> None:
    source = "state['optimizer'][0].nu['layers.*.feed_forward.w2.weight']"
    found = named("llama3_8b_7x_64_hsdp", "f32", 32, 256, 3584, source=source, argument=True)
    assert found.tensor == "nu of layers.*.feed_forward.w2.weight" and found.sentence == "use hsdp over replica, fsdp"
    found = named("llama3_8b_7x_64_hsdp", "f32", 7, source="state['params']['norm.weight']", argument=True)
    assert (found.tensor, found.operation) == ("norm.weight", "state['params']['norm.weight']")
