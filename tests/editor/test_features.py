"""The server's answers as functions: places, and no text that makes one of them fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lsprotocol.types import Location, Position
from pygls.workspace.position_codec import PositionCodec

from planc.diag.edits import apply_edits
from planc.diag.span import Span
from planc.editor.completion import complete
from planc.editor.definition import definition
from planc.editor.diagnostics import quick_fix, shown
from planc.editor.hover import hover
from planc.editor.names import FACTS
from planc.editor.opened import EditorSettings, Opened, open_file
from planc.editor.positions import Positions
from planc.editor.symbols import symbols
from planc.editor.verbs import manual
from planc.language.draft import NameLookup
from planc.syntax import parse_text
from planc.syntax.expected_tokens import MARK, follow
from planc.syntax.lines import HEADERS, VERBS
from tests.plans import BODY, BUNDLED, HEAD, ROOT

CODEC = PositionCodec()
TEXTS = [p.read_text() for p in sorted((ROOT / "plans").rglob("*.plan"))]
HERE = Path("/nowhere/example.plan")
GOOD = HEAD + BODY


def opened(text: str, **unsaved: str) -> Opened:
    return open_file(HERE, text, {HERE.parent / f"{name}.plan": t for name, t in unsaved.items()}, EditorSettings())


def everything(text: str, offset: int) -> None:
    """Ask all there is to ask about one place of a text."""
    file, positions = opened(text), Positions(text, CODEC)
    place = positions.place_at(offset)
    hover(file, *place)
    definition(file, *place)
    assert all(c.start <= offset for c in complete(file, offset, {}, EditorSettings()))
    symbols(file, positions)
    for finding in file.diagnostics:
        found = shown(finding, lambda span: Location("file:///x", positions.range(span)))
        assert found.range.start <= found.range.end


@settings(max_examples=40)
@given(st.sampled_from(TEXTS), st.data())
def test_no_beginning_of_a_plan_makes_an_answer_fail(text: str, data: st.DataObject) -> None:
    """A text while it is typed: cut off anywhere, with the cursor at the end."""
    end = data.draw(st.integers(0, len(text)))
    everything(text[:end], end)


@settings(max_examples=40)
@given(st.sampled_from(TEXTS), st.data())
def test_no_damaged_plan_makes_an_answer_fail(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    put = data.draw(st.text(st.sampled_from('ax8 ,()[]"#=>\n\r\0🐍\ud800:?*.%'), max_size=6))
    everything(text[:start] + put + text[end:], data.draw(st.integers(0, start + len(put))))


@given(st.text(st.sampled_from("a \n\r🐍é\u2028"), max_size=30), st.data())
@example("🐍\r\n🐍🐍\r🐍", None)
def test_positions_there_and_back(text: str, data: st.DataObject | None) -> None:
    positions = Positions(text, CODEC)
    offsets = range(len(text) + 1) if data is None else [data.draw(st.integers(0, len(text)))]
    for offset in offsets:
        inside_newline = text[max(offset - 1, 0) : offset + 1] == "\r\n"
        back = positions.offset(positions.position(offset))
        assert back == (offset - 1 if inside_newline else offset)
        assert positions.offset_at(*positions.place_at(offset)) == offset


def test_a_plan_may_import_what_only_the_editor_holds() -> None:
    text = HEAD + 'import    "mine.plan"\nuse mine over fsdp\nuse tp over tp\nrecompute blocks\n'
    layout = "layout mine over a\nshard batch over a\nstore params, grads, optimizer over a\n"
    assert "E0104" in {d.code for d in opened(text).diagnostics}
    assert "E0104" not in {d.code for d in opened(text, mine=layout).diagnostics}


def test_positions_count_code_units() -> None:
    positions = Positions("a🐍b\r\n🐍", CODEC)
    assert positions.position(2) == Position(0, 3)
    assert positions.offset(Position(0, 2)) == 1, "inside the pair: its beginning"
    assert positions.offset(Position(0, 99)) == 3
    assert positions.offset(Position(9, 0)) == 6
    assert positions.range(Span("x", 2, 1, 2, 2)).end == Position(1, 2)
    assert Positions("a🐍b", PositionCodec("utf-8")).position(2) == Position(0, 5)


def test_every_verb_has_a_manual() -> None:
    assert [verb for verb in VERBS if not manual(verb)] == []
    assert manual("shard").startswith("`shard DIM, ... over AXIS")
    assert manual("model_from") and manual("expect_no")


def looked_up(text: str) -> list[NameLookup]:
    return list(opened(text).lookups)


def test_the_kinds_of_names_are_those_that_readers_ask_for() -> None:
    """Facts and definitions go by the readers' words: these must be in use."""
    hardware = (ROOT / "plans/hardware/h100.plan").read_text()
    texts = [p.read_text() for p in BUNDLED] + [
        GOOD + "expect memory <= 3 Gi\n",
        "plan a\nmodel llama3_8b(layers = 2)",
        hardware,
    ]
    asked = {a.what for text in texts for a in looked_up(text)}
    assert [kind for kind in FACTS if not any(what.startswith(kind) for what in asked)] == []


