"""Published layouts beside the best that is found with their batch, their precision and no more memory."""

from __future__ import annotations

import pytest

from tests.lab.bench.published import PUBLISHED, beside

NEAR = 1.10
LONG = ("megatron_1t_a100", "deepseek_v3_h800")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else [], id=n) for n in PUBLISHED]
)
def test_a_published_layout_is_near_the_best(name: str) -> None:
    found = beside(name)
    assert found.best_gib <= found.published_gib
    assert found.ratio <= NEAR


def test_a_layout_of_the_space_is_no_faster_than_the_best() -> None:
    """405B's embedding and head have stages of their own, as some of the layouts that were searched."""
    found = beside("llama3_405b_8k")
    assert found.ratio >= 1 and "stages [embed, 126 x 1 layers, head]" in found.label
