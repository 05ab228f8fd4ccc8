"""Presets from strangers: a compiled plan is data. What the language could not write is refused (E1006)."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planc
from planc.cli import main
from planc.diag import PlanError
from planc.ir.field_types import GLOB, METHOD, NAME
from planc.ir.plan import Plan
from planc.ir.target import Target
from planc.trainer.preset.compiled import LONGEST_LINE, checksum, to_text, toml_string
from planc.trainer.preset.embed import embed
from planc.trainer.preset.load import load_preset

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "plans" / "tiny.plan"
PRESETS = sorted((ROOT / "plans" / "presets").glob("*.toml"))
COMPILED: dict[str, Any] = planc.load(TINY).to_json()
TRAIN = '[train]\nlr = 1e-3\nsteps = 3\n[data]\nsource = "python-stdlib"\n'
CODE = "open('OWNED', 'w').write('x')"


def forged(data: Any, path: Path) -> Path:
    """A preset without a source, whose compiled plan has an honest sum."""
    path.write_text(f"[plan]\ncompiled = {toml_string(to_text(data))}\nsha256.compiled = '{checksum(data)}'\n{TRAIN}")
    return path


def renamed(data: Any, old: str, new: str) -> Any:
    """The data with one name replaced wherever it stands."""
    if isinstance(data, dict):
        return {(new if key == old else key): renamed(value, old, new) for key, value in data.items()}
    if isinstance(data, list):
        return [renamed(value, old, new) for value in data]
    return new if data == old else data


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(COMPILED))
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return data


HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    "a sentence of two lines": lambda: changed("mesh", "cause", "sentence", to=f"mesh\n{CODE}\n#"),
    "a `use` of two lines": lambda: changed("stores", 0, "cause", "via", to=f"use\r{CODE}\r#"),
    "a docstring that ends in the model's name": lambda: changed("model", "name", to=f'x"""\n{CODE}\n"""'),
    "a docstring that ends in the cluster's name": lambda: changed("cluster", "name", to=f'x"""\n{CODE}\n"""'),
    "a docstring that ends in the plan's name": lambda: changed("name", to=f'x"""\n{CODE}\n"""'),
    "a docstring that ends in a sentence": lambda: changed("batch", "cause", "sentence", to=f'b """\n{CODE}\n"""'),
    "an axis with code": lambda: renamed(COMPILED, "fsdp", f'fsdp" if not {CODE} else "fsdp'),
    "a file's name with a line break": lambda: changed("file", to=f"x.plan\n{CODE}\n"),
    "a parameter with a quote": lambda: renamed(COMPILED, "layers.*.ffn_norm.weight", f'" + {CODE} + "'),
    "a module with a quote": lambda: renamed(COMPILED, "layers.*.ffn_norm", f'" + {CODE} + "'),
    "an op with a quote": lambda: renamed(COMPILED, "attention.q", f'" + {CODE} + "'),
    "a bidirectional mark": lambda: changed("mesh", "cause", "sentence", to="mesh \u202e fsdp"),
    "a line separator": lambda: changed("mesh", "cause", "sentence", to=f"mesh\u2028{CODE}"),
    "an escape sequence": lambda: changed("mesh", "cause", "sentence", to="mesh \x1b]0;x\x07"),
    "a size of no bound": lambda: changed("model", "sizes", "embed", to=10**4000),
    "a negative size": lambda: changed("model", "sizes", "embed", to=-256),
    "an unknown dtype": lambda: changed("precision", "compute", to="fp8"),
    "an axis that the mesh lacks": lambda: changed("stores", 0, "axes", to=["gone"]),
    "strides of another mesh": lambda: changed("mesh", "axes", 0, "stride", to=7),
    "ops without tensors": lambda: changed("model", "tensors", to=[]),
    "a format of the future": lambda: changed("format", to="planc.plan/2"),
}


@pytest.mark.parametrize("target", ["cuda", "xla"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_compiled_plan_is_refused_and_runs_nothing(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = forged(HOSTILE[name](), tmp_path / "e.toml")
    assert main(["train", str(path), "--target", target, "--dry-run"]) == 1
    assert not (tmp_path / "OWNED").exists()
    printed = capsys.readouterr().out
    assert "error[E1006]" in printed
    assert all(c.isprintable() or c == "\n" for c in printed)


def test_an_honest_compiled_plan_passes_the_same_door(tmp_path: Path) -> None:
    assert load_preset(forged(COMPILED, tmp_path / "e.toml")).plan.canonical() == planc.load(TINY).canonical()


def test_not_a_number_and_repeated_keys_are_refused(tmp_path: Path) -> None:
    for old, new in (('"name": "tiny"', '"name": "tiny", "name": "tiny"'), ('"norm_eps": 1e-05', '"norm_eps": NaN')):
        text = to_text(COMPILED)
        assert old in text
        text = text.replace(old, new)
        preset = tmp_path / "e.toml"
        preset.write_text(f"[plan]\ncompiled = {toml_string(text)}\nsha256.compiled = '{checksum(COMPILED)}'\n{TRAIN}")
        with pytest.raises(PlanError) as raised:
            load_preset(preset)
        assert [d.code for d in raised.value.diagnostics] == ["E1006"]


def test_a_deeply_nested_compiled_plan_is_refused(tmp_path: Path) -> None:
    preset = tmp_path / "e.toml"
    preset.write_text(f"[plan]\ncompiled = '{'[' * 100_000}'\nsha256.compiled = '{'0' * 64}'\n{TRAIN}")
    with pytest.raises(PlanError) as raised:
        load_preset(preset)
    assert [d.code for d in raised.value.diagnostics] == ["E1006"]


def test_every_text_and_number_of_a_plan_is_constrained() -> None:
    """A new field of type `str`, `int` or `float` would let a stranger's plan carry anything."""
    plain = sorted({f"{kind.__name__}.{name}" for kind, name, found in leaves(Plan) if found in (str, int, float)})
    assert plain == []


