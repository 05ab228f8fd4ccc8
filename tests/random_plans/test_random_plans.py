"""Some of the long run: plans can be drawn again, reach the language, and break no promise; the corpus too."""

from __future__ import annotations

import os
import signal
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from planc.driver import check
from planc.ir.target import Target
from planc.language.build import build_file
from tests.random_plans import coverage, pairs, state, train
from tests.random_plans.draw import draw
from tests.random_plans.forks import Row, forked
from tests.random_plans.pieces import Drawn
from tests.random_plans.programs import keep, linted, typed, typed_alone
from tests.random_plans.promises import prove, write
from tests.random_plans.run import RESULTS, drawn_of
from tests.random_plans.shrink import shrink

CORPUS = Path(__file__).with_name("corpus")
"""Plans that broke a promise once, as small as they still did, with the reason in their first line."""
CHECKED = sorted((CORPUS / "checked").iterdir())
TRAINED = sorted((CORPUS / "trained").glob("*.plan"))


def test_a_seed_is_always_the_same_plan() -> None:
    assert [draw(seed) for seed in range(20)] == [draw(seed) for seed in range(20)]
    assert len({draw(seed, small=True).text for seed in range(50)}) == 50


def test_plans_break_no_promise(tmp_path: Path) -> None:
    """Two in three are lowered, hardly any has a mistake of its own, and ruff has nothing to say of their programs,
    nor has mypy of some."""
    kinds, errors = Counter[str](), Counter[str]()
    programs, some = tmp_path / "programs", tmp_path / "some"
    for seed in range(40):
        outcome = prove(drawn_of(seed), tmp_path, thorough=seed % 10 == 0)
        kinds[outcome.kind] += 1
        errors.update(outcome.errors)
        keep(outcome.texts, seed, programs)
        keep(outcome.texts if seed >= 24 else {}, seed, some)
    assert linted(programs) == []
    assert typed_alone(some) == []
    assert kinds["lowered"] >= 26, kinds
    assert sum(n for code, n in errors.items() if code not in ("E0501", "E0901")) <= 4, errors


@pytest.mark.long
def test_programs_have_the_types_of_their_frameworks(tmp_path: Path) -> None:
    for seed in range(100, 150):
        keep(prove(drawn_of(seed), tmp_path / "plan", thorough=False).texts, seed, tmp_path / "programs")
    assert typed(tmp_path / "programs") == []


def test_the_language_is_reached() -> None:
    """`make random` reaches all of it; some hundred plans most."""
    seen = {part for seed in range(180) for part in coverage.reached(draw(seed))}
    assert len(seen) / len(coverage.language()) > 0.75, coverage.summary(seen)
    verbs = {part for part in coverage.language() if part.startswith("verb ")}
    assert not verbs - seen, verbs - seen


def test_no_layout_is_a_habit() -> None:
    """Axes lie in either order, some have one rank, parts are uneven, state is kept over batch and context in either
    order, and experts have views: each as often as not, or nearly."""
    single, both, plans = pairs.drawn(range(150))
    assert min(single["axis of one rank"], single["uneven parts"]) > 0.4 * plans
    for one, other in (("context", "batch"), ("tensor", "batch"), ("tensor", "context")):
        orders = single[f"{one} outside {other}"], single[f"{other} outside {one}"]
        assert min(orders) > 0.2 * sum(orders) > 1, (one, other, orders)
    assert single["state over batch and context"] > 0.15 * single["state over batch"] / 2
    assert both["context outside batch", "state over batch and context"]
    assert both["batch outside context", "state over batch and context"]
    assert single["view"] > 0.4 * single["experts divided"]


def test_pairs_of_features() -> None:
    """Trained; refused by a rule; apart by meaning; and left out, a refused plan or none."""
    told = [
        {"outcome": "equal", "codes": [], "features": ["ring", "view"]},
        {"outcome": "refused", "codes": ["E0302 8 heads"], "features": ["ring", "places at experts"]},
    ]
    found = pairs.table(told, "cuda")
    assert found.trained == {("ring", "view"): 1}
    assert found.refused[pairs.V, "blocks replayed"] == "E0901" and (pairs.V, "ring") not in found.refused
    assert ("blocks replayed", "ops replayed") in found.apart
    assert ("ring", "places at experts") in found.empty and ("ring", "uneven parts") in found.empty
    assert pairs.table(told, "xla").refused["ring", pairs.V] == "E0901"


