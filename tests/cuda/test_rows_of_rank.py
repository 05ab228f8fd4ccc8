"""A lookup over a divided vocabulary: every rank's rows and gradients together are those of one table."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from planc.checks import check_plan
from planc.lowering import lower_plan

from .cases import TP, plan_of


@pytest.mark.parametrize("padding", [None, 5])
@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_and_gradients_of_all_ranks_are_those_of_one_table(ranks: int, padding: int | None) -> None:
    program = lower_plan(check_plan(plan_of("rows", "tp 2", TP)), "cuda", version="installed").load()
    table = torch.randn(11, 4, requires_grad=True)
    tokens = torch.randint(11, (2, 30)).index_fill(1, torch.tensor([3]), 5)
    whole = F.embedding(tokens, table, padding_idx=padding)
    grad = torch.randn_like(whole)
    (of_table,) = torch.autograd.grad(whole, table, grad)
    size, rows = -(-11 // ranks), torch.zeros_like(whole)
    parts: list[torch.Tensor] = []
    for rank in range(ranks):
        part = table.detach()[rank * size : (rank + 1) * size].requires_grad_()
        index = tokens - rank * size
        mine = (index >= 0) & (index < len(part))
        looked = program.RowsOfRank.apply(part, index, mine, mine & (tokens != (-1 if padding is None else padding)))
        rows += looked.detach()
        parts += torch.autograd.grad(looked, part, grad)
    assert torch.equal(rows, whole)
    assert torch.allclose(torch.cat(parts), of_table, rtol=0, atol=1e-6)
