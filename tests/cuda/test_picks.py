"""How experts are picked and weighed, by hand; and the modules' parameters beside those of the op graph."""

from __future__ import annotations

from importlib import import_module

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
