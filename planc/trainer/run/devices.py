"""Finds the accelerators of this machine."""

from __future__ import annotations


def cuda_devices() -> tuple[str, int]:
    """Return the name and the number of this machine's CUDA devices; "" and 0 if there are none."""
    import torch

    if not torch.cuda.is_available():
        return "", 0
    return torch.cuda.get_device_name(), torch.cuda.device_count()
