"""Presets: what is read, what is refused and where, and that embedding keeps the author's text."""

from __future__ import annotations

from pathlib import Path

import pytest

import planc
from planc.diag import Diagnostic, PlanError
from planc.ir.plan import Plan
from planc.trainer.preset.embed import embed
from planc.trainer.preset.load import load_preset

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "plans" / "tiny.plan"
PRESET = """\
# my run

[train]     # how
lr = 1e-3
steps = 3

[data]
source = "python-stdlib"
"""


@pytest.fixture(scope="module")
def tiny() -> Plan:
    return planc.load(TINY)


@pytest.fixture
def preset(tmp_path: Path, tiny: Plan) -> Path:
    """A preset beside a copy of the tiny plan."""
    (tmp_path / "tiny.plan").write_text(TINY.read_text())
    path = tmp_path / "run.toml"
    path.write_text(PRESET)
    embed(tiny, tmp_path / "tiny.plan", path)
    return path


def findings(path: Path) -> list[Diagnostic]:
    with pytest.raises(PlanError) as raised:
        load_preset(path)
    return list(raised.value.diagnostics)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_an_embedded_plan_is_the_plan(preset: Path, tiny: Plan) -> None:
    loaded = load_preset(preset)
    assert loaded.plan.sha256 == tiny.sha256
    assert line_of(preset, loaded.plan) == "mesh      fsdp 2 > tp 2"
    assert loaded.notes == ()
    assert (loaded.train.steps, loaded.train.lr, loaded.train.betas) == (3, 1e-3, (0.9, 0.95))


def test_embedding_keeps_the_authors_text_and_is_idempotent(preset: Path, tiny: Plan) -> None:
    text = preset.read_text()
    for line in PRESET.splitlines():
        assert line in text
    assert text.index("[train]") < text.index("[data]")
    assert embed(tiny, preset.parent / "tiny.plan", preset) is False
    assert preset.read_text() == text


def test_embedding_makes_a_preset_that_is_not_there(tmp_path: Path, tiny: Plan) -> None:
    assert embed(tiny, TINY, tmp_path / "new.toml") is True
    loaded = load_preset(tmp_path / "new.toml")
    assert loaded.plan.sha256 == tiny.sha256
    assert (tmp_path / "new.toml").read_text().index("[plan]") < 100


def test_the_shipped_preset_is_up_to_date(tmp_path: Path, tiny: Plan) -> None:
    shipped = ROOT / "plans" / "presets" / "tiny.toml"
    assert load_preset(shipped).plan.sha256 == tiny.sha256, "planc embed it again"


def test_a_source_that_changed_is_refused(preset: Path) -> None:
    (preset.parent / "tiny.plan").write_text("plan other\n")
    (found,) = findings(preset)
    assert found.code == "E1005"
    assert found.help == f"planc embed {preset.parent / 'tiny.plan'} {preset}"
    assert line_at(found) == 'source = "tiny.plan"'


def test_a_source_that_is_absent_is_noted(preset: Path, tiny: Plan) -> None:
    (preset.parent / "tiny.plan").unlink()
    loaded = load_preset(preset)
    assert [n.code for n in loaded.notes] == ["N1008"]
    assert loaded.plan.sha256 == tiny.sha256


def test_the_sums_and_values_given_are_recorded(tmp_path: Path) -> None:
    source = tmp_path / "p" / "many.plan"
    source.parent.mkdir()
    source.write_text(
        TINY.read_text().replace("plan tiny", "plan many").replace("4 x cpu_local", "nodes x cpu_local")
        + "let nodes = 4\n"
    )
    embed(planc.load(source, set={"nodes": 4}), source, tmp_path / "run.toml")
    part = load_preset(tmp_path / "run.toml").parts.plan
    assert part.source == "p/many.plan"
    assert set(part.sha256) == {"p/many.plan", "compiled"}
    assert part.set == {"nodes": 4}
    source.write_text("plan many\n")
    assert "--set nodes=4" in findings(tmp_path / "run.toml")[0].help


def test_a_preset_without_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(PRESET)
    (found,) = findings(path)
    assert found.code == "E1004"
    assert "planc embed" in found.help


def test_a_compiled_plan_that_was_edited_is_refused(preset: Path) -> None:
    change(preset, "batch     8 x", "batch     64 x")
    (found,) = findings(preset)
    assert found.code == "E1006"
    assert line_at(found).startswith("compiled = ")


def test_a_preset_of_an_older_planc_says_how_to_write_it_anew(preset: Path) -> None:
    change(preset, load_preset(preset).parts.plan.compiled, '{"format": "planc.plan/1"}\n')
    (found,) = findings(preset)
    assert found.code == "E1006" and "older planc" in found.message
    assert found.help == f"planc embed {preset.parent / 'tiny.plan'} {preset}"


def test_a_sentence_of_one_target_is_not_embedded(tmp_path: Path) -> None:
    """It would be left out of what is trained, without a word."""
    source = tmp_path / "on.plan"
    source.write_text(f"{TINY.read_text()}on cuda: overlap tp as none\n")
    with pytest.raises(PlanError) as raised:
        embed(planc.load(source), source, tmp_path / "run.toml")
    (found,) = raised.value.diagnostics
    assert (found.code, found.span.file) == ("E0109", str(source)) and not (tmp_path / "run.toml").exists()


