"""Emits the files that launch a plan's ranks: one process per device, on all nodes of its cluster.

The arguments of an emitted file are the command to launch: `bash train.sh -m planc.trainer.run.worker ...`, or a user's
script around the emitted program. Variables are as in the manuals of torchrun and Slurm.
"""

from __future__ import annotations

from collections.abc import Callable

from planc.backends.common.launch import KINDS as CLUSTERS
from planc.backends.common.launch import cluster_file, job_name, pod_of_gpus
from planc.backends.common.launch.machines import machine_of
from planc.backends.common.source_writer import fill
from planc.diag.quoting import python_comment, yaml_string
from planc.ir.plan import Plan

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""Makes torch's allocator use expandable segments, which reduces fragmentation."""


def launch_file(plan: Plan, kind: str, full: bool = False) -> str:
    """Returns the text of a launch file for `plan`; `kind` is one of LAUNCHERS.

    With `full` (the plan uses nearly all memory) the file makes torch's allocator use expandable segments. Raises
    ValueError, with a message for the user, for a machine that the cluster system does not offer.
    """
    if kind in CLUSTERS:
        return cluster_file(plan, kind, ALLOCATOR if full else "")
    machine = machine_of(plan.cluster)
    job = job_name(plan.name)
    segment = f"#SBATCH --segment={machine.segment}" if machine.segment > 1 and machine.nodes > 1 else ""
    return (
        fill(
            KINDS[kind](plan),
            name=python_comment(plan.name),
            digest=plan.sha256[:16],
            job=job,
            quoted_job=yaml_string(job),
            segment=segment,
            allocator=f"export {ALLOCATOR}" if full else "",
            pod=pod_of_gpus(machine, f"{job}-0.{job}", ALLOCATOR if full else ""),
            mesh=python_comment(" > ".join(f"{a.name} {a.size}" for a in plan.mesh.axes)),
            nodes=str(machine.nodes),
            others=str(machine.nodes - 1),
            devices=str(machine.devices),
        )
        + "\n"
    )


def _torchrun(plan: Plan) -> str:
    return ONE_NODE if machine_of(plan.cluster).nodes == 1 else MANY_NODES


ONE_NODE = """
#!/usr/bin/env bash
# <name> (sha256 <digest>): <mesh>, on one node.
# bash FILE SCRIPT [ARGUMENT...]
set -euo pipefail
<allocator>

exec torchrun --standalone --nnodes 1 --nproc-per-node <devices> "$@"
"""

MANY_NODES = """
#!/usr/bin/env bash
# <name> (sha256 <digest>): <mesh>, on <nodes> nodes. Run it on each of them:
# HEAD=first-node NODE_RANK=0..<others> bash FILE SCRIPT [ARGUMENT...]
# Nodes are numbered as the network is laid out: ranks of one node follow each other.
set -euo pipefail
<allocator>

exec torchrun --nnodes <nodes> --nproc-per-node <devices> --node-rank "${NODE_RANK:?}" \\
    --master-addr "${HEAD:?}" --master-port "${PORT:-29500}" "$@"
"""

SLURM = """
#!/usr/bin/env bash
# <name> (sha256 <digest>): <mesh>.
# sbatch FILE SCRIPT [ARGUMENT...]
#SBATCH --job-name=<job>
#SBATCH --nodes=<nodes>
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=<devices>
<segment>
#SBATCH --exclusive
# Slurm tells the ranks two minutes before the end, so that they can save.
#SBATCH --signal=TERM@120
set -euo pipefail
<allocator>

HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 12000))
export HEAD PORT

# One torchrun a node; SLURM_NODEID follows the order of the network.
srun --kill-on-bad-exit=1 bash -c 'exec torchrun --nnodes <nodes> --nproc-per-node <devices> \\
    --node-rank "$SLURM_NODEID" --master-addr "$HEAD" --master-port "$PORT" "$@"' launch "$@"
"""

KUBERNETES = """
# <name> (sha256 <digest>): <mesh>.
# Set the image and the command; then: kubectl apply -f FILE
apiVersion: v1
kind: Service
metadata:
  name: <quoted_job>
spec:
  clusterIP: None
  selector:
    job-name: <quoted_job>
---
apiVersion: batch/v1
kind: Job
metadata:
  name: <quoted_job>
spec:
  completions: <nodes>
  parallelism: <nodes>
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: <quoted_job>
      <pod>
"""

KINDS: dict[str, Callable[[Plan], str]] = {
    "torchrun": _torchrun,
    "slurm": lambda plan: SLURM,
    "k8s": lambda plan: KUBERNETES,
}
LAUNCHERS = (*KINDS, *CLUSTERS)
"""Every kind of launch file."""
