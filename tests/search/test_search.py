"""A search returns what costing every layout of its space returns, and its files cost what it says."""

from __future__ import annotations

import itertools
import json
import math
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import planc
from planc.checks import check_plan
from planc.cli import main
from planc.costing.costed import CostedPlan, cost_plan
from planc.diag.errors import PlanError
from planc.driver import cost, load
from planc.ir.report import Step
from planc.ir.target import TARGETS, Target
from planc.lowering import load_backend
from planc.searching import Found, search
from planc.searching import every as every_layout
from planc.searching.branch_and_bound import NEAR
from planc.searching.lower_bounds import Bounds, LowerBound
from planc.searching.space import Point, Space
from planc.sharding.collectives import semantic_collectives
from planc.sharding.propagate import propagate
from tests.plans import ROOT
from tests.search.spaces import first_rows, in_rows

HEAD = """plan space
model     {model}
batch     {batch}
cluster   {cluster}
compute   fp32
"""
DENSE = HEAD.format(model="llama3_8b(layers = 8)", batch="32 x 4096 tokens microbatch 1", cluster="1 x h100_node")
LAYOUT = """use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
"""
PIPELINE = "split     layers over pp as {}\n"

SPACES = {
    "fsdp_tp": DENSE + "mesh fsdp ? > tp ?\n" + LAYOUT,
    "tp_outside": DENSE + "mesh tp ? > fsdp ?\n" + LAYOUT,
    "recompute": DENSE + "mesh fsdp ? > tp ?\n" + LAYOUT + "recompute ?\n",
    "layout": DENSE + "mesh fsdp ? > tp ?\n" + LAYOUT.replace("use       fsdp", "use       ?"),
    "pp": DENSE + "mesh pp ? > fsdp ? > tp ?\n" + LAYOUT + PIPELINE.format("1f1b"),
    "pp_schedule": DENSE + "mesh pp 2 > fsdp ? > tp ?\n" + LAYOUT + PIPELINE.format("?"),
    "pp_free_schedule": DENSE + "mesh pp ? > fsdp ? > tp 1\n" + LAYOUT + PIPELINE.format("?"),
    "pp_interleaved": DENSE
    + "mesh pp ? > fsdp ?\nuse fsdp over fsdp\n"
    + PIPELINE.format("interleaved_1f1b(chunks = 2)"),
    "pp_recompute": DENSE + "mesh pp ? > fsdp ?\nuse zero1 over fsdp\n" + PIPELINE.format("1f1b") + "recompute ?\n",
    "pp_chunks": DENSE.replace("layers = 8", "layers = 16")
    + "mesh pp ? > fsdp ?\nuse fsdp over fsdp\n"
    + PIPELINE.format("interleaved_1f1b(chunks = ?)"),
    "microbatch": DENSE.replace("microbatch 1", "microbatch ?") + "mesh fsdp ? > tp 4\n" + LAYOUT,
    "microbatch_pp": DENSE.replace("microbatch 1", "microbatch ?")
    + "mesh pp ? > fsdp ?\nuse fsdp over fsdp\n"
    + PIPELINE.format("1f1b"),
    "loss": DENSE.replace("microbatch 1", "microbatch 4")
    + "mesh pp ? > fsdp ? > tp ?\n"
    + LAYOUT
    + PIPELINE.format("1f1b")
    + "recompute ?\nloss in ? chunks\n",
    "batch": DENSE.replace("32 x", "? x") + "mesh fsdp ? > tp ?\n" + LAYOUT,
    "overlapped": DENSE + "mesh fsdp ? > tp ?\n" + LAYOUT + "overlap tp as async_matmul\n",
    "gathered_once": DENSE + "mesh fsdp ? > tp ?\n" + LAYOUT + "gather params per step\n",
    "lora": DENSE + "mesh fsdp ? > tp ?\n" + LAYOUT + "lora rank 16 on heads\nrecompute ?\n",
    "frozen": DENSE + "mesh fsdp ? > tp ?\n" + LAYOUT + "freeze model except head\n",
    "cp": DENSE + "mesh fsdp ? > cp ?\nuse fsdp over fsdp\nuse cp over cp\n",
    "hsdp": DENSE + "mesh replica ? > fsdp ?\nuse ? over replica, fsdp\n",
    "nodes": DENSE.replace("1 x h100", "4 x h100") + "mesh fsdp ? > tp ?\n" + LAYOUT,
    "torus": DENSE.replace("1 x h100_node", "tpu_v5p(2x2x4)") + "mesh fsdp ? > tp ?\n" + LAYOUT,
    "experts": HEAD.format(
        model="mixtral_8x7b(layers = 4)", batch="32 x 4096 tokens microbatch 1", cluster="2 x h100_node"
    )
    + "mesh fsdp ? > ep ?\nuse fsdp over fsdp, ep\nuse ep over ep\n",
    "ends_apart": DENSE.replace("layers = 8", "layers = 6")
    + "mesh pp ? > fsdp ?\nuse fsdp over fsdp\n"
    + PIPELINE.format("?"),
    "view": HEAD.format(
        model="mixtral_8x7b(layers = 4)", batch="32 x 4096 tokens microbatch ?", cluster="2 x h100_node"
    )
    + "mesh dp 8 > tp ?\nview edp 2 > ep 4 of dp for experts\n"
    + "use zero1 over dp\nuse tp over tp\nuse ep over ep\nrecompute ?\n",
    "view_free": HEAD.format(
        model="mixtral_8x7b(layers = 4)", batch="32 x 4096 tokens microbatch 1", cluster="2 x h100_node"
    )
    + "mesh dp ? > tp ?\nview edp ? > ep ? of dp for experts\nuse zero1 over dp\nuse tp over tp\nuse ep over ep\n"
    + "recompute blocks\n",
    "view_half_free": HEAD.format(
        model="mixtral_8x7b(layers = 4)", batch="32 x 4096 tokens microbatch 1", cluster="2 x h100_node"
    )
    + "let experts = 4\nmesh dp experts * 2 > tp ?\nview edp ? > ep experts of dp for experts\n"
    + "use zero1 over dp\nuse tp over tp\nuse ep over ep\nrecompute ?\n",
    "tied": HEAD.format(model="gemma3_4b(layers = 8)", batch="32 x 4096 tokens microbatch 1", cluster="1 x h100_node")
    + "mesh pp ? > fsdp ?\nuse fsdp over fsdp\n"
    + PIPELINE.format("1f1b"),
    "two_ways": DENSE + "mesh pp ? > fsdp ?\nuse ? over fsdp\n" + PIPELINE.format("dualpipe"),
    "every_other": DENSE
    + "mesh pp ? > fsdp ? > tp ?\n"
    + LAYOUT
    + PIPELINE.format("1f1b")
    + "recompute blocks every 2 layers\n",
    "waited": DENSE.replace("4096", "256").replace("1 x h100", "4 x h100")
    + "mesh pp ? > fsdp ? > replica 2 > tp ?\n"
    + LAYOUT.replace("use       fsdp over fsdp", "shard batch over replica, fsdp\nstore optimizer over fsdp")
    + PIPELINE.format("1f1b")
    + "overlap replica as none\noverlap tp as weight_gradients\n",
    "offloaded": DENSE
    + "mesh fsdp ? > tp ?\n"
    + LAYOUT
    + "recompute ?\noffload optimizer to host\noffload attention.in, ffn.in to host\n",
    "narrow": DENSE
    + "mesh pp ? > fsdp ? > tp ?\n"
    + LAYOUT.replace("use       fsdp", "use       ?")
    + PIPELINE.format("1f1b")
    + "quantize ffn, attention as float8(rowwise) except layers 0\n",
    "processes": HEAD.format(model="llama_tiny", batch="32 x 64 tokens microbatch ?", cluster="8 x cpu_local")
    + "mesh pp ? > fsdp ? > tp ?\n"
    + LAYOUT.replace("use       fsdp", "use       ?")
    + PIPELINE.format("1f1b"),
    "any_order": DENSE.replace("1 x h100", "4 x h100") + "mesh pp ?, fsdp ?, tp ?\n" + LAYOUT + PIPELINE.format("1f1b"),
    "inner_order": DENSE.replace("1 x h100", "4 x h100")
    + "mesh pp 2 > fsdp ?, tp ?\n"
    + LAYOUT.replace("use       fsdp", "use       ?")
    + PIPELINE.format("?"),
    "order_alone": DENSE.replace("1 x h100_node", "tpu_v5p(2x2x4)")
    + "mesh cp 2, fsdp 4, tp 2\nuse cp over cp\n"
    + LAYOUT,
    "order_of_a_view": HEAD.format(
        model="mixtral_8x7b(layers = 4)", batch="32 x 4096 tokens microbatch 1", cluster="4 x h100_node"
    )
    + "mesh tp ?, replica 2, dp ?\nview edp ?, ep ? of replica, dp for experts\nuse zero1 over replica, dp\n"
    + "use tp over tp\nuse sp over tp\nuse ep over ep\nuse zero1 over edp for experts\nrecompute blocks\n",
    "everything": DENSE.replace("microbatch 1", "microbatch ?").replace("32 x", "16 x")
    + "mesh pp ? > fsdp ? > tp ?\nuse ? over fsdp\nuse tp over tp\n"
    + PIPELINE.format("?")
    + "recompute ?\n",
}
"""Small ones, each with something else free."""
LARGE = ("everything", "inner_order")
"""Those whose brute force takes long."""
FOR_TARGETS = [
    "layout",
    "microbatch_pp",
    "hsdp",
    "nodes",
    "experts",
    "view",
    "torus",
    "pp_recompute",
    "loss",
    "order_alone",
]
"""Spaces with layouts that both targets lower."""
MOST = 40

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "num_hidden_layers": 4, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
READ = {
    "cfg/own.json": json.dumps(CONFIG),
    "chips/own.plan": (ROOT / "plans/hardware/h100.plan").read_text().replace("h100", "own").replace(" nv", " my"),
}
READS = """plan space
import "chips/own.plan"
model from "cfg/own.json"
batch   32 x 1024 tokens microbatch 1
cluster 1 x own_node
mesh    fsdp ? > tp ?
use     fsdp over fsdp
use     tp   over tp
compute fp32
"""
"""A plan that reads other files."""
SCHEDULE_OF_A_FILE = """0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3
,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3
"""


