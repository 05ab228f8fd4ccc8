"""A user's own loop: torch, one emitted file, one model. planc is not imported.

python own_driver.py EMITTED.py, in each of the ranks.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from own_model import VOCAB, OwnModel
from torch.distributed.tensor import DTensor

SEQUENCES, TOKENS = 16, 32


def main(path: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = OwnModel()  # the same weights on every rank, as the seed is the same
    reference = copy.deepcopy(model)
    batch = torch.randint(0, VOCAB, (SEQUENCES, TOKENS + 1))
    tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()

    expected = F.cross_entropy(reference(tokens).flatten(0, 1), targets.flatten())
    expected.backward()
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)

    spec = importlib.util.spec_from_file_location("emitted", path)
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    dist.init_process_group("gloo")
    mesh = emitted.build_mesh("cpu")
    model = emitted.parallelize(model, mesh)
    index, count = emitted.data_rank(mesh)
    rows = slice(index * SEQUENCES // count, (index + 1) * SEQUENCES // count)
    loss = emitted.build_step(model, mesh)(tokens[rows], targets[rows])
    emitted.clip_grad_norm(model, mesh, 1.0)

    worst = 0.0
    for (name, parameter), whole in zip(model.named_parameters(), reference.parameters(), strict=True):
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        assert whole.grad.abs().max() > 0, name
        worst = max(worst, ((grad - whole.grad).abs().max() / whole.grad.abs().max()).item())
    if dist.get_rank() == 0:
        found = {"loss": abs(loss.item() - expected.item()) / expected.item(), "gradient": worst}
        print(json.dumps({**found, "planc": "planc" in sys.modules}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # as planc.trainer.run.launch.leave, which this driver must not import


if __name__ == "__main__":
    main(sys.argv[1])
