"""The server as an editor meets it: one process, driven over the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from planc.syntax.fmt import format_text
from tests.editor.client import Client, Json
from tests.plans import BODY, HEAD, ROOT

pytestmark = pytest.mark.launch

GOOD = HEAD + BODY
LIBRARY = (ROOT / "plans").resolve()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One server for the module: each test opens its own file. It must never have failed inside."""
    client = Client(tmp_path_factory.mktemp("workspace"))
    client.initialize()
    yield client
    assert client.logged == []
    client.end()


def line_of(text: str, words: str) -> int:
    return next(n for n, line in enumerate(text.splitlines()) if words in line)


def place(text: str, words: str, of: str = "") -> tuple[int, int]:
    """Line and character of the first `words` (in the line that holds `of`)."""
    line = line_of(text, of or words)
    return line, text.splitlines()[line].index(words)


def last(text: str, words: str, of: str) -> tuple[int, int]:
    """Line and character of the last `words` in the line that holds `of`."""
    line = line_of(text, of)
    return line, text.splitlines()[line].rindex(words)


def path_of(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path)).resolve()


def hovered(client: Client, path: Path, text: str, words: str, of: str = "") -> str:
    answer = client.ask("hover", path, *place(text, words, of))
    return str(answer["contents"]["value"])


def completed(client: Client, path: Path, text: str) -> dict[str, Json]:
    """The completions offered at `|`, by label. Opens or changes the file."""
    before, _, after = text.partition("|")
    clean = before + after
    client.change(path, clean) if path.as_uri() in client.published else client.open(path, clean)
    offered = client.ask("completion", path, before.count("\n"), len(before.rpartition("\n")[2]))
    return {item["label"]: item for item in offered}


def test_another_client_sets_a_target_and_ends_in_order(tmp_path: Path) -> None:
    """With the xla target, the hover shows the collectives that XLA issues."""
    client = Client(tmp_path)
    result = client.initialize(target="xla", set={"nodes": 8, "many": "many"})
    offered = result["capabilities"]
    wanted = ("hover", "definition", "documentFormatting", "documentSymbol", "codeAction", "completion")
    assert [name for name in wanted if not offered.get(f"{name}Provider")] == []
    assert offered["positionEncoding"] == "utf-16"
    assert result["serverInfo"]["name"] == "planc"
    path = tmp_path / "a.plan"
    text = GOOD.replace("plan example\n", "plan example\nlet       nodes = 3\n").replace("8 x h100", "nodes x h100")
    assert client.open(path, text) == []
    assert "all_reduce" in hovered(client, path, text, "use       fsdp")
    assert client.end() == 0


