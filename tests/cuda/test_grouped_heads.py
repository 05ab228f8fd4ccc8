"""Kernels of attention that take as many key heads as query heads are given so many, in memory and time too."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from planc.backends.cuda.analysis.attention import attention_kernel
from planc.backends.cuda.analysis.peak_memory import peak_memory
from planc.backends.cuda.models.llama import Core
from planc.checks import check_plan
from planc.costing.compute.attention import attention_s
from planc.costing.machine.rates import memory_bytes_per_s
from planc.ir.sharding import Sharded
from planc.lowering import lower_plan
from tests.plans import propagated

from .cases import FSDP, plan_of
from .moe_cases import moe_case


def laid_out(kernel: str) -> Sharded:
    """A model of 8 query heads and 4 key heads, of 8 numbers each, on GPUs."""
    chosen, batch = f"attention.core as {kernel}", "32 x 24 tokens microbatch 4"
    plan = plan_of("grouped", "fsdp 8", FSDP, chosen, cluster="1 x h100_node", batch=batch)
    sharded = propagated(plan)
    return replace(sharded, attention=attention_kernel(sharded))


@pytest.mark.parametrize(("kernel", "heads"), [("flash", 4), ("unfused", 4), ("efficient", 8), ("cudnn", 8)])
def test_a_kernel_that_takes_no_grouped_heads_is_given_a_key_for_each(kernel: str, heads: int) -> None:
    emitted: Any = lower_plan(check_plan(laid_out(kernel).plan), "cuda").load()
    q, k = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 4, 8)
    given = emitted.with_kernel(lambda *inputs: inputs, q, k, -k)
    assert torch.equal(given[0], q) and torch.equal(given[1], -given[2])
    assert [h for h in range(heads) if torch.equal(given[1][:, :, h], k[:, :, h * 4 // heads])] == list(range(heads))
    assert given[1].shape[2] == heads


@pytest.mark.parametrize(("key_heads", "ranks"), [(2, 4), (1, 2), (4, 4), (4, 2)])
def test_each_rank_takes_the_keys_of_its_heads(key_heads: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 query heads over the ranks, and all keys on each of them."""
    sentences = (f"tp {ranks}", "shard heads over tp", "replicate kv_heads over tp")
    plan = plan_of("whole_keys", *sentences, model=f"llama_micro(kv_heads = {key_heads})")
    emitted: Any = lower_plan(check_plan(plan), "cuda").load()
    keys = torch.arange(key_heads).view(1, 1, key_heads, 1).expand(1, 3, key_heads, 8)
    plain = SimpleNamespace(to_local=lambda grad_placements: keys)
    monkeypatch.setattr(emitted, "DTensor", SimpleNamespace(from_local=lambda *given, **named: plain))
    own = 8 // ranks
    for rank in range(ranks):
        mesh = SimpleNamespace(size=lambda: ranks, get_local_rank=lambda rank=rank: rank)
        _, taken, _ = emitted.ReplicatedKV()._take(mesh, None, (torch.empty(1, 3, own, 8), keys, keys))
        used = [head * key_heads // 8 for head in range(rank * own, (rank + 1) * own)]
        assert taken[0, 0, :, 0].tolist() == sorted(set(used))


class Attended(TorchFunctionMode):
    """Notes the heads of the keys that attention is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.key_heads: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.key_heads.append(args[1].shape[1])
            return args[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("window", "heads"), [(0, 2), (3, 8)])
def test_a_window_is_given_a_key_for_each_head_on_a_gpu(
    window: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mask rules flash out, and the math kernel would be what is left."""
    monkeypatch.setattr(Core, "_attention_mask", lambda core, rows, tokens, device: torch.ones(rows, tokens) > 0)
    with FakeTensorMode(), Attended() as seen:
        q, k = torch.empty(1, 8, 8, 8, device="cuda"), torch.empty(1, 8, 2, 8, device="cuda")
        Core(window)(q, k, k)
    assert seen.key_heads == [heads]


def test_repeated_keys_are_kept_and_take_time() -> None:
    """By hand: 4 sequences of 24 tokens, 8 query heads that share 4 key heads, 8 numbers each, in fp32, 4 layers."""
    grouped, repeated = laid_out("flash"), laid_out("efficient")
    sequences, tokens, width, layers = 4, 24, 8, 4
    one_head = sequences * tokens * width * 4
    held = [peak_memory(s, [{0: 1}])[0].activations for s in (grouped, repeated)]
    assert held[1] - held[0] == 2 * layers * (8 - 4) * one_head
    chip = grouped.plan.cluster.chip
    times = [attention_s(s, s.op["attention.core"], chip, backward=False) for s in (grouped, repeated)]
    moved = 2 * (8 + 4) * one_head
    assert times[1] - times[0] == pytest.approx(moved / memory_bytes_per_s(chip))


def test_a_ring_of_narrow_values_is_plain_attention() -> None:
    """Keys of 12 numbers and values of 8: one part of a ring beside autograd's own."""
    emitted: Any = lower_plan(check_plan(moe_case("deepseek_ring")), "cuda").load()
    q, k = (torch.randn(2, 3, 6, 12, dtype=torch.float64).requires_grad_() for _ in range(2))
    v = torch.randn(2, 3, 6, 8, dtype=torch.float64).requires_grad_()
    scores = (q @ k.transpose(2, 3) * 12**-0.5).masked_fill(torch.ones(6, 6).triu(1) > 0, float("-inf"))
    plain, grad = scores.softmax(-1) @ v, torch.randn(2, 3, 6, 8, dtype=torch.float64)
    plain.backward(grad)
    out, log_sum = emitted.attend_part(q.detach(), k.detach(), v.detach(), True)
    torch.testing.assert_close(out, plain.detach())
    torch.testing.assert_close(log_sum, scores.logsumexp(-1).detach().to(log_sum.dtype))
    found = emitted.attend_part_backward(grad, q.detach(), k.detach(), v.detach(), out, log_sum, True)
    for mine, given in zip(found, (q, k, v), strict=True):
        torch.testing.assert_close(mine, given.grad)


def test_padded_values_take_time() -> None:
    """By hand: 12 + 12 columns are multiplied where keys have 12 and values 8."""
    sharded = propagated(moe_case("deepseek_ring"))
    o, chip = sharded.op["attention.core"], sharded.plan.cluster.chip
    kernel = attention_kernel(sharded)
    assert kernel is not None and kernel.pads_values
    wide, narrow = (replace(sharded, attention=replace(kernel, pads_values=pads)) for pads in (True, False))
    times = [attention_s(s, o, chip, backward=False) - chip.launch_s for s in (wide, narrow)]
    assert times[0] / times[1] == pytest.approx(24 / 20)
