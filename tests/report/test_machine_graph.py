"""The picture of a machine: every link that an axis uses has its colour, and the busiest is the widest."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planc.cli import main
from planc.compare.what_if import busiest, routed
from planc.costing import CostedPlan
from planc.driver import examine
from planc.graph import machine_links
from planc.picture.marks import NARROW, WIDE, Circle, Picture, Rect, Text
from planc.picture.marks import Path as Drawn
from planc.report.plan_page import plan_page
from planc.report.render import PLAN_VIEWS
from planc.report.views import links as view
from planc.report.views.links import MOST_CHIPS, MOST_ON_PHONE
from tests.graph.test_field_machines import MESHES, written_on
from tests.graph.test_own_graphs import links_of
from tests.plans import written
from tests.report.test_plan_page import is_whole

BUNDLED = """plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   {machine}
mesh      {mesh}
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
"""


def width_of(mark: Drawn) -> int:
    found = re.search(r"\bw(\d+)", mark.css)
    return int(found[1]) if found else 0


def drawn_of(costed: CostedPlan, width: float) -> Picture:
    return view.picture(view.links_of(machine_links(costed.sharded.plan.cluster), costed), width)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("machine", MESHES)
def test_the_busiest_link_is_the_widest_and_every_axis_has_its_colour(
    machine: str, width: float, tmp_path: Path
) -> None:
    costed = examine(written_on(tmp_path, machine), targets=()).costed
    assert costed is not None
    picture = drawn_of(costed, width)
    lines = [m for m in picture.marks if isinstance(m, Drawn)]
    total: dict[str, int] = {}
    for line in lines:
        ends = line.title.partition(":")[0]
        total[ends] = total.get(ends, 0) + width_of(line)
    _, seconds = busiest(costed)
    assert seconds > 0 and max(total.values()) >= 2
    used = {css for line in lines for css in line.css.split() if css.endswith("-line")}
    assert used == {"axis0-line", "axis1-line"}
    points = [m for m in picture.marks if isinstance(m, Rect | Text)]
    assert all(0 <= m.x <= picture.width and 0 <= m.y <= picture.height for m in points)


@pytest.mark.parametrize("machine", MESHES)
def test_its_page_has_the_picture_and_counts_every_transfer(machine: str, tmp_path: Path) -> None:
    page = plan_page(examine(written_on(tmp_path, machine), target="none"), "planc report")
    is_whole(page, {v.name for v in PLAN_VIEWS})
    assert page.links is not None and page.machine is not None and page.traffic is not None
    listed = [page.links.cables[i].busy_s for i in page.links.busiest]
    assert listed == sorted((c.busy_s for c in page.links.cables), reverse=True)[: len(listed)] and listed[0] > 0
    for kind in ("time_s", "exposed_s"):
        levels = [getattr(level, kind) for level in page.machine.levels]
        assert sum(levels) == pytest.approx(getattr(page.traffic, kind), rel=1e-9), kind
    assert [level.name for level in page.machine.levels] == [a.level for a in reversed(page.machine.axes)]
    assert page.machine.busiest in page.machine.summary and "Nothing is sent" not in page.machine.summary


@pytest.mark.parametrize(
    ("machine", "mesh"), [("4 x h100_node", "fsdp 4 > tp 8"), ("1 x tpu_v5e(4x4)", "fsdp 4 > tp 4")]
)
def test_bundled_machines_are_drawn_by_the_command(
    machine: str, mesh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = written(tmp_path, BUNDLED.format(machine=machine, mesh=mesh)), tmp_path / "machine.svg"
    assert main(["graph", str(plan), "-o", str(out)]) == 0 and capsys.readouterr().out
    root = ElementTree.fromstring(out.read_text())
    assert root.tag.endswith("svg")
    read = examine(plan, targets=()).plan
    found = examine(routed(read), targets=()).costed if read else None
    assert found is not None and out.read_text().count("<circle") == found.sharded.plan.mesh.devices


@pytest.mark.parametrize(
    "part",
    [
        "fat_tree(nodes = 64, chips = 8, leaf = 16, spines = 4, link = nvlink, out = ib)",
        "rail(nodes = 64, chips = 8, leaf = 1, spines = 32, link = nvlink, out = ib)",
    ],
)
def test_of_a_large_machine_whole_nodes_are_drawn(part: str, tmp_path: Path) -> None:
    _, links = links_of(tmp_path, f"graph pod of h100\nfabric a = {part}\n", mesh="fsdp 64 > tp 8")
    data = view.links_of(links)
    for width, chips in ((WIDE, MOST_CHIPS), (NARROW, MOST_ON_PHONE)):
        drawn = view.picture(data, width)
        assert f"{chips} of 512 chips" in [m.text for m in drawn.marks if isinstance(m, Text)]
        assert sum(isinstance(m, Circle) for m in drawn.marks) == chips and len(drawn.marks) < 2_000
