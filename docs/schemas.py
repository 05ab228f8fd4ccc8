"""The JSON schemas of planc's answers, from the types that make them; `planc/cli/schemas/` holds them as files.

An answer may gain keys; the objects in it have exactly the keys that are listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, TypeAdapter
from type_schemas import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    array,
    by_name,
    compiler,
    described,
    diagnostic,
    exactly,
    nullable,
    of_fields,
    of_type,
    one_of,
)

from planc.calibration.parameters import Parameter
from planc.cli.schemas import file_name
from planc.compare.diff import Diff, PlanChange
from planc.compare.placement import RankPlacement
from planc.compare.resharding_bytes import ReshardingBytes
from planc.compare.same_training import Apart
from planc.compare.sweep import Costs
from planc.compare.what_if import WhatIf
from planc.costing.bounds import Bound
from planc.costing.elasticity import Elasticity
from planc.costing.explain import Seconds
from planc.costing.step.critical_path import CriticalPart
from planc.diag.diagnostic import Severity
from planc.graph.links import VertexKind
from planc.ir.audit import Audit
from planc.ir.hardware import Chip
from planc.ir.plan import FORMAT as PLAN
from planc.ir.plan import Plan
from planc.ir.probe import Probe
from planc.ir.report import Report, RunCost
from planc.ir.serve_report import ServeReport
from planc.ir.target import Target
from planc.report.clusters_page import ClustersPage
from planc.report.diff_page import DiffPage
from planc.report.plan_page import PlanPage
from planc.report.run_page import RunPage
from planc.report.search_page import SearchPage
from planc.report.serve_page import ServePage
from planc.syntax.lines import MACHINE
from planc.trainer.checkpoint.manifest import Manifest
from planc.trainer.receipt.crosscheck import CrossCheck
from planc.trainer.receipt.receipt import Receipt
from planc.trainer.run.dry_run import DryRun
from tests.lab.bench.calibrated import Compared
from tests.lab.bench.large import COMMANDS, MEGABYTE
from tests.lab.bench.published import Beside
from tests.lab.experiments.records import Record
from tests.lab.published.accuracy import Accuracy


def _candidate() -> Schema:
    numbers = ("time_s", "memory_gib", "mfu", "peak_tflops", "tokens_per_s_per_device")
    return exactly(
        plan=TEXT,
        **dict.fromkeys(numbers, NUMBER),
        why=TEXT,
        run=nullable(of_type(RunCost)),
        peak_dtype=TEXT,
        interval_s=nullable(array(NUMBER)),
        same=array(TEXT),
    )


def _sweep_row() -> Schema:
    costs = {name: nullable(schema) for name, schema in of_fields(Costs).items()}
    head = {"value": WHOLE, "devices": nullable(WHOLE), "target": nullable(one_of(Target)), "ok": TRUTH}
    head["why"] = nullable(TEXT)
    return exactly(**head, **costs, diagnostics=array(diagnostic()))


def _parameter() -> Schema:
    return exactly(**of_fields(Parameter, "name", "unit"), value=NUMBER, low=NUMBER, high=NUMBER, prior=NUMBER)


def _head(format: str, about: str) -> Schema:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": format, "description": about}


def _answer(format: str, about: str, keys: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """The schema of a whole answer, which may gain keys."""
    schema = exactly(format={"const": format}, **keys)
    required = [name for name in schema["required"] if name not in optional]
    return {**_head(format, about), **schema, "required": required, "additionalProperties": True}


def _headed(format: str, about: str, made: Schema) -> Schema:
    """A schema that pydantic made, as that of a whole answer."""
    head = _head(format, about)
    return {**head, **made, **head, "additionalProperties": True}


def of_pydantic(kind: type[BaseModel]) -> Schema:
    """The schema of a pydantic model's JSON, which has every field."""
    made = kind.model_json_schema(mode="serialization")
    for part in (made, *made.get("$defs", {}).values()):
        part["properties"] = {name: described(name, schema) for name, schema in part["properties"].items()}
        part["required"] = list(part["properties"])
    return made


def _of_pydantic(format: str, about: str, kind: type[BaseModel]) -> Schema:
    """The schema of an answer that is a pydantic model."""
    made = of_pydantic(kind)
    assert made["properties"]["format"]["const"] == format
    return _headed(format, about, made)


