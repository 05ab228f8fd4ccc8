"""A leaf with a parameter's dims lies as that parameter does, in every layout; no framework is needed."""

from __future__ import annotations

import pytest

from planc.backends.xla.analysis.layouts import param_spec
from planc.backends.xla.runtime.trees.layout import specs_by_shape, specs_of
from planc.ir.plan import NOUNS
from planc.ir.sharding import Sharded
from tests.plans import propagated
from tests.xla.cases import LAYOUTS, UNEVEN, sharded
from tests.xla.moe_cases import MOE, moe_plan

ALL = [name for name in (*LAYOUTS, *MOE) if name not in UNEVEN]
"""Trees of a user's own have equal parts: what planc stores filled up stays whole there."""


def layout(name: str) -> Sharded:
    return propagated(moe_plan(name)) if name in MOE else sharded(name)


@pytest.mark.parametrize("name", ALL)
def test_a_leaf_lies_as_the_parameter_that_it_names(name: str) -> None:
    of = layout(name)
    for p in of.params:
        shape, groups = of.model.shape(p.param), p.param.shape_dims
        for noun in NOUNS:
            expected = param_spec(of.plan, p, noun)
            assert list(specs_of(of, noun, shape, groups, p.param.name)) == [expected], (p.param.name, noun)
            stacked = specs_of(of, noun, (of.model.layers, *shape), (("layers",), *groups), p.param.name)
            assert list(stacked) == [((), *expected)], (p.param.name, noun)


@pytest.mark.parametrize("name", ALL)
def test_what_a_shape_tells_is_among_the_layouts_of_its_dims(name: str) -> None:
    of = layout(name)
    for p in of.params:
        assert param_spec(of.plan, p, "params") in specs_by_shape(of, "params", of.model.shape(p.param))
