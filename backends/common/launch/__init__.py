"""Write launch files for JobSet, xpk and SkyPilot, for GPUs and TPUs.

The plan determines the machines, processes per machine, slices and their topology, and which machines must be adjacent.
The user provides the image, queue and account: a required variable, `${IMAGE:?}`, or a placeholder in capitals.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from planc.backends.common.launch.machines import Machine, machine_of
from planc.backends.common.source_writer import fill
from planc.diag.quoting import python_comment, yaml_string
from planc.ir.plan import Plan


def cluster_file(plan: Plan, kind: str, variable: str = "") -> str:
    """Return the text of the launch file of `kind`, a key of KINDS, for the processes of `plan`.

    `variable`, a `NAME=VALUE` or "", is set for the ranks of GPUs. Raises ValueError for the user if the system of
    `kind` has no name for the machines; a JobSet of GPUs needs none: the cluster chooses the hosts.
    """
    machine = machine_of(plan.cluster)
    name = KINDS[kind][1](machine)
    if not name and (kind != "jobset" or machine.tpu):
        raise ValueError(f"{KINDS[kind][2]} has no name for {plan.cluster.name}")
    template = KINDS[kind][0](machine)
    job = job_name(plan.name)
    selector = f"nodeSelector:\n  cloud.google.com/gke-accelerator: {name}" if name else ""
    return (
        fill(
            template,
            name=python_comment(plan.name),
            digest=plan.sha256[:16],
            mesh=python_comment(" > ".join(f"{a.name} {a.size}" for a in plan.mesh.axes)),
            job=job,
            quoted_job=yaml_string(job),
            machine=name,
            nodes=str(machine.nodes),
            slices=str(machine.slices),
            hosts=str(machine.hosts),
            devices=str(machine.devices),
            topology=machine.topology,
            pod=pod_of_gpus(machine, f"{job}-node-0-0.{job}", variable, selector),
            before=f"{variable} " if variable else "",
            inside=f"env {variable} " if variable else "",
        )
        + "\n"
    )


def pod_of_gpus(machine: Machine, leader: str, variable: str, selector: str = "") -> str:
    """Return the YAML of a Kubernetes pod that runs the ranks of one GPU host; `machine` describes the hosts.

    `leader` is the host name of the rendezvous, `variable` a `NAME=VALUE` to set or "", and `selector` the lines of the
    node selector, or "" if the cluster chooses the host.
    """
    return fill(
        POD_OF_GPUS,
        selector=selector,
        before=f"{variable} " if variable else "",
        nodes=str(machine.nodes),
        devices=str(machine.devices),
        leader=leader,
    )


def job_name(name: str) -> str:
    """Return `name` in the form that Slurm, Kubernetes and SkyPilot accept: at most 50 of a-z, 0-9 and hyphens."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower())[:50].strip("-") or "plan"


POD_OF_GPUS = """
restartPolicy: Never
<selector>
containers:
  - name: train
    image: IMAGE
    command: [bash, -c]
    args:
      - >-
        <before>exec torchrun --nnodes <nodes> --nproc-per-node <devices> --node-rank "$JOB_COMPLETION_INDEX"
        --master-addr <leader> --master-port 29500 SCRIPT
    resources:
      limits:
        nvidia.com/gpu: <devices>
    volumeMounts:
      - name: shared-memory
        mountPath: /dev/shm
volumes:
  - name: shared-memory
    emptyDir:
      medium: Memory
"""

JOBSET_GPU = """
# <name> (sha256 <digest>): <mesh>.
# Set IMAGE and SCRIPT; then: kubectl apply -f FILE
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: <quoted_job>
spec:
  network:
    enableDNSHostnames: true
  failurePolicy:
    maxRestarts: 3
  replicatedJobs:
    - name: node
      replicas: 1
      template:
        spec:
          parallelism: <nodes>
          completions: <nodes>
          completionMode: Indexed
          backoffLimit: 0
          template:
            spec:
              <pod>
"""

JOBSET_TPU = """
# <name> (sha256 <digest>): <mesh>.
# One process a host drives its chips. Set IMAGE and SCRIPT; then: kubectl apply -f FILE
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: <quoted_job>
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: 3
  replicatedJobs:
    - name: slice
      replicas: <slices>
      template:
        spec:
          parallelism: <hosts>
          completions: <hosts>
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: <machine>
                cloud.google.com/gke-tpu-topology: <topology>
              containers:
                - name: train
                  image: IMAGE
                  command: [bash, -c]
                  args: [SCRIPT]
                  resources:
                    limits:
                      google.com/tpu: <devices>
"""

XPK_GPU = """
#!/usr/bin/env bash
# <name> (sha256 <digest>): <mesh>.
# CLUSTER=... IMAGE=... bash FILE COMMAND [ARGUMENT...]: the command starts the ranks of one node.
set -euo pipefail

exec xpk workload create --workload <job> --cluster "${CLUSTER:?}" --docker-image "${IMAGE:?}" \\
    --device-type <machine> --num-nodes <nodes> --command "<inside>${*:?}"
"""

XPK_TPU = """
#!/usr/bin/env bash
# <name> (sha256 <digest>): <mesh>.
# CLUSTER=... IMAGE=... bash FILE COMMAND [ARGUMENT...]: the command runs on every host of every slice.
set -euo pipefail

exec xpk workload create --workload <job> --cluster "${CLUSTER:?}" --docker-image "${IMAGE:?}" \\
    --tpu-type <machine> --num-slices <slices> --command "${*:?}"
"""

SKYPILOT = """
# <name> (sha256 <digest>): <mesh>.
# sky launch FILE --env SCRIPT="train.py ..."
name: <quoted_job>
num_nodes: <nodes>
resources:
  accelerators: <machine>:<devices>
  network_tier: best
envs:
  SCRIPT: ""
run: |
  set -euo pipefail
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  <before>exec torchrun --nnodes <nodes> --nproc-per-node <devices> --node-rank "$SKYPILOT_NODE_RANK" \\
      --master-addr "$HEAD" --master-port 29500 ${SCRIPT:?}
"""

Template = Callable[[Machine], str]
KINDS: dict[str, tuple[Template, Callable[[Machine], str], str]] = {
    "jobset": (lambda m: JOBSET_TPU if m.tpu else JOBSET_GPU, lambda m: m.gke, "GKE"),
    "xpk": (lambda m: XPK_TPU if m.tpu else XPK_GPU, lambda m: m.xpk, "xpk"),
    "skypilot": (lambda m: SKYPILOT, lambda m: "" if m.tpu else m.skypilot, "SkyPilot"),
}
"""The kinds of file: the template, the machine's name in that system, and the name of the system."""
