"""Renders pages as HTML, SVG and JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from planc.picture.charts import BarPart
from planc.picture.marks import NARROW, WIDE
from planc.picture.render import clean, environment, sheet, svg
from planc.picture.units import count, gib, percent, rate, seconds, size
from planc.report.data import Data, PageView
from planc.report.parts import MEMORY_PARTS, STEP_PARTS
from planc.report.plan_page import PlanPage
from planc.report.views import links, machine, memory, neighbours, over_step, roofline, shards, timeline, traffic

if TYPE_CHECKING:
    from planc.report.clusters_page import ClustersPage
    from planc.report.diff_page import DiffPage
    from planc.report.run_page import RunPage
    from planc.report.search_page import SearchPage
    from planc.report.serve_page import ServePage

Page: TypeAlias = "PlanPage | DiffPage | SearchPage | ClustersPage | RunPage | ServePage"
"""Every kind of page."""


PLAN_VIEWS: tuple[PageView, ...] = (
    PageView("verdict", "Verdict"),
    PageView("memory", "Memory by stage", memory.picture),
    PageView("over_step", "Memory over the step", over_step.picture),
    PageView("timeline", "Timeline of the step", timeline.picture),
    PageView("traffic", "Bytes by axis and level", traffic.picture),
    PageView("machine", "Where the axes lie in the machine", machine.picture),
    PageView("links", "The axes on the machine's links", links.picture),
    PageView("shards", "Shard map", shards.picture),
    PageView("roofline", "Roofline", roofline.picture),
    PageView("neighbours", "What would be different", neighbours.picture),
    PageView("findings", "Findings"),
    PageView("sentences", "The plan, and what each sentence costs"),
    PageView("accuracy", "How accurate such predictions have been"),
    PageView("command", "This page again"),
)
"""The views of a plan's page in reading order."""


def html(page: Page, view: str = "") -> str:
    """Return `page` as one self-contained HTML file; if `view` names a view (section), with only this view."""
    shown = [v for v in views_of(page) if view in ("", v.name) and getattr(page, v.name, None) is not None]
    if page.format == "planc.report.plan/1":
        return _plan_html(page, shown)
    if page.format == "planc.report.search/1":
        return written("search.html.j2", page, shown)
    if page.format == "planc.report.run/1":
        return written("run.html.j2", page, shown)
    if page.format == "planc.report.serve/1":
        return written("serve.html.j2", page, shown)
    if page.format == "planc.report.clusters/1":
        from planc.report.clusters_page import figures

        return written("clusters.html.j2", page, shown, figures=figures)
    return written("diff.html.j2", page, shown, step_parts=_names(STEP_PARTS), memory_parts=_names(MEMORY_PARTS))


def _names(parts: Sequence[BarPart]) -> list[tuple[str, str]]:
    return [(part.name, part.css) for part in parts]


def _plan_html(page: PlanPage, views: list[PageView]) -> str:
    more: dict[str, Any] = {"data": "", "legend": []}
    if page.timeline:
        more |= {"data": _zoom_data(page.timeline), "legend": timeline.legend_of(page.timeline)}
    if page.shards:
        more |= _shard_data(page.shards)
    return written("plan.html.j2", page, views, **more)


def written(template: str, page: Data, views: list[PageView], **more: Any) -> str:
    """Return the HTML template `template` filled with `page`, the pictures of its `views` and the variables in
    `more`."""
    env = environment("planc.report", "planc.picture")
    env.filters |= FILTERS
    script = _text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    pictures = {v.name: _both(v, getattr(page, v.name)) for v in views if v.picture}
    made = env.get_template(template).render(
        page=page, views=views, pictures=pictures, script=script, digest=digest, **more
    )
    return f"{made.rstrip()}\n"


