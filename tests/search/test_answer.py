"""A search answers more than its fastest layouts: equal ones in one row, meshes by their end, nodes that are enough."""

import json
from pathlib import Path

import pytest

from planc.cli import main
from planc.compare.clusters import enough_nodes
from planc.driver import search
from planc.searching.space import Space
from tests.plans import written
from tests.search.spaces import in_rows
from tests.search.test_search import DENSE, LAYOUT

SAME = DENSE + "mesh pp 2 > fsdp 2, tp 2\nuse ? over fsdp\nuse tp over tp\nsplit layers over pp as interleaved_1f1b\n"
LARGE = """plan large
model     llama3_70b(layers = 40)
batch     256 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp ? > tp ?
compute   bf16 reduce fp32
recompute blocks
"""


def test_layouts_that_are_printed_alike_share_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, SAME)
    found = search(path, top=20)
    first = next(c for c in found.best if c.same)
    assert all(c.printed == first.printed and c.text != first.text for c in first.same)
    assert len({c.printed for c in found.best}) == len(found.best)
    assert len(in_rows(found)) == sum(1 + len(c.same) for c in found.best) > len(found.best)
    assert main(["search", str(path), "--top", "20"]) == 0
    assert f" {first.row} " in capsys.readouterr().out and f"{first.label} (or " in first.row
    assert [len(c.to_json()["same"]) for c in found.best] == [len(c.same) for c in found.best]


def test_where_nothing_fits_the_nodes_that_are_enough_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, LARGE + LAYOUT)
    assert main(["search", str(path), "--format", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    enough, meshes = answer["enough"], answer["meshes"]
    assert meshes.keys() <= {"memory", "rule"} and meshes["memory"]
    assert enough["nodes"] > 1 and enough["layout"]["memory_gib"] <= 80
    path.write_text(LARGE.replace("1 x h100", f"{enough['nodes']} x h100") + LAYOUT)
    assert search(path, top=1).best
    path.write_text(LARGE.replace("1 x h100", f"{enough['nodes'] // 2} x h100") + LAYOUT)
    assert not search(path, top=1).best


def test_nodes_that_no_sentence_counts_are_not_asked_about(tmp_path: Path) -> None:
    path = written(tmp_path, (LARGE + LAYOUT).replace("1 x h100_node", "tpu_v5e(2x2)"))
    assert enough_nodes(path, seconds=9, on_nodes=lambda _: None) is None


def test_a_schedule_after_use_is_open_as_after_split(tmp_path: Path) -> None:
    text = DENSE + "mesh pp 2 > fsdp 4\nuse fsdp over fsdp\n{} over pp as {}\n"
    for method in ("?", "interleaved_1f1b(chunks = ?)"):
        one, other = (Space(written(tmp_path, text.format(verb, method))) for verb in ("use pp", "split layers"))
        assert [p and p.text for p in one.pipelines(2)] == [p and p.text for p in other.pipelines(2)]
        assert len(one.pipelines(2)) > 1
