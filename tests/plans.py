"""Plan texts that tests build on."""

from pathlib import Path

from planc.diag.diagnostic import Diagnostic
from planc.driver import check, load
from planc.ir.plan import Plan

ROOT = Path(__file__).parents[1]
BUNDLED = sorted((ROOT / "plans").glob("*.plan"))

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