@pytest.mark.parametrize(
    ("old", "new", "code", "says", "line"),
    [
        ("lr = 1e-3", "lr = 1e-3\nwarmup_stepz = 2", "E1002", "unknown key `warmup_stepz` in [train]", 5),
        ("[data]", "[date]", "E1002", "unknown key `date`", 7),
        ("steps = 3\n", "", "E1003", "[train] steps is missing", 3),
        ("steps = 3", "steps = 0", "E1003", "[train] steps", 5),
        ("steps = 3", "steps = 2.5", "E1003", "[train] steps", 5),
        ("lr = 1e-3", "lr = nan", "E1003", "[train] lr", 4),
        ("lr = 1e-3", "lr = 1e-3\nmin_lr = 1.0", "E1003", "min_lr 1.0 is above lr 0.001", 3),
        ("lr = 1e-3", "lr = 1e-3\nschedule = 'linear'", "E1003", "[train] schedule", 5),
        ('"python-stdlib"', '"c4"', "E1003", "[data] source", 8),
        ("[data]", "[checkpoint]\nevery_steps = 5\n[data]", "E1015", "every 5 steps", 8),
        ("[data]", "[checkpoint]\nallow = ['layers']\n[data]", "E1003", "`layers` is none of", 7),
        ("steps = 3", "steps = = 3", "E1001", "is not TOML", 5),
    ],
)
def test_a_mistake_is_named_at_its_line(preset: Path, old: str, new: str, code: str, says: str, line: int) -> None:
    change(preset, old, new)
    (found,) = findings(preset)
    assert (found.code, found.span.line) == (code, line)
    assert says in found.message


def test_the_fix_of_an_unknown_key_mends_it(preset: Path) -> None:
    change(preset, "lr = 1e-3", "lr = 1e-3\nwarmup_stepz = 2")
    (found,) = findings(preset)
    assert "did you mean `warmup_steps`" in found.help
    assert found.fix is not None
    (edit,) = found.fix.edits
    lines = preset.read_text().split("\n")
    row = lines[edit.span.line - 1]
    lines[edit.span.line - 1] = row[: edit.span.column - 1] + edit.text + row[edit.span.end_column - 1 :]
    preset.write_text("\n".join(lines))
    assert load_preset(preset).train.warmup_steps == 2


def test_all_mistakes_are_reported_at_once(preset: Path) -> None:
    change(preset, "steps = 3", "steps = -1\nseed = 'x'\nlearning = 1")
    assert sorted(f.code for f in findings(preset)) == ["E1002", "E1003", "E1003"]


def test_a_preset_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name in ("absent.toml", "bytes.toml"):
        assert [f.code for f in findings(tmp_path / name)] == ["E1001"]


def line_of(preset: Path, plan: Plan) -> str:
    """The line of the preset that the plan's mesh is in."""
    return preset.read_text().split("\n")[plan.mesh.cause.span.line - 1]


def line_at(found: Diagnostic) -> str:
    return Path(found.span.file).read_text().split("\n")[found.span.line - 1]


@pytest.mark.parametrize(("said", "set_to"), [("muon", ""), ("muon", "adamw"), ("adamw", "muon")])
def test_the_optimizer_is_the_plans(preset: Path, said: str, set_to: str) -> None:
    plan = preset.parent / "tiny.plan"
    named = "\n".join(x for x in TINY.read_text().splitlines() if not x.startswith("optimizer"))
    plan.write_text(f"{named}\noptimizer {said}\n")
    embed(planc.load(plan), plan, preset)
    text = preset.read_text()
    preset.write_text(text.replace("steps = 3\n", f'steps = 3\noptimizer = "{set_to}"\n' if set_to else "steps = 3\n"))
    (d,) = findings(preset)
    assert d.code == "E1034" and f"`optimizer {said}`" in d.message and f'`optimizer = "{said}"`' in d.help
    preset.write_text(text.replace("steps = 3\n", f'steps = 3\noptimizer = "{said}"\n'))
    assert load_preset(preset).train.optimizer == said


def test_a_plan_without_an_optimizer_leaves_it_to_the_preset(preset: Path) -> None:
    plan = preset.parent / "tiny.plan"
    plan.write_text("\n".join(x for x in TINY.read_text().splitlines() if not x.startswith("optimizer")) + "\n")
    embed(planc.load(plan), plan, preset)
    preset.write_text(preset.read_text().replace("steps = 3\n", 'steps = 3\noptimizer = "muon"\n'))
    assert load_preset(preset).train.optimizer == "muon"


def test_a_refusal_quotes_no_key_without_an_end(preset: Path) -> None:
    change(preset, "steps = 3\n", f"steps = 3\n{'k' * 100_000} = 1\n")
    (d,) = findings(preset)
    assert d.code == "E1002" and len(d.message) == 1000
