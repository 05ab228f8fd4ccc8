"""Real configurations of public trees: planc's reading beside the answer of each system's own parser.

`real_trainers.json` is written by `real_trainers.py`, with the parsers installed and the files at hand;
neither is needed
here.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planc.diag.span import Source, Span
from planc.interop.document import Document, Format, Given
from planc.interop.importing import Imported, imported
from planc.interop.systems import systems
from planc.interop.values import Options

PLANS = {"deepspeed": 45, "accelerate": 31}
"""Rows that become plans; each of the others is refused by a field's name."""
TABLE = Path(__file__).with_name("real_trainers.json")


@cache
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(TABLE.read_text())
    return found


def read(row: dict[str, Any]) -> Imported:
    """planc's reading of a row, on the ranks and with the Trainer's arguments that the parser was given."""
    fields, file = dict(row["fields"]), row["path"].rpartition("/")[2]
    devices = fields.get("num_processes") or 1 if row["system"] == "accelerate" else 8
    given = {"sequence_length": "128", "per_device_train_batch_size": "2"}
    if row["system"] == "deepspeed":
        given |= {"bf16": "true", "fp16": "false"}
    if fields.get("gradient_accumulation_steps") == "auto":
        given["gradient_accumulation_steps"] = "4"
    if str(fields.get("fp16.enabled")).lower() == "true":  # the same sizes in bf16, as planc's help says
        given |= {"fp16.enabled": "false", "bf16.enabled": "true"}
    if fields.get("mixed_precision") == "fp16":
        given["mixed_precision"] = "bf16"
    place = Span(file, 1, 1, 1, 1)
    values = {n: Given(tuple(v) if isinstance(v, list) else v, place) for n, v in fields.items()}
    form: Format = "json" if file.endswith("json") else "yaml"
    document = Document(file, form, values, Source.of(file, ""))
    options = Options(cluster="1 x h100_node", devices=max(devices, 1), model="llama3_8b", given=given)
    return imported(systems()[row["system"]], [document], options, "real")


def differences(row: dict[str, Any]) -> list[str]:
    """Where planc's reading and the parser's answer differ; empty where planc refuses the file."""
    setup, answer = read(row).setup, row["parser"]
    if setup is None:
        return []
    if "error" in answer:
        return [f"the parser stops: {answer['error']}"]
    expected = _deepspeed(row, setup) if row["system"] == "deepspeed" else _accelerate(row, setup)
    return [f"{name}: {mine} is {theirs} there" for name, (mine, theirs) in expected.items() if mine != theirs]


def _deepspeed(row: dict[str, Any], setup: Any) -> dict[str, tuple[Any, Any]]:
    answer = row["parser"]
    offloaded = {w for w in ("param", "optimizer") if answer[f"offload_{w}"] == "cpu"}
    found = {
        "sequences": (setup.sequences, answer["train_batch_size"]),
        "microbatch": (setup.microbatch, answer["micro"]),
        "accumulation": (setup.sequences // setup.data_parallel // setup.microbatch, answer["accumulation"]),
        "stage": (setup.zero, answer["stage"]),
        "offloaded": ({w.removesuffix("s") for w in setup.offloaded}, offloaded),
        "narrow": (setup.precision.compute == "bf16", answer["bf16"] or answer["fp16"]),
        "optimizer": (setup.optimizer, {"": "adamw", "adam": "adamw"}.get(answer["optimizer"], answer["optimizer"])),
        "tp": (setup.tp, answer["autotp"] or 1),
    }
    if setup.zero:
        found["overlap"] = (not setup.overlaps, answer["overlap_comm"])
    return found


def _accelerate(row: dict[str, Any], setup: Any) -> dict[str, tuple[Any, Any]]:
    answer = row["parser"]
    found: dict[str, tuple[Any, Any]] = {
        "processes": (setup.devices, answer["num_processes"] if answer["num_processes"] != -1 else setup.devices),
        "narrow": (setup.precision.compute == "bf16", answer["mixed_precision"] in ("bf16", "fp16")),
    }
    if "dp_shard_size" in answer and setup.replica * setup.shard * setup.tp * setup.cp > 1:
        sizes = ("dp_replicate_size", "dp_shard_size", "cp_size", "tp_size")
        found["sizes"] = ((setup.replica, setup.shard, setup.cp, setup.tp), tuple(answer[n] for n in sizes))
        if answer["sp_size"] > 1:  # Ulysses, which a setup holds as context parallelism
            found["sizes"] = (setup.cp, answer["sp_size"])
    if answer["distributed_type"] == "FSDP":
        freed = (
            answer["reshard"] if answer["fsdp_version"] == 2 else answer["strategy"] in ("FULL_SHARD", "HYBRID_SHARD")
        )
        found |= {
            "zero": (setup.zero, 0 if answer["strategy"] == "NO_SHARD" or answer["num_processes"] in (1, -1) else 3),
            "offload": (setup.offloaded != (), answer["offload"]),
            "checkpointing": (setup.recompute.ops == ("blocks",), answer["checkpointing"]),
        }
        if setup.zero:
            found["freed"] = (setup.gather == "pass", freed)
        if setup.precision.compute == "bf16" and answer["mixed_precision"] == "bf16":
            found["reduce"] = (setup.precision.reduce, {"bfloat16": "bf16"}.get(answer["reduce_dtype"]))
    if answer["distributed_type"] == "DEEPSPEED":
        found["stage"] = (setup.zero, answer["stage"])
    return found


def test_no_real_configuration_is_read_otherwise_than_by_its_own_parser() -> None:
    found = {f"{row['repository']} {row['path']}": differences(row) for row in rows()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_what_is_refused_has_a_code_and_the_rest_is_many() -> None:
    outcome = Counter((row["system"], read(row).setup is not None) for row in rows())
    codes = {d.code for row in rows() if (found := read(row)).setup is None for d in found.diagnostics}
    assert codes <= {"E1303", "E1304", "E1305", "E1306", "E1307", "N1308", "W1310", "N1311"}
    assert {system: n for (system, is_read), n in outcome.items() if is_read} == PLANS
    assert len({row["repository"] for row in rows()}) >= 5 and len(rows()) >= 60


@pytest.mark.parametrize("row", [r for r in rows() if "error" in r["parser"]], ids=lambda r: r["path"])
def test_what_the_parser_stops_at_is_refused_here_too(row: dict[str, Any]) -> None:
    assert read(row).setup is None
