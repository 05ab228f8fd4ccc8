"""Time that grows with the text, and no faster: operations are counted, and what is too much is refused at once."""

import sys
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from types import FrameType

import pytest

from planc.diag.diagnostic import MAX_MESSAGE, MAX_OF_ONE_CODE
from planc.diag.span import Source
from planc.driver import examine
from planc.editor.opened import EditorSettings, open_file
from planc.language import imports
from planc.language.imports import MAX_BYTES
from planc.language.verbs import use
from planc.sharding import propagate
from planc.syntax import parse_text, suggest
from planc.syntax.fmt import format_text
from planc.syntax.lines import MOST_SENTENCES, logical_lines, too_many
from planc.syntax.suggest import nearest
from planc.syntax.tree import Sentence
from tests.lab.bench import large
from tests.lab.bench.large import largest_read, lines, of_size
from tests.plans import BODY, HEAD, codes, found

COUNTED = ("one override", "expectations")
"""Kinds whose operations grew with the square of their lines."""
LINES = 30
HEAD_LINES = large.HEAD.count("\n")


def operations(call: Callable[[], object]) -> int:
    """Calls of functions, Python's own among them, while `call` runs."""
    count = 0

    def met(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(met)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", COUNTED)
def test_operations_grow_with_the_lines(kind: str, tmp_path: Path) -> None:
    """As many lines again take no more operations than the first, but for a few."""
    path = tmp_path / "a.plan"
    counted = []
    for number in (1, 1, LINES, 2 * LINES):
        path.write_text("".join(islice(lines(kind), HEAD_LINES + number)))
        counted.append(operations(lambda: examine(path)))
    _, none, once, twice = counted
    assert twice - once < 1.4 * (once - none), counted
    assert once - none < LINES * 8_000, counted


def test_the_override_of_a_parameter_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops, checks and costs ask for it: a name is compared with each override, and not for each question."""
    looked = Counter[str]()

    def matches(name: str, glob: str) -> bool:
        looked[name] += 1
        return fnmatchcase(name, glob)

    monkeypatch.setattr(propagate, "fnmatchcase", matches)
    overrides = [f"override layers.*.attention.{w} = replicated\n" for w in ("wq", "wk") for _ in range(20)]
    assert codes(tmp_path, HEAD + BODY + "".join(overrides)).count("W0703") == len(overrides)
    assert 0 < max(looked.values()) <= 2 * len(overrides)


def test_spellings_are_compared_for_the_findings_that_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comparison is with every legal name; a thousand mistakes would be a thousand times that."""
    compared: list[str] = []

    def compare(word: str, legal: tuple[str, ...], most: int) -> tuple[str, ...]:
        compared.append(word)
        return ()

    monkeypatch.setattr(suggest, "_nearest", compare)
    unknown = "".join(f"let a{i} = b{i}\nsharp{i} ffn\n" for i in range(300))
    shown = [d.code for d in found(tmp_path, HEAD + BODY + unknown)]
    assert (shown.count("E0108"), shown.count("E0101")) == (100, 100)
    assert 200 <= len(compared) < 2 * 100 + 20
    monkeypatch.undo()
    many = [f"{'xyzn'[i % 4]}umber{i}" for i in range(4_000)]
    assert nearest("nubmer4321", many, 1) != [] and operations(lambda: nearest("nubmer77", many, 1)) < 200_000


def test_expectations_are_compared_with_the_strictest_alone(tmp_path: Path) -> None:
    text = HEAD + BODY + "expect memory <= 62 GiB\nexpect memory <= 60 GiB\n" + "expect memory >= 70 GiB\n" * 30
    found_codes = codes(tmp_path, text)
    assert found_codes.count("E0804") == 30  # one for each, not one for each pair


def test_a_plan_of_too_many_sentences_is_refused_at_once(tmp_path: Path) -> None:
    text = HEAD + BODY + "x\n" * MOST_SENTENCES
    (only,) = found(tmp_path, text)
    assert (only.code, only.span.line) == ("E0117", MOST_SENTENCES + 1)
    assert "4,010 sentences" in only.message
    (only,) = found(tmp_path, HEAD + BODY + f"let a = 1{' + 1' * 3_000}\n" * 20)
    assert only.code == "E0117" and only.span.line > 20
    assert operations(lambda: parse_text(text + " ", "a.plan")) < 20 * MOST_SENTENCES
    assert format_text(text) == text


def test_comments_do_not_count(tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + BODY + "# a comment\n" * 2 * MOST_SENTENCES + "\n" * 2 * MOST_SENTENCES) == []


@pytest.mark.parametrize("kind", ["expectations", "lists", "comments"])
def test_the_texts_of_the_bench_are_what_they_say(kind: str) -> None:
    whole, read = of_size(kind, MAX_BYTES), largest_read(kind)
    assert len(whole.encode()) <= MAX_BYTES < 1.05 * len(whole.encode())
    assert too_many(list(logical_lines(Source.of("", read)))) is None


def test_imports_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is too long by itself, and a hundred may be imported."""
    monkeypatch.setattr(imports, "MOST_SENTENCES", 100)
    monkeypatch.setattr(imports, "MAX_BYTES", 10_000)
    for i in range(30):
        links = "".join(f"link l{i}_{j}(bandwidth = 4 GB/s, latency = 1 us)\n" for j in range(10))
        (tmp_path / f"h{i}.plan").write_text(f"hardware h{i}\n{links}")
    plan = HEAD + "".join(f'import "h{i}.plan"\n' for i in range(30)) + BODY
    refused = [d for d in found(tmp_path, plan) if d.code == "E0117"]
    assert len(refused) == 23 and "hold 109 sentences" in refused[0].message
    for i in range(30):
        (tmp_path / f"h{i}.plan").write_text(f"hardware h{i}\n" + "# c\n" * 500)
    refused = [d for d in found(tmp_path, plan) if d.code == "E0117"]
    assert len(refused) == 26 and "10 kB together" in refused[0].message


def test_layouts_write_an_end_of_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layouts, each of which uses the next twenty times, would write 20**3 sentences, and each further one twenty
    times as many; a list of axes counts."""
    written, with_scope = list[str](), use._with_scope

    def noted(sentence: Sentence, by: Sentence) -> Sentence:
        written.append(sentence.verb)
        return with_scope(sentence, by)

    monkeypatch.setattr(use, "_with_scope", noted)
    for i in range(4):
        inner = f"use n{i + 1} over a\n" * 20 if i < 3 else "shard batch over a\n"
        (tmp_path / f"n{i}.plan").write_text(f"layout n{i} over a\n{inner}")
    imports = "".join(f'import "n{i}.plan"\n' for i in range(4))
    assert codes(tmp_path, HEAD + imports + "use n0 over fsdp\n").count("E0117") == 1
    assert 0 < len(written) <= MOST_SENTENCES
    (tmp_path / "n0.plan").write_text("layout n0 over a\n" + "shard batch over a\n" * 50)
    text = HEAD + 'import "n0.plan"\n' + f"use n0 over {', '.join(['tp'] * 100)}\n"
    assert "E0117" in codes(tmp_path, text)


def test_a_message_has_an_end(tmp_path: Path) -> None:
    """A sentence of 15,000 characters is quoted in part."""
    text = HEAD + BODY + f"shard {', '.join(['ffn'] * 3_000)} over tp\n" * 2
    assert max(len(d.message) for d in found(tmp_path, text)) == MAX_MESSAGE


def test_a_long_name_in_a_malformed_sentence_is_read_once() -> None:
    """The search for a hyphen began anew at every letter: 19,000 of them took 20 seconds."""
    assert len(parse_text(f"plan a\nshard {'a' * 19_000} ovr tp\n", "a.plan").diagnostics) == 1


def test_an_editor_opens_them_too(tmp_path: Path) -> None:
    opened = open_file(tmp_path / "a.plan", of_size("numbers", MAX_BYTES), {}, EditorSettings())
    assert [d.code for d in opened.diagnostics] == ["E0117"]
    text = HEAD + "".join(f"let n{i} = 1\n" for i in range(1_500)) + BODY
    assert (
        max(len(n.legal) for n in open_file(tmp_path / "a.plan", text + "let m = n3\n", {}, EditorSettings()).lookups)
        <= 1_000
    )


def test_no_more_findings_are_related_than_shown(tmp_path: Path) -> None:
    text = HEAD + BODY + "override layers.*.attention.wq = replicated\n" * 50 + "expect no W0703\n"
    (broken,) = [d for d in found(tmp_path, text) if d.code == "E0802"]
    assert len(broken.related) == 20 < 50 < MAX_OF_ONE_CODE
