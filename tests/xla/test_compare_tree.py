"""A tree whose leaves are not the plan's parameters is a finding, with the nearest names; no devices are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planc

pytest.importorskip("jax")


def refused(tree: Any) -> str:
    with pytest.raises(planc.PlanError) as caught:
        planc.lower("plans/tiny.plan", target="xla").shardings(tree)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E1206"
    return diagnostic.message


def test_leaves_without_a_rule_are_listed_with_the_nearest_names() -> None:
    kernel = np.zeros((256, 688), np.float32)
    message = refused({"params": {"layers_0": {"mlp": {"wi": {"kernel": kernel}, "wo": {"kernel": kernel}}}}})
    assert "params.layers_0.mlp.wi.kernel has no rule (the nearest names: layers." in message
    assert "params.layers_0.mlp.wo.kernel has no rule" in message


def test_another_width_is_said_with_what_was_expected() -> None:
    weight = np.zeros((4, 256, 688), np.float32)
    assert "layers.feed_forward.w1.weight: 4 x 256 x 688 found, 688 x 256 expected" in refused(
        {"layers.feed_forward.w1.weight": weight}
    )


def test_what_is_no_tree_is_a_finding_too() -> None:
    assert "the tree itself has no rule" in refused(np.zeros(3, np.float32))
