"""Presets from strangers: a compiled plan is text of the language, and what the language cannot write is refused."""

from __future__ import annotations

import ast
import hashlib
import random
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import planc
from planc.cli import main
from planc.diag import PlanError
from planc.driver import examine
from planc.ir.plan import Plan
from planc.ir.program_shape import foreign
from planc.ir.references import model_inconsistencies
from planc.ir.saved_model import SavedModel, saved_path
from planc.ir.target import TARGETS, Target
from planc.language.framework_rules import settled
from planc.trainer.preset.compiled import Compiled, checksum, compiled, toml_string
from planc.trainer.preset.embed import embed
from planc.trainer.preset.load import load_preset
from tests.fuzz.kinds import presets as fuzzed
from tests.random_plans.promises import write
from tests.random_plans.run import drawn_of

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "plans" / "tiny.plan"
PRESETS = sorted((ROOT / "plans" / "presets").glob("*.toml"))
TEXT = compiled(TINY, {}).text
TRAIN = '[train]\nlr = 1e-3\nsteps = 3\n[data]\nsource = "python-stdlib"\n'
CODE = "open('OWNED', 'w').write('x')"


def forged(text: str, path: Path) -> Path:
    """A preset without a source, whose compiled plan has an honest sum."""
    digest = checksum(Compiled(text, {}), {})
    path.write_text(f"[plan]\ncompiled = {toml_string(text)[0]}\nsha256.compiled = '{digest}'\n{TRAIN}")
    return path


def changed(old: str, new: str) -> str:
    assert old in TEXT, old
    return TEXT.replace(old, new)


