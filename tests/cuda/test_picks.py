"""How experts are picked and weighed, by hand; and the modules' parameters beside those of the op graph."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from planc.backends.cuda.models import family
from planc.catalog import build_model
from planc.ir.model import Routing
from planc.trainer.run.initial_weights import names

torch = pytest.importorskip("torch")
moe = import_module("planc.backends.cuda.models.moe")

LOGITS = [[1.0, 3.0, 2.0, 0.0]]


def picked(routing: Routing, k: int = 2) -> dict[int, float]:
    weights, chosen = moe.picks(torch.tensor(LOGITS), k, routing)
    return dict(zip(chosen[0].tolist(), weights[0].tolist(), strict=True))


def test_softmax_weights_sum_to_one() -> None:
    """exp(3) : exp(2) = e : 1."""
    assert picked(Routing()) == pytest.approx({1: 2.718282 / 3.718282, 2: 1 / 3.718282}, rel=1e-5)


def test_without_a_norm_the_weights_are_the_probabilities_scaled() -> None:
    total = 1 + 2.718282 + 7.389056 + 20.085537
    expected = {1: 16 * 20.085537 / total, 2: 16 * 7.389056 / total}
    assert picked(Routing(normed=False, scale=16.0)) == pytest.approx(expected, rel=1e-5)


def test_sigmoid_affinities_are_normed_and_scaled() -> None:
    one, two = 1 / (1 + 2.718282**-3), 1 / (1 + 2.718282**-2)
    expected = {1: 2.5 * one / (one + two), 2: 2.5 * two / (one + two)}
    assert picked(Routing(scores="sigmoid", scale=2.5)) == pytest.approx(expected, rel=1e-5)


def test_only_the_best_groups_are_picked_from() -> None:
    """The second best expert is in the other group."""
    assert set(picked(Routing(groups=2, groups_kept=1))) == {0, 1}
    assert set(picked(Routing(groups=2, groups_kept=2))) == {1, 2}


def test_a_sigmoid_group_is_as_good_as_its_best_two() -> None:
    """The best expert is in the first group; the second has two good ones."""
    logits = torch.tensor([[4.0, -9.0, 2.0, 2.0]])
    one = Routing(groups=2, groups_kept=1)
    two = Routing(scores="sigmoid", groups=2, groups_kept=1)
    assert moe.picks(logits, 1, one)[1].item() == 0
    assert moe.picks(logits, 1, two)[1].item() in (2, 3)


MICRO = ("llama", "mistral", "qwen3", "mixtral", "qwen3_moe", "deepseek")


@pytest.mark.parametrize("name", [*(f"{family}_micro" for family in MICRO), "deepseek_v2_lite"])
def test_a_module_has_the_parameters_of_its_op_graph(name: str) -> None:
    model = build_model(name)
    with torch.device("meta"):
        module = family(model.family).build(model)
    found = {n: tuple(p.shape) for n, p in module.named_parameters()}
    assert found == dict(names(model))


@pytest.mark.parametrize("counts", [[3, 0, 5, 2], [0, 0, 0, 7], [0, 0, 0, 0]])
def test_one_kernel_multiplies_as_the_experts_one_by_one(counts: list[int]) -> None:
    """In bf16, with experts without rows, and on a rank without any: outputs and all gradients, to a rounding."""
    experts = moe.Experts(4, 16, 24, top_k=1)
    stream = torch.Generator().manual_seed(0)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=stream)
    rows, weights = torch.randn(sum(counts), 16, generator=stream), torch.rand(sum(counts), generator=stream)

    def made(dtype: Any) -> list[Any]:
        given = rows.to(dtype).requires_grad_()
        out = experts.to(dtype)(given, weights, counts)
        found = torch.autograd.grad(out.float().square().sum(), [given, *experts.parameters()])
        return [out.float(), *(gradient.float() for gradient in found)]

    kernel = experts.to(torch.bfloat16).each(rows.bfloat16(), counts)
    assert isinstance(kernel, torch.Tensor) == (sum(counts) > 0)
    for narrow, wide in zip(made(torch.bfloat16), made(torch.float32), strict=True):
        torch.testing.assert_close(narrow, wide, atol=2e-2, rtol=2e-2)