def searched(folder: Path, text: str, top: int = 5) -> tuple[Path, Found]:
    path = folder / "space.plan"
    path.write_text(text)
    return path, search(Space(path, None, MOST), top=top)


def rounded(number: float) -> float:
    """Without its last digits: a search adds in another order."""
    return float(f"{number:.12g}")


def _coarser(helper: Bounds, point: Point, bound: LowerBound) -> None:
    """The bounds of the point's family and shape are no higher than its own."""
    family = next(f for f in helper.families(point.sizes, point.order) if f.holds(point))
    shape = next(s for s in helper.shapes(family) if s.pipeline == point.pipeline)
    time_s, gib = helper.critical_path_s(shape), shape.first_bytes / 2**30
    assert helper.of_family(family) <= time_s * (1 + 1e-12) and time_s <= bound.time_s * (1 + 1e-12)
    assert gib <= bound.memory_gib * (1 + 1e-12)
    assert bound in [
        LowerBound(helper.time_s(helper.layout(p, shape), shape), b) for b, p in helper.points(shape) if p == point
    ]


def _alike(step: Step, gib: float, costed: CostedPlan) -> None:
    """A layout costed without rows costs what its rows say, to the last digit."""
    assert step == costed.step
    assert math.isclose(gib, costed.memory.per_device_gib.total, rel_tol=1e-9)