def test_a_legal_name_is_told_from_a_wrong_one() -> None:
    text = GOOD + "shard ffn over dp\n"
    told, _ = hover(opened(text), len(text.splitlines()), len("shard ffn over d")) or ("", None)
    assert told.startswith("`dp` is not an axis of the mesh; legal: `fsdp`, `tp`")


def test_hover_counts_the_collectives_of_its_sentence_alone() -> None:
    file = opened(GOOD)
    report = file.checked.report if file.checked else None
    assert report and report.collectives
    line = next(n for n, text in enumerate(GOOD.splitlines(), 1) if text.startswith("use       fsdp"))
    caused = [r for r in report.collectives if r.row.cause and r.row.cause.span.line == line]
    told, _ = hover(file, line, 1) or ("", None)
    calls = sum(
        int(row.split("|")[5].replace(",", "")) for row in told.splitlines() if row.startswith(("| all_", "| reduce"))
    )
    assert calls == sum(r.row.count for r in caused) > 0


def test_a_fix_below_a_last_line_without_newline_is_that_of_check_fix() -> None:
    """E0107's edit stands behind the header; the editor's text after it equals `apply_edits`."""
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith("batch"))
    file, positions = opened(text), Positions(text, CODEC)
    (finding,) = file.diagnostics
    assert finding.code == "E0107" and finding.fix is not None
    action = quick_fix(finding, finding.fix, lambda s: Location("file:///x", positions.range(s)), lambda s: positions)
    assert action.edit is not None and action.edit.changes is not None
    (edit,) = action.edit.changes["file:///x"]
    start, end = positions.offset(edit.range.start), positions.offset(edit.range.end)
    assert text[:start] + edit.new_text + text[end:] == apply_edits(text, finding.fix.edits)


NO_NAME_FIRST = ("import", "attention.core", "realise", "train", "lora", "loss", "requests", "sync")
"""Verbs that no name follows."""


@pytest.mark.parametrize("verb", [v for v in VERBS if v not in NO_NAME_FIRST])
def test_every_sentence_can_be_finished_after_a_name(verb: str) -> None:
    """The endings found for `VERB NAME` make sentences of the grammar."""
    what = follow(f"{verb} ")
    assert what is not None and what.endings
    for ending in what.endings:
        text = f"{verb} {MARK}{ending}\n"
        assert parse_text(text if verb in HEADERS else f"plan a\n{text}", "a").diagnostics == ()


WITHOUT = """
import sys
sys.modules["pygls"] = None
from planc.cli import main
sys.exit(main(["lsp"]))
"""


def test_without_its_library_the_command_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "planc lsp: pygls is not installed: pip install 'planc[lsp]'\n"


def test_check_does_not_load_the_library() -> None:
    ask = "import sys; from planc.cli import main; main(['check', sys.argv[1]]); assert 'pygls' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", ask, str(BUNDLED[0])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_an_imported_file_says_is_code_in_a_hover() -> None:
    """A line of three backticks ended the code, and what came after was a picture that the editor fetched."""
    from markdown_it import MarkdownIt

    layout = "layout mine over x\n# a comment\n```\n![x](http://example.com/x.png)\n```\nshard batch over x\n"
    text = GOOD.replace("use       fsdp over fsdp", "use       mine over fsdp").replace(
        "model ", 'import    "mine.plan"\nmodel ', 1
    )
    file = opened(text, mine=layout)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "use       mine" in one)
    told, _ = hover(file, line, len("use       m")) or ("", None)
    assert "example.com" in told
    kinds = {t.type for token in MarkdownIt().parse(told) for t in (token, *(token.children or ()))}
    assert kinds.isdisjoint({"image", "link_open", "html_block", "html_inline"})


def test_a_serve_plan_is_checked_with_its_trainer() -> None:
    serve = 'serve rollout of "train.plan"\nmesh dp 8 > tp 8\nuse ddp over dp\nuse tp over tp\n'
    right, wrong = (opened(text, train=GOOD) for text in (serve, serve.replace("tp 8", "tp 7")))
    assert not any(d.code == "E0106" for d in (*right.diagnostics, *wrong.diagnostics))
    assert {d.code for d in wrong.diagnostics} - {d.code for d in right.diagnostics}
    assert [s.verb for s in right.meant] and right.checked is None
