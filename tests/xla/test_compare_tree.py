"""A tree whose leaves have no layout, and rules that are wrong, are findings with a place; no devices are needed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planc
from planc.diag.diagnostic import Diagnostic

jax = pytest.importorskip("jax")

KERNEL = np.zeros((256, 688), np.float32)
TREE = {"mlp": {"wi": KERNEL, "wo": KERNEL.T}}


def found(
    tree: Any, rules: Mapping[str, str] | str | Path | None = None, plan: str | Path = "plans/tiny.plan", **more: Any
) -> list[Diagnostic]:
    with pytest.raises(planc.PlanError) as caught:
        planc.lower(plan, target="xla").shardings(tree, rules, **more)
    return list(caught.value.diagnostics)


def refused(tree: Any, **more: Any) -> str:
    (diagnostic,) = found(tree, **more)
    assert diagnostic.code == "E1206"
    return diagnostic.message


def test_leaves_without_a_rule_are_listed_with_the_nearest_names() -> None:
    kernel = np.zeros((255, 688), np.float32)
    message = refused({"params": {"layers_0": {"mlp": {"wi": {"kernel": kernel}, "wo": {"kernel": kernel}}}}})
    assert "params/layers_0/mlp/wi/kernel has no rule (the nearest names: layers." in message
    assert "params/layers_0/mlp/wo/kernel has no rule" in message


def test_a_shape_that_may_be_two_layouts_is_said_with_both() -> None:
    message = refused({"attn": {"o": np.zeros((256, 256), np.float32)}})
    assert "attn/o (256 x 256) may be `vocab, embed` or `embed, vocab` by its shape" in message


def test_a_function_that_does_not_take_the_tree_is_said_with_what_it_raised() -> None:
    message = refused(TREE, model=lambda tree, tokens: tree["head"])
    assert "fails on the tree and tokens [8, 128]: KeyError: 'head'" in message


def test_another_width_is_said_with_what_was_expected() -> None:
    weight = np.zeros((4, 256, 688), np.float32)
    assert "layers.feed_forward.w1.weight: 4 x 256 x 688 found, 688 x 256 expected" in refused(
        {"layers.feed_forward.w1.weight": weight}
    )


def test_what_is_no_tree_is_a_finding_too() -> None:
    assert "the tree itself has no rule" in refused(np.zeros(3, np.float32))


def test_what_is_no_array_is_a_finding() -> None:
    assert "act is no array" in refused({"act": np.tanh})


@pytest.mark.parametrize(
    ("rules", "code", "said", "help"),
    [
        ({"*/wi": "embed; ffn"}, "E1221", 'no rule: "*/wi" = embed; ffn', ""),
        ({"": "embed, ffn"}, "E1221", 'no rule: "" = embed, ffn', ""),
        ({"*/wi": "embed, fnn"}, "E1222", "llama_tiny has no dim fnn", "did you mean `ffn`?"),
        ({"*/wi": "embed, ffn as wq"}, "E1222", "llama_tiny has no parameter wq", ""),
        ({"*/wj": "embed, ffn"}, "E1223", 'no leaf of the tree has a path like "*/wj"', "mlp/wi"),
        ({"*/wi": "embed"}, "E1224", "mlp/wi: 256 x 688 found, and embed are 1 dimensions, not 2", ""),
        ({"*/wi": "embed, embed"}, "E1224", "have embed twice", ""),
        ({"*/wi": "layers, ffn"}, "E1224", "have 4 layers", ""),
    ],
)
def test_a_wrong_rule_is_a_finding_at_its_place(rules: dict[str, str], code: str, said: str, help: str) -> None:
    diagnostic = found(TREE, rules)[0]
    assert (diagnostic.code, diagnostic.span.file) == (code, "rules")
    assert said in diagnostic.message and help in diagnostic.help


def test_dims_of_another_size_are_a_finding() -> None:
    (diagnostic,) = found({"wi": KERNEL}, {"wi": "ffn, embed"})
    assert diagnostic.code == "E1224"
    assert "wi: 256 x 688 found, and ffn, embed have ffn 688, not 256" in diagnostic.message


def test_two_rules_that_disagree_are_a_finding_with_both_places() -> None:
    (diagnostic,) = found({"mlp": {"wi": KERNEL}}, {"*/wi": "embed, ffn", "mlp/w*": "_, ffn"})
    assert diagnostic.code == "E1225" and "different dims to mlp/wi: embed, ffn; _, ffn" in diagnostic.message
    assert (diagnostic.span.line, diagnostic.related[0].span.line) == (2, 1)


def test_rules_beside_the_plan_are_read_and_their_mistakes_have_a_line(tmp_path: Path) -> None:
    plan = tmp_path / "mine.plan"
    plan.write_text(Path("plans/tiny.plan").read_text())
    rules = plan.with_suffix(".rules")
    rules.write_text('# comment\n"*/wi" = embed, ffn  # right\n\n"*/wo" = ffn, embde\nwo = ffn\n"*/wi = ffn\n')
    assert [(d.code, d.span.line) for d in found(TREE, plan=plan)] == [("E1222", 4), ("E1221", 5), ("E1221", 6)]
    rules.write_bytes(b"\xff\xfe")
    (diagnostic,) = found(TREE, plan=plan)
    assert diagnostic.code == "E1221" and "it is not UTF-8 text" in diagnostic.message
    (diagnostic,) = found(TREE, tmp_path / "absent.rules", plan=plan)
    assert diagnostic.code == "E1221" and "absent.rules cannot be read: No such file" in diagnostic.message


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    plan = folder / "mine.plan"
    plan.write_text(Path("plans/tiny.plan").read_text())
    (tmp_path / "secret.rules").write_text('"*/wi" = embed, ffn\n')
    plan.with_suffix(".rules").symlink_to(tmp_path / "secret.rules")
    (diagnostic,) = found(TREE, plan=plan)
    assert diagnostic.code == "E1221" and "is a link to a file outside the plan's folder" in diagnostic.message


def test_what_is_endless_is_refused_soon(tmp_path: Path) -> None:
    many = {f"*/wi{n}": "embed, ffn" for n in range(3000)}
    assert [d.code for d in found(TREE, many)] == ["E1221"]
    file = tmp_path / "long.rules"
    file.write_text('"*/wi" = embed' + " " * 150_000 + "ffn\n" + '"' + "*a" * 20_000 + '" = embed, ffn\n')
    assert {d.code for d in found(TREE, file)} == {"E1221"}
    file.write_bytes(b" " * 300_000)
    assert "larger than 200 kB" in found(TREE, file)[0].message


def test_parameters_that_lie_apart_need_a_name(tmp_path: Path) -> None:
    plan = tmp_path / "mine.plan"
    plan.write_text(Path("plans/tiny.plan").read_text() + "override layers.*.feed_forward.w1 = replicated\n")
    (diagnostic,) = found({"mlp": {"wi": KERNEL}}, {"*/wi": "embed, ffn"}, plan=plan)
    assert diagnostic.code == "E1224" and "shards parameters with the dims embed, ffn in 2 ways" in diagnostic.message
    assert diagnostic.help == "say which: `embed, ffn as layers.*.feed_forward.w1.weight`"


def test_strange_names_are_quoted() -> None:
    strange = "\x1b[2J\n::error::x"
    for tree, rules in (({strange: np.zeros(3)}, None), (TREE, {strange: "embed, ffn"}), (TREE, {"*": strange})):
        for diagnostic in found(tree, rules):
            assert diagnostic.message.isprintable() and diagnostic.help.isprintable()


def test_an_unknown_noun_is_no_key_error() -> None:
    with pytest.raises(ValueError, match="noun 'moments' is not one of params, grads, optimizer"):
        planc.lower("plans/tiny.plan", target="xla").shardings(TREE, noun="moments")  # type: ignore[arg-type]


def test_a_pipeline_asks_for_planc_names(tmp_path: Path) -> None:
    plan = tmp_path / "mine.plan"
    text = Path("plans/tiny.plan").read_text()
    lines = [line for line in text.split("\n") if not line.startswith(("mesh", "use"))]
    plan.write_text("\n".join([*lines, "mesh pp 4", "use pp over pp as gpipe"]) + "\n")
    tree = {"wte": np.zeros((256, 256), np.float32)}
    diagnostic = found(tree, {"wte": "_, embed"}, plan=plan)[0]
    assert diagnostic.code == "E0901" and diagnostic.span.line > 1


LARGE = """plan large
model llama3_8b
batch 64 x 8192 tokens microbatch 1
cluster tpu_v5p(4x4x4)
mesh fsdp 64
use fsdp over fsdp
compute bf16 reduce fp32
"""


def test_a_machine_larger_than_this_one_has_specs_and_a_tree_of_another_depth_is_told(tmp_path: Path) -> None:
    (tmp_path / "large.plan").write_text(LARGE)
    program = planc.lower(tmp_path / "large.plan", target="xla")
    model = program.plan.model

    def tree(layers: int) -> dict[str, Any]:
        made = {n: jax.ShapeDtypeStruct(model.shape(p), np.float32) for n, p in model.param.items()}
        return {n.replace("*", str(i)): leaf for n, leaf in made.items() for i in range(layers if "*" in n else 1)}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        where = program.shardings(tree(32))
    assert jax.device_count() < 64 and where["layers.3.attention.wq.weight"].mesh.size == 64
    assert "fsdp" in str(where["layers.3.attention.wq.weight"].spec)
    with pytest.warns(UserWarning, match="as of 4 layers in place of 32"):
        program.shardings(tree(4))
