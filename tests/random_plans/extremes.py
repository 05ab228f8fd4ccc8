"""Every view of a valid plan exists, of the smallest and the largest plans too: one of everything, and very many.

Each command that takes a plan ends with an answer or with a code; figures are finite and not below zero, those of one
question equal wherever they are printed, and no op lies above the roof of its chip.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from math import isclose, isfinite
from pathlib import Path
from typing import Any, NoReturn

from planc.cli import main
from tests.random_plans.pieces import Dice, Drawn

VIEWS: dict[str, tuple[str, ...]] = {
    "check": ("check PLAN --format json", "check PLAN", "check PLAN --brief"),
    "cost": ("cost PLAN --format json", "cost PLAN --explain --format json"),
    "search": ("search PLAN --format json", "search PLAN"),
    "diff": ("diff PLAN PLAN --format json", "diff PLAN PLAN"),
    "sweep": ("sweep PLAN --over batch=1,2 --format json",),
    "place": ("place PLAN --format json",),
    "export": ("export PLAN --to megatron", "export PLAN --to torchtitan"),
    "lower": ("lower PLAN --target cuda -o OUT.py", "lower PLAN --target xla -o OUT.py"),
    "fmt": ("fmt PLAN", "fmt PLAN --check"),
    "expand": ("expand PLAN",),
    "graph": ("graph PLAN -o OUT.json",),
    "report": (
        *("report PLAN -o OUT.html", "report PLAN -o OUT.json --format json", "report PLAN -o OUT.svg"),
        *("report PLAN --trace -o OUT.trace.json", "report PLAN --memory-snapshot -o OUT.pickle"),
    ),
}
"""Commands that take a plan, and how each is asked."""
NO_PLAN = (
    "import",
    "init",
    "train",
    "weights",
    "calibrate",
    "crosscheck",
    "lsp",
    "completion",
    "bench",
    "explain",
    "sync",
)
"""Commands that take none, or a serve plan."""
SLOW = ("audit", "embed")
"""Commands that run the program, or write into another file: their own tests ask them."""
CODE = re.compile(r"\b[EWN]\d{4}\b")


def draw(seed: int) -> Drawn:
    """A plan with one of most things, or as large as they come."""
    dice = Dice(f"planc extreme {seed}")
    dtype = dice.choice(("fp32", "bf16 reduce fp32"))
    if dice.chance(0.25):
        nodes = dice.choice((512, 2048))
        mesh = dice.choice((f"fsdp {nodes} > tp 8", f"pp 16 > fsdp {nodes // 16} > tp 8"))
        uses = ("use tp over tp", "use sp over tp", "use fsdp over fsdp")
        pp = ("split layers over pp as 1f1b",) if "pp" in mesh else ()
        batch = f"batch {16 * nodes} x 8192 tokens microbatch 1"
        model = dice.choice(("llama3_405b", "llama3_70b(layers = 96)"))
        cluster = f"cluster {nodes} x h100_node"
        sentences = (f"model {model}", batch, cluster, f"mesh {mesh}", *uses, *pp, f"compute {dtype}")
        return Drawn(f"largest_{seed}", (*sentences, "recompute blocks"))
    few = dice.choice(("llama_tiny", "llama_micro", "mixtral_micro", "qwen3_micro"))
    layers, tokens = dice.choice((1, 1, 2)), dice.choice((1, 1, 2, 32))
    heads = ", heads = 1, kv_heads = 1" if few != "llama_tiny" and dice.chance(0.5) else ""
    devices = dice.choice((1, 1, 1, 2))
    machine = dice.choice(("cpu_local", "h100_node(1)", "l40s_node(1)", "tpu_v5e(1x1)"))
    one = dice.choice(("d", "d", "d 1 > e", "e 1 > d"))
    use = dice.choice(("shard batch over d", "use fsdp over d", "use ddp over d", "use zero1 over d"))
    more = dice.choice((("use tp over e",), ("use pp over e",), ("use cp over e",))) if " " in one else ()
    mesh = f"mesh {one} {devices}" if one.endswith("d") else f"mesh d {devices} > e 1"
    extra = dice.choice(((), ("recompute blocks",), ("gather params per step",), ("optimizer muon",)))
    sentences = (
        f"model {few}(layers = {layers}{heads})",
        f"batch {devices} x {tokens} tokens microbatch 1",
        f"cluster {devices} x {machine}",
        mesh,
        use,
        *more,
        f"compute {dtype}",
        *extra,
    )
    return Drawn(f"least_{seed}", sentences)


def views(path: Path) -> None:
    """Ask every command about the plan at `path`; raises AssertionError, or what planc raised."""
    found = {command: [ask(line, path) for line in lines] for command, lines in VIEWS.items()}
    (said, *_), (searched, *_), (cost, *_) = found["check"], found["search"], found["cost"]
    if said is None or said["step"] is None:
        return
    assert cost is not None and (cost["step"], cost["memory"]) == (said["step"], said["memory"]), "check and cost"
    fits = said["memory"]["per_device_gib"]["total"] <= said["memory"]["capacity_gib"]
    if searched is None or searched["target"] != said["target"]:
        return
    refused = {d["code"] for d in said["diagnostics"]} & {"E0501", "W0907"}
    assert bool(searched["best"]) == (fits and not refused), "search and check: fits"
    if searched["nearest_miss"] is not None:
        assert searched["may_fit"] == ("E0501" not in refused), "search and check: may fit"
    if searched["best"]:
        (best,) = searched["best"]
        assert isclose(best["time_s"], said["step"]["time_s"], rel_tol=1e-9), "search and check: seconds"
        assert isclose(best["memory_gib"], said["memory"]["per_device_gib"]["total"], rel_tol=1e-9), (
            "search and check: GiB"
        )


def ask(line: str, path: Path) -> dict[str, Any] | None:
    """The JSON answer of a command, if it has one: of an `-o` file too."""
    words = [w.replace("PLAN", str(path)).replace("OUT", str(path.with_suffix(""))) for w in line.split()]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            status = main(words)
        except SystemExit as error:
            status = int(error.code or 0)
    said = out.getvalue()
    assert status in (0, 1, 2), f"{line}: status {status}"
    assert status == 0 or CODE.search(said + err.getvalue()) or "usage" in err.getvalue(), f"{line}: no code"
    written = path.with_suffix(".json")
    if "OUT.json" in line and status == 0:
        finite(json.loads(written.read_text(), parse_constant=_not_finite), line)
    if "--format json" not in line or not said.startswith("{"):
        return None
    answer = json.loads(said, parse_constant=_not_finite)
    if not line.startswith("diff"):  # a difference has a sign
        finite(answer, line)
    return dict(answer)


def _not_finite(name: str) -> NoReturn:
    raise AssertionError(f"{name} is printed")


def finite(value: Any, where: str) -> None:
    """No figure with a unit in its name is below zero."""
    if isinstance(value, dict):
        for key, one in value.items():
            unit = str(key).endswith(("_s", "_gib", "_bytes", "mfu")) and not str(key).startswith("delta_")
            if isinstance(one, float) and unit:
                assert isfinite(one) and one >= 0, f"{where}: {key} is {one}"
            finite(one, f"{where} {key}")
    elif isinstance(value, list):
        for one in value:
            finite(one, where)
