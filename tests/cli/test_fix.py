"""`check --fix`: what is unambiguous is applied and shown, everything else is left alone and named."""

import json
import os
import shutil
from pathlib import Path

import pytest
from jsonschema import validate

from planc.cli import main
from planc.cli.apply_fixes import fix_file
from planc.driver import check
from tests.plans import BODY, HEAD
from tests.plans import found as findings

GOOD = HEAD + BODY
MISSPELT = GOOD.replace("model ", "modle ", 1).replace("over tp\nuse", "ovr tp\nuse")


def written(folder: Path, text: str) -> Path:
    path = folder / "x.plan"
    path.write_bytes(text.encode())
    return path


def test_each_edit_is_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, MISSPELT)
    assert main(["check", str(path), "--fix"]) == 0
    out = capsys.readouterr().out
    assert f"fixed E0101 {path}:2:1: write `model`\n--- {path}\n+++ {path}\n@@ -2 +2 @@\n-modle " in out
    assert out.count("\nfixed ") + out.startswith("fixed ") == 2 and "+use       tp   over tp\n" in out
    assert path.read_text() == GOOD


def test_json_stays_alone_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, MISSPELT)
    assert main(["check", str(path), "--fix", "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["diagnostics"] == [] and captured.err.count("fixed ") == 2


ASKED = {
    "another model": GOOD.replace("llama3_8b", "llama3_8"),
    "another machine": GOOD.replace("h100_node", "h100_nod"),
    "another microbatch": GOOD.replace("microbatch 1", "microbatch 3"),
    "a batch": GOOD.replace("batch     64 x 8192 tokens microbatch 1\n", ""),
    "a cluster": GOOD.replace("cluster   8 x h100_node\n", ""),
    "a model": GOOD.replace("model     llama3_8b\n", ""),
    "more GPUs": GOOD.replace("mesh      fsdp 8 > tp 8", "mesh      fsdp 8 > tp 24"),
    "another global batch": GOOD.replace("64 x", "63 x"),
    "recomputing": HEAD.replace("8 x h100", "1 x h100").replace("fsdp 8 > tp 8", "fsdp 8") + "use fsdp over fsdp\n",
    "one of two sentences": GOOD + "shard batch over tp\nshard batch over fsdp\n",
    "one of two axes": GOOD.replace("fsdp 8 > tp 8", "data 8 > date 8").replace("over fsdp", "over datx"),
    "a short name": GOOD.replace("use       tp   over tp", "use       tp   over tpx"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_changes_the_plan_is_not_applied(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, ASKED[name])
    offered = [d for d in check(path).diagnostics if d.fix is not None and d.severity != "note"]
    assert offered, "the finding offers an edit"
    assert main(["check", str(path), "--fix"]) == 1
    out = capsys.readouterr().out
    assert path.read_text() == ASKED[name]
    assert "fixed " not in out and f"not applied {offered[0].code} " in out and "--unsafe-fixes applies it" in out


def test_unsafe_fixes_are_applied_where_they_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, ASKED["more GPUs"])
    assert main(["check", str(path), "--fix", "--unsafe-fixes"]) in (0, 1)
    assert "fixed E0203" in capsys.readouterr().out and path.read_text() != ASKED["more GPUs"]


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_bytes_that_no_edit_touches_stay(tmp_path: Path, mark: str, end: str) -> None:
    path = written(tmp_path, (mark + MISSPELT).replace("\n", end))
    assert len(fix_file(str(path), {}, None).applied) == 2
    assert path.read_bytes() == (mark + GOOD).replace("\n", end).encode()


def test_an_edit_in_the_first_line_counts_from_behind_the_mark(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff" + GOOD.replace("plan example", "pln example"))
    assert len(fix_file(str(path), {}, None).applied) == 1
    assert path.read_bytes() == ("\ufeff" + GOOD).encode()


def test_added_lines_have_the_line_ends_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, ASKED["a batch"].replace("\n", "\r\n"))
    assert fix_file(str(path), {}, None, unsafe=True).applied
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n") > ASKED["a batch"].count("\n")


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    path, link = written(tmp_path, MISSPELT), tmp_path / "link.plan"
    path.chmod(0o640)
    link.symlink_to(path)
    fix_file(str(link), {}, None)
    assert link.is_symlink() and path.read_text() == GOOD and path.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.plan", "x.plan"]


def test_a_full_disk_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: object, mode: int) -> None:
        raise OSError(28, "No space left on device")

    path = written(tmp_path, MISSPELT)
    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="No space"):
        fix_file(str(path), {}, None)
    assert path.read_text() == MISSPELT and [p.name for p in tmp_path.iterdir()] == ["x.plan"]


def test_a_file_without_findings_is_not_written(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    before = path.stat().st_mtime_ns
    assert fix_file(str(path), {}, None).applied == ()
    assert path.stat().st_mtime_ns == before
    shutil.rmtree(tmp_path)
    assert fix_file(str(path), {}, None).applied == ()


def test_a_safe_fix_of_a_plan_keeps_what_it_costs(tmp_path: Path) -> None:
    """Warnings with a safe fix are about sentences without effect."""
    text = GOOD.replace("recompute blocks", "gather params per step\nrecompute ffn.add, attention.core").replace(
        "use       fsdp over fsdp", "shard batch over fsdp"
    )
    path = written(tmp_path, text)
    before = check(path, target="none")
    assert {d.code for d in before.diagnostics if d.fix and d.fix.safe} == {"W0502", "W0503"}
    assert len(fix_file(str(path), {}, None).applied) == 2
    after = check(path, target="none")
    assert (after.step, after.memory) == (before.step, before.memory)


TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string"}},
    "additionalProperties": False,
}
FILE = {"type": "object", "required": ["uri"], "properties": {"uri": {"type": "string", "format": "uri-reference"}}}
PLACES = ("startLine", "startColumn", "endLine", "endColumn")
REGION = {
    "type": "object",
    "properties": {name: {"type": "integer", "minimum": 1} for name in PLACES},
    "required": list(PLACES),
    "additionalProperties": False,
}
REPLACEMENT = {
    "type": "object",
    "properties": {"deletedRegion": REGION, "insertedContent": TEXT},
    "required": ["deletedRegion"],
    "additionalProperties": False,
}
CHANGE = {
    "type": "object",
    "properties": {
        "artifactLocation": FILE,
        "replacements": {"type": "array", "items": REPLACEMENT, "minItems": 1},
    },
    "required": ["artifactLocation", "replacements"],
    "additionalProperties": False,
}
FIX = {
    "type": "object",
    "properties": {
        "description": TEXT,
        "artifactChanges": {"type": "array", "items": CHANGE, "minItems": 1, "uniqueItems": True},
        "properties": {"type": "object"},
    },
    "required": ["artifactChanges"],
    "additionalProperties": False,
}
LOCATION = {
    "type": "object",
    "properties": {"physicalLocation": {"type": "object", "properties": {"artifactLocation": FILE, "region": REGION}}},
}
RESULT = {
    "type": "object",
    "properties": {
        "ruleId": {"type": "string"},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": TEXT,
        "locations": {"type": "array", "items": LOCATION},
        "fixes": {"type": "array", "items": FIX, "uniqueItems": True},
    },
    "required": ["message"],
    "additionalProperties": False,
}
SARIF = {
    "type": "object",
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "properties": {"results": {"type": "array", "items": RESULT}},
            },
        },
    },
    "required": ["version", "runs"],
    "additionalProperties": False,
}
"""The objects of SARIF 2.1.0 (sections 3.27, 3.55 to 3.57) that planc writes."""


