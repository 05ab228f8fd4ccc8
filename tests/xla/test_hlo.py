"""The reader of HLO text: small compiled programs whose collectives are known, and what it must refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest

from planc.backends.xla.audit.groups import axes_of, groups
from planc.backends.xla.audit.hlo import HloError, Shape, parse, shapes_of
from planc.backends.xla.audit.inventory import inventory

CORPUS = Path(__file__).with_name("hlo")
MESH = {"fsdp": 4, "tp": 2}
NAMES = sorted(path.stem for path in CORPUS.glob("*.hlo"))


def read(name: str) -> str:
    return (CORPUS / f"{name}.hlo").read_text()


def told(name: str) -> list[str]:
    """A line for each loop and collective."""
    found = inventory(read(name), MESH)
    loops = [f"{turns} turns" for turns in found.loops.values()]
    return loops + [
        f"{f.op} over {f.axis} in {f.dtype}: {f.count} x {f.payload_bytes} bytes, {f.wire_bytes:.0f} sent"
        for f in found.found
    ]


def test_golden_of_the_corpus(golden: Callable[[Path, str], None]) -> None:
    golden(CORPUS / "inventory.json", json.dumps({name: told(name) for name in NAMES}, indent=1) + "\n")


def test_the_corpus_counts_what_the_programs_say() -> None:
    """`layers` of hlo/make.py: six matmuls with 512 x 512 weights; what is written there, counted by hand."""
    gathered = 6 * 512 * 256 * 3 // 4
    for platform, width in (("v5p", 2), ("v5e", 2), ("cpu", 4)):
        wire = {(f.op, f.axis): f.wire_bytes for f in inventory(read(f"layers_{platform}"), MESH).found}
        assert wire["all_gather", "fsdp"] == gathered * width
        reduced = "reduce_scatter" if width == 2 else "all_reduce"
        assert wire[reduced, "fsdp"] == gathered * width * (1 if width == 2 else 2)


@pytest.mark.parametrize("platform", ["cpu", "v5p", "v5e"])
def test_the_corpus_multiplies_what_the_programs_say(platform: str) -> None:
    """`layers` of hlo/make.py on a device: 64 rows times 512 x 256, six times, and as much for each gradient. The TPU
    compiler writes convolutions."""
    assert [p.flops for p in inventory(read(f"layers_{platform}"), MESH).multiplied()] == [6 * 2 * 64 * 512 * 256] * 3


@pytest.mark.parametrize(
    ("left", "right", "made", "attributes", "multiply_adds"),
    [  # as libtpu 0.0.42.1 wrote them: heads, their gradient's sum, four sequences, one for each of 32 experts
        ("4,64,96,1", "16,8,96,1", "4,64,16,8", "window={size=1x16 pad=0_0x15_15 rhs_reversal=0x1}, "
         "dim_labels=0bf1_1oi0->0b1f", 4 * 64 * 96 * 16 * 8),
        ("4,64,16,8", "96,16,8,1", "4,64,96,1", "window={size=1x16}, dim_labels=0b1f_o1i0->0bf1", 4 * 64 * 96 * 16 * 8),
        ("4,64,96", "4,64,8", "96,8,1", "window={size=4}, dim_labels=0fb_0io->bf0", 4 * 64 * 96 * 8),
        ("32,64,20", "32,64,7", "32,20,7", "window={size=32 stride=31 lhs_dilate=32}, dim_labels=0fb_0io->0bf",
         32 * 64 * 20 * 7),
        ("10,3", "3,5", "10,5", "dim_labels=bf_io->bf", 10 * 3 * 5),
    ],
)  # fmt: skip
def test_a_convolution_multiplies_no_padding(
    left: str, right: str, made: str, attributes: str, multiply_adds: int
) -> None:
    lines = (
        "HloModule one",
        "ENTRY %main () -> f32[] {",
        f"  %a = bf16[{left}] parameter(0)",
        f"  %b = bf16[{right}] parameter(1)",
        f"  ROOT %c = bf16[{made}] convolution(%a, %b), {attributes}",
        "}",
    )
    assert sum(p.flops for p in inventory("\n".join(lines), MESH).products) == 2 * multiply_adds


@pytest.mark.parametrize("name", ["layers_cpu", "layers_v5p"])
def test_both_ways_to_know_a_loop_agree(name: str) -> None:
    """The CPU compiler writes a loop's turns down; without that they are worked out as for a TPU."""
    text = read(name)
    bare = text.replace('"known_trip_count"', '"forgotten"')
    assert ("known_trip_count" in text) == (name == "layers_cpu")
    assert inventory(bare, MESH).loops == inventory(text, MESH).loops


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("replica_groups={}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("replica_groups=[4,2]<=[8]", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (
            "replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=4], device_ids=([4,2]T(1,0)) {'axis_0'}",
            [[0, 1], [2, 3], [4, 5], [6, 7]],
        ),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("source_target_pairs={{0,2},{2,0},{1,1}}", [[0, 2], [2, 0]]),
    ],
)
def test_forms_of_groups(attributes: str, expected: list[list[int]]) -> None:
    assert groups(f"channel_id=1, {attributes}, to_apply=%add", 8).tolist() == expected


