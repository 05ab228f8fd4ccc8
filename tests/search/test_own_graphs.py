"""A search on a machine that is written as a graph of links returns what costing every layout of its space returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.searching import search
from planc.searching.space import Space
from tests.graph.test_own_graphs import HARDWARE
from tests.plans import written
from tests.search.spaces import first_rows, in_rows
from tests.search.test_search import LAYOUT, MOST, _every

TREE = "fat_tree(nodes = 4, chips = 4, leaf = 2, spines = 1, cards = 2, link = nvlink, out = ib)"
RAIL = "rail(nodes = 4, chips = 4, link = nvlink, out = ib)"
SPACE = """plan space
import    "acme.plan"
model     llama3_8b(layers = 4)
batch     32 x 4096 tokens microbatch 1
cluster   pod
mesh      {mesh}
compute   fp32
"""


@pytest.mark.parametrize("mesh", ["fsdp ? > tp ?", "tp ? > fsdp ?", "fsdp ?, tp ?"])
@pytest.mark.parametrize("part", [TREE, RAIL])
def test_it_equals_brute_force(part: str, mesh: str, tmp_path: Path) -> None:
    written(tmp_path, f"{HARDWARE}graph pod of h100\nfabric a = {part}\n", "acme")
    path = written(tmp_path, SPACE.format(mesh=mesh) + LAYOUT)
    layouts = _every(path)
    assert len(layouts) > 1
    assert in_rows(search(Space(path, None, MOST), top=5)) == first_rows(layouts, 5)
