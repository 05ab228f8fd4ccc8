"""Computes the number of ranks that torchrun, srun or deepspeed starts, from its flags."""

from __future__ import annotations

from collections.abc import Mapping

from planc.diag.span import Span
from planc.interop.document import Given

NODES = ("nnodes", "nodes", "N", "num_nodes")
RANKS = ("nproc_per_node", "ntasks_per_node", "gpus_per_node", "num_gpus")
"""Flags for the number of ranks per node; the first that is given counts."""
_TORCHRUN = (
    "nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts monitor_interval "
    "start_method event_log_handler role module m no_python run_path log_dir redirects r tee t local_ranks_filter "
    "node_rank master_addr master_port local_addr logs_specs numa_binding signals_to_handle use_env shutdown_timeout "
    "duplicate_stdout_filters duplicate_stderr_filters virtual_local_rank u"
)
"""Flags of torchrun (torch/distributed/run.py)."""


def is_unknown(launcher: str, name: str) -> bool:
    """True if `launcher` is torchrun, and `name` is not one of its flags."""
    runs = launcher.endswith(("torchrun", "torch.distributed.run", "torch.distributed.launch"))
    return runs and name not in _TORCHRUN.split()


def world_size(launcher: Mapping[str, Given]) -> tuple[int, int, str, Span] | None:
    """Returns the number of nodes and of ranks that the flags `launcher` start, the names of these flags, and their
    place (file and line). None if no flag gives the ranks per node, or if a number is known only to the shell.

    Without a flag for the number of nodes, it is one.
    """
    ranks = _whole(launcher, RANKS)
    if ranks is None:
        return None
    nodes = _whole(launcher, NODES)
    if nodes is None:
        return None if any(name in launcher for name in NODES) else (1, ranks[0], f"`{ranks[1]}`", ranks[2])
    return nodes[0], nodes[0] * ranks[0], f"`{nodes[1]}` x `{ranks[1]}`", nodes[2]


def _whole(launcher: Mapping[str, Given], names: tuple[str, ...]) -> tuple[int, str, Span] | None:
    for name in names:
        given = launcher.get(name)
        if given is not None and given.certain and str(given.value).isdecimal() and len(str(given.value)) < 9:
            return int(str(given.value)), name, given.span
    return None