TWICE = "chip cpu_process(bf16 = 1 TFLOP/s, memory = 1 GiB, memory_bandwidth = 1 GB/s)\n"
HOSTILE: dict[str, str] = {
    "a sentence of two lines": changed("mesh      fsdp 2 > tp 2", f"mesh fsdp 2 > tp 2\n{CODE}"),
    "a docstring that ends in the plan's name": changed("plan tiny", f'plan x"""\n{CODE}\n"""'),
    "an axis with code": TEXT.replace("fsdp", f'fsdp" if not {CODE} else "fsdp'),
    "a bidirectional mark": changed("mesh      fsdp 2", "mesh \u202e fsdp 2"),
    "an escape sequence": changed("mesh      fsdp 2", "mesh \x1b]0;x\x07 fsdp 2"),
    "a null byte": changed("mesh      fsdp 2", "mesh \0 fsdp 2"),
    "a size of no bound": changed("batch     8", f"batch {10**4000}"),
    "a negative size": changed("microbatch 4", "microbatch 0 - 4"),
    "an unknown dtype": changed("compute   fp32", "compute fp8"),
    "an axis that the mesh lacks": changed("over fsdp", "over gone"),
    "a rate that no machine has": changed("fp32 = 50 GFLOP/s", "fp32 = 0 GFLOP/s"),
    "an efficiency above all": changed("efficiency = 80 %", "efficiency = 180 %"),
    "two chips of one name": f"{TEXT}{TWICE}",
    "no sentence": "\n",
    "words": "a compiled plan",
    "brackets without end": changed("(fp32", "(" * 19_000 + "fp32"),
    "more sentences than are read": TEXT + "expect no E0101\n" * 5_000,
    "a file beside it that is imported": f'{TEXT}import "beside.plan"\n',
    "a file elsewhere": f'{TEXT}import "/etc/hostname"\n',
    "a config beside it": changed("model     llama_tiny", 'model from "beside.json"'),
    "a schedule beside it": f'{TEXT}split layers over tp as csv("beside.csv")\n',
    "code": changed("model     llama_tiny", 'model from code "os:system"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_compiled_plan_is_refused_and_runs_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is anything read beside the preset, although what the text names is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.plan").write_text("hardware beside\n")
    (tmp_path / "beside.csv").write_text("0F0,0B0\n1F0,1B0\n")
    (tmp_path / "beside.json").write_text("{}")
    path = forged(HOSTILE[name], tmp_path / "e.toml")
    assert main(["train", str(path), "--target", "cuda", "--dry-run"]) == 1
    assert not (tmp_path / "OWNED").exists()
    printed = capsys.readouterr().out
    assert "error[E1006]" in printed
    assert all(c.isprintable() or c == "\n" for c in printed)


def test_nothing_on_disk_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that needs files is whole where these lie in the preset, and only there."""
    text, files = fuzzed.compiled("a schedule from a file")

    def read(path: Path, *rest: object, **more: object) -> bytes:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("planc.language.draft.read_bounded", read)
    assert Compiled(text, files).read("x", 0).plan is not None
    for others in ({}, {f"../{name}": content for name, content in files.items()} | {"a\0b": ""}):
        (found,) = Compiled(text, others).read("x", 0).diagnostics
        assert found.code == "E0104" and "nothing beside the preset is read" in found.message


def test_an_op_graph_that_no_model_has_is_refused() -> None:
    """It lies in the preset as it lies beside a plan: thousands of ops, and ops that read what later ones make."""
    model = planc.load(TINY).model
    first, second, *rest = block = model.ops["block"]
    graphs = {
        "more than any model has": {**model.ops, "block": (*block,) * 30},
        "which a later one makes": {**model.ops, "block": (first, replace(second, inputs=("attention.v",)), *rest)},
        "no op of it uses it": {**model.ops, "block": (first, replace(second, params=()), *rest)},
    }
    text = changed("model     llama_tiny", 'model from code "mine"')
    for says, ops in (("", model.ops), *graphs.items()):
        saved = SavedModel(made_from="x", source_sha256="", model=replace(model, ops=ops))
        built = Compiled(text, {saved_path("mine"): saved.text()}).read("x", 0)
        assert (built.plan is None) == bool(says), built.diagnostics
        assert not says or says in built.diagnostics[0].message, built.diagnostics


@pytest.mark.parametrize("dims", [(), ((),), (("embed",), ("embed",)), (("embed", "ffn", "vocab", "heads", "layers"),)])
def test_a_parameter_without_a_shape_is_refused(dims: tuple[tuple[str, ...], ...]) -> None:
    model = planc.load(TINY).model
    first, *rest = model.params
    sizes = dict.fromkeys(model.sizes, 10**4) | {"layers": model.layers}
    (said, *_) = model_inconsistencies(replace(model, sizes=sizes, params=(replace(first, shape_dims=dims), *rest)))
    assert said.startswith(f"the parameter `{first.name}` has ")


@pytest.mark.parametrize("word", ["class", "None", "lambda", "__class__", "layers.*.import", "layers.__init__.x"])
def test_a_module_that_no_program_can_name_is_refused_as_it_is_read(word: str) -> None:
    model = planc.load(TINY).model
    first, *rest = model.ops["first"]
    text = changed("model     llama_tiny", 'model from code "mine"')
    for module in ("layers.*.classes", word):
        ops = {**model.ops, "first": (replace(first, module=module), *rest)}
        saved = SavedModel(made_from="x", source_sha256="", model=replace(model, ops=ops))
        built = Compiled(text, {saved_path("mine"): saved.text()}).read("x", 0)
        assert (built.plan is None) == (module == word), built.diagnostics


def test_every_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    """Embedded and read again: the same meaning, the same cost, and for each target the same program but for the
    sentences that its comments quote."""
    read = 0
    for seed in (*range(10), *(s for s in range(10, 40) if drawn_of(s).files)):
        source = write(drawn_of(seed), tmp_path / str(seed))
        own = examine(source, targets=())
        if own.plan is None or (own.built and own.built.on):
            continue
        plan, read = settled(own.plan), read + 1
        (tmp_path / "p.toml").write_text(TRAIN.replace("steps", f'optimizer = "{plan.optimizer.name}"\nsteps'))
        assert embed(plan, source, tmp_path / "p.toml")
        again = load_preset(tmp_path / "p.toml").plan
        assert again.sha256 == plan.sha256, seed
        assert planc.check(again).step == planc.check(plan).step, seed
        for target in TARGETS if seed < 5 else ():
            assert program(again, target) == program(plan, target), (seed, target)
    assert read >= 15


def program(plan: Plan, target: Target) -> str:
    """The program without comments and its first docstring, or the codes of the refusals."""
    try:
        return ast.dump(ast.parse(planc.lower(plan, target).text.split('"""', 2)[2]))
    except PlanError as error:
        return str(sorted(d.code for d in error.diagnostics))


def test_a_text_with_any_edit_is_refused_or_gives_a_program() -> None:
    """Whatever stands in a line: the front end or the target refuses, or both programs are what planc writes."""
    lowered = 0
    lines = TEXT.splitlines()
    for seed in range(100):
        rng = random.Random(seed)
        at, words = rng.randrange(len(lines)), rng.choice(lines).split()
        edited = lines[at].split(" ")
        edited[rng.randrange(len(edited))] = rng.choice((*words, "0", "99", '"x"', CODE, "", "fsdp, tp"))
        plan = Compiled("\n".join([*lines[:at], " ".join(edited), *lines[at + 1 :]]), {}).read("e.toml", 0).plan
        for target in TARGETS if plan is not None else ():
            try:
                text = planc.lower(settled(plan), target).text
            except PlanError:
                continue
            lowered += 1
            assert not foreign(text), foreign(text)
    assert lowered >= 15


# The source beside the preset.


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A preset with its source beside it."""
    (tmp_path / "tiny.plan").write_text(TINY.read_text())
    (tmp_path / "run.toml").write_text(TRAIN)
    embed(planc.load(tmp_path / "tiny.plan"), tmp_path / "tiny.plan", tmp_path / "run.toml")
    return tmp_path / "run.toml"


def test_a_compiled_plan_that_is_not_its_sources_is_refused(beside: Path) -> None:
    other = changed("microbatch 4", "microbatch 2")
    text = beside.read_text().replace(TEXT, other)
    beside.write_text(text.replace(checksum(Compiled(TEXT, {}), {}), checksum(Compiled(other, {}), {})))
    with pytest.raises(PlanError) as raised:
        load_preset(beside)
    (found,) = raised.value.diagnostics
    assert found.code == "E1006" and "compiles to another plan" in found.message
    (beside.parent / "tiny.plan").unlink()
    assert [n.code for n in load_preset(beside).notes] == ["N1008"]


# Review.


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_shipped_preset_can_be_reviewed_and_is_what_its_source_says(path: Path) -> None:
    lines = path.read_text().split("\n")
    assert len(lines) <= 120 and max(map(len, lines)) <= 140
    assert load_preset(path).notes == ()


def test_a_changed_sentence_is_a_diff_of_a_few_lines(beside: Path) -> None:
    before = beside.read_text().splitlines()
    source = beside.parent / "tiny.plan"
    source.write_text(source.read_text().replace("8 x 128 tokens microbatch 4", "16 x 128 tokens microbatch 4"))
    embed(planc.load(source), source, beside)
    diff = [line for line in unified_diff(before, beside.read_text().splitlines(), n=0) if line[:1] in "+-"]
    assert 0 < len(diff) - 2 <= 6, "\n".join(diff)


@example("'''")
@example("''' x")
@example("'")
@example("\x7f\x00\r\n")
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_compiled_text_comes_back_from_toml(text: str) -> None:
    import tomllib

    assert tomllib.loads(f"compiled = {toml_string(text)[0]}\n")["compiled"] == text


def test_sums_of_files_elsewhere_tell_nothing(tmp_path: Path) -> None:
    """A stranger's preset would learn by E1005, and the sum in it, what is in any file, and whether it is there."""
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "here").mkdir()
    right, wrong = hashlib.sha256(b"hunter2").hexdigest(), "0" * 64
    for source in ("../secret", str(tmp_path / "secret"), "gone.plan", "../gone.plan"):
        for other, digest in (("../secret", right), ("../secret", wrong), ("../gone", wrong)):
            preset = forged(TEXT, tmp_path / "here" / "e.toml")
            sums = f"sha256.'{source}' = '{wrong}'\n" + (f"sha256.'{other}' = '{digest}'\n" if other != source else "")
            text = preset.read_text().replace("[plan]\n", f"[plan]\nsource = '{source}'\n{sums}")
            preset.write_text(text)
            assert {n.code for n in load_preset(preset).notes} == {"N1008"}
