"""Presets from strangers: a compiled plan is data. What the language could not write is refused (E1006)."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import planc
from planc.cli import main
from planc.diag import PlanError
from planc.ir.field_types import GLOB, METHOD, NAME
from planc.ir.plan import Plan
from planc.ir.read_plan import read_plan
from planc.ir.target import Target
from planc.language import verbs
from planc.language.compiled_plan import read_compiled
from planc.trainer.preset.compiled import LONGEST_LINE, checksum, to_text, toml_string
from planc.trainer.preset.embed import embed
from planc.trainer.preset.load import load_preset
from tests.fuzz.kinds import presets as fuzzed

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
        plan = read_compiled(changed(*place, to=value))
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


@example(" " * 1000)
@example("\\" * 1000)
@example("a" * 250 + " " * 1000 + "\\ " * 300)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=2000))
def test_a_compiled_text_comes_back_from_toml(text: str) -> None:
    import tomllib

    data = {"sentence": text, "end": "'''", "quotes": '"""\\'}
    written = f"compiled = {toml_string(to_text(data))}\n"
    assert json.loads(tomllib.loads(written)["compiled"]) == data
    assert max(map(len, written.split("\n"))) <= LONGEST_LINE


# What the types of the IR allow and no sentence can write.

CAUSE = COMPILED["mesh"]["cause"]
MANY = [{"name": f"x{n}", "size": 1, "stride": 1} for n in range(31)]
SECOND = {"axes": [{"name": "q", "size": 128, "stride": 1}], "of": ["dp"], "regions": ["experts"], "cause": CAUSE}
UNWRITABLE: list[tuple[str, str, dict[str, Any], str]] = [
    ("attention", "a part of a graph", {"attention.method": "guess"}, "unknown way to do attention `guess`"),
    ("attention", "a part of a graph", {"attention.kernel": {"method": "flex", "cause": CAUSE}}, "two kernels"),
    ("attention", "a part of a graph", {"attention.block": 4}, "takes no `block`"),
    ("cluster", "tiny", {"cluster.chip.flops_per_s": {"int8": 1e12}}, "has no rate of fp32, bf16, fp16"),
    ("cluster", "tiny", {"cluster.shape": [4, 1]}, "a node does not have 2 lengths"),
    ("cluster", "tiny", {"cluster.wrap": [True]}, "1 of the cluster's 1 dimensions"),
    ("cluster", "presets/qwen3_8b_v5p", {"cluster.wrap": [True, True]}, "2 of the cluster's 3 dimensions"),
    ("cluster", "presets/llama3_8b_h100", {"cluster.levels": []}, "nothing joins the"),
    ("cluster", "tiny", {"cluster.changes": [{"kind": "rail", "names": [], "value": 1}]}, "otherwise than its"),
    ("cluster", "a graph of its own", {"cluster.chip.devices": 2}, "has no other network"),
    ("cluster", "a graph of its own", {"cluster.own_graph.wires": []}, "has no link"),
    ("compile", "field/llama3_8b_fp8_offload", {"compiles.0.what": "step"}, "unknown region that is compiled"),
    ("compile", "field/llama3_8b_fp8_offload", {"compiles.0.method": "gcc"}, "unknown compiler `gcc`"),
    ("expect", "field/llama3_405b_8k", {"expects.0.metric": "beauty"}, "unknown metric `beauty`"),
    ("expect", "field/llama3_405b_8k", {"expects.0.currency": "USD"}, "unknown currency `USD`"),
    ("freeze", "an update of low rank", {"freeze.parts": ["soul"]}, "'soul' names no op of llama_tiny"),
    ("lora", "an update of low rank", {"lora.rank": 512, "model.sizes.lora_rank": 512}, "is no less than that"),
    ("mesh", "tiny", {"mesh.axes": [*COMPILED["mesh"]["axes"], *MANY]}, "more than 32 axes"),
    ("offload", "field/llama3_8b_fp8_offload", {"offloads.0.what": ["soul"]}, "unknown state or tensor `soul`"),
    ("overlap", "a graph of its own", {"overlaps.0.method": "magic"}, "unknown way to overlap `magic`"),
    ("override", "a part of a graph", {"overrides.0.glob": "soul.*"}, "matches no parameter"),
    ("override", "a part of a graph", {"overrides.0.layout": {"ffn": ["tp"]}}, "unknown dim `ffn`"),
    ("price", "a schedule from a file", {"price.currency": "XXX"}, "unknown currency `XXX`"),
    ("quantize", "field/llama3_8b_fp8_offload", {"quantize.0.dtype": "float2"}, "unknown narrow dtype `float2`"),
    ("quantize", "field/llama3_8b_fp8_offload", {"quantize.0.recipe": "mine"}, "unknown recipe `mine`"),
    ("quantize", "field/llama3_8b_fp8_offload", {"quantize.0.ops": ["ffn.norm"]}, "names no op"),
    ("quantize", "field/llama3_8b_fp8_offload", {"quantize.0.kept_layers": [[4, 99]]}, "has not the layers"),
    ("recompute", "tiny", {"recompute.ops": ["norm"]}, "'norm' names no op of llama_tiny"),  # by an older planc
    ("replicate", "tiny", {"replicates": [{"dim": "layers", "axes": ["tp"], "cause": CAUSE}]}, "that is kept whole"),
    ("route", "tiny_moe", {"route.factor": 0}, "factor = 0 of the experts' room"),
    ("route", "tiny", {"route.cause": CAUSE}, "llama_tiny has no experts to route to"),
    ("shard", "tiny", {"shards.0.dim": "layers"}, "unknown dim that is sharded `layers`"),
    ("split", "field/llama3_405b_8k", {"split.schedule": "magic"}, "unknown pipeline schedule `magic`"),
    ("split", "field/llama3_405b_8k", {"split.chunks": 4}, "128 stages in 4 chunks for 16 ranks"),
    ("split", "field/llama3_405b_8k", {"split.order": ["0F0,0B0"]}, "a file's schedule beside"),
    ("split", "a schedule from a file", {"split.order": ["0F0"] * 4}, "stage 0 is on rank 0 and on rank 1"),
    ("split", "a schedule from a file", {"split.order": ["0B0,0F0"] * 3}, "has 3 rows and the pipeline 4 ranks"),
    ("split", "a schedule from a file", {"split.order": [f"{s}B0,{s}F0" for s in range(4)]}, "waits at"),
    ("split", "a schedule from a file", {"split.order": [f"{s}F0,,{s}B0" for s in range(4)]}, "not as planc keeps"),
    ("split", "a schedule from a file", {"split.stages": [[0, 4], [4, 4], [4, 6], [6, 8]]}, "a stage holds nothing"),
    ("store", "tiny", {"stores.2.dtype": "true"}, "unknown dtype `true`"),
    ("store", "tiny", {"stores.2.dim": "slots"}, "unknown dim `slots`"),
    ("view", "field/deepseek_v3_h800", {"mesh.views.0.regions": ["ffn"]}, "unknown region of a view `ffn`"),
    ("view", "field/deepseek_v3_h800", {"mesh.views.1": SECOND}, "the experts have a view already"),
    ("view", "field/mixtral_8x22b_hsdp", {"mesh.views.0.of": ["tp", "fsdp"]}, "are not neighbours"),
]  # fmt: skip
"""The verb that refuses, a plan, what is put into it, and what is said."""