def test_axes_from_partition_numbers() -> None:
    mesh = {"pp": 2, "fsdp": 2, "tp": 2}
    ids = np.arange(prod(mesh.values())).reshape(2, 2, 2)
    assert axes_of(ids.reshape(4, 2), mesh) == (("tp",), True)
    assert axes_of(ids.reshape(2, 4), mesh) == (("fsdp", "tp"), True)
    assert axes_of(ids.transpose(1, 2, 0).reshape(4, 2), mesh) == (("pp",), True)
    assert axes_of(np.array([[0, 3], [4, 7]]), mesh) == (("fsdp", "tp"), False)


def test_shapes() -> None:
    assert shapes_of("(bf16[2,12]{1,0:T(2,128)(2,1)S(1)}, /*index=1*/pred[])") == (
        Shape("bf16", (2, 12), space=1),
        Shape("pred", ()),
    )
    assert Shape("f32", (67, 64)).bytes == 4 * 67 * 64


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("layers_v5p", " all-gather(", " all-broadcast(", "`all-broadcast` is a collective that is not known"),
        ("layers_v5p", "replica_groups=mesh[", "replica_groups=grid[", "no groups of a known form"),
        ("layers_v5p", "bf16[1,512,256]", "bf17[1,512,256]", "element type bf17"),
        ("layers_v5p", "direction=LT", "direction=TOTAL", "unknown direction"),
        ("ring_v5p", "add(%get-tuple-element.49, %constant.0.clone.1..sunk)", "rng()", "is a `rng`"),
        ("ring_v5p", "body=%wide.region_0.1_spmd.sunk", "body=%missing", "no computation %missing"),
        ("ring_v5p", "  %copy.7 = ", "  copy dot seven ", "not an instruction"),
        ("ring_v5p", "ENTRY ", "", "no ENTRY computation"),
        ("exchange_v5p", "HloModule", "SomeModule", "neither a computation nor a heading"),
    ],
)
def test_what_is_not_known_is_refused(name: str, before: str, after: str, said: str) -> None:
    text = read(name)
    assert before in text
    with pytest.raises(HloError, match=said):
        inventory(text.replace(before, after), MESH)


def test_a_loop_whose_turns_depend_on_data_is_refused() -> None:
    text = read("ring_v5p").replace("constant(3)", "get-tuple-element(%wide.param.1), index=1")
    with pytest.raises(HloError, match="the trip count"):
        inventory(text, MESH)


def test_loops_that_do_not_step_by_one() -> None:
    text = read("ring_v5p").replace("%constant.0.clone.1..sunk = s32[]{:T(128)} constant(1)", "CONSTANT")
    stepping = "%constant.0.clone.1..sunk = s32[]{:T(128)} constant(2)"
    found = inventory(text.replace("CONSTANT", stepping), MESH)
    assert list(found.loops.values()) == [2]  # 0, 2; below 3


def gather(chain: int, part: str) -> str:
    """A fusion in which a gather of 4 x 64 numbers starts, goes on or ends beside something else."""
    facts = (
        f"channel_id={chain}",
        "replica_groups=[2,4]<=[4,2]T(1,0)",
        "dimensions={0}",
        f'frontend_attributes={{chain_id="{chain}"}}',
    )
    return (
        f"%{part} (p: f32[1,64]) -> f32[4,64] {{\n"
        "  %p = f32[1,64]{1,0} parameter(0)\n"
        f"  ROOT %all-gather.{part} = f32[4,64]{{1,0}} all-gather(%p), {', '.join(facts)}\n"
        "}\n"
    )