def leaves(kind: Any) -> Iterator[tuple[Any, str, Any]]:
    """(noun, field, type) of every leaf under a noun."""
    seen: set[Any] = set()
    pending = [kind]
    while pending:
        noun = pending.pop()
        if noun in seen:
            continue
        seen.add(noun)
        hints = get_type_hints(noun, include_extras=True)
        for field in fields(noun):
            for leaf in atoms(hints[field.name]):
                if is_dataclass(leaf):
                    pending.append(leaf)
                else:
                    yield noun, field.name, leaf


def atoms(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Annotated, Literal) or not get_args(hint):
        yield hint
    else:
        for inner in get_args(hint):
            yield from atoms(inner)


def test_the_patterns_of_names_are_the_grammars() -> None:
    grammar = (ROOT / "grammar" / "plan.lark").read_text().splitlines()
    for terminal, pattern in (("NAME", NAME), ("METHOD", METHOD), ("GLOB", GLOB)):
        assert f"{terminal}: /{pattern}/" in grammar


def places(data: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


PLACES = list(places(COMPILED))
ODD = st.one_of(
    st.text(max_size=40),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from([None, True, [], {}, "", "fsdp", "tp", "layers", "batch", 'x"""', "a\nb", -1, 0, 1, 2, 3]),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(PLACES), ODD)
def test_one_odd_value_anywhere_is_refused_or_gives_a_program(place: tuple[str | int, ...], value: Any) -> None:
    """Whatever stands at one place: the reader or the target refuses, or both programs are Python."""
    try:
        plan = Plan.from_json(changed(*place, to=value))
    except ValueError:
        return
    targets: tuple[Target, ...] = ("cuda", "xla")
    for target in targets:
        try:
            ast.parse(planc.lower(plan, target).text)
        except PlanError:
            continue


# The source beside the preset.


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A preset with its source beside it."""
    (tmp_path / "tiny.plan").write_text(TINY.read_text())
    (tmp_path / "run.toml").write_text(TRAIN)
    embed(planc.load(tmp_path / "tiny.plan"), tmp_path / "tiny.plan", tmp_path / "run.toml")
    return tmp_path / "run.toml"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (changed("batch", "microbatch_sequences", to=2), "compiles to another plan"),
        (changed("mesh", "cause", "sentence", to="mesh fsdp 4 > tp 4"), "has other sentences"),
    ],
)
def test_a_compiled_plan_that_is_not_its_sources_is_refused(beside: Path, data: dict[str, Any], says: str) -> None:
    text = beside.read_text()
    text = text.replace(to_text(COMPILED), to_text(data)).replace(checksum(COMPILED), checksum(data))
    beside.write_text(text)
    with pytest.raises(PlanError) as raised:
        load_preset(beside)
    (found,) = raised.value.diagnostics
    assert found.code == "E1006" and says in found.message
    (beside.parent / "tiny.plan").unlink()
    assert [n.code for n in load_preset(beside).notes] == ["N1008"]


def test_a_plan_whose_file_has_a_line_break_in_its_name_is_not_embedded(tmp_path: Path) -> None:
    source = tmp_path / "a\nb.plan"
    source.write_text(TINY.read_text())
    with pytest.raises(PlanError) as raised:
        embed(planc.load(source), source, tmp_path / "run.toml")
    assert [d.code for d in raised.value.diagnostics] == ["E1006"]
    assert not (tmp_path / "run.toml").exists()


# Review.


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_shipped_preset_can_be_reviewed_and_is_what_its_source_says(path: Path) -> None:
    assert max(map(len, path.read_text().split("\n"))) <= LONGEST_LINE
    assert load_preset(path).notes == ()


def test_a_changed_sentence_is_a_diff_of_a_few_lines(beside: Path) -> None:
    before = beside.read_text().splitlines()
    source = beside.parent / "tiny.plan"
    source.write_text(source.read_text().replace("8 x 128 tokens microbatch 4", "16 x 128 tokens microbatch 4"))
    embed(planc.load(source), source, beside)
    diff = [line for line in unified_diff(before, beside.read_text().splitlines(), n=0) if line[:1] in "+-"]
    assert 0 < len(diff) - 2 <= 10, "\n".join(diff)


def test_a_preset_of_the_older_layout_is_read(beside: Path) -> None:
    """One line of canonical JSON and an inline table of sums, as planc wrote before."""
    text = beside.read_text()
    line = json.dumps(COMPILED, sort_keys=True, separators=(",", ":"))
    text = text.replace(toml_string(to_text(COMPILED)), f"'{line}'")
    assert max(map(len, text.split("\n"))) > 10_000
    beside.write_text(text)
    assert load_preset(beside).plan.canonical() == line


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=2000))
def test_a_compiled_text_comes_back_from_toml(text: str) -> None:
    import tomllib

    data = {"sentence": text, "end": "'''", "quotes": '"""\\'}
    written = f"compiled = {toml_string(to_text(data))}\n"
    assert json.loads(tomllib.loads(written)["compiled"]) == data
    assert max(map(len, written.split("\n"))) <= LONGEST_LINE