def test_a_good_plan_has_no_findings_and_a_change_brings_one(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    assert client.open(path, GOOD) == []
    (finding,) = client.change(path, GOOD.replace("tp 8", "tp 4"))
    assert (finding["code"], finding["severity"], finding["source"]) == ("E0203", 1, "planc")
    assert "help:" in finding["message"]
    assert not path.exists(), "the text was never on disk"
    assert client.change(path, GOOD) == []


def test_a_finding_leads_to_its_manual_page(client: Client, tmp_path: Path) -> None:
    (finding,) = client.open(tmp_path / "a.plan", GOOD + "shard hedas over tp\n")
    assert finding["code"] == "E0108"
    page = path_of(finding["codeDescription"]["href"])
    assert page.read_text().startswith("# E0108: unknown name")


def test_second_places_are_related_information(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    (finding,) = client.open(path, GOOD + "cluster   8 x h100_node\n")
    assert finding["code"] == "E0107"
    (related,) = finding["relatedInformation"]
    assert related["location"]["uri"] == path.as_uri()
    assert related["location"]["range"]["start"]["line"] == line_of(GOOD, "cluster")


def test_positions_count_utf_16(client: Client, tmp_path: Path) -> None:
    """A name after an astral character in the same line: two code units, one code point."""
    text = GOOD + 'import "🐍🐍.plan" import\n'
    path = tmp_path / "a.plan"
    (finding,) = client.open(path, text)
    line = text.splitlines()[-1]
    wanted = len(line[: line.rindex("import")].encode("utf-16-le")) // 2
    assert wanted == line.rindex("import") + 2
    assert finding["range"]["start"] == {"line": len(GOOD.splitlines()), "character": wanted}


def test_a_quick_fix_mends_the_text(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    text = GOOD + "# 🐍\nexpect    memory <= 72 GB/s # 🐍🐍\n"
    (finding,) = client.open(path, text)
    actions = client.ask("codeAction", path, range=finding["range"], context={"diagnostics": [finding]})
    (action,) = actions
    assert action["kind"] == "quickfix"
    (edit,) = action["edit"]["changes"][path.as_uri()]
    lines = text.splitlines(keepends=True)
    start, end = edit["range"]["start"], edit["range"]["end"]
    line = lines[start["line"]]
    lines[start["line"]] = line[: start["character"]] + edit["newText"] + line[end["character"] :]
    assert client.change(path, "".join(lines)) == []


def test_no_action_is_offered_elsewhere(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    client.open(path, GOOD + "expect    memory <= 72 GB/s\n")
    start = {"line": 0, "character": 0}
    assert client.ask("codeAction", path, range={"start": start, "end": start}, context={"diagnostics": []}) == []


def test_hover_on_a_use_shows_what_it_stands_for_and_causes(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    client.open(path, GOOD)
    text = hovered(client, path, GOOD, "use       fsdp")
    assert "`use LAYOUT over AXES" in text
    assert "shard batch over fsdp\nstore params, grads, optimizer over fsdp" in text
    assert "| all_gather | fsdp | param | forward |" in text
    assert "state on each device: params " in text


def test_hover_on_names_says_what_they_are(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    client.open(path, GOOD)
    assert "`tp`: a layout\n```plan\nlayout tp over tp" in hovered(client, path, GOOD, "tp", "use       tp")
    axis = client.ask("hover", path, *last(GOOD, "fsdp", "use       fsdp"))["contents"]["value"]
    assert axis.startswith("`fsdp`: an axis of the mesh, 8 devices, stride 8; its groups cross `leaf`")
    assert "8.03 B parameters" in hovered(client, path, GOOD, "llama3_8b")
    assert "node h100_node = 8 x h100 over nvlink4" in hovered(client, path, GOOD, "h100_node")


def test_hover_between_sentences_is_nothing(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    client.open(path, GOOD + "\n\n# a comment\n")
    assert client.ask("hover", path, len(GOOD.splitlines()) + 1, 0) is None
    assert client.ask("hover", path, 10_000, 10_000) is None


def test_definition_of_axes_params_layouts_and_machines(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    text = GOOD.replace("plan example\n", "plan example\nlet       nodes = 8\n").replace("8 x h100", "nodes x h100")
    assert client.open(path, text) == []
    axis = client.ask("definition", path, *last(text, "tp", "use       tp"))
    assert axis["uri"] == path.as_uri()
    assert (axis["range"]["start"]["line"], axis["range"]["start"]["character"]) == place(text, "tp", "mesh")
    param = client.ask("definition", path, *place(text, "nodes", "cluster"))
    assert param["range"]["start"] == {"line": 1, "character": 10}
    layout = client.ask("definition", path, *place(text, "fsdp", "use       fsdp"))
    assert path_of(layout["uri"]) == LIBRARY / "layouts" / "fsdp.plan"
    machine = client.ask("definition", path, *place(text, "h100_node"))
    assert path_of(machine["uri"]) == LIBRARY / "hardware" / "h100.plan"
    declared = (LIBRARY / "hardware" / "h100.plan").read_text().splitlines()[machine["range"]["start"]["line"]]
    assert declared.startswith("node      h100_node")


def test_definition_of_an_import_and_of_a_layout_in_it(client: Client, tmp_path: Path) -> None:
    (tmp_path / "mine.plan").write_text("# mine\nlayout mine over a\nshard batch over a\n")
    path = tmp_path / "a.plan"
    text = HEAD + 'import    "mine.plan"\nuse mine over fsdp\nuse tp over tp\nrecompute blocks\n'
    client.open(path, text)
    file = client.ask("definition", path, *place(text, "mine.plan"))
    assert path_of(file["uri"]) == tmp_path / "mine.plan"
    layout = client.ask("definition", path, *place(text, "mine", "use mine"))
    assert path_of(layout["uri"]) == tmp_path / "mine.plan"
    assert layout["range"]["start"] == {"line": 1, "character": 7}


def test_completion_offers_verbs_at_the_start_of_a_line(client: Client, tmp_path: Path) -> None:
    offered = completed(client, tmp_path / "a.plan", GOOD + "sh|")
    assert offered["shard"]["detail"].startswith("`shard DIM, ...")
    assert "plan" not in offered and "torus" not in offered
    start = offered["shard"]["textEdit"]["range"]["start"]
    assert start == {"line": len(GOOD.splitlines()), "character": 0}


@pytest.mark.parametrize(
    ("sentence", "some"),
    [
        ("shard he|", {"heads", "kv_heads", "ffn"}),
        ("shard heads over |", {"fsdp", "tp"}),
        ("shard heads |", {"over"}),
        ("shard sequence over tp in |", {"residual", "attention"}),
        ("store |", {"params", "grads", "optimizer"}),
        ("store params as | over fsdp", {"bf16", "fp32"}),
        ("use | over fsdp", {"fsdp", "hsdp", "zero1"}),
        ("gather params per |", {"step", "pass", "microbatch"}),
        ("split layers over tp as |", {"1f1b", "gpipe"}),
        ("recompute |", {"blocks", "attention.core"}),
        ("compute |", {"bf16", "fp32"}),
        ("expect |", {"memory", "mfu", "no"}),
        ("expect memory <= 72 |", {"GiB", "GB"}),
        ("expect no |", {"W0601", "E0501"}),
        ("model |", {"llama3_70b", "from"}),
        ("model llama3_8b(|", {"layers", "vocab"}),
        ("cluster 8 x |", {"h100_node", "tpu_v5p"}),
        ("override |", {"layers.*.attention.wq", "output"}),
        ("override output = |", {"replicated", "vocab"}),
        ("offload |", {"optimizer", "params"}),
        ("attention.core as |", {"flash", "ring"}),
        ("quantize ffn as float8(|", {"recipe", "tile"}),
        ("on |", {"cuda", "xla"}),
        ("on xla: |", {"shard", "store"}),
    ],
)
def test_completion_offers_what_the_readers_take(client: Client, tmp_path: Path, sentence: str, some: set[str]) -> None:
    verb = sentence.split()[0]
    rest = "".join(f"{line}\n" for line in GOOD.splitlines() if verb == "use" or line.split()[0] != verb)
    offered = completed(client, tmp_path / "a.plan", rest + sentence)
    assert some <= set(offered)


def test_completion_is_silent_in_comments(client: Client, tmp_path: Path) -> None:
    assert completed(client, tmp_path / "a.plan", GOOD + "# sh|") == {}
    assert completed(client, tmp_path / "a.plan", GOOD + "shard heads # sh|") == {}


def test_completion_offers_files_in_quotes(client: Client, tmp_path: Path) -> None:
    (tmp_path / "mine.plan").write_text("layout mine over a\nshard batch over a\n")
    assert set(completed(client, tmp_path / "a.plan", GOOD + 'import "mi|"')) == {"mine.plan"}


def test_formatting_is_that_of_planc_fmt(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    text = GOOD.replace("use       tp   over tp", "use  tp  over  tp   # 🐍") + "\n\n"
    client.open(path, text)
    options = {"tabSize": 4, "insertSpaces": True}
    (edit,) = client.ask("formatting", path, options=options)
    assert edit["newText"] == format_text(text) != text
    assert edit["range"]["start"] == {"line": 0, "character": 0}
    assert edit["range"]["end"] == {"line": text.count("\n"), "character": 0}
    client.change(path, edit["newText"])
    assert client.ask("formatting", path, options=options) == []


def test_symbols_are_the_sentences_under_the_header(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    client.open(path, GOOD)
    (plan,) = client.ask("documentSymbol", path)
    assert plan["name"] == "plan example"
    assert [s["name"].split()[0] for s in plan["children"]] == [line.split()[0] for line in GOOD.splitlines()[1:]]
    mesh = next(s for s in plan["children"] if s["name"].startswith("mesh"))
    assert [axis["name"] for axis in mesh["children"]] == ["fsdp", "tp"]


def test_a_finding_in_an_import_is_published_there_and_taken_back(client: Client, tmp_path: Path) -> None:
    layout, path = tmp_path / "mine.plan", tmp_path / "a.plan"
    layout.write_text("layout mine over a\nshrd batch over a\n")
    text = HEAD + 'import    "mine.plan"\nuse tp over tp\nrecompute blocks\n'
    client.open(path, text)
    assert [d["code"] for d in client.findings(layout)] == ["E0101"]
    client.notify("textDocument/didClose", {"textDocument": {"uri": path.as_uri()}})
    assert client.findings(layout, 2) == []


def test_an_open_import_counts_as_it_stands(client: Client, tmp_path: Path) -> None:
    """The layout on disk is mistaken; the one in the editor is not yet saved, and right."""
    layout, path = tmp_path / "mine.plan", tmp_path / "a.plan"
    layout.write_text("layout mine over a\nshrd batch over a\n")
    client.open(layout, "layout mine over a\nshard batch over a\n")
    text = HEAD + 'import    "mine.plan"\nuse mine over fsdp\nuse tp over tp\nrecompute blocks\n'
    codes = [d["code"] for d in client.open(path, text)]
    assert "E0101" not in codes


def test_layouts_and_hardware_are_checked_by_themselves(client: Client, tmp_path: Path) -> None:
    layout = client.open(tmp_path / "l.plan", "layout mine over a\nshard hedas over a\nstore params over b\n")
    assert [d["code"] for d in layout] == ["E0108", "E0108"]
    hardware = client.open(tmp_path / "h.plan", "hardware h\nlink l(bandwidth = 4 GiB, latency = 1 us)\n")
    assert [d["code"] for d in hardware] == ["E0103"]
    assert client.open(tmp_path / "tp.plan", (LIBRARY / "layouts" / "pp.plan").read_text()) == []


def test_texts_that_are_no_plans_do_no_harm(client: Client, tmp_path: Path) -> None:
    for number, text in enumerate(["", "\r", "\0", "\ud800", "plan", '"', "plan a\n((((", "\u2028\x0b\x0c", "#"]):
        path = tmp_path / f"{number}.plan"
        client.open(path, text)
        for what in ("hover", "definition", "completion"):
            client.ask(what, path, 0, 1)
        client.ask("documentSymbol", path)
        client.ask("formatting", path, options={"tabSize": 4, "insertSpaces": True})
    assert client.ask("hover", tmp_path / "never_opened.plan") is None
