"""How a rank of an experiment joins the others: a device each, or all on one."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist


def join(*, shared: bool) -> torch.device:
    """Start torch.distributed, and return this rank's device.

    Args:
        shared: all ranks are on the first device, over gloo: NCCL refuses two ranks of one device. Without a device
            they are on the CPU.
    """
    if shared:
        os.environ["LOCAL_RANK"] = "0"
    on_device = torch.cuda.is_available()
    if shared or not on_device:
        dist.init_process_group("gloo")
    if shared:
        send_through_host()
    if not on_device:
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if not shared:
        dist.init_process_group("nccl", device_id=device)
    return device


class _Received:
    """A receive into the host's memory; `wait` copies it to where it belongs."""

    def __init__(self, work: Any, host: torch.Tensor, tensor: torch.Tensor) -> None:
        self._work, self._host, self._tensor = work, host, tensor

    def wait(self, *arguments: Any) -> bool:
        self._work.wait(*arguments)
        with torch.no_grad():
            self._tensor.copy_(self._host)
        return True


class _Sent:
    """A send from the host's memory, which is kept until the send is done."""

    def __init__(self, work: Any, host: torch.Tensor) -> None:
        self._work, self._host = work, host

    def wait(self, *arguments: Any) -> bool:
        self._work.wait(*arguments)
        return True


def send_through_host() -> None:
    """Let sends and receives of this process go through the host's memory: gloo reduces, gathers and exchanges CUDA
    tensors, but it sends them from point to point as if their addresses were the host's."""
    sends, receives = dist.isend, dist.irecv
    send_objects, receive_objects = dist.send_object_list, dist.recv_object_list

    def one(op: Any) -> Any:
        if op.op is sends:
            host = op.tensor.detach().cpu()
            return _Sent(sends(host, group=op.group, tag=op.tag, group_dst=op.group_peer), host)
        host = torch.empty_like(op.tensor, device="cpu")
        return _Received(receives(host, group=op.group, tag=op.tag, group_src=op.group_peer), host, op.tensor)

    def batch(operations: list[Any]) -> list[Any]:
        return [one(op) for op in operations]

    def objects_from_host(call: Any) -> Any:
        return lambda *arguments, **named: call(*arguments, **{**named, "device": torch.device("cpu")})

    from torch.distributed.pipelining import schedules

    dist.batch_isend_irecv = batch  # type: ignore[assignment]
    schedules._batch_p2p = lambda operations, desc=None: batch(operations)  # type: ignore[assignment]
    dist.send_object_list = objects_from_host(send_objects)
    dist.recv_object_list = objects_from_host(receive_objects)
