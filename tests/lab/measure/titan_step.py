"""A training step of torchtitan 0.3.0's own model, layout, loss and clipping, on fake ranks: figures as JSON.

`titan_step.py '{"model": "llama3", "flavor": "8B", ...}'`, in an environment with torch 2.13 and torchtitan.
"""
# mypy: ignore-errors
# torchtitan is not in the checkout's environment.

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.lab.measure import step_figures

BACKEND = "partial_dtensor"
"""Its default, spmd_types, wants parameters that torch 2.13 refuses."""
LOSSES = {True: "ChunkedLossWrapper", False: "CrossEntropyLoss"}


def main(options: dict) -> dict:
    """Run the step of `options` and return its figures."""
    os.environ.setdefault("LOCAL_RANK", "0")
    importlib.import_module("torchtitan.distributed.fsdp")
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("torchtitan") and hasattr(module, "device_type"):
            module.device_type = "cpu"
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims, utils

    dp, tp, ep, tokens = (options.get(key, 1) for key in ("dp", "tp", "ep", "tokens"))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=dp * tp)
    parallelism = ParallelismConfig(
        data_parallel_shard_degree=dp, tensor_parallel_degree=tp, expert_parallel_degree=ep, spmd_backend=BACKEND
    )
    training = TrainingConfig(local_batch_size=1, seq_len=tokens)
    utils.set_spmd_backend(BACKEND)
    dims = ParallelDims.from_config(parallelism, dp * tp)
    dims.build_mesh()
    _one_attention(tokens, options.get("top_k", 1))
    model, vocab = _model(options, dims, training, parallelism, CompileConfig(enable=False))
    losses = importlib.import_module("torchtitan.components.loss")
    inner = losses.CrossEntropyLoss.Config(global_vocab_size=vocab)
    chunked = options["chunked"]
    loss_fn = (losses.ChunkedLossWrapper.Config(loss_fn=inner) if chunked else inner).build()
    if chunked:
        loss_fn.set_lm_head(model.lm_head)
    with FakeTensorMode(allow_non_fake_inputs=True):
        return _step(model, loss_fn, chunked, tokens, dp, dims, utils, ep > 1)


def _one_attention(tokens: int, top_k: int) -> None:
    """Attention is one op, whose output selective recomputation keeps; experts get equal shares of the tokens."""
    blocks = importlib.import_module("torchtitan.models.common.attention")
    policy = importlib.import_module("torchtitan.distributed.activation_checkpoint")
    dispatch = importlib.import_module("torchtitan.models.common.token_dispatcher")

    def forward(self, q_BLNH, k_BLNH, v_BLNH, **more):  # noqa: N803 - by these names its layout knows them
        return step_figures.attention(*(x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH)))[0].transpose(1, 2)

    def shares(self, local, remote, ranks):
        rows = [tokens * top_k // ranks] * ranks
        return torch.ops._c10d_functional.wait_tensor(remote).reshape(-1), rows, rows

    kept = policy._get_default_save_ops
    blocks.FlexAttention.forward = forward
    policy._get_default_save_ops = lambda: kept() | {torch.ops.beside.attention.default}
    dispatch.AllToAllTokenDispatcher._sync_token_count_exchange = shares


def _model(options, dims, training, parallelism, compiling) -> tuple:
    """The divided model on the meta device, and the size of its vocabulary."""
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    family = importlib.import_module(f"torchtitan.models.{options['model']}")
    configs = next(getattr(family, name) for name in dir(family) if name.endswith("_configs"))
    config = configs[options["flavor"]]
    given = {"attn_backend": "flex", "moe_comm_backend": "standard"}
    taken = inspect.signature(config).parameters if callable(config) else ()
    config = config(**{key: value for key, value in given.items() if key in taken}) if callable(config) else config
    config.layers = config.layers[: options["layers"]]
    job = SimpleNamespace(
        parallelism=parallelism,
        training=training,
        compile=compiling,
        debug=SimpleNamespace(moe_force_load_balance=False),
    )
    try:
        config.update_from_config(config=job)
    except TypeError:
        config.update_from_config(trainer_config=job)
    with torch.device("meta"):
        model = config.build()
    parallelize = next(getattr(family, name) for name in dir(family) if name.startswith("parallelize_"))
    parallelize(
        model,
        parallel_dims=dims,
        training=training,
        parallelism=parallelism,
        compile_config=compiling,
        ac_config={"full": FullAC.Config(), "selective": SelectiveAC.Config(), "none": None}[options["recompute"]],
        dump_folder="",
    )
    return model, config.vocab_size


def _step(model, loss_fn, chunked, tokens, dp, dims, utils, experts) -> dict:
    """A step with the optimizer's state, as its trainer runs it."""
    model.to_empty(device="cpu")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    names = (["sparse"] if experts else []) + ["dense", "dataloading"]
    with ExitStack() as within:
        figures = within.enter_context(step_figures.counted(*(dims._global_meshes[name] for name in names)))
        figures.hold([*model.parameters(), *model.buffers()])
        figures.hold(v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor))
        with utils.get_spmd_context(parallel_dims=dims)():
            model._skip_lm_head = chunked
            hidden = model(ids, positions=torch.arange(tokens).expand(1, -1))
            loss, _ = loss_fn(hidden, ids, torch.tensor(float(tokens * dp)))
            del hidden
            loss.backward()
        utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True, pp_mesh=None, ep_enabled=experts)
        optimizer.step()
        optimizer.zero_grad()
    return figures.as_json()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
