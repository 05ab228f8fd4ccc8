"""The module of context parallelism, with its facts set: each variant beside attention over whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.programs import variant

RANKS, TOKENS, HEADS = 3, 24, 2
Tensors = tuple[torch.Tensor, ...]


def module(**facts: Any) -> Any:
    return variant("planc.backends.cuda.program", "context_parallel", **facts)


def on_all_ranks(run: Callable[[int, Any], Any], program: Any = None) -> list[Any]:
    """The results of all ranks, a thread each; parts that `program` sends on go from thread to thread."""
    queues = [SimpleQueue[list[torch.Tensor]]() for _ in range(RANKS)]

    def send_on(mesh: Any, parts: list[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor]]:
        rank = mesh.get_local_rank()
        queues[(rank + 1) % RANKS].put([p.clone() for p in parts])
        return [], queues[rank].get(timeout=20)

    if program is not None:
        program.send_on = send_on
    meshes = [SimpleNamespace(size=lambda: RANKS, get_local_rank=lambda rank=rank: rank) for rank in range(RANKS)]
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(run, range(RANKS), meshes))


def rows(rank: int, *, balanced: bool) -> torch.Tensor:
    pieces = torch.arange(TOKENS).chunk(2 * RANKS if balanced else RANKS)
    return torch.cat((pieces[rank], pieces[-1 - rank])) if balanced else pieces[rank]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    back = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    hidden = (back < 0) | (back >= (window or TOKENS))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v


@pytest.mark.parametrize("saves_rings", [False, True])
@pytest.mark.parametrize("width", [8, 6])
@pytest.mark.parametrize("window", [0, 5, 11])
@pytest.mark.parametrize("balanced", [True, False])
def test_a_ring_is_attention_over_whole_sequences(balanced: bool, window: int, width: int, saves_rings: bool) -> None:
    program = module(balanced=balanced, window=window, pads_values=width < 8, saves_rings=saves_rings)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, h, TOKENS, n) for h, n in ((HEADS, 8), (1, 8), (1, width)))
    whole = [x.requires_grad_() for x in (q, k, v)]
    out = attention(q, k, v, window)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, whole, grad)

    def run(rank: int, mesh: Any) -> Tensors:
        own, saved = rows(rank, balanced=balanced), SimpleNamespace()
        ctx = SimpleNamespace(save_for_backward=lambda *tensors: saved.__setattr__("tensors", tensors))
        local = [x.detach()[:, :, own] for x in whole]
        found = program.RingAttention.forward(ctx, *local, mesh)
        ctx.saved_tensors = saved.tensors
        return found, *program.RingAttention.backward(ctx, grad[:, :, own])[:3]

    order = torch.cat([rows(rank, balanced=balanced) for rank in range(RANKS)]).argsort()
    found = [torch.cat(parts, 2)[:, :, order] for parts in zip(*on_all_ranks(run, program), strict=True)]
    for mine, plain in zip(found, (out, *expected), strict=True):
        torch.testing.assert_close(mine, plain.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("reduce", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_gradients_of_keys_go_round_in_the_dtype_that_they_are_summed_in(reduce: str, dtype: torch.dtype) -> None:
    program, sent = module(reduce=reduce, balanced=False), list[torch.dtype]()

    def send_on(mesh: Any, parts: list[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor]]:
        sent.extend(p.dtype for p in parts)
        return [], parts

    program.send_on = send_on
    x = torch.ones(1, 1, 2, 8)
    mesh = SimpleNamespace(size=lambda: 1, get_local_rank=lambda: 0)
    ctx = SimpleNamespace(saved_tensors=(x, x, x, x, torch.ones(1, 1, 2)), mesh=mesh)
    program.RingAttention.backward(ctx, x)
    assert sent == [dtype, dtype]


def test_a_replay_takes_the_outputs_that_its_forward_made() -> None:
    program = module(saves_rings=True, balanced=False)
    forward, replay = program.keep_rings()
    x, mesh = torch.randn(1, 1, 2, 8), SimpleNamespace(size=lambda: 1, get_local_rank=lambda: 0)
    ctx = SimpleNamespace(save_for_backward=lambda *tensors: None)
    with forward:
        first = program.RingAttention.forward(ctx, x, x, x, mesh)
    program.round_the_ring = None
    with replay:
        assert torch.equal(program.RingAttention.forward(ctx, x, x, x, mesh), first)
    assert program.Rings.now is None


@pytest.mark.parametrize("name", ["all_gather_single_autograd", "all_gather_tensor_autograd"])
@pytest.mark.parametrize("balanced", [True, False])
def test_gathered_keys_are_in_order_and_end_at_the_last_row(balanced: bool, name: str) -> None:
    program = module(balanced=balanced, gathers_single=name == "all_gather_single_autograd")
    whole = torch.randn(2, TOKENS, HEADS, 8)
    local = [whole[:, rows(rank, balanced=balanced)] for rank in range(RANKS)]
    program.fc = SimpleNamespace(**{name: lambda x, dim, mesh: torch.cat(local)})

    def run(rank: int, mesh: Any) -> Any:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            assert torch.equal(k, whole[:, : k.shape[1]]) and torch.equal(k[:, -q.shape[1] :], q)
            return q + v[:, -q.shape[1] :]

        return program.attend_gathered(attend, mesh, local[rank], local[rank], local[rank])

    for mine, own in zip(on_all_ranks(run), local, strict=True):
        assert torch.equal(mine, 2 * own)


def test_an_exchange_takes_sequences_to_heads_and_back() -> None:
    program = module()
    whole = torch.arange(2 * TOKENS * 12).view(2, TOKENS, 12)
    sent: dict[int, torch.Tensor] = {}

    def exchange(parts: torch.Tensor, outs: None, ins: None, mesh: Any) -> torch.Tensor:
        sent[mesh.get_local_rank()] = parts
        barrier.wait(20)
        taken = torch.stack([sent[rank][mesh.get_local_rank()] for rank in range(RANKS)])
        barrier.wait(20)
        return taken

    barrier = Barrier(RANKS)
    program.fc = SimpleNamespace(all_to_all_single_autograd=exchange)

    def run(rank: int, mesh: Any) -> Tensors:
        heads = program.sequence_to_heads(whole[:, rows(rank, balanced=False)], mesh)
        return heads, program.heads_to_sequence(heads, mesh)

    for rank, (heads, back) in enumerate(on_all_ranks(run)):
        assert torch.equal(heads, whole[..., 4 * rank : 4 * rank + 4])
        assert torch.equal(back, whole[:, rows(rank, balanced=False)])