def test_a_collective_that_several_fusions_carry_on_counts_once() -> None:
    """As the TPU compiler runs gathers beside matmuls: each fusion of a chain names the same gather."""
    parts = {"start": 1, "step": 1, "done": 1, "other": 2}
    calls = [f"  %{p}.1 = f32[4,64]{{1,0}} fusion(%x), kind=kLoop, calls=%{p}" for p in parts]
    text = "\n".join(
        [
            "HloModule chained",
            "",
            *(gather(chain, part) for part, chain in parts.items()),
            "ENTRY %main (x: f32[1,64]) -> f32[4,64] {",
            "  %x = f32[1,64]{1,0} parameter(0)",
            *calls[:-1],
            calls[-1].replace("  %", "  ROOT %"),
            "}",
        ]
    )
    found = inventory(text, MESH).found
    assert [(f.op, f.axis, f.count, f.payload_bytes) for f in found] == 2 * [("all_gather", "fsdp", 1, 1024)]


def test_ragged_rows_are_those_of_the_buffer_that_is_full() -> None:
    """A rank's 16 rows go into a buffer of 64 places, and come back: either call sends three quarters of 16 rows."""
    groups = "channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}"
    text = "\n".join(
        [
            "HloModule ragged",
            "",
            "ENTRY %main (x: f32[16,8], y: f32[64,8], n: s32[4]) -> f32[16,8] {",
            "  %x = f32[16,8]{1,0} parameter(0)",
            "  %y = f32[64,8]{1,0} parameter(1)",
            "  %n = s32[4]{0} parameter(2)",
            f"  %there = f32[64,8]{{1,0}} ragged-all-to-all(%x, %y, %n, %n, %n, %n), {groups}",
            f"  ROOT %back = f32[16,8]{{1,0}} ragged-all-to-all(%there, %x, %n, %n, %n, %n), {groups}",
            "}",
        ]
    )
    found = inventory(text, MESH).found
    assert [(f.op, f.axis, f.dtype, f.wire_bytes) for f in found] == 2 * [
        ("all_to_all", "fsdp", "fp32", 16 * 8 * 4 * 0.75)
    ]


def test_what_has_no_estimate_takes_no_cycles() -> None:
    """The compiler writes the largest number there is where it does not know."""
    text = read("layers_v5p")
    known = next(n for n in text.split('"estimated_cycles":"')[1:])
    known = known[: known.index('"')]
    unknown = text.replace(f'"estimated_cycles":"{known}"', '"estimated_cycles":"9223372036854775807"', 1)
    assert 0 < inventory(unknown, MESH).cycles < inventory(text, MESH).cycles


KERNEL = """
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %kernel = f32[8]{0} custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\\\"block_q\\\\": 512}"
}}, metadata={op_name="kernel"}
}
"""


def test_the_metadata_of_a_kernel_has_lines_of_its_own() -> None:
    (entry,) = parse(KERNEL).computations.values()
    assert [i.opcode for i in entry.instructions.values()] == ["parameter", "custom-call"]
    assert 'op_name="kernel"' in entry.result.attributes
    with pytest.raises(HloError, match="no end"):
        parse(KERNEL.partition("}}")[0])


MOVES = """HloModule moves, is_scheduled=true

ENTRY %main (p.0: f32[8,64], p.1: bf16[4,16,8], p.2: s32[]) -> bf16[4,16,8] {
  %p.0 = f32[8,64]{1,0:T(8,128)S(5)} parameter(0)
  %p.1 = bf16[4,16,8]{2,1,0:T(8,128)(2,1)S(5)} parameter(1)
  %p.2 = s32[]{:T(128)} parameter(2)
  %fetched = (f32[8,64]{1,0:T(8,128)}, f32[8,64]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) copy-start(%p.0)
  %here = f32[8,64]{1,0:T(8,128)} copy-done(%fetched)
  %back = (f32[8,64]{1,0:T(8,128)S(5)}, f32[8,64]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%here)
  %there = f32[8,64]{1,0:T(8,128)S(5)} copy-done(%back)
  %near = (f32[8,64]{1,0:T(8,128)S(1)}, f32[8,64]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%here)
  %part = ((bf16[4,16,8]{2,1,0:T(8,128)(2,1)S(5)}, s32[], s32[], s32[]), bf16[1,16,8]{2,1,0:T(8,128)(2,1)}, u32[]{:S(2)}) dynamic-slice-start(%p.1, %p.2, %p.2, %p.2), dynamic_slice_sizes={1,16,8}
  %row = bf16[1,16,8]{2,1,0:T(8,128)(2,1)} dynamic-slice-done(%part)
  %put = ((bf16[4,16,8]{2,1,0:T(8,128)(2,1)S(5)}, bf16[1,16,8]{2,1,0:T(8,128)(2,1)}, s32[], s32[], s32[]), bf16[4,16,8]{2,1,0:T(8,128)(2,1)S(5)}, u32[]{:S(2)}) dynamic-update-slice-start(%p.1, %row, %p.2, %p.2, %p.2)
  ROOT %done = bf16[4,16,8]{2,1,0:T(8,128)(2,1)S(5)} dynamic-update-slice-done(%put)
}
"""  # noqa: E501
"""Transfers in the forms that libtpu 0.0.42 writes for state and activations in the host's memory."""


