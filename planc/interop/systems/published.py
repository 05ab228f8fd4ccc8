"""Megatron-LM's scripts that name a published model, whose sizes no flag gives then."""

from __future__ import annotations

from planc.interop.shape import catalog_name
from planc.interop.values import Values


def published_model(v: Values) -> str:
    """Returns the catalog's name of the model whose checkpoint a script names in place of sizes; "" if none."""
    named = () if v.is_given("hidden_size") else ("model", "hf_checkpoint")
    return next((name for n in named if v.is_given(n) and (name := catalog_name(v.text(n)))), "")


def experts(v: Values) -> int:
    """Returns the number of experts of a layer, from the flags or else from the model that is named; 0 for none."""
    given = v.maybe_whole("num_experts", minimum=1)
    if given is None and (v.options.model or published_model(v)):
        return v.model().sizes.get("experts", 0)
    return given or 0
