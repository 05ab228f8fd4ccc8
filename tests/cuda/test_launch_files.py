"""Launch files: the right numbers, and shells and parsers that take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from planc.backends.cuda.emit.launch_files import ALLOCATOR, KINDS, LAUNCHERS, launch_file
from planc.backends.xla import BACKEND as XLA
from planc.cli import main
from planc.ir.plan import Plan
from planc.language.build import build_file

ROOT = Path(__file__).resolve().parents[2]


FULL = """plan full
model     llama3_8b(layers = 9)
batch     64 x 8192 tokens microbatch 8
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
"""
FACTS = Path(__file__).parent / "facts"


def plan_of(name: str, target: str = "cuda") -> Plan:
    plan = build_file(ROOT / "plans" / name, target=target).plan
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


def valid(text: str, system: str) -> Any:
    """The YAML of a file, which has only the fields of the system's published schema, each of its type."""
    found = yaml.safe_load(text)
    jsonschema.validate(found, json.loads((FACTS / f"{system}.json").read_text())["schema"])
    return found


def test_a_jobset_of_gpus_has_a_pod_a_node() -> None:
    found = valid(launch_file(plan_of("llama3_70b_h100.plan"), "jobset"), "jobset")
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["completions"]) == (64, 64)
    pod = job["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert "--nnodes 64 --nproc-per-node 8" in pod["containers"][0]["args"][0]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}
    assert "nodeSelector" not in launch_file(plan_of("tiny.plan"), "jobset"), "a machine without a name there"


def test_a_jobset_of_tpus_has_a_replica_a_slice() -> None:
    text = XLA.launch_file(plan_of("field/llama3_70b_v5p_2slices.plan", "xla"), "jobset")
    found = valid(text, "jobset")
    job = found["spec"]["replicatedJobs"][0]
    plan = plan_of("field/llama3_70b_v5p_2slices.plan", "xla")
    assert job["replicas"] == plan.cluster.count == 2
    hosts = job["template"]["spec"]
    assert hosts["parallelism"] == plan.cluster.hosts_per_node
    selector = hosts["template"]["spec"]["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-topology"] == "x".join(map(str, plan.cluster.shape))
    limits = hosts["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert limits * hosts["parallelism"] * job["replicas"] == plan.mesh.devices


def test_skypilot_asks_for_the_accelerators_of_each_node() -> None:
    found = valid(launch_file(plan_of("llama3_70b_h100.plan"), "skypilot"), "skypilot")
    assert (found["num_nodes"], found["resources"]["accelerators"]) == (64, "H100:8")
    assert "--nproc-per-node 8" in found["run"]


@pytest.mark.parametrize(
    ("target", "name", "words"),
    [
        ("cuda", "llama3_70b_h100.plan", "--device-type h100-mega-80gb-8 --num-nodes 64"),
        ("xla", "llama3_70b_v5p.plan", "--tpu-type v5p-512 --num-slices 1"),
    ],
)
def test_xpk_names_the_machines_as_it_does(target: str, name: str, words: str, tmp_path: Path) -> None:
    plan = plan_of(name, target)
    text = launch_file(plan, "xpk") if target == "cuda" else XLA.launch_file(plan, "xpk")
    assert words in text
    script = tmp_path / "job.sh"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_hosts_of_one_nvlink_domain_are_asked_for_together() -> None:
    """72 GPUs of a GB200 rack are 18 hosts of 4, which must be neighbours."""
    text = launch_file(plan_of("field/qwen3_235b_gb200.plan"), "slurm")
    plan = plan_of("field/qwen3_235b_gb200.plan")
    assert f"#SBATCH --nodes={plan.mesh.devices // 4}" in text and "--nproc-per-node 4" in text
    assert f"#SBATCH --segment={plan.cluster.devices_per_node // 4}" in text
    assert "--segment" not in launch_file(plan_of("llama3_70b_h100.plan"), "slurm")


def test_a_machine_without_a_name_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = str(ROOT / "plans" / "tiny.plan")
    assert main(["lower", tiny, "--target", "cuda", "--launch", "xpk"]) == 2
    assert "xpk has no name for cpu_local" in capsys.readouterr().err
    assert main(["lower", tiny, "--target", "xla", "--launch", "slurm"]) == 2
    assert "there are: jobset, xpk" in capsys.readouterr().err


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_ranks_of_a_plan_that_is_nearly_full_grow_their_segments(kind: str) -> None:
    plan = plan_of("llama3_70b_h100.plan")
    assert ALLOCATOR in launch_file(plan, kind, full=True) and "PYTORCH_" not in launch_file(plan, kind)


def test_whether_it_is_full_is_asked_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.plan"
    path.write_text(FULL)
    assert main(["lower", str(path), "--target", "cuda", "--launch", "slurm"]) == 0
    assert ALLOCATOR in capsys.readouterr().out
    path.write_text(FULL.replace("microbatch 8", "microbatch 1"))
    assert main(["lower", str(path), "--target", "cuda", "--launch", "slurm"]) == 0
    assert ALLOCATOR not in capsys.readouterr().out