def _by_name_at_top(format: str, about: str, each: Schema, required: Iterable[str] = ()) -> Schema:
    """An answer whose keys beside `format` are names, each with a value of this schema."""
    return {**_answer(format, about, dict.fromkeys(required, each)), "additionalProperties": each}


def _of_plan() -> Schema:
    """The compiled plan, as a preset holds it. Its reader also checks that the names in it are declared."""
    made = TypeAdapter(Plan).json_schema()
    keys = {"format": {"const": PLAN}, **made["properties"]}
    about = "The compiled plan of a training preset, `[plan] compiled`."
    optional = ("realise", "train", "price", "freeze", "lora", "chunked_loss")
    required = [name for name in keys if name not in optional]
    return {**_headed(PLAN, about, made), "properties": keys, "required": required}


def _page() -> Schema:
    """A page of `planc explain`: the keys of each kind beside those that all have."""
    texts = array(TEXT)
    layers = array(exactly(kind=TEXT, layers=WHOLE))
    model = {
        "name": TEXT,
        "family": TEXT,
        "parameters": WHOLE,
        "active_parameters": WHOLE,
        "sizes": by_name(WHOLE),
        "top_k": WHOLE,
        "tied": TRUTH,
        "layers": layers,
        "regions": texts,
        "ops": texts,
        "sections": by_name(texts),
        "params": by_name(array(WHOLE)),
    }
    schedule = {"chunks": nullable(WHOLE), "placement": TEXT, "equal_stages": TRUTH, "even_ranks": TRUTH}
    kinds: list[tuple[list[str], dict[str, Schema]]] = [
        (["code"], {"code": TEXT, "title": TEXT, "reads": TEXT, "why": TEXT, "bad": TEXT, "good": TEXT}),
        (["code"], {"code": TEXT, "severity": one_of(Severity), "title": TEXT}),
        (["model"], model),
        (["verb"], {"name": TEXT, "summary": TEXT, "examples": texts}),
        (["layout"], {"name": TEXT, "use": TEXT, "sentences": texts}),
        (list(MACHINE), {"name": TEXT, "file": TEXT, "sentence": TEXT, "sources": texts, "others": texts}),
        (["schedule"], {"name": TEXT, "summary": TEXT, **schedule}),
    ]
    names = list(dict.fromkeys(name for kind, _ in kinds for name in kind))
    whole = _answer(
        "planc.page/1", "A page of `planc explain`; without a name, an array of codes.", {"kind": {"enum": names}}
    )
    pages = [exactly(kind={"enum": kind}, **keys) for kind, keys in kinds]
    return {**whole, "anyOf": [{**page, "additionalProperties": True} for page in pages]}


def _graph_rows() -> dict[str, Schema]:
    """Vertices and edges of a machine's graph: a torus has places, and switches that add say how well."""
    node = exactly(id=TEXT, kind=one_of(VertexKind), device=WHOLE, unit=WHOLE, place=array(WHOLE), reduction=NUMBER)
    node["required"] = ["id", "kind", "device", "unit"]
    ends = {"source": TEXT, "target": TEXT, "link": TEXT}
    return {"nodes": array(node), "links": array(exactly(**ends, **dict.fromkeys(EDGE_NUMBERS, NUMBER)))}


EDGE_NUMBERS = ("bytes_per_s", "latency_s", "count", "efficiency")


