"""`planc diff --format markdown`: what a comment says of plans that change, are new, gone, broken or mended."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from planc.cli import main
from planc.cli.views.diff_markdown import MOST_TEXT, markdown
from planc.compare.pairs import pair
from planc.diag.quoting import printable
from planc.driver import Examined, examine
from tests.plans import BODY, HEAD, ROOT, written

NAMES = [
    "|a|`b`@all #1 <script>x</script>",
    "```",
    "[x](http://x.y) **b** :tada: ::error::",
    "\x1b[2J\u202e",
]
TINY = (ROOT / "plans" / "tiny.plan").read_text()


def folders(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Two folders of plans; the words of the command that compares them."""
    for folder, texts in (("before", before), ("after", after)):
        (tmp_path / folder).mkdir()
        for name, text in texts.items():
            (tmp_path / folder / f"{name}.plan").write_text(text)
    return ["diff", str(tmp_path / "before"), str(tmp_path / "after"), "--format", "markdown"]


def test_every_kind_of_change_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = TINY.replace("tp 2", "tp 3")
    before = {"same": TINY, "changed": TINY, "gone": TINY, "broken": TINY, "mended": wrong, "wrong": wrong}
    other = {"changed": TINY.replace("adamw", "muon"), "new": TINY, "broken": wrong, "mended": TINY}
    after = {"same": TINY, **other, "wrong": wrong.replace("fsdp 2", "fsdp 3")}
    assert main(folders(tmp_path, before, after)) == 1
    text = capsys.readouterr().out
    first = text.splitlines()[0]
    assert first.startswith("**6 of 7 plans change**: memory ") and "1 of 1 checkpoints do **not** load" in first
    assert first.endswith("1 new; 1 gone; 1 without errors now; 1 with errors now; 1 with other errors")
    rows = dict(re.findall(r"^\| `(\w+)\.plan` \| (.*?) \|", text, re.MULTILINE))
    assert list(rows) == ["broken", "changed", "gone", "mended", "new", "wrong"]
    assert (
        re.match(r"no longer holds: \*\*\d errors\*\* \(E0203, E0302\)", rows["broken"]) and rows["gone"] == "is gone"
    )
    assert rows["mended"].startswith("has no error any more: memory 0.33 of 4.0 GiB, step ")


def test_the_status_says_that_something_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = folders(tmp_path, {"a": TINY}, {"a": f"# a comment\n{TINY}"})
    assert main(words) == 0
    assert capsys.readouterr().out == "no plan changes in memory, time, layouts or findings (1 compared)\n"
    (tmp_path / "after" / "a.plan").write_text(TINY.replace("microbatch 4", "microbatch 2"))
    assert main(words) == 1 and main([*words, "--exit-zero"]) == 0
    assert main([*words[:3], "--exit-zero"]) == 2 and "with --format markdown" in capsys.readouterr().err
    assert main([words[0], words[1], str(tmp_path / "after" / "a.plan"), *words[3:]]) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("recompute blocks\n", ""), "the checkpoint still loads, nothing moves; losses stay comparable"),
        (("fsdp 8 > tp 8", "tp 8 > fsdp 8"), "the checkpoint still loads, 84.3 GB of 96.4 GB move"),
        (("8 x h100_node", "8 x a100_node"), "the checkpoint still loads, all 96.4 GB on other machines"),
        (("llama3_8b", "llama3_70b"), "the checkpoint does **not** load: other parameters"),
        (("batch     64", "batch     128"), "losses are **not** comparable: `sequences of a step`"),
    ],
)
def test_the_first_line_says_whether_the_checkpoint_loads(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    text = HEAD + BODY
    assert change[0] in text
    one, other = (_examined(tmp_path, t, name) for t, name in ((text, "a"), (text.replace(*change), "b")))
    first = markdown([pair("x.plan", one, other, ("a", "b"))]).splitlines()[0]
    assert first.startswith("**`x.plan`**: memory ") and "step " in first and said in first


def _examined(folder: Path, text: str, name: str) -> Examined:
    return examine(written(folder, text, name))


def test_an_answer_fits_into_a_comment(tmp_path: Path) -> None:
    batch = TINY.replace("batch     8", "batch 16")
    one, other = (_examined(tmp_path, t, n) for t, n in ((TINY, "a"), (batch, "b")))
    compared = pair("x.plan", one, other, ("a", "b"))
    text = markdown([replace(compared, name=f"{n}.plan") for n in range(150)])
    assert len(text) < MOST_TEXT + 200 and "50 more plans change." in text and "more parts do not fit here" in text


@pytest.mark.parametrize("name", NAMES)
def test_names_of_strangers_are_code(tmp_path: Path, name: str) -> None:
    """A reader of Markdown sees them as code and as nothing else, in which GitHub mentions and links nothing."""
    one, other = (_examined(tmp_path, t, "p") for t in (TINY, TINY.replace("fsdp 2", "fsdp 4")))
    text = markdown([pair(name, one, other, (name, name))] * 2)
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = [t for block in parser.parse(text) for t in (block, *(block.children or []))]
    assert not {t.type for t in tokens} & {"link_open", "image", "em_open"}
    html = parser.render(text)
    plain = re.sub(r"(?s)<(code|pre)\b.*?</\1>", "", html)
    assert not re.search(r"script|@all|http:|tada|error::", plain)
    assert all(c.isprintable() or c == "\n" for c in text) and printable(name)[:3] in html.replace("&lt;", "<")