@pytest.mark.parametrize(
    ("verb", "base", "changes", "says"), UNWRITABLE, ids=[f"{u[0]}-{u[3][:30]}" for u in UNWRITABLE]
)
def test_what_no_sentence_can_write_is_refused(verb: str, base: str, changes: dict[str, Any], says: str) -> None:
    """By the verb whose sentence would have to write it; the types of the IR allow it."""
    data = json.loads(json.dumps(fuzzed.compiled(base)))
    assert read_compiled(data).to_json() == data
    for place, value in changes.items():
        *path, last = [int(key) if key.isdigit() else key for key in place.split(".")]
        inner = data
        for key in path:
            inner = inner[key]
        if isinstance(inner, list) and last == len(inner):
            inner.append(value)
        else:
            inner[last] = value
    plan = read_plan(data)
    found = [*importlib.import_module(f"planc.language.verbs.{verb}").mistakes(plan)]
    assert any(says in mistake for mistake in found), found
    with pytest.raises(ValueError, match=re.escape(found[0])):
        read_compiled(data)


def test_every_verb_that_asks_is_in_the_table() -> None:
    names = [info.name for info in pkgutil.iter_modules(verbs.__path__)]
    asking = [name for name in names if hasattr(importlib.import_module(f"planc.language.verbs.{name}"), "mistakes")]
    assert asking == sorted({verb for verb, *_ in UNWRITABLE})


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("cluster", "chip", "memory_efficiency"), 0, "from 1e-06 to 1"),
        (("cluster", "chip", "matmul_efficiency"), 0.0, "from 1e-06 to 1"),
        (("cluster", "chip", "flops_per_s"), {"reduce_scatter": 0.5}, "is not a dtype of a chip's rates"),
        (("cluster", "link", "bandwidth_bytes_per_s"), 1e-300, "from 1 to 1e.18"),
        (("cluster", "link", "op_efficiency"), {"send": 0.5}, "is not a collective"),
        (("cluster", "link", "efficiency"), 1.5, "from 1e-06 to 1"),
        (("model", "params", 0, "section"), "last", "it is not one of it"),
        (("model", "ops", "block", 1, "params"), [], "no op of it uses it"),
        (("stores", 0, "axes"), ["fsdp", "fsdp"], "names an axis twice"),
        (("model", "tensors", 1, "dims"), [], "has no dims, or one twice"),
        (("model", "tensors", 1, "dims"), ["batch", "batch"], "has no dims, or one twice"),
        (("model", "tensors"), COMPILED["model"]["tensors"] * 2, "two tensors have one name"),
        (("model", "ops", "block", 1, "inputs"), ["attention.v"], "which a later one makes"),
        (("model", "ops", "block"), COMPILED["model"]["ops"]["block"] * 30, "more than any model has"),
    ],
)
def test_a_value_that_no_machine_or_model_has_is_refused(path: tuple[str | int, ...], value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_plan(changed(*path, to=value))


def test_sums_of_files_elsewhere_tell_nothing(tmp_path: Path) -> None:
    """A stranger's preset would learn by E1005, and the sum in it, what is in any file, and whether it is there."""
    import hashlib

    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "here").mkdir()
    right, wrong = hashlib.sha256(b"hunter2").hexdigest(), "0" * 64
    for source in ("../secret", str(tmp_path / "secret"), "gone.plan", "../gone.plan"):
        for other, digest in (("../secret", right), ("../secret", wrong), ("../gone", wrong)):
            preset = forged(COMPILED, tmp_path / "here" / "e.toml")
            sums = f"sha256.'{source}' = '{wrong}'\n" + (f"sha256.'{other}' = '{digest}'\n" if other != source else "")
            text = preset.read_text().replace("[plan]\n", f"[plan]\nsource = '{source}'\n{sums}")
            preset.write_text(text)
            assert {n.code for n in load_preset(preset).notes} == {"N1008"}