def test_sarif_carries_the_fixes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, MISSPELT)
    assert main(["check", str(path), "--format", "sarif"]) == 1
    answer = json.loads(capsys.readouterr().out)
    validate(answer, SARIF)
    (verb, *_) = answer["runs"][0]["results"]
    (change,) = verb["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"]["uri"] == str(path) and verb["fixes"][0]["properties"] == {"safe": True}
    region = {"startLine": 2, "startColumn": 1, "endLine": 2, "endColumn": 6}
    assert change["replacements"] == [{"deletedRegion": region, "insertedContent": {"text": "model"}}]


def test_annotations_of_github_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x\n::warning file=a::injected,100%.plan"
    path.write_text("plan p\n")
    main(["check", str(path), "--format", "github"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(check(path).diagnostics)
    assert all(line.startswith("::error file=") and "%0A%3A%3Awarning" in line for line in lines)


def test_imports_have_an_end(tmp_path: Path) -> None:
    for n in range(300):
        (tmp_path / f"{n}.plan").write_text(f'hardware h{n}\nimport "{n + 1}.plan"\n')
    (tmp_path / "300.plan").write_text("hardware last\n")
    said = [d.message for d in findings(tmp_path, HEAD + 'import "0.plan"\n' + BODY) if d.code == "E0111"]
    assert said == ["a plan imports at most 100 files"]


def test_a_link_to_itself_is_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to(tmp_path / "l")
    for sentence in ('import "l"', 'model from "l"'):
        text = HEAD.replace("model     llama3_8b", sentence) + BODY
        assert {"E0111", "E0104"} & {d.code for d in findings(tmp_path, text)}
