"""The JSON of check has exactly the keys of the published contract."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from planc.driver import check
from tests.plans import BUNDLED, FIELD

NUMBER, TEXT, WHOLE = {"type": "number"}, {"type": "string"}, {"type": "integer"}


Schema = dict[str, Any]


def exactly(**keys: Schema) -> Schema:
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


def numbers(*names: str) -> Schema:
    return exactly(**dict.fromkeys(names, NUMBER))


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


PLACE = {"file": TEXT, "line": WHOLE, "column": WHOLE, "end_line": WHOLE, "end_column": WHOLE}
PARTS = numbers("total", "params", "grads", "optimizer", "activations", "buffers", "comm_buffers", "reserve")
DIAGNOSTIC = exactly(
    code=TEXT,
    severity={"enum": ["error", "warning", "note"]},
    message=TEXT,
    **PLACE,
    help=TEXT,
    related=array(exactly(**PLACE, message=TEXT)),
    fix=nullable(exactly(title=TEXT, safe={"type": "boolean"}, edits=array(exactly(**PLACE, text=TEXT)))),
)
COLLECTIVE = exactly(
    op=TEXT,
    axis=TEXT,
    group_size=WHOLE,
    stage=WHOLE,
    phase={"enum": ["forward", "backward", "recompute", "optimizer"]},
    tensor=TEXT,
    dtype=TEXT,
    count=WHOLE,
    payload_bytes=NUMBER,
    wire_bytes=NUMBER,
    time_s=NUMBER,
    exposed_s=NUMBER,
    level=TEXT,
    algorithm=TEXT,
    realised_by=nullable(TEXT),
    cause=nullable(exactly(file=TEXT, line=WHOLE, sentence=TEXT)),
)
REPORT = exactly(
    format={"const": "planc.report/1"},
    planc_version=TEXT,
    plan=nullable(TEXT),
    plan_sha256=nullable(TEXT),
    source_sha256=nullable(TEXT),
    set={"type": "object"},
    target=nullable(TEXT),
    targets=array(
        exactly(
            target=TEXT,
            lowers={"type": "boolean"},
            refusals=array(exactly(code=TEXT, line=WHOLE, message=TEXT)),
        )
    ),
    model=nullable(
        exactly(name=TEXT, params=WHOLE, active_params=WHOLE, model_flops_per_token=NUMBER, flops_convention=TEXT)
    ),
    tokens_per_step=nullable(WHOLE),
    global_batch=nullable(WHOLE),
    microbatches=nullable(WHOLE),
    cluster=nullable(exactly(nodes=WHOLE, chips=WHOLE, devices=WHOLE, chip=TEXT)),
    devices=nullable(WHOLE),
    mesh=nullable({"type": "object", "additionalProperties": WHOLE}),
    axes=nullable(array(exactly(name=TEXT, size=WHOLE, stride=WHOLE, level=TEXT, view=nullable(TEXT)))),
    limits=nullable(exactly(bound_by=TEXT, what=TEXT)),
    diagnostics=array(DIAGNOSTIC),
    memory=nullable(
        exactly(
            capacity_gib=NUMBER,
            usable_gib=NUMBER,
            per_device_gib=PARTS,
            stages=array(exactly(stage=WHOLE, layers=WHOLE, ranks=WHOLE, per_device_gib=PARTS, peak_at=TEXT)),
        )
    ),
    step=nullable(
        numbers(
            *("time_s", "tokens_per_s_per_device", "tflops_per_device", "mfu", "compute_s", "recompute_s"),
            *("exposed_comm_s", "bubble_s", "optimizer_s", "offload_s", "overhead_s"),
        )
    ),
    collectives=nullable(array(COLLECTIVE)),
    goodput=nullable(
        numbers(
            *("interruptions_per_day", "checkpoint_s", "checkpoint_interval_s", "restart_s"),
            *("runtime", "productivity"),
        )
    ),
)


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_the_report_of_a_good_plan(path: Path) -> None:
    report = check(path).to_json()
    validate(report, REPORT)
    assert all(
        report[key] is not None for key in ("model", "memory", "step", "collectives", "cluster", "axes", "goodput")
    )


@pytest.mark.parametrize("text", ["", "plan x\n", "plan x\nmodle y\n", "plan x\nmodel llama_tiny\nmesh a 3\n"])
def test_the_report_of_a_bad_plan(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.plan"
    path.write_text(text)
    report = check(path).to_json()
    validate(report, REPORT)
    assert report["diagnostics"] and report["step"] is None