@cache
def every(name: str) -> list[tuple[float, float, str]]:
    """Every layout of a space of SPACES that is right and fits: seconds a sequence, GiB and text. No bounds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "space.plan"
        path.write_text(SPACES[name])
        return _every(path)


def _every(path: Path) -> list[tuple[float, float, str]]:
    space = Space(path, None, MOST)
    helper = Bounds(space)
    room = space.plan.cluster.chip.memory_bytes / 2**30
    found = []
    for sizes, order in space.laid():
        ranks = helper.ranks(sizes)
        for variant in range(len(space.variants)):
            data = helper.data_parallel(variant, sizes)
            for sequences, microbatch in space.batches(data):
                for pipeline in space.pipelines(ranks):
                    times = sequences // (data * microbatch)
                    if pipeline is not None and not space.fits_schedule(pipeline, ranks, times):
                        continue
                    plan = space.plan_of(point := Point(variant, sizes, sequences, microbatch, pipeline, order))
                    try:
                        sharded = propagate(check_plan(plan))
                    except PlanError:
                        continue
                    costed = cost_plan(sharded, semantic_collectives(sharded))
                    gib = costed.memory.per_device_gib.total
                    bound = helper.of(point)
                    _coarser(helper, point, bound)
                    _alike(*helper.layout(point, helper.shape(point)).run(), costed)
                    assert bound.time_s <= costed.step.time_s * (1 + 1e-12), space.text_of(point)
                    assert bound.memory_gib <= gib * (1 + 1e-12), space.text_of(point)
                    if gib <= room:
                        found.append((rounded(costed.step.time_s / sequences), rounded(gib), space.text_of(point)))
    return sorted(found)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in LARGE or i % 2 else n for i, n in enumerate(SPACES)]
)
def test_it_equals_brute_force(tmp_path: Path, name: str) -> None:
    """And no layout takes less than its bound."""
    _, found = searched(tmp_path, SPACES[name])
    layouts = every(name)
    assert len(layouts) > 1
    assert in_rows(found) == first_rows(layouts, 5)
    near = [(s, gib) for s, gib, _ in layouts if s <= NEAR * layouts[0][0]]
    front = {(s, gib) for s, gib in near if not any((t, g) != (s, gib) and t <= s and g <= gib for t, g in near)}
    assert {(rounded(c.s_per_sequence), rounded(c.memory_gib)) for c in found.pareto} == front


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FOR_TARGETS)
def test_with_a_target_it_equals_costing_every_program(tmp_path: Path, name: str, target: Target) -> None:
    """The fastest layouts that the target lowers and whose programs fit, each as `cost` costs its file."""
    path = tmp_path / "space.plan"
    path.write_text(SPACES[name])
    space, backend = Space(path, None, MOST), load_backend(target)
    helper, found = Bounds(space), best_for_target(path, target)
    programs = []
    for point, _, _ in every_layout(space):
        try:
            costed = cost_plan(helper.sharded(point), backend=backend)
        except PlanError:
            continue
        gib = costed.memory.per_device_gib.total
        if gib <= found.room_gib:
            programs.append((rounded(costed.step.time_s / point.sequences), rounded(gib), space.text_of(point)))
    assert found.target == target and programs
    assert in_rows(found) == first_rows(sorted(programs), 5)


def best_for_target(path: Path, target: Target) -> Found:
    return planc.search(path, top=5, most_sequences=MOST, target=target)


def test_the_target_is_the_cluster_s_unless_it_refuses_the_space(tmp_path: Path) -> None:
    found = {}
    for name in ("fsdp_tp", "torus", "two_ways"):
        path = tmp_path / f"{name}.plan"
        path.write_text(SPACES[name].replace("pp ? > fsdp ?\nuse ? over", "pp 2 > fsdp ?\nuse ? over"))
        found[name] = planc.search(path)
    assert {name: f.target for name, f in found.items()} == {"fsdp_tp": "cuda", "torus": "xla", "two_ways": None}
    with pytest.raises(PlanError, match="dualpipe") as refused:
        planc.search(tmp_path / "two_ways.plan", target="cuda")
    assert {d.code for d in refused.value.diagnostics} == {"E0901"}


def test_layouts_that_the_target_refuses_are_left_out(tmp_path: Path) -> None:
    """Its pipelines run one program on all ranks; on one rank every schedule is none."""
    path = tmp_path / "space.plan"
    path.write_text(SPACES["pp"].replace("1f1b", "zbv"))
    found = planc.search(path, target="xla")
    assert found.refused and {c.point.sizes[0] for c in found} == {1}
    assert {c.point.sizes[0] for c in planc.search(path, target="cuda")} > {1}


def test_sentences_on_a_target_count_for_it(tmp_path: Path) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES["fsdp_tp"] + "on xla: recompute blocks\n")
    memory = {target: planc.search(path, target=target)[0].memory_gib for target in TARGETS}
    path.write_text(SPACES["fsdp_tp"])
    plain = {target: planc.search(path, target=target)[0].memory_gib for target in TARGETS}
    assert memory["cuda"] == plain["cuda"] and memory["xla"] < plain["xla"]


def test_the_nearest_miss_is_of_the_target_s_programs(tmp_path: Path) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES["recompute"])
    found = planc.search(path, memory_gib=0.5)
    assert not found and found.nearest_miss is not None and found.target == "cuda"
    (tmp_path / "near.plan").write_text(found.nearest_miss.text)
    report = cost(tmp_path / "near.plan")
    assert report.memory and report.memory.per_device_gib.total == found.nearest_miss.memory_gib


def test_its_files_cost_what_it_says(tmp_path: Path) -> None:
    _, found = searched(tmp_path, SPACES["everything"], top=20)
    assert len(found.best) == 20 and found.fully_costed < found.decided
    for i, candidate in enumerate(found.best):
        written = tmp_path / f"found_{i}.plan"
        written.write_text(candidate.text)
        report = cost(written, target="none")
        assert report.step and report.memory
        assert math.isclose(report.step.time_s, candidate.time_s, rel_tol=1e-9)
        assert math.isclose(report.memory.per_device_gib.total, candidate.memory_gib, rel_tol=1e-9)


@pytest.mark.parametrize("name", ["any_order", pytest.param("inner_order", marks=pytest.mark.long)])
def test_orders_are_those_of_the_spaces_with_one_order_each(tmp_path: Path, name: str) -> None:
    """Each layout once: axes of one rank are the same wherever they lie."""
    mesh = next(line for line in SPACES[name].splitlines() if line.startswith("mesh"))
    outer, _, inner = mesh.removeprefix("mesh ").rpartition(" > ")
    written: dict[str, tuple[float, float]] = {}
    for axes in itertools.permutations(inner.split(", ")):
        text = SPACES[name].replace(mesh, "mesh " + " > ".join([*([outer] if outer else []), *axes]))
        (path := tmp_path / "space.plan").write_text(text)
        written |= {found: (s, gib) for s, gib, found in _every(path)}
    layouts = every(name)
    assert {text: (s, gib) for s, gib, text in layouts}.items() <= written.items()
    assert len(layouts) == len({text for _, _, text in layouts}) == len({*map(_without_ones, written)})


def _without_ones(text: str) -> str:
    """The plan without the axes of one rank in its mesh."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("mesh"))
    axes = lines[at].removeprefix("mesh ").split(" > ")
    lines[at] = " > ".join(axis for axis in axes if not axis.endswith(" 1"))
    return "\n".join(lines)