def schemas() -> dict[str, Schema]:
    """The schema of every format."""
    diagnostics = array(diagnostic())
    times = {"measured_s": NUMBER, "fitted_s": NUMBER}
    losses = {"comparable": TRUTH, "apart": array(of_type(Apart))}
    bench = ("check_s", "import_s", "check_to_import", "check_64_devices_s", "check_65536_devices_s", "large_to_small")
    accuracy = {"receipt": TEXT, "target": nullable(TEXT), "quantity": TEXT, "unit": TEXT, "predicted": NUMBER}
    calibrated = exactly(**of_fields(Compared), error=NUMBER)
    made = [
        _answer(
            "planc.report/1",
            "Answer of `planc check` and `planc cost`; null where a plan with errors has none.",
            {**of_fields(Report), "set": by_name(WHOLE)},
        ),
        _answer("planc.diagnostics/1", "Why a command could not answer.", {"diagnostics": diagnostics}),
        _answer(
            "planc.explain/1",
            "Answer of `planc cost --explain`.",
            {
                "time_s": NUMBER,
                "target": nullable(one_of(Target)),
                "seconds": array(of_type(Seconds)),
                "rooflines": array(of_type(Bound)),
                "critical_path": array(of_type(CriticalPart)),
                "elasticities": array(of_type(Elasticity)),
            },
            optional=("critical_path", "elasticities"),
        ),
        _answer(
            "planc.search/1",
            "Answer of `planc search`.",
            {
                "target": nullable(one_of(Target)),
                "decided": WHOLE,
                "fully_costed": WHOLE,
                "refused": WHOLE,
                "seconds": NUMBER,
                "best": array(_candidate()),
                "pareto": array(_candidate()),
                "room_gib": NUMBER,
                "nearest_miss": nullable(_candidate()),
                "may_fit": TRUTH,
                "cut_short": nullable({"enum": ["time", "interrupt", "memory"]}),
                "most_layouts": WHOLE,
                "equivalent": WHOLE,
                "refusals": array(exactly(code=TEXT, message=TEXT, layouts=WHOLE, meshes=WHOLE)),
                "meshes": by_name(WHOLE),
                "enough": nullable(exactly(nodes=WHOLE, layout=nullable(_candidate()))),
            },
        ),
        _answer(
            "planc.clusters/1",
            "Answer of `planc search --cluster`; `pareto`, `cheapest` and `fastest` are places in `clusters`.",
            {
                "file": TEXT,
                "currency": nullable(TEXT),
                "limits": exactly(days=nullable(NUMBER), price=nullable(NUMBER)),
                "clusters": array(
                    exactly(
                        cluster=TEXT,
                        devices=WHOLE,
                        target=nullable(one_of(Target)),
                        layout=nullable(_candidate()),
                        run=nullable(of_type(RunCost)),
                        why=nullable(TEXT),
                        diagnostics=diagnostics,
                    )
                ),
                "pareto": array(WHOLE),
                "cheapest": nullable(WHOLE),
                "fastest": nullable(WHOLE),
            },
        ),
        _answer(
            "planc.diff/1",
            "Answer of `planc diff`.",
            {
                **of_fields(Diff, "a", "b"),
                "targets": array(nullable(one_of(Target))),
                "target": nullable(one_of(Target)),
                "changes": array(of_type(PlanChange)),
                "losses": exactly(**losses),
                "checkpoint": nullable(of_type(ReshardingBytes)),
            },
        ),
        _answer(
            "planc.sweep/1",
            "Answer of `planc sweep`, one row for each value.",
            {"file": TEXT, "over": TEXT, "rows": array(_sweep_row())},
        ),
        _answer(
            "planc.program/1",
            "Answer of `planc lower --emit json`; `launch` is the file of `--launch`.",
            {
                "target": one_of(Target),
                "plan": TEXT,
                "plan_sha256": TEXT,
                "text_sha256": TEXT,
                "text": TEXT,
                "launch": TEXT,
            },
            optional=("launch",),
        ),
        _answer(
            "planc.expand/1",
            "Answer of `planc expand`; `via` is the `use` sentence that a sentence comes from.",
            {"sentences": array(exactly(sentence=TEXT, via=nullable(TEXT))), "diagnostics": diagnostics},
        ),
        _answer(
            "planc.init/1",
            "Answer of `planc init`: the plan's text, and the file that it was written to.",
            {"text": TEXT, "output": nullable(TEXT)},
        ),
        _answer(
            "planc.graph/1",
            "Answer of `planc graph`: the machine as networkx's node-link data, a link each way.",
            {"directed": TRUTH, "multigraph": TRUTH, "graph": exactly(name=TEXT), **_graph_rows()},
        ),
        _answer(
            "planc.place/1",
            "Answer of `planc place`; `device_order` is the device of each rank of the plan's mesh.",
            of_fields(RankPlacement),
        ),
        _answer(
            "planc.serve/1",
            "Answer of `planc check` and `planc sync` about a serve plan; bytes of a device, in `sync` of all.",
            {name: schema for name, schema in of_fields(ServeReport).items() if name != "format"},
        ),
        _answer(
            "planc.serve_search/1",
            "Answer of `planc search` about a serve plan; tokens per second are of all replicas, by a roofline.",
            {
                "best": array(
                    exactly(
                        plan=TEXT,
                        tokens_per_s=nullable(NUMBER),
                        decode_s=nullable(NUMBER),
                        sync_s=NUMBER,
                        cache_tokens=WHOLE,
                        requests=nullable(WHOLE),
                        replicas=WHOLE,
                        on_front=TRUTH,
                    )
                ),
                "fitting": WHOLE,
                "decided": WHOLE,
                "seconds": NUMBER,
                "refusals": array(exactly(code=TEXT, message=TEXT, layouts=WHOLE)),
                "cut_short": nullable({"enum": ["time", "interrupt", "layouts"]}),
            },
        ),
        _answer(
            "planc.what_if/1",
            "Answer of `planc check --with`: the step before and after; axes with the largest loss first.",
            of_fields(WhatIf),
        ),
        _answer(
            "planc.fmt/1",
            "Answer of `planc fmt`: the files whose text changes.",
            {"changed": array(TEXT), "check": TRUTH},
        ),
        _answer(
            "planc.import/1",
            "Answer of `planc import`: the plan's text, and which field of the file each setting follows from.",
            {
                "system": nullable(TEXT),
                "version": nullable(TEXT),
                "text": nullable(TEXT),
                "batch": nullable(TEXT),
                "fields": array(
                    exactly(setting=TEXT, field=TEXT, value={}, given=TRUTH, file=nullable(TEXT), line=nullable(WHOLE))
                ),
                "diagnostics": diagnostics,
            },
        ),
        _answer(
            "planc.export/1",
            "Answer of `planc export`: the fields that the other system's file sets, and its text.",
            {
                "system": TEXT,
                "version": TEXT,
                "fields": by_name({}),
                "beside": by_name(TEXT),
                "text": TEXT,
                "changes": array(TEXT),
            },
        ),
        _page(),
        _answer(
            "planc.schemas/1",
            "Answer of `planc explain --schema`: the formats that have a schema.",
            {"schemas": array(TEXT)},
        ),
        _answer(
            "planc.embed/1",
            "Answer of `planc embed`.",
            {"preset": TEXT, "plan": TEXT, "plan_sha256": TEXT, "changed": TRUTH},
        ),
        _answer("planc.weights/1", "Answer of `planc weights`.", {"folder": TEXT, "checkpoint": TEXT}),
        _answer(
            "planc.trace/1",
            "Answer of `planc report --trace -o FILE`; the file has the Trace Event format.",
            {"trace": TEXT, "events": WHOLE, "step_s": NUMBER, "target": nullable(one_of(Target))},
        ),
        _answer("planc.completion/1", "Answer of `planc completion`.", {"shell": TEXT, "script": TEXT}),
        _answer(
            "planc.snapshot/1",
            "Answer of `planc report --memory-snapshot -o FILE`; the file is a snapshot of torch's memory viewer.",
            {
                "snapshot": TEXT,
                "devices": WHOLE,
                "events": WHOLE,
                "fullest_gib": NUMBER,
                "target": nullable(one_of(Target)),
            },
        ),
        _answer(
            "planc.page_file/1",
            "Answer of `planc report PLAN -o PAGE`, and of `-o PAGE` of `planc diff` and `planc search`.",
            {"page": TEXT, "bytes": WHOLE, "headline": TEXT},
        ),
        _of_pydantic(
            "planc.report.plan/1",
            "The page of a plan as data, `planc report PLAN -o PAGE.json`; views are null where the plan is wrong.",
            PlanPage,
        ),
        _of_pydantic(
            "planc.report.run/1", "The page of a training run as data, `planc report RUN -o PAGE.json`.", RunPage
        ),
        _of_pydantic("planc.report.serve/1", "The page of a serve plan as data.", ServePage),
        _of_pydantic("planc.report.diff/1", "The page of two plans as data, `planc diff A B -o PAGE.json`.", DiffPage),
        _of_pydantic(
            "planc.report.search/1", "The page of a search as data, `planc search FILE -o PAGE.json`.", SearchPage
        ),
        _of_pydantic(
            "planc.report.clusters/1",
            "The page of a search over several clusters as data, `planc search FILE --cluster C ... -o PAGE.json`.",
            ClustersPage,
        ),
        _answer(
            "planc.report.view/1",
            "One view of a page as data, `--view NAME -o PAGE.json`; `of` is the page's format.",
            {"of": TEXT, "view": TEXT, "data": {}},
        ),
        _answer(
            "planc.accuracy/1",
            "Answer of `planc report --accuracy`.",
            {
                "rows": array(exactly(**accuracy, measured=nullable(NUMBER), error=nullable(NUMBER))),
                "median_abs_error": by_name(NUMBER),
            },
        ),
        _answer(
            "planc.audit/1",
            "Answer of `planc audit`; `wire` and `compiler` where a compiler chooses the collectives, else `placed`.",
            {**of_fields(Audit), "compiler": compiler(), "ok": TRUTH},
            optional=("wire", "compiler", "placed"),
        ),
        _answer(
            "planc.portability/1",
            "Answer of `planc audit --portability`.",
            {"module": TEXT, "operations": WHOLE, "diagnostics": diagnostics, "ok": TRUTH},
        ),
        _answer(
            "planc.dry_run/1",
            "Answer of `planc train --dry-run`.",
            {
                "plan": TEXT,
                "plan_sha256": TEXT,
                "target": one_of(Target),
                "steps": WHOLE,
                "processes": WHOLE,
                "resumes_from": nullable(TEXT),
                "devices": WHOLE,
                "notes": diagnostics,
                "predicted": nullable(by_name(NUMBER)),
                "traced": nullable(of_type(DryRun)),
            },
        ),
        _of_pydantic("planc.receipt/1", "Answer of `planc train`, and the file of `--receipt`.", Receipt),
        _of_pydantic(
            "planc.checkpoint/1",
            "`checkpoint.json`, in the folder of a checkpoint, with the sum of its other keys in `sha256`.",
            Manifest,
        ),
        _of_pydantic(
            "planc.experiment/1",
            "A file of the state folder of `planc bench accelerator`: one experiment, predicted and measured.",
            Record,
        ),
        _of_plan(),
        _answer(
            "planc.crosscheck/1", "Answer of `planc crosscheck`; losses are in nats a token.", of_fields(CrossCheck)
        ),
        _answer(
            "planc.calibration/1",
            "Answer of `planc calibrate`.",
            {
                "parameters": array(
                    exactly(**of_fields(Parameter, "name", "field", "place", "unit"), value=NUMBER, prior=NUMBER)
                ),
                "chip": of_type(Chip),
                "probes": array(exactly(**of_fields(Probe), **times)),
                "steps": array(exactly(name=TEXT, target=nullable(one_of(Target)), before_s=nullable(NUMBER), **times)),
                "far": array(TEXT),
            },
        ),
        _by_name_at_top("planc.bench/1", "Answer of `planc bench`: medians and their ratios.", NUMBER, bench),
        _answer(
            "planc.bench.accuracy/1",
            "Answer of `planc bench accuracy`.",
            {
                **of_fields(Accuracy),
                "spearman_median": nullable(NUMBER),
                "loss_median": nullable(NUMBER),
                "parameters": array(_parameter()),
            },
        ),
        _answer(
            "planc.bench.calibrated/1",
            "Answer of `planc bench calibrated`.",
            {"target": one_of(Target), "load": NUMBER, "rows": array(calibrated), "median": NUMBER},
        ),
        _answer(
            "planc.bench.accelerator/1",
            "Answer of `planc bench accelerator`.",
            {"device": TEXT, "devices": WHOLE, "node": TEXT, "experiments": array(of_pydantic(Record))},
        ),
        _by_name_at_top(
            "planc.bench.search/1",
            "Answer of `planc bench search`, by plan.",
            exactly(
                decided=WHOLE,
                fully_costed=WHOLE,
                seconds=NUMBER,
                cpu_s=NUMBER,
                costed_per_s_without_bounds=NUMBER,
                best_step_s=NUMBER,
            ),
        ),
        _by_name_at_top(
            "planc.bench.published/1",
            "Answer of `planc bench published`, by plan.",
            exactly(**of_fields(Beside), ratio=NUMBER),
        ),
        _by_name_at_top(
            "planc.bench.large/1",
            "Answer of `planc bench large`, by kind of text.",
            exactly(**dict.fromkeys((MEGABYTE, *(f"{name}_cpu_s" for name in COMMANDS)), NUMBER)),
        ),
        _by_name_at_top(
            "planc.bench.saves/1",
            "Answer of `planc bench saves`, by target.",
            exactly(
                synchronous_s=NUMBER, asynchronous_s=NUMBER, step_s=NUMBER, step_while_saving_s=NUMBER, ratio=NUMBER
            ),
        ),
    ]
    return {schema["title"]: schema for schema in made}


def schema_files() -> dict[str, str]:
    """File name to text, of every schema."""
    return {file_name(format): json.dumps(schema, indent=2) + "\n" for format, schema in schemas().items()}
