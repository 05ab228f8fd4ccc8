"""The load-balancing loss by its formula, against the gradient that a router is given."""

from __future__ import annotations

from importlib import import_module

import pytest

from planc.catalog import build_model
from planc.ir.model import Routing
from planc.ir.session import Settings
from tests.cuda.cases import CP, FSDP, plan_of
from tests.plans import propagated

torch = pytest.importorskip("torch")
balance = import_module("planc.backends.cuda.models.balance")
moe = import_module("planc.backends.cuda.models.moe")
routing = import_module("planc.backends.cuda.runtime.routing")

BATCH, LENGTH, EXPERTS, K = 3, 10, 8, 2
ROUTINGS = (Routing(), Routing(scores="sigmoid", scale=2.5, groups=4, groups_kept=2))


def routed(routing: Routing):  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    logits = torch.randn(BATCH * LENGTH, EXPERTS, dtype=torch.float64, requires_grad=True)
    weights, chosen = moe.picks(logits, K, routing)
    return logits, weights, chosen


def by_formula(logits, chosen, routing: Routing):  # type: ignore[no-untyped-def]
    """X / k sum_i f_i P_i of each sequence, their mean; Fedus et al. 2021, equation 4, for k picks a token."""
    total = 0.0
    scores = logits.sigmoid() if routing.scores == "sigmoid" else logits.softmax(-1)
    for part, picked in zip((scores / scores.sum(-1, keepdim=True)).split(LENGTH), chosen.split(LENGTH), strict=True):
        f = torch.stack([(picked == i).double().sum() / LENGTH for i in range(EXPERTS)])
        total = total + EXPERTS / K * (f * part.mean(0)).sum()
    return total / BATCH


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_gradient_is_that_of_the_formula(routing: Routing) -> None:
    logits, weights, chosen = routed(routing)
    value = by_formula(logits, chosen, routing)
    (expected,) = torch.autograd.grad(weights.square().sum() + 0.3 * value, logits, retain_graph=True)
    (plain,) = torch.autograd.grad(weights.square().sum(), logits, retain_graph=True)
    held = balance.Balance(0.3 / BATCH, torch.zeros(EXPERTS, dtype=torch.int64))
    watched = held(weights, logits, chosen, BATCH, routing)
    assert torch.equal(watched, weights)
    (found,) = torch.autograd.grad(watched.square().sum(), logits)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found, plain, rtol=1e-3)


def test_an_even_router_has_a_loss_of_one() -> None:
    chosen = torch.arange(BATCH * LENGTH * K).view(-1, K) % EXPERTS
    logits = torch.zeros(BATCH * LENGTH, EXPERTS, dtype=torch.float64)
    assert by_formula(logits, chosen, Routing()).item() == pytest.approx(1.0)


def test_picks_are_counted_once_for_each_backward() -> None:
    logits, weights, chosen = routed(Routing())
    held = balance.Balance(0.0, torch.zeros(EXPERTS, dtype=torch.int64))
    watched = held(weights, logits, chosen, BATCH, Routing())
    assert held.picked.sum() == 0, "a forward that is replayed must not count"
    watched.sum().backward()
    assert held.picked.tolist() == torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()


def test_equal_scores_pick_the_lower_number() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert moe.picks(scores, 2, Routing())[1].tolist() == [[1, 2], [0, 1]]


def test_a_module_that_nothing_watches_is_as_before() -> None:
    module = moe.MoE(build_model("mixtral_micro"))
    torch.nn.init.normal_(module.router.weight)
    for part in (module.experts.w1, module.experts.w2, module.experts.w3):
        torch.nn.init.normal_(part.weight, std=0.1)
    x = torch.randn(2, 6, 64)
    plain = module(x)
    module.balance = balance.Balance(0.5, torch.zeros(8, dtype=torch.int64))
    assert torch.equal(module(x), plain)


@pytest.mark.parametrize(
    ("mesh", "ranks"), [(("fsdp 4", FSDP), 1), (("fsdp 2 > cp 2", FSDP, CP), 2), (("cp 4", CP), 4)]
)
def test_ranks_that_share_sequences_have_a_part_of_the_sum_each(mesh: tuple[str, ...], ranks: int) -> None:
    """Gradients are a mean over these ranks, so each part of the sum over a sequence's tokens counts so often."""
    sharded = propagated(plan_of("balanced", *mesh, model="mixtral_micro"))
    per_rank = sharded.plan.batch.sequences // sharded.plan.data_parallel
    assert routing._slope(sharded, Settings(balance_loss=0.3), object()) == pytest.approx(0.3 * ranks / per_rank)


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_the_reference_balances_whole_sequences_though_experts_are_limited_by_parts(cp: int) -> None:
    """With places for every row, parts of a sequence give what the whole one does."""
    reference = import_module("planc.backends.cuda.runtime.reference")
    plan = plan_of(
        *("parts", f"cp {cp}", "use cp over cp as all_gather", "route experts as capacity(factor = 8)"),
        model="mixtral_micro(layers = 1)",
    )
    found = []
    for limited in (False, True):
        torch.manual_seed(0)
        whole = torch.nn.Module()
        whole.layers = torch.nn.ModuleDict({"0": torch.nn.Module()})
        module = whole.layers["0"].moe = moe.MoE(plan.model)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        module.balance = balance.Balance(0.5, torch.zeros(plan.model.sizes["experts"], dtype=torch.int64))
        if limited:
            reference.limit_rows(whole, plan)
        module(torch.randn(2, plan.batch.sequence_tokens, plan.model.sizes["embed"])).square().sum().backward()
        found.append(module.router.weight.grad)
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