def test_an_order_that_a_view_needs_is_kept(tmp_path: Path) -> None:
    """Axes that a view covers stay neighbours in their order, whatever the others do; the words around are kept."""
    layouts = every("order_of_a_view")
    meshes = {re.sub(r" \d+", "", line) for _, _, text in layouts for line in text.splitlines() if "mesh" in line}
    views = {re.sub(r" \d+", "", line) for _, _, text in layouts for line in text.splitlines() if "view" in line}
    assert meshes == {"mesh tp > replica > dp", "mesh replica > dp > tp"}
    assert views == {f"view {axes} of replica, dp for experts" for axes in ("edp > ep", "ep > edp")}


def test_a_mesh_whose_view_has_no_neighbours_is_no_layout(tmp_path: Path) -> None:
    text = SPACES["view_free"].replace("mesh dp ? > tp ?", "mesh dp 2 > tp ? > cp ?").replace("of dp", "of dp, cp")
    (path := tmp_path / "space.plan").write_text(text.replace("use tp over tp", "use tp over tp\nuse cp over cp"))
    assert {c.point.sizes[1] for c in search(Space(path), top=50)} == {1}


def test_a_search_keeps_the_schedule_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(SCHEDULE_OF_A_FILE)
    text = SPACES["pp"].replace("pp ?", "pp 2").replace("1f1b", 'csv("own.csv")').replace("32 x", "16 x")
    path, found = searched(tmp_path, text)
    assert [c.text for c in found] == [text for _, _, text in _every(path)[:5]] and len(found) == 1


