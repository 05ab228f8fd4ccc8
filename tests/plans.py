"""Plan texts that tests build on."""

from pathlib import Path

from planc.checks import assume_checked
from planc.diag.diagnostic import Diagnostic
from planc.driver import check, load
from planc.ir.hardware import Cluster
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.language.draft import Draft
from planc.language.verbs.cluster import read as read_cluster
from planc.sharding import propagate
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
"""
BODY = """use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
recompute blocks
"""


def plan_of(folder: Path, text: str, **given: int) -> Plan:
    path = folder / "example.plan"
    path.write_text(text)
    return load(path, set=given)


def found(folder: Path, text: str, **given: int) -> tuple[Diagnostic, ...]:
    path = folder / "example.plan"
    path.write_text(text)
    return check(path, set=given).diagnostics


def codes(folder: Path, text: str, **given: int) -> list[str]:
    return [d.code for d in found(folder, text, **given)]


def cluster_of(machine: str) -> Cluster:
    """The cluster of a `cluster` sentence: `4 x h100_node`, `tpu_v5p(4x4x4)`."""
    draft = Draft()
    for sentence in parse_text(f"plan example\ncluster {machine}\n", "example.plan").sentences:
        read_cluster(sentence, draft)
    assert draft.cluster is not None, draft.diagnostics
    return draft.cluster


def propagated(plan: Plan) -> Sharded:
    """The layouts of a plan, whether it passes its checks or not."""
    return propagate(assume_checked(plan))
