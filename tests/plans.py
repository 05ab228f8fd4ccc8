"""Plan texts that tests build on."""

import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path

from planc.checks import assume_checked
from planc.diag.diagnostic import Diagnostic
from planc.driver import check, load
from planc.ir.hardware import Cluster
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.language.build import build_file
from planc.language.draft import Draft
from planc.language.verbs.cluster import read as read_cluster
from planc.sharding.propagate import propagate
from planc.syntax import parse_text

ROOT = Path(__file__).parents[1]
BUNDLED = sorted((ROOT / "plans").glob("*.plan"))
FIELD = sorted((ROOT / "plans" / "field").glob("*.plan"))
"""Published layouts, and some that show one part of the language."""

HEAD = """plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 8
compute   fp32
"""
BODY = """use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
recompute blocks
"""
HEAD_BF16 = HEAD.replace("compute   fp32", "compute   bf16 reduce fp32")


def written(folder: Path, text: str, name: str = "example") -> Path:
    """A plan file with this text."""
    path = folder / f"{name}.plan"
    path.write_text(text)
    return path


def plan_of(folder: Path, text: str, **given: int) -> Plan:
    """The plan of a text, with these values of its `let` numbers."""
    return load(written(folder, text), set=given)


def sharded_of(folder: Path, text: str) -> Sharded:
    """The layouts of a text's plan."""
    return propagated(plan_of(folder, text))


def found(folder: Path, text: str, **given: int) -> tuple[Diagnostic, ...]:
    """The diagnostics of a text."""
    return check(written(folder, text), set=given).diagnostics


def codes(folder: Path, text: str, **given: int) -> list[str]:
    return [d.code for d in found(folder, text, **given)]


def cluster_of(machine: str) -> Cluster:
    """The cluster of a `cluster` sentence: `4 x h100_node`, `tpu_v5p(4x4x4)`."""
    draft = Draft()
    for sentence in parse_text(f"plan example\ncluster {machine}\n", "example.plan").sentences:
        read_cluster(sentence, draft)
    assert draft.cluster is not None, draft.diagnostics
    return draft.cluster


CPU_PLAN = """plan {name}
model     {model}
batch     {batch}
cluster   {cluster}
mesh      {mesh}
optimizer adamw
"""


def cpu_plan(
    name: str,
    mesh: str,
    *sentences: str,
    batch: str,
    model: str = "llama_micro",
    cluster: str = "",
    files: Mapping[str, str] | None = None,
) -> Plan:
    """A small plan on as many CPU devices as `mesh` has, or on `cluster`; `files` is what it may import, by name."""
    devices = prod(int(axis.split()[1]) for axis in mesh.split(">"))
    text = CPU_PLAN.format(name=name, model=model, batch=batch, cluster=cluster or f"{devices} x cpu_local", mesh=mesh)
    sentences = (*sentences, *(() if any(s.startswith("compute ") for s in sentences) else ("compute   fp32",)))
    with tempfile.TemporaryDirectory() as folder:
        for imported, content in (files or {}).items():
            Path(folder, imported).write_text(content)
        built = build_file(written(Path(folder), text + "\n".join(sentences) + "\n", name))
    assert built.plan is not None, [d.message for d in built.diagnostics]
    return built.plan


def propagated(plan: Plan) -> Sharded:
    """The layouts of a plan, whether it passes its checks or not."""
    return propagate(assume_checked(plan))
