"""Copies a module without its weights, to run it on meta or fake tensors, and finds the source line of errors."""

from __future__ import annotations

import copy
import os
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

OWN_FOLDER = f"{Path(__file__).parents[4]}/"
"""Files below this folder are planc's, not those of a user's model."""


def without_weights(module: nn.Module) -> nn.Module:
    """Returns a copy of `module` on the meta device, without its weights."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def place(error: Exception) -> str:
    """Returns `FILE:LINE` of the innermost line of the model's source in the traceback of `error`; "the model" if there
    is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    own = [f for f in frames if not f.filename.startswith(OWN_FOLDER)]
    if not own:
        return "the model"
    return f"{shown_file(own[-1].filename)}:{own[-1].lineno}"


def shown_file(name: str) -> str:
    """Returns the path `name` of a source file as shown to users: relative to site-packages or the working directory,
    else with its parent folder.

    >>> shown_file("/usr/lib/python3/site-packages/pkg/model.py"), shown_file("/srv/models/mine.py")
    ('pkg/model.py', 'models/mine.py')
    """
    inside = name.removeprefix(f"{os.getcwd()}/").rpartition("site-packages/")[2]
    return "/".join(Path(inside).parts[-2:]) if inside.startswith("/") else inside


def first_line(error: Exception) -> str:
    """Returns the first line of the message of `error`."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