def test_very_many_orders_are_refused(tmp_path: Path) -> None:
    axes = ", ".join(f"a{i} ?" for i in range(8))
    (path := tmp_path / "space.plan").write_text(DENSE + f"mesh {axes}\n")
    with pytest.raises(PlanError, match="40,320 orders") as refused:
        Space(path)
    assert [(d.code, d.span.line) for d in refused.value.diagnostics] == [("E0117", 6)]


@pytest.mark.parametrize("name", ["everything", "view", "view_free", "ends_apart", "any_order", "order_of_a_view"])
def test_the_plan_of_a_point_is_that_of_its_file(tmp_path: Path, name: str) -> None:
    path, found = searched(tmp_path, SPACES[name], top=3)
    for candidate in found.best:
        written = tmp_path / "found.plan"
        written.write_text(candidate.text)
        assert load(written).sha256 == Space(path).plan_of(candidate.point).sha256


def test_ends_may_count_as_a_layer_each(tmp_path: Path) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES["ends_apart"])
    space = Space(path)
    apart = [p for ranks in (2, 4, 8) for p in space.pipelines(ranks) if p is not None and "stages" in p.text]
    assert {p.text.partition(" stages ")[2] for p in apart} == {
        "[embed + 1, 2 x 2 layers, 1 + head]",
        "[embed, 6 x 1 layers, head]",
    }
    assert {p.split.stages for p in apart} == {
        ((0, 1), (1, 3), (3, 5), (5, 6)),
        ((0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 6)),
    }


