"""Imports that go in a circle, or meet a file twice, are refused: exactly those that networkx says are no tree."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from planc.driver import check

FILES = 4
PLAN = """plan example
{imports}
model     llama3_8b(layers = 2)
batch     8 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   fp32
"""
PAIRS = [*permutations(range(FILES + 1), 2), *((n, n) for n in range(1, FILES + 1))]
"""Who may import whom; the plan is 0."""


@given(st.sets(st.sampled_from([(a, b) for a, b in PAIRS if b]), max_size=6))
def test_imports_are_a_tree(edges: set[tuple[int, int]]) -> None:
    graph = nx.DiGraph(edges)
    graph.add_node(0)
    read = graph.subgraph({0} | nx.descendants(graph, 0))
    with TemporaryDirectory() as folder:
        for n in range(FILES + 1):
            lines = "\n".join(f'import "{b}.plan"' for a, b in sorted(edges) if a == n)
            text = PLAN.format(imports=lines) if n == 0 else f"layout l{n} over axis\n{lines}\n"
            (Path(folder) / f"{n}.plan").write_text(text)
        found = [d for d in check(Path(folder) / "0.plan").diagnostics if d.severity == "error"]
    assert (not found) == nx.is_arborescence(read)
    assert {d.code for d in found} <= {"E0111"}
    twice = {f"{n}.plan is imported twice, or imports itself" for n in read if read.in_degree(n) > 1 - (n == 0)}
    assert {d.message for d in found} == twice
