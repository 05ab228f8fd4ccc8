"""A search has an end: its size is known before it starts, and it stops with the best so far."""

import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planc
from planc import driver
from planc.cli import main
from planc.searching import branch_and_bound, search
from planc.searching.result import Ends
from planc.searching.space import Space
from tests.search.test_search import MOST, SPACES

NINE = """plan nine
model     llama3_8b
batch     1000000000 x 8192 tokens microbatch 1
cluster   125000000 x h100_node
mesh      a ? > b ? > c ? > d ? > e ? > f ? > g ? > h ? > i ?
use       fsdp over a, b, c, d, e, f, g
use       tp over h, i
compute   fp32
recompute blocks
"""


def after(asked: int) -> Callable[[], Ends]:
    """Ends a search when it asks for so many times."""
    number = itertools.count(1)
    return lambda: "time" if next(number) >= asked else ""


def space(folder: Path, text: str) -> Space:
    path = folder / "space.plan"
    path.write_text(text)
    return Space(path, None, MOST)


@pytest.mark.parametrize("name", ["fsdp_tp", "microbatch_pp", "hsdp", "everything"])
def test_the_size_of_a_space_is_counted_without_its_meshes(tmp_path: Path, name: str) -> None:
    found = space(tmp_path, SPACES[name])
    assert found.meshes == len(list(found.sizes()))
    assert search(found, top=1).decided <= found.most_layouts


def test_orders_count_in_the_size_of_a_space(tmp_path: Path) -> None:
    """An upper bound: an axis of one rank has no order."""
    found = space(tmp_path, SPACES["any_order"])
    laid = list(found.laid())
    assert len({*laid}) == len(laid) < found.meshes == 6 * len(list(found.sizes()))
    assert search(found, top=1).decided <= found.most_layouts


def test_a_space_of_nine_axes_is_announced_and_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nine.plan"
    path.write_text(NINE)
    assert main(["search", str(path), "--seconds", "0", "--format", "json"]) == 3
    said = capsys.readouterr()
    assert "up to 590,976,100 layouts" in said.err
    answer = json.loads(said.out)
    assert (answer["cut_short"], answer["most_layouts"], answer["best"]) == ("time", 590_976_100, [])


def test_what_was_found_until_the_end_is_returned(tmp_path: Path) -> None:
    """Each prefix of the search gives the best of what was costed in it."""
    all_of_it = search(space(tmp_path, SPACES["fsdp_tp"]), top=3)
    assert all_of_it.cut_short == ""
    counts = []
    for asked in (1, 3, 6, 10_000):
        found = search(space(tmp_path, SPACES["fsdp_tp"]), top=3, ends=after(asked))
        assert found.cut_short == ("time" if asked < 10_000 else "") and found.nearest_miss is None
        counts.append((found.fully_costed, len(found)))
    assert counts == sorted(counts) and counts[0] == (0, 0)
    assert [c.text for c in found] == [c.text for c in all_of_it]


@pytest.mark.parametrize(
    "name", ["fsdp_tp", *(pytest.param(n, marks=pytest.mark.long) for n in ("microbatch_pp", "inner_order"))]
)
def test_a_space_that_is_searched_in_parts_has_the_same_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole = search(space(tmp_path, SPACES[name]), top=3)
    for constant, value in (("LARGE", 0), ("PART", 2), ("PART_NODES", 3)):
        monkeypatch.setattr(branch_and_bound, constant, value)
    forgotten: list[int] = []
    forget = Space.forget_meshes

    def note(self: Space) -> None:
        forgotten.append(1)
        forget(self)

    monkeypatch.setattr(Space, "forget_meshes", note)
    parts = search(space(tmp_path, SPACES[name]), top=3)
    assert len(forgotten) >= space(tmp_path, SPACES[name]).meshes / 2
    assert [(c.text, c.time_s) for c in parts] == [(c.text, c.time_s) for c in whole]
    assert (parts.decided, parts.cut_short) == (whole.decided, "")
    monkeypatch.setattr(branch_and_bound, "MOST_WAITING", 1)
    assert search(space(tmp_path, SPACES[name]), top=3).cut_short == "memory"


def test_an_interrupt_ends_with_the_best_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES["fsdp_tp"])
    whole = driver.search

    def interrupted(*args: Any, **given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return whole(*args, **given)

    monkeypatch.setattr(driver, "search", interrupted)
    inherited = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where the tests run in the background
    try:
        assert main(["search", str(path)]) == 130
        assert "interrupted: the best so far" in capsys.readouterr().out
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, inherited)


def test_too_many_choices_of_words_are_refused(tmp_path: Path) -> None:
    uses = "".join(f"use ? over a{i}\n" for i in range(7))
    text = NINE.split("mesh")[0] + f"mesh {' > '.join(f'a{i} ?' for i in range(7))}\n{uses}compute fp32\n"
    (tmp_path / "a.plan").write_text(text)
    with pytest.raises(planc.PlanError) as error:
        planc.search(tmp_path / "a.plan")
    assert [d.code for d in error.value.diagnostics] == ["E0117"]