def prose(text: str) -> str:
    """Return `text` escaped for HTML, with text in backquotes as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(clean(text)))))


FILTERS: dict[str, Callable[..., str]] = {
    "seconds": seconds,
    "size": size,
    "gib": gib,
    "percent": percent,
    "rate": rate,
    "count": count,
    "prose": prose,
}


@cache
def _text(name: str) -> str:
    return files("planc.report").joinpath("templates", name).read_text()


def _both(view: PageView, data: Any) -> list[str]:
    """Return the picture of a view as SVG for a wide and for a narrow screen; [] if there is nothing to draw."""
    assert view.picture is not None
    drawn = [view.picture(data, width) for width in (WIDE, NARROW)]
    return [svg(picture) for picture in drawn if picture is not None]


def views_of(page: Page) -> tuple[PageView, ...]:
    """Return the views (sections) of `page` in reading order."""
    return _views(page.format.split(".")[-1].partition("/")[0])


def view_names(command: str) -> list[str]:
    """Return the names of the views (sections) on the page that `command` (`diff`, `search`, `clusters`, `run`, ...)
    writes."""
    return [v.name for v in _views(command)]


def _views(kind: str) -> tuple[PageView, ...]:
    if kind == "diff":
        from planc.report.diff_page import DIFF_VIEWS

        return DIFF_VIEWS
    if kind == "search":
        from planc.report.search_page import SEARCH_VIEWS

        return SEARCH_VIEWS
    if kind == "clusters":
        from planc.report.clusters_page import CLUSTERS_VIEWS

        return CLUSTERS_VIEWS
    if kind == "run":
        from planc.report.run_page import RUN_VIEWS

        return RUN_VIEWS
    if kind == "serve":
        from planc.report.serve_page import SERVE_VIEWS

        return SERVE_VIEWS
    return PLAN_VIEWS


def picture_file(page: Page, name: str = "") -> str | None:
    """Return all pictures of `page`, or only that of the view `name`, as one SVG file; None if there are none."""
    chosen = [
        v for v in views_of(page) if v.picture and name in ("", v.name) and getattr(page, v.name, None) is not None
    ]
    drawn = [(v.heading, v.picture(getattr(page, v.name), WIDE)) for v in chosen if v.picture]
    found = [(heading, picture) for heading, picture in drawn if picture is not None]
    return sheet(page.title, found) if found else None


def as_json(page: Page, view: str = "") -> str:
    """Return `page` as JSON; if `view` names a view (section), only its data, as `planc.report.view/1`."""
    value: Any = page.model_dump(mode="json")
    if view:
        value = {"format": "planc.report.view/1", "of": value["format"], "view": view, "data": value.get(view)}
    return json.dumps(value, indent=1)


def _shard_data(data: shards.Shards) -> dict[str, Any]:
    """Return the data of the shard map that the page's script needs."""
    kept = {"cuts", "stored_over", "stored_on"}
    return {
        "axes_json": {name: axis.model_dump() for name, axis in data.axes.items()},
        "tensors_json": [t.model_dump(include=kept) for t in data.tensors],
    }


def _zoom_data(data: timeline.TimelineView) -> str:
    """Return the data of the timeline for the page's script, compressed and base64 encoded."""
    plain = {
        "slowest": data.slowest,
        "end": data.makespan_s,
        "costs": [
            [c.forward_s, c.backward_s, c.weight_s, c.recompute_s, c.exposed_forward_s, c.exposed_backward_s]
            for c in data.costs
        ],
        "causes": {c.part: [c.line, clean(c.sentence)] for c in data.causes},
        "ranks": [
            [
                r.rank,
                r.actions,
                *(_steps(column) for column in (r.stage, r.microbatch, r.start_us)),
                r.length_us,
                r.after_s,
            ]
            for r in data.ranks
        ],
    }
    packed = zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), 9)
    return base64.b64encode(packed).decode()


def _steps(column: tuple[int, ...]) -> list[int]:
    """Return the differences of consecutive numbers, which compress better than the numbers."""
    return [b - a for a, b in zip((0, *column), column, strict=False)]