def test_it_finds_the_same_twice(tmp_path: Path) -> None:
    one, two = (searched(tmp_path, SPACES["pp_recompute"])[1] for _ in range(2))
    assert {**one.to_json(), "seconds": 0} == {**two.to_json(), "seconds": 0}


def test_what_is_written_is_kept(tmp_path: Path) -> None:
    text = DENSE + "mesh fsdp ? > tp 2  # as the team likes it\n" + LAYOUT
    _, found = searched(tmp_path, text)
    assert [c.label for c in found.best] == ["fsdp 4"]
    assert found.best[0].text == text.replace("fsdp ?", "fsdp 4")


def test_why_names_what_differs(tmp_path: Path) -> None:
    _, found = searched(tmp_path, SPACES["recompute"])
    assert all("less time" in c.why or "as fast" in c.why for c in found.best[:-1]) and found.best[-1].why == ""


def test_mistakes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as error:
        searched(tmp_path, SPACES["fsdp_tp"].replace("llama3_8b", "lama"))
    assert [d.code for d in error.value.diagnostics] == ["E0108"]
    path = tmp_path / "free.plan"
    path.write_text(SPACES["batch"])
    with pytest.raises(PlanError) as error:
        search(Space(path))
    assert [d.code for d in error.value.diagnostics] == ["E0115"]


def test_the_command_writes_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES["fsdp_tp"])
    assert main(["search", str(path), "--top", "2", "-o", str(tmp_path / "found"), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["format"] == "planc.search/1" and len(answer["best"]) == 2
    written = sorted((tmp_path / "found").glob("*.plan"))
    assert [p.read_text() for p in written] == [b["plan"] for b in answer["best"]]
    assert main(["search", str(path), "--memory", "1"]) == 1


def test_what_it_writes_can_be_opened_elsewhere(tmp_path: Path) -> None:
    """Every file that a plan names lies at the same path from the plan that was written."""
    source = tmp_path / "source"
    for name, text in READ.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    path, folder = source / "space.plan", tmp_path / "found" / "here"
    path.write_text(READS)
    assert main(["search", str(path), "--top", "2", "-o", str(folder)]) == 0
    first = cost(folder / "space_1.plan")
    assert first.step is not None and first.model is not None and first.model.name == "own"
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*.*")} == {"space_1.plan", "space_2.plan", *READ}
    assert main(["search", str(path), "-o", str(source)]) == 0
    assert cost(source / "space_1.plan").step == first.step


def test_it_overwrites_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cfg").mkdir()
    (tmp_path / "cfg" / "own.json").write_text(READ["cfg/own.json"])
    (tmp_path / "found" / "cfg").mkdir(parents=True)
    (tmp_path / "found" / "cfg" / "own.json").write_text("{}")
    path = tmp_path / "space.plan"
    path.write_text(READS.replace('import "chips/own.plan"\n', "").replace("own_node", "h100_node"))
    assert main(["search", str(path), "-o", str(tmp_path / "found")]) == 2
    assert "own.json is another file" in capsys.readouterr().err
    assert (tmp_path / "found" / "cfg" / "own.json").read_text() == "{}"
    assert not list((tmp_path / "found").glob("*.plan"))


@pytest.mark.parametrize("name", ["fsdp_tp", pytest.param("everything", marks=pytest.mark.long), "view_free"])
def test_the_nearest_miss_needs_the_least_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES[name])
    found = search(Space(path, None, MOST), memory_gib=0.5)
    assert not found.best and found.nearest_miss is not None and found.room_gib == 0.5
    least = min(gib for _, gib, _ in every(name))
    assert math.isclose(found.nearest_miss.memory_gib, least, rel_tol=1e-9)


def test_the_command_names_the_nearest_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES["fsdp_tp"])
    assert main(["search", str(path), "--memory", "1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("no layout fits the 1.0 GiB of a device; the nearest miss needs")
    assert " GiB too much: fsdp 1, tp 8\n" in said and said.endswith("none was found on up to 64 nodes either\n")
    assert main(["search", str(path), "--memory", "1", "--format", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["nearest_miss"]["memory_gib"] > answer["room_gib"] == 1


def test_a_space_whose_layouts_all_break_a_rule_has_no_nearest_miss(tmp_path: Path) -> None:
    path = tmp_path / "space.plan"
    path.write_text(SPACES["fsdp_tp"].replace("32 x 4096", "33 x 4096").replace("tp ?", "tp 2"))
    found = search(Space(path))
    assert not found.best and found.nearest_miss is None