def test_transfers_to_and_from_the_host() -> None:
    found = inventory(MOVES, MESH)
    whole, part = 8 * 64 * 4, 16 * 8 * 2
    assert [(m.direction, m.payload_bytes) for m in found.transfers] == [
        *(("from_host", whole), ("to_host", whole)),
        *(("from_host", part), ("to_host", part)),
    ]
    assert found.transferred_bytes("to_host") == whole + part and all(m.asynchronous for m in found.transfers)


def across(kind: str, slices: str = "1,2") -> str:
    """A program that hands 256 x 4 numbers to the host for a collective across slices, and has the result back."""
    told = (
        '_xla_host_transfer_handler_name="xla_megascale_runtime"',
        f'_xla_megascale_target="{{{slices}}}x{{0:7}}"',
        f'_xla_megascale_transfer_type="{kind}"',
    )
    facts = f"is_host_transfer=true, frontend_attributes={{{','.join(told)}}}"
    shape = "f32[256,4]{1,0}"
    return "\n".join(
        [
            "HloModule across",
            "",
            f"ENTRY %main (x: f32[256,4]) -> {shape} {{",
            f"  %x = {shape} parameter(0)",
            "  %token = token[] after-all()",
            f"  %send = ({shape}, u32[], token[]) send(%x, %token), channel_id=2, {facts}",
            f"  %recv = ({shape}, u32[], token[]) recv(%token), channel_id=1, {facts}",
            "  %send-done = token[] send-done(%send), channel_id=2",
            f"  %recv-done = ({shape}, token[]) recv-done(%recv), channel_id=1",
            f"  ROOT %result = {shape} get-tuple-element(%recv-done), index=0",
            "}",
        ]
    )


@pytest.mark.parametrize(
    ("kind", "op", "sent"), [("ALL_REDUCE", "all_reduce", 4096), ("ALL_GATHER", "all_gather", 4096)]
)
def test_what_hosts_carry_across_slices_is_a_collective_of_their_axes(kind: str, op: str, sent: int) -> None:
    (found,) = inventory(across(kind), {"replica": 2, "fsdp": 8}, {"replica": 2}).found
    assert (found.op, found.axis, found.count, found.wire_bytes) == (op, "replica", 1, sent)


@pytest.mark.parametrize("text", [across("ONE_TO_ONE"), across("ALL_REDUCE", "1"), across("ALL_REDUCE", "1:4")])
def test_a_transfer_between_slices_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(HloError, match="between slices"):
        inventory(text, {"replica": 2, "fsdp": 8}, {"replica": 2})


STARTED = """HloModule one, is_scheduled=true
%summed (p: f32[256]) -> f32[256] {
  %p = f32[256] parameter(0)
  ROOT %sum = f32[256] all-reduce(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
}
ENTRY %main (a: f32[256]) -> f32[256] {
  %a = f32[256] parameter(0)
  %s = (f32[256], f32[1024]) all-gather-start(%a), replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}
  %b = f32[256] negate(%a), backend_config={"estimated_cycles":"70"}
  %c = f32[256] negate(%b), backend_config={"estimated_cycles":"30"}
  %d = f32[1024] all-gather-done(%s)
  %t = ((f32[256]), f32[256], u32[]) call-start(%c), async_execution_thread="sparsecore", to_apply=%summed
  %e = f32[256] negate(%b), backend_config={"estimated_cycles":"5"}
  %f = f32[256] call-done(%t)
  ROOT %g = f32[256] all-reduce(%f), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
}
"""


def test_a_program_goes_on_until_what_it_began_is_done() -> None:
    """A gather of its own, a sum in a called computation, and one that is waited for."""
    found = [(f.op, f.axis, f.asynchronous, f.cycles_meanwhile) for f in inventory(STARTED, MESH).found]
    assert found == [
        ("all_gather", "fsdp", True, 100),
        ("all_reduce", "tp", True, 5),
        ("all_reduce", "tp", False, 0),
    ]
    (first, *_) = inventory(STARTED.replace("all-gather-done(%s)", "negate(%a)"), MESH).found
    assert first.asynchronous and first.cycles_meanwhile == 0