@pytest.mark.parametrize(("stack", "name"), [(s, n) for s, rules in pairs.RULES.items() for n in rules])
def test_a_pair_that_a_stack_refuses(stack: Target, name: str, tmp_path: Path) -> None:
    """For these features, and nothing else."""
    path = tmp_path / "plan.plan"
    text = (Path(__file__).parent / "refused" / f"{name}.plan").read_text()
    for schedule in ("zbv", "dualpipev", "dualpipe") if stack == "xla" and " zbv" in text else ("zbv",):
        path.write_text(text.replace("zbv", schedule))
        plan = build_file(path, target=stack).plan
        assert plan is not None and {*pairs.RULES[stack][name]} <= {*pairs.features(plan)}
        assert {reason.partition(" ")[0] for reason in train.refusals(path, stack)} == {"E0901"}
        assert len(train.refusals(path, stack)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stack", train.STACKS)
def test_every_pair_of_features_was_trained(stack: Target) -> None:
    """Or is refused by a rule, or apart by what its features mean."""
    found = pairs.table(train.recorded(RESULTS, stack), stack)
    assert found.empty == []


def read(folder: Path) -> Drawn:
    """The plan of a folder of the corpus, with the files beside it."""
    (path,) = folder.glob("random*.plan")
    texts = {f.name: f.read_text() for f in folder.iterdir() if f != path}
    _, header, *sentences = path.read_text().splitlines()
    return Drawn(header.removeprefix("plan "), tuple(sentences), texts)


@pytest.mark.parametrize("folder", CHECKED, ids=lambda p: p.name)
def test_what_was_mended_stays_so(folder: Path, tmp_path: Path) -> None:
    outcome = prove(read(folder), tmp_path)
    assert not any(e.startswith("E01") for e in outcome.errors), "it cannot be read, and proves nothing"


def test_a_failing_plan_is_shrunk(tmp_path: Path) -> None:
    """To the sentences and numbers that the failure needs."""

    def fails(drawn: Drawn) -> bool:
        found = check(write(drawn, tmp_path))
        return any(d.code == "E0203" for d in found.diagnostics)

    head = ("model llama_micro", "batch 16 x 24 tokens microbatch 2", "cluster 3 x cpu_local", "mesh a 4 > b 2")
    drawn = Drawn("large", (*head, "shard batch over a, b", "recompute blocks", "compute fp32"))
    assert fails(drawn)
    small = shrink(drawn, fails)
    assert small.sentences == ("model llama_micro", "batch 1 x 1 tokens", "cluster 1 x cpu_local", "mesh a 2")


def test_a_campaign_goes_on_after_a_cut_off_line(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    state.add(path, {"part": "checked", "seed": 0, "outcome": "lowered", "codes": [], "seconds": 0.5})
    path.write_text(path.read_text() + '{"part": "checked", "se')
    state.add(path, {"part": "checked", "seed": 1, "outcome": "refused", "codes": ["xla E0901"], "seconds": 0.1})
    assert state.done(path, "checked") == {0, 1}
    assert state.sums(path) == ["checked: 2 plans: lowered 1, refused 1; xla E0901 1; slowest 0.5 s (seed 0)"]


def test_a_seed_is_counted_once(tmp_path: Path) -> None:
    """Also one between those of an earlier run."""
    path, results = tmp_path / "state.jsonl", tmp_path / "results.toml"
    results.write_text("# counts\n")
    for seed in (0, 1, 3):
        state.add(path, {"part": "checked", "seed": seed, "outcome": "lowered", "codes": []})
    state.record(path, results, "2026-11-23")
    state.add(path, {"part": "checked", "seed": 2, "outcome": "refused", "codes": []})
    state.record(path, results, "2026-11-24")
    first, second = tomllib.loads(results.read_text())["run"]
    assert (first["plans"], first["lowered"], first["seeds"]) == (3, 3, "0-1 3")
    assert (second["plans"], second["refused"], second["seeds"]) == (1, 1, "2")


def test_what_counts_as_equal() -> None:
    row = {"gradient": [1e-7, 2e-6], "loss": 1e-7, "norm": 1e-7, "evaluated": 0.0, "where": "x", "collectives": []}
    assert train.judged(row, "compute fp32") == ("equal", [])
    assert train.judged({**row, "norm": 1e-4}, "")[0] == "differs"
    assert train.judged({**row, "norm": 1e-4}, "compute bf16 reduce fp32")[0] == "equal"
    assert train.judged({**row, "norm": float("nan")}, "")[0] == "differs"
    assert train.judged({**row, "collectives": ["rank 0: more"]}, "")[0] == "unpredicted"
    assert train.judged({"failed": "Traceback\nKeyError: 'x'"}, "") == ("raised", ["KeyError: 'x'"])
    assert train.judged({"late": "Timeout"}, "") == ("hangs", [])


@pytest.mark.launch
def test_a_plan_has_its_processes_to_itself(tmp_path: Path) -> None:
    """All that it leaves behind, raises or waits for ends with them."""
    left: list[str] = []

    def leaves(rank: int) -> Row:
        left.append("behind")
        return {"rank": rank, "left": left}

    def raises(rank: int) -> Row:
        if rank == 0:
            signal.pause()
        raise ValueError("rank 1 has no such key")

    def hangs(rank: int) -> Row:
        signal.pause()
        return {}

    def is_killed(rank: int) -> Row:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    for _ in range(2):
        row = forked(2, leaves, tmp_path, 60)
        assert (row["rank"], row["left"]) == (0, ["behind"])
    assert "ValueError: rank 1 has no such key" in forked(2, raises, tmp_path, 60)["failed"]
    assert "in hangs" in forked(1, hangs, tmp_path, 0.1)["late"]
    assert forked(1, is_killed, tmp_path, 60)["failed"] == "rank 0 was ended"


CHEAP = (1, 12, 19, 42, 56, 114, 198, 354)
"""Seeds of plans of few ranks, for every kind of layout."""
MENDED = (87, 154, 163)
"""Seeds of plans whose first steps moved other bytes than said on xla."""


@pytest.mark.launch
@pytest.mark.long
@pytest.mark.parametrize("stack", ["cuda", pytest.param("xla", marks=pytest.mark.slow)])  # xla compiles for minutes
def test_the_corpus_trains_as_one_process(stack: Target, tmp_path: Path) -> None:
    """With some that are drawn, in one launch."""
    drawn = [write(draw(seed, small=True), tmp_path / str(seed)) for seed in CHEAP]
    files = [p for p in [*TRAINED, *train.PAIRS, *drawn] if train.trains(p, stack)]
    rows: dict[str, tuple[str, list[str]]] = {}
    train.launch(stack, files, lambda path, row: rows.update({path.stem: train.judged(row, path.read_text())}))
    assert {name: row for name, row in rows.items() if row[0] != "equal"} == {}
    assert len(rows) == len(files) >= {"cuda": 20, "xla": 17}[stack]


@pytest.mark.launch
@pytest.mark.long
@pytest.mark.parametrize("stack", ["cuda", pytest.param("xla", marks=pytest.mark.slow)])
def test_programs_take_their_first_step_as_predicted(stack: Target, tmp_path: Path) -> None:
    """On ranks that are not there. Those with experts and uneven stages count the picks of their own layers."""
    files = [write(draw(seed, small=True), tmp_path / str(seed)) for seed in (*MENDED, *range(40))]
    files = [p for p in files if train.trains(p, stack)][:8]
    rows: dict[str, tuple[str, list[str]]] = {}

    def found(path: Path, row: Row) -> None:
        rows[path.stem] = train.judged(row, path.read_text())

    train.launch(stack, files, found, work="first step")
    assert {name: row for name, row in rows.items() if row[0] != "equal"} == {}
    assert len(rows) == len(files) == 8
