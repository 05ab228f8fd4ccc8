"""First values depend on seed, name and model: not on order, rank or layout."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from planc.catalog import build_model
from planc.trainer.run.initial_weights import init_sha256, initial, names

MODEL = build_model("llama_micro")


def test_values_do_not_depend_on_the_order_of_calls() -> None:
    all_names = list(names(MODEL))
    forward, backward = initial(MODEL, 0), initial(MODEL, 0)
    first = {name: forward(name, shape) for name, shape in all_names}
    for name, shape in reversed(all_names):
        assert np.array_equal(first[name], backward(name, shape))


def test_layers_and_seeds_differ() -> None:
    shape = MODEL.shape(MODEL.param["layers.*.attention.wq.weight"])
    draw = initial(MODEL, 0)
    layer0, layer1 = (draw(f"layers.{n}.attention.wq.weight", shape) for n in (0, 1))
    assert not np.array_equal(layer0, layer1)
    assert not np.array_equal(layer0, initial(MODEL, 1)("layers.0.attention.wq.weight", shape))
    assert init_sha256(MODEL, draw) == init_sha256(MODEL, initial(MODEL, 0)) != init_sha256(MODEL, initial(MODEL, 1))


def test_names_cover_the_model() -> None:
    shapes = dict(names(MODEL))
    assert sum(prod(s) for s in shapes.values()) == MODEL.parameters
    assert "layers.3.feed_forward.w2.weight" in shapes


def test_norms_are_ones_and_the_rest_is_normal() -> None:
    draw = initial(MODEL, 0)
    for name, shape in names(MODEL):
        values = draw(name, shape)
        assert values.dtype == np.float32
        if name.endswith("norm.weight"):
            assert np.all(values == 1)
        else:
            assert values.std() == pytest.approx(0.02, rel=0.1)


def test_a_wide_head_starts_with_small_logits() -> None:
    wide = build_model("llama_micro", {"embed": 4096, "head_dim": 512})
    head = initial(wide, 0)("output.weight", (wide.sizes["vocab"], 4096))
    assert head.std() * 64 == pytest.approx(0.32, rel=0.02)


def test_a_local_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match="not \\(1, 64\\)"):
        initial(MODEL, 0)("output.weight", (1, 64))
