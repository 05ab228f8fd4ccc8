"""Launch files: the right numbers, and shells and parsers that take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planc.backends.cuda.emit.launch_files import KINDS, launch_file
from planc.ir.plan import Plan
from planc.language.build import build_file

ROOT = Path(__file__).resolve().parents[2]


def plan_of(name: str) -> Plan:
    plan = build_file(ROOT / "plans" / name, target="cuda").plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "nodes", "devices"), [("tiny.plan", 4, 1), ("llama3_70b_h100.plan", 64, 8)])
def test_it_starts_every_device_of_every_node(kind: str, name: str, nodes: int, devices: int) -> None:
    text = launch_file(plan_of(name), kind)
    assert f"--nnodes {nodes} --nproc-per-node {devices}" in text
    assert "<" not in text.replace("<<", "")


@pytest.mark.parametrize("name", ["tiny.plan", "llama3_70b_h100.plan"])
def test_a_shell_runs_torchrun_with_the_given_command(name: str, tmp_path: Path) -> None:
    """A stand-in prints its arguments."""
    script = tmp_path / "launch.sh"
    script.write_text(launch_file(plan_of(name), "torchrun"))
    stand_in = tmp_path / "torchrun"
    stand_in.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    stand_in.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HEAD": "node-0", "NODE_RANK": "3"}
    done = subprocess.run(
        ["bash", str(script), "train.py", "--steps", "1 0"], env=environment, capture_output=True, text=True, check=True
    )
    arguments = json.loads(done.stdout)
    assert arguments[-3:] == ["train.py", "--steps", "1 0"]
    if "70b" in name:
        assert arguments[arguments.index("--node-rank") + 1] == "3"
        assert arguments[arguments.index("--master-addr") + 1] == "node-0"


def test_one_node_needs_no_address(tmp_path: Path) -> None:
    path = tmp_path / "one.plan"
    text = (ROOT / "plans" / "tiny.plan").read_text()
    path.write_text(text.replace("4 x cpu_local", "1 x h100_node").replace("fsdp 2", "fsdp 4"))
    plan = build_file(path, target="cuda").plan
    assert plan is not None
    assert "torchrun --standalone --nnodes 1 --nproc-per-node 8" in launch_file(plan, "torchrun")


def test_slurm_asks_for_the_cluster_in_a_shell_script_that_parses(tmp_path: Path) -> None:
    text = launch_file(plan_of("llama3_70b_h100.plan"), "slurm")
    assert "#SBATCH --nodes=64" in text
    assert "#SBATCH --gpus-per-node=8" in text
    script = tmp_path / "job.sh"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_kubernetes_indexes_as_many_pods_as_nodes() -> None:
    text = launch_file(plan_of("llama3_70b_h100.plan"), "k8s")
    for line in ("completions: 64", "parallelism: 64", "completionMode: Indexed", "nvidia.com/gpu: 8"):
        assert line in text
    assert "--master-addr llama3-70b-h100-0.llama3-70b-h100" in text
