"""The documentation as a site, `make docs-site`: docs/*.md by Sphinx with MyST and furo, and every link followed.

Sphinx reads the Markdown as it stands, makes the API pages from docstrings and a search that needs no server, and is
what torch's and JAX's own pages are made with. The gallery's reports are made by `planc report`.

    python docs/site/build.py FOLDER
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GALLERY = (
    *("llama3_405b_8k", "llama3_405b_128k", "deepseek_v3_h800", "gpt3_175b_a100", "megatron_530b_a100"),
    *("megatron_1t_a100", "mpt_7b_h100_fsdp", "mixtral_8x22b_hsdp", "qwen3_235b_gb200", "qwen3_8b_ulysses"),
    *("llama3_70b_v6e", "llama3_70b_v5p_2slices"),
)
"""Twelve layouts of plans/field: published ones, and some in the manner of published ones."""
LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
PARTS = {
    "Guide": ["guide/tutorial", "guide/*", "editor/*"],
    "Reference": ["reference/*", "reference/diagnostics/index"],
    "Measured": ["measured/*"],
}


def stage(source: Path) -> None:
    """The pages, with a tree of contents, and links into the checkout as pages of their own."""
    for page in sorted(DOCS.rglob("*.md")):
        place = source / page.relative_to(DOCS)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(LINK.sub(lambda m, page=page: _within(m, page, source), page.read_text()))
    for page in ("CHANGELOG", "SECURITY"):
        text = (ROOT / f"{page}.md").read_text()
        text = text.replace("](CHANGELOG.md)", "](changelog.md)").replace("](SECURITY.md)", "](security.md)")
        (source / f"{page.lower()}.md").write_text(text.replace("](docs/", "]("))
    index = source / "index.md"
    trees = "".join(_toctree(globs, caption) for caption, globs in PARTS.items())
    more = _toctree(["gallery/index", "api", "changelog", "security"], "More")
    index.write_text(f"{index.read_text()}\n{trees}{more}")
    codes = source / "reference" / "diagnostics" / "index.md"
    codes.write_text(f"{codes.read_text()}\n{_toctree(['*'])}")
    systems = sorted((source / "reference" / "systems").glob("*.md"))
    names = "\n".join(f"- [{p.stem}](systems/{p.name})" for p in systems)
    (source / "reference" / "systems.md").write_text(
        f"# Other systems, field by field\n\n{names}\n{_toctree(['systems/*'])}"
    )


def _toctree(entries: list[str], caption: str = "") -> str:
    head = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n:glob:\n{head}\n" + "\n".join(entries) + "\n```\n"


def _within(match: re.Match[str], page: Path, source: Path) -> str:
    """A link of `page`; one to a file or folder of the checkout leads to a page that shows it."""
    target = (page.parent / match["path"]).resolve()
    if target.is_relative_to(DOCS) and target.suffix == ".md":
        return match[0]
    if not target.exists():
        sys.exit(f"{page}: {match['path']} is not there")
    place = source / "files" / f"{target.relative_to(ROOT)}.md"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        files = [f for f in sorted(target.iterdir()) if f.is_file()] if target.is_dir() else [target]
        blocks = [f"## {f.name}\n\n{_block(f)}" if target.is_dir() else _block(f) for f in files]
        place.write_text(f"---\norphan: true\n---\n\n# {target.relative_to(ROOT)}\n\n" + "\n".join(blocks))
    depth = len((source / page.relative_to(DOCS)).parent.relative_to(source).parts)
    return f"]({'../' * depth}{place.relative_to(source)})"


def _block(file: Path) -> str:
    kind = {".plan": "plan", ".py": "python", ".json": "json"}.get(file.suffix, "text")
    return f"`````{kind}\n{file.read_text()}`````\n"


def api(source: Path) -> None:
    """The public names, from their docstrings."""
    import planc

    kinds = {name: _directive(getattr(planc, name)) for name in planc.__all__}
    order = ("autofunction", "autoclass", "autoexception")
    made = [
        f".. {kind}:: {planc._HOMES[name]}.{name}\n" + ("" if kind == order[0] else "   :members:\n")
        for name, kind in sorted(kinds.items(), key=lambda item: order.index(item[1]))
    ]
    text = "Everything here is imported from `planc`: `planc.check`, `planc.Report`, ..."
    (source / "api.md").write_text(f"# Python\n\n{text}\n\n```{{eval-rst}}\n" + "\n".join(made) + "```\n")


def _directive(thing: object) -> str:
    if not isinstance(thing, type):
        return "autofunction"
    return "autoexception" if issubclass(thing, Exception) else "autoclass"


def gallery(source: Path, reports: Path) -> None:
    """A page with a row for each layout, and each layout's report in the folder `reports`."""
    reports.mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as several:
        rows = list(several.map(lambda name: _report(name, reports), GALLERY))
    head = "| layout | about | devices | memory | step | MFU |\n|---|---|---|---|---|---|\n"
    text = "Each report is one file, made by `planc report plans/field/NAME.plan -o NAME.html`."
    folder = source / "gallery"
    folder.mkdir()
    (folder / "index.md").write_text(f"# Gallery\n\n{text}\n\n{head}" + "".join(rows))


def _report(name: str, folder: Path) -> str:
    import planc

    plan = Path("plans") / "field" / f"{name}.plan"
    made = folder / f"{name}.html"
    asked = [sys.executable, "-m", "planc.cli", "report", str(plan), "-o", str(made)]
    subprocess.run(asked, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    found = planc.check(ROOT / plan)
    assert found.memory and found.step, name
    comments = [line[1:].strip() for line in (ROOT / plan).read_text().splitlines() if line.startswith("#")]
    about = " ".join(comments).replace("|", r"\|")
    memory = f"{found.memory.per_device_gib.total:.1f} of {found.memory.capacity_gib:.0f}&nbsp;GiB"
    figures = f"{found.devices:,} | {memory} | {found.step.time_s:.2f}&nbsp;s | {found.step.mfu:.1%}"
    return f'| <a href="{name}.html">{name}</a> | {about} | {figures} |\n'


class Page(HTMLParser):
    """The links of a page, and the places in it that links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {v for k in ("id", "name") if (v := given.get(k))}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif source := given.get("src") or (tag == "link" and given.get("href")):
            self.loads.append(str(source))


def broken(site: Path) -> list[str]:
    """Links of the site that lead nowhere, and what its pages would load from elsewhere."""
    pages = {p: Page(p.read_text()) for p in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        own = path.relative_to(site)
        found += [f"{own} loads {s}" for s in page.loads if urlsplit(s).scheme not in ("", "data")]
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.is_file():
                found.append(f"{own}: {link} is not there")
            elif anchor and target in pages and anchor not in pages[target].places:
                found.append(f"{own}: {link}: no such place")
    return found


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    source, site = folder / "source", folder / "html"
    source.mkdir(parents=True)
    stage(source)
    api(source)
    gallery(source, folder / "reports")
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "2", "-b", "html"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    built = subprocess.run([*sphinx, "-c", str(Path(__file__).parent), str(source), str(site)], env=env)
    shutil.copytree(folder / "reports", site / "gallery", dirs_exist_ok=True)
    found = broken(site)
    print(*found[:40], sep="\n")
    pages = len(list(site.rglob("*.html")))
    print(f"{site.relative_to(ROOT) if site.is_relative_to(ROOT) else site}: {pages} pages, {len(found)} broken links")
    sys.exit(1 if found or built.returncode else 0)


if __name__ == "__main__":
    main()
