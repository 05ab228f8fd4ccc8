"""Op graphs that are read from the code of transformers' classes, and of modules of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import planc
from planc.allowed import run_allowed
from planc.backends.cuda.runtime.traced import bind_block
from planc.backends.cuda.runtime.traced.bind import BoundModel
from planc.backends.cuda.runtime.traced.bind_experts import experts_path
from planc.backends.cuda.runtime.traced.expert_form import form_of
from planc.backends.cuda.runtime.traced.latents import late_of
from planc.backends.cuda.runtime.traced.loops import with_blocks
from planc.backends.cuda.runtime.traced.read import roles_of_module
from planc.backends.cuda.runtime.traced.roles import ByHeads, ExpertLayers, UnknownError, heads_of
from planc.backends.cuda.runtime.traced.same_steps import other_steps
from planc.backends.cuda.runtime.traced.share import on_a_share, refusal
from planc.catalog import config_types
from planc.catalog.parts.decoders import DECODERS
from planc.costing.compute.flops import model_flops_per_token
from planc.driver import save_models
from planc.ir.frozen import read
from planc.ir.model import Model
from planc.ir.plain_values import read_noun
from planc.ir.references import model_inconsistencies
from planc.ir.saved_by_code import Elements
from planc.ir.saved_model import SavedModel
from tests.cuda import foreign_layers
from tests.cuda.families import FAMILIES, config_of, model_on
from tests.cuda.foreign import a, b, c
from tests.cuda.ways_of_writing import WAYS, Attention, Pairs, feed_forward
from tests.cuda.whole_code import WHOLE_CODE
from tests.launches import sampled

CONFIG_MAPPING = pytest.importorskip("transformers").CONFIG_MAPPING

PLAN = """plan own
model from {}
batch 16 x 24 tokens microbatch 2
cluster 4 x cpu_local
mesh fsdp 4
use fsdp over fsdp
compute fp32
"""


def plan_in(folder: Path, model: str) -> Path:
    path = folder / "own.plan"
    path.write_text(PLAN.format(model))
    return path


@pytest.mark.parametrize("family", sampled(FAMILIES, 24))
def test_a_familys_parameters_are_exact(family: str) -> None:
    module = model_on("meta", config_of(family))
    model = planc.model_of(module).model
    assert model.parameters == sum(p.numel() for p in module.parameters())
    assert model.layers == 4


UNSET: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}
"""Fields that a class leaves unset and every published config of its type has."""
WITH_SCANS = ("nemotron_h",)
"""Families whose state-space layers are code of their own when a class is read."""


@pytest.mark.parametrize("experts", [{}, {"moe_latent_size": 24}], ids=["embed", "latent"])
def test_a_family_with_scans_has_the_parameters_of_its_class(experts: dict[str, int]) -> None:
    """Layers of every kind; experts on the residual stream or on a projection of it."""
    kinds = ["linear_attention", "moe", "linear_attention", "full_attention", "mlp", "moe"]
    config = config_of("nemotron_h", layers_block_type=kinds, **experts)
    model, _ = config_types()["nemotron_h"].read_config("nemotron_h", config.to_dict())
    assert model.kinds == ("mixer", "experts", "mixer", "attention", "feed_forward", "experts")
    assert model.parameters == sum(p.numel() for p in model_on("meta", config).parameters())


NO_CLASS = ("kimi_k2", "llama4_text")
"""Types whose class is not that of the installed transformers, or attends in chunks, which one run does not show."""
FLAGS = {
    kind: {name: True for name in (*decoder.biases, decoder.qk_norm_if) if name}
    for kind, decoder in DECODERS.items()
    if not decoder.after
}
"""The flags of each decoder's config that add parameters; a bias before a norm is refused."""


def test_llama4_has_the_parameters_of_its_class() -> None:
    config = config_of("llama4_text", moe_layers=[1, 3])
    model, _ = config_types()["llama4_text"].read_config("llama4", config.to_dict())
    assert model.kinds == ("dense_chunked", "chunked", "dense_chunked", "block")
    assert model.parameters == sum(p.numel() for p in model_on("meta", config).parameters())


@pytest.mark.parametrize("kind", sampled(sorted(CONFIG_MAPPING.keys() & config_types().keys()), 24))
def test_the_published_defaults_of_a_class_have_its_parameters(kind: str) -> None:
    config = CONFIG_MAPPING[kind](**UNSET.get(kind, {}))
    model, _ = config_types()[kind].read_config(kind, config.to_dict())
    assert model.parameters == sum(p.numel() for p in model_on("meta", config).parameters())


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        pytest.param(family, flags, marks=marks)
        for kinds, with_flags in ((sorted({*config_types()} - {*WITH_SCANS, *NO_CLASS}), False), (FLAGS, True))
        for (family, marks) in ((p.values[0], p.marks) for p in sampled(kinds, 24))
        for flags in (FLAGS[family] if with_flags else {},)
    ],
)
def test_a_family_of_the_catalog_is_read_as_the_catalog_has_it(family: str, flags: dict[str, bool]) -> None:
    """Equal ops, tensors and parameters: every cost, collective and layout of one is that of the other. What the
    class's own code keeps beyond what its ops need is the one difference."""
    config = config_of(family, **flags)
    expected, _ = config_types()[family].read_config(family, config.to_dict())
    found = planc.model_of(model_on("meta", config)).model
    plain = {section: tuple(replace(op, own_code=()) for op in ops) for section, ops in found.ops.items()}
    found = replace(found, ops=plain)
    for field in ("sizes", "params", "tensors", "ops", "runs", "top_k", "tied"):
        assert getattr(found, field) == getattr(expected, field), field


def test_weights_are_left_where_they_are() -> None:
    config = config_of("llama")
    module = model_on("cpu", config)
    before = {n: p.clone() for n, p in module.named_parameters()}
    tokens = torch.arange(12).view(1, 12)
    expected = module(tokens).logits
    planc.model_of(module)
    assert all(torch.equal(p, before[n]) for n, p in module.named_parameters())
    assert torch.equal(module(tokens).logits, expected)


class Strange(nn.Module):
    """Odd names, one layer for queries, keys and values, halves of a block beside each other, a norm of its own."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.lookup = nn.Embedding(50, width)
        self.tower = nn.ModuleList([Storey(width, heads) for _ in range(3)])
        self.finish = Scaled(width)
        self.readout = nn.Linear(width, 50, bias=False)

    def forward(self, ids: Any) -> Any:
        state = self.lookup(ids)
        for storey in self.tower:
            state = storey(state)
        return self.readout(self.finish(state))


class Scaled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        return x * self.gain / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class Storey(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.calm = Scaled(width)
        self.mixing = nn.Linear(width, 3 * width)
        self.back = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        y = self.calm(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.mixing(y).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        beside = self.narrow(nn.functional.gelu(self.wide(y)))
        return x + self.back(mixed.transpose(1, 2).flatten(2)) + beside


def strange() -> nn.Module:
    return Strange()


def test_a_module_of_ones_own() -> None:
    module = Strange()
    model = planc.model_of(module, torch.zeros(3, 8, dtype=torch.long)).model
    assert model.parameters == sum(p.numel() for p in module.parameters())
    assert (model.layers, model.sizes["heads"], model.sizes["ffn"], model.sizes["vocab"]) == (3, 4, 128, 50)
    inputs = {op.name: op.inputs for op in model.block_ops}
    assert inputs["ffn.up"] == inputs["attention.q"] == ("attention.in",)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(a.build, id="a"),
        pytest.param(b.build, id="b", marks=pytest.mark.long),
        pytest.param(c.build, id="c"),
        pytest.param(foreign_layers.build, id="c_layers", marks=pytest.mark.long),
    ],
)
def test_modules_of_someone_who_has_not_read_the_matcher(build: Callable[[], nn.Module]) -> None:
    """Fused layers head by head, raw weights and tables, positions of all sequences, a bias at a tied head, parts that
    a loop calls one by one."""
    module = build()
    model = planc.model_of(module).model
    assert model.parameters == sum(p.numel() for p in module.parameters())
    roles, why = on_a_share(module, roles_of_module(module), 2)
    assert why == ""
    assert roles.blocks[0].heads.whole == (("hd",) if isinstance(module, c.RawLM) else ())


@pytest.mark.parametrize("way", sampled(WAYS, 2))
def test_ways_of_writing_a_decoder(way: str) -> None:
    """Parts that a loop calls, halves with their norm inside, layers in sequence or in the block itself: bound, each
    computes what it did, to the bit, and takes a share of the heads and of the sequence."""
    module, tokens = WAYS[way](), torch.arange(24).view(2, 12)
    before, names = module(tokens), {n for n, _ in module.named_parameters()}
    roles = roles_of_module(module)
    assert {n for n, _ in module.named_parameters()} == names
    assert on_a_share(module, roles, 2, sequence=True)[1] == "" and other_steps(module, roles) == ""
    sizes = sorted(p.numel() for p in module.parameters())
    bound = BoundModel(module, roles, 12)
    assert torch.equal(bound(tokens), before)
    fused = way not in ("in_blocks", "our_names")  # three layers in one, cut apart
    assert sum(sizes) == sum(p.numel() for p in bound.parameters())
    assert fused or sizes == sorted(p.numel() for p in bound.parameters())


def test_a_parameter_that_is_lost_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be run with, and never trained."""
    monkeypatch.setattr(bind_block, "with_free_names", lambda block, role: role)
    module = model_on("meta", config_of("lfm2"))
    assert other_steps(module, roles_of_module(module)) == "255104 of numbers in parameters became 58496"


class Unrolled(nn.Module):
    """Parts that no loop calls."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.parts = nn.ModuleList(nn.ModuleList([Attention(normed=True), feed_forward(normed=True)]) for _ in "ab")

    def forward(self, ids: Any) -> Any:
        parts: Any = self.parts
        (a, b), (d, e) = parts
        x = self.words(ids)
        x = x + a(x)
        x = x + b(x)
        x = x + d(x)
        return self.head(x + e(x))


class Early(Pairs):
    """A loop whose turns may end early."""

    def forward(self, ids: Any) -> Any:
        pairs: Any = self.layers
        x = self.words(ids)
        for attn, ff in pairs:
            if attn is None:
                break
            x = ff(attn(x) + x) + x
        return self.head(self.norm(x))


@pytest.mark.parametrize("kind", [Unrolled, Early])
def test_parts_that_no_loop_calls_turn_by_turn_are_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(planc.PlanError) as caught:
        planc.model_of(kind())
    assert [d.code for d in caught.value.diagnostics] == ["E1207"]


def code_of(model: Model) -> dict[tuple[str, str], Any]:
    return {(section, op.name): op for section, ops in model.ops.items() for op in ops if op.kind == "code"}


@pytest.mark.parametrize("kind", sampled(WHOLE_CODE, 2))
def test_code_that_no_op_is_stays_whole(kind: str) -> None:
    """Bound, it computes what it did, to the bit; attention beside it takes a share of heads and of the sequence."""
    module, tokens = WHOLE_CODE[kind](), torch.arange(24).view(2, 12)
    before, model = module(tokens), planc.model_of(module).model
    assert model.parameters == sum(p.numel() for p in module.parameters()) and model.unseen == ()
    roles = roles_of_module(module)
    if heads_of(roles) is not None:
        assert on_a_share(module, roles, 2, sequence=True)[1] == ""
    assert other_steps(module, roles) == ""
    assert torch.equal(BoundModel(module, roles, 12)(tokens), before)


def test_layers_with_steps_between_them_are_no_halves() -> None:
    """A rank with some tokens of each sequence would run these steps on them alone."""
    (block,) = {*roles_of_module(WHOLE_CODE["code_between"]()).blocks}
    assert block.is_whole and block.second is None


def test_code_that_stays_whole_has_its_line_and_its_products() -> None:
    """Per token 32 x 24 twice around the mean over all tokens of 24 numbers; 32 x 72 twice."""
    found = code_of(planc.model_of(WHOLE_CODE["code_in_halves"]()).model)
    mixer, channels = found["with_first", "mixer.code"], found["with_second", "channels.code"]
    assert mixer.code_line.startswith("tests/cuda/whole_code.py:")
    assert "no attention over the sequence" in mixer.code_why and "second.slope" in channels.code_why
    tokens, pairs = ("batch", "sequence"), ("batch", "sequence", "sequence")
    assert mixer.multiply_adds == (Elements(dims=tokens, copies=1536.0), Elements(dims=pairs, copies=24.0))
    assert channels.multiply_adds == (Elements(dims=tokens, copies=4608.0),)
    assert channels.own_code[0].saves == ("ffn.in",)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("apertus", {"channels.code"}),  # an activation with parameters
        ("bitnet", {"mixer.code", "channels.code"}),  # norms between attention and the layer behind it
        # two attentions, less each other
        pytest.param("diffllama", {"mixer.code"}, marks=pytest.mark.long),
        # experts with a bias of their own, and behind no norm
        pytest.param("ernie4_5_moe", {"channels.code"}, marks=pytest.mark.long),
        pytest.param("flex_olmo", {"channels.code"}, marks=pytest.mark.long),
        pytest.param("laguna", {"mixer.code", "channels.code"}, marks=pytest.mark.long),
        pytest.param("mamba", {"mixer.code"}, marks=pytest.mark.long),
        # recurrent blocks between those with attention
        pytest.param("recurrent_gemma", {"mixer.code"}, marks=pytest.mark.long),
    ],
)
def test_a_familys_own_code_stays_whole(family: str, names: set[str]) -> None:
    module = model_on("meta", config_of(family))
    model = planc.model_of(module).model
    assert model.parameters == sum(p.numel() for p in module.parameters())
    assert {name for _, name in code_of(model)} == names
    assert other_steps(module, roles_of_module(module)) == ""


def test_experts_in_code_that_stays_whole_are_counted_and_noted() -> None:
    """A router to 8 experts, and two of them for each token, three layers 64 x 184 each; what they keep is unseen."""
    model = planc.model_of(model_on("meta", config_of("flex_olmo"))).model
    (code,) = code_of(model).values()
    assert code.multiply_adds == (Elements(dims=("batch", "sequence"), copies=64.0 * 8 + 2 * 3 * 64 * 184),)
    (unseen,) = model.unseen
    assert unseen.why == f"{code.code_line}: experts in code that stays whole are not run"


def test_what_stays_whole_is_noted_and_counted(tmp_path: Path) -> None:
    saved = planc.model_of(WHOLE_CODE["code_in_blocks"](), name="own")
    saved.write(tmp_path / "own.model.json")
    plan = plan_in(tmp_path, 'code "own"')
    (note,) = (d for d in planc.check(plan).diagnostics if d.code == "N0121")
    assert (
        "mixer.code (tests/cuda/whole_code.py:" in note.message and "in 3 of 3 layers, 2,696 parameters" in note.message
    )
    whole = replace(saved.model, ops={**saved.model.ops, "block": saved.model.ops["block"][1:]})
    # forward and both gradients of 32 x 40 twice in each of three layers
    assert model_flops_per_token(saved.model, 24) - model_flops_per_token(whole, 24) == 3 * 6 * 2560


class Squared(nn.Module):
    """A module that does more than the product with its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(width, 4 * width))

    def forward(self, x: Any) -> Any:
        return (x @ self.w).relu().square()


class OneWeight(Strange):
    def __init__(self) -> None:
        super().__init__()
        for storey in self.tower:
            storey.wide = Squared(32)


def test_code_around_a_bare_weight_goes_on_running() -> None:
    """Where a linear layer of torch stood in for the whole module, the activation was lost without a word."""
    module, tokens = OneWeight(), torch.arange(16).view(2, 8)
    expected = module(tokens)
    bound = BoundModel(module, roles_of_module(module), 8)
    assert torch.allclose(bound(tokens), expected, atol=1e-6)


@pytest.mark.launch
def test_code_that_is_named_runs_when_it_is_allowed_and_its_graph_is_kept(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, 'code "tests.cuda.test_traced:strange"')
    with pytest.raises(planc.PlanError, match="E0118"):
        planc.load(plan)
    (kept,) = save_models(plan)
    assert kept.name == "tests.cuda.test_traced.strange.model.json"
    assert planc.load(plan).model.layers == 3


def kept_in(folder: Path) -> Path:
    config_of("olmo2").to_json_file(folder / "config.json")
    kept = folder / "config.model.json"
    planc.model_of(json.loads((folder / "config.json").read_text())).write(kept)
    return kept


def test_a_plan_with_a_kept_graph_loads_no_framework(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    plan = plan_in(tmp_path, 'transformers "config.json"')
    text = kept.read_text()
    kept.unlink()
    assert [d.code for d in planc.check(plan).diagnostics] == ["E0118"]
    kept.write_text(text)
    seen = "import sys, planc; r = planc.check(sys.argv[1]); print(r.step is not None, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", seen, str(plan)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
    without = plan_in(tmp_path, '"config.json"')
    assert planc.load(without).model.family == "traced"  # no family of the catalog: the kept graph


def test_a_graph_of_another_config_or_changed_by_hand_is_refused(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    plan = plan_in(tmp_path, 'transformers "config.json"')
    text = kept.read_text()
    kept.write_text(text.replace('"embed": 64', '"embed": 65'))
    with pytest.raises(planc.PlanError, match="was changed by hand"):
        planc.load(plan)
    kept.write_text(text)
    config_of("olmo2", num_hidden_layers=5).to_json_file(tmp_path / "config.json")
    with pytest.raises(planc.PlanError, match=r"is of another config than config\.json"):
        planc.load(plan)
    kept.write_text("{}")
    with pytest.raises(planc.PlanError, match="its format is not planc-model/1"):
        planc.load(plan)
    with pytest.raises(planc.PlanError, match="E0108"):
        planc.load(plan_in(tmp_path, 'keras "config.json"'))


def test_a_kept_graph_is_the_one_that_was_read() -> None:
    kept = planc.model_of(model_on("meta", config_of("deepseek_v3")))
    assert SavedModel.parse(kept.text()) == kept
    assert json.loads(kept.text())["made_from"].startswith("DeepseekV3ForCausalLM of transformers ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("family", "a b"),
        ("top_k", -1),
        ("top_k", True),
        ("tied", 1),
        ("sizes", {"layers": 0}),
        ("ops", {"first": []}),
        ("params", [{"name": "x\nimport os", "shape_dims": [], "section": "first"}]),
        ("strange", 1),
        ("cause", {"span": 3}),
    ],
)
def test_a_saved_model_of_a_stranger_is_read_strictly(field: str, value: Any) -> None:
    """A model that planc wrote is read as pydantic reads a compiled plan; everything else is an error."""
    plain = plain_model()
    assert read_noun(Model, plain) == read(Model, plain)
    with pytest.raises(ValueError, match=r".+"):
        refuse_mistakes({**plain, field: value})


@cache
def plain_model() -> dict[str, Any]:
    return planc.model_of(Strange()).model.to_json()


def refuse_mistakes(plain: dict[str, Any]) -> None:
    """Raise ValueError as reading a saved model does."""
    for mistake in model_inconsistencies(read_noun(Model, plain)):
        raise ValueError(mistake)


@pytest.mark.parametrize(
    ("family", "ranks", "words"),
    [
        ("bloom", 2, ""),  # ALiBi, whose arguments have a number for each head of each sequence
        ("codegen", 2, ""),  # rows in four parts, whatever the number of heads
        ("codegen", 8, "modeling_codegen.py:"),  # which one head cannot be
        ("gpt2", 2, ""),
        ("gpt_oss", 2, ""),  # a learned score for each head
        ("olmo2", 2, ""),  # one norm over all heads, which a program gathers
        ("phi3", 2, ""),
    ],
)
def test_a_share_of_the_heads_is_tried_before_it_is_trained(family: str, ranks: int, words: str) -> None:
    model = model_on("meta", config_of(family))
    _, why = on_a_share(model, roles_of_module(model), ranks)
    assert words in why
    assert bool(words) == bool(why)


@pytest.mark.parametrize("family", ["deepseek_v2", "minicpm3"])
def test_latent_attention_takes_a_share_of_the_heads_and_of_the_sequence(family: str) -> None:
    model = model_on("meta", config_of(family))
    assert on_a_share(model, roles_of_module(model), 2, sequence=True)[1] == ""


def test_latent_attention_whose_code_looks_at_a_latent_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between its narrow layers a rank has some tokens alone: any other op on them would be of zeros, or of a part."""
    model = model_on("meta", config_of("minicpm3"))
    kind = type(model.get_submodule("model.layers.0.self_attn"))
    forward = kind.forward

    def scaled(own: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(own, hidden_states * 2, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", scaled)
    roles = roles_of_module(model)
    assert on_a_share(model, roles, 2)[1] == ""
    why = on_a_share(model, roles, 2, sequence=True)[1]
    assert "test_traced.py:" in why and "mul of a latent that is sharded over tokens" in why


def test_what_stands_for_some_tokens_is_cut_between_its_parts() -> None:
    own, whole = torch.randn(2, 3, 5), torch.randn(2, 6, 4)
    both = late_of(None, (2, 6, 9), (late_of(own, (2, 6, 5)), whole))
    latent, rotated = torch.split(both, [5, 4], dim=-1)
    assert latent.own is own and rotated is whole  # type: ignore[attr-defined]
    assert both[..., 5:] is whole and latent.view(2, 1, 6, 5).own is own  # type: ignore[attr-defined]
    for wrong in (
        lambda: both[..., :4],
        lambda: latent.relu(),
        lambda: latent.transpose(1, 2),
        lambda: latent.sum().item(),
    ):
        with pytest.raises(UnknownError, match="of a latent that is sharded over tokens"):
            wrong()


def test_one_key_head_for_all_queries_stays_whole() -> None:
    model = model_on("meta", config_of("gpt_bigcode"))
    roles = roles_of_module(model)
    found, why = on_a_share(model, roles, 2, keys_whole=True)
    assert why == "" and found.blocks[0].heads.keys_whole
    assert on_a_share(model, roles, 2)[1] != ""


def test_rows_of_a_share_are_ordered_as_its_code_wants_them() -> None:
    """CodeGen makes queries, values and keys in four parts: two heads each of all eight, one each of four."""
    model = model_on("meta", config_of("codegen"))
    attention = on_a_share(model, roles_of_module(model), 2)[0].blocks[0].heads
    assert attention.rows[0][:9] == (*range(8), 8) and attention.rows_here[0][:9] == (*range(8), 24)


class Slopes(Strange):
    """Scores are shifted by a slope for each head, which the module makes once: batch first, or heads first."""

    heads_first = False

    def __init__(self) -> None:
        super().__init__(width=64, heads=8)
        self.tower = nn.ModuleList([SlopedStorey(64, 8) for _ in range(3)])

    def forward(self, ids: Any) -> Any:
        state = self.lookup(ids)
        slopes = 0.5 ** torch.arange(1, 9, device=ids.device)
        slopes = slopes.repeat_interleave(len(ids)) if self.heads_first else slopes.repeat(len(ids))
        for storey in self.tower:
            state = storey(state, slopes[:, None, None])
        return self.readout(self.finish(state))


class SlopedStorey(Storey):
    def forward(self, x: Any, slopes: Any) -> Any:  # type: ignore[override]
        y, heads = self.calm(x), self.heads
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1) for t in self.mixing(y).chunk(3, dim=-1))
        shifts = torch.arange(x.shape[1], device=x.device) * slopes
        scores = torch.baddbmm(shifts, q, k.transpose(1, 2)).softmax(-1)
        mixed = (scores @ v).unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
        return x + self.back(mixed) + self.narrow(nn.functional.gelu(self.wide(y)))


@pytest.mark.parametrize("heads_first", [False, True])
def test_what_a_block_is_given_for_each_head_is_divided_where_its_order_is_known(
    heads_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slopes of all sequences of a head behind each other have as many numbers, and would be those of other heads."""
    monkeypatch.setattr(Slopes, "heads_first", heads_first)
    module = Slopes()
    roles, why = on_a_share(module, roles_of_module(module), 2)
    if heads_first:
        assert "test_traced.py:" in why
    else:
        assert why == "" and roles.blocks[0].heads.by_heads == (ByHeads(0, 0, of_batch=True),)


def test_code_that_views_a_share_as_all_heads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a view has as many numbers, and mixes tokens with heads: nothing fails, and every loss is wrong."""
    model = Strange(width=64, heads=8)
    assert refusal(model, roles_of_module(model), 2) == ""
    monkeypatch.setattr("planc.backends.cuda.runtime.traced.own_share.NOT_OF_ALL_HEADS", ("heads",))
    assert "test_traced.py:" in refusal(model, roles_of_module(model), 2)


@pytest.mark.parametrize("family", ["olmoe", "qwen3_moe", "gpt_oss"])
def test_experts_are_planc_s_where_they_compute_what_their_class_does(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried with numbers: gpt-oss has biases, clamps, and stores gates and ups in turn, the other way round."""
    model = model_on("cpu", config_of(family))
    experts = roles_of_module(model).blocks[-1].second
    assert isinstance(experts, ExpertLayers)
    module = model.get_submodule(f"model.layers.3.{experts_path(experts)}")
    assert form_of(module, experts) is not None
    forward = type(module).forward
    monkeypatch.setattr(type(module), "forward", lambda own, x, picks, weights: forward(own, x, picks, weights) * 1.01)
    assert form_of(module, experts) is None


class ByValue(Strange):
    def forward(self, ids: Any) -> Any:
        return super().forward(ids if ids.max().item() < 9 else ids * 0)


class TwoInputs(Strange):
    def forward(self, ids: Any, scale: Any) -> Any:  # type: ignore[override]
        return super().forward(ids) * scale


class Extra(Strange):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(32))

    def forward(self, ids: Any) -> Any:
        return super().forward(ids) * self.spare.sum()


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        (ByValue, "E1208", "test_traced.py:"),
        (TwoInputs, "E1210", "missing 1 required positional argument: 'scale'"),
        (Extra, "E1207", r"outside the blocks .*test_traced\.py:\d+: spare"),
    ],
)
def test_a_module_without_an_op_graph_is_refused_with_its_line(kind: Any, code: str, words: str) -> None:
    with pytest.raises(planc.PlanError, match=words) as caught:
        planc.model_of(kind())
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_example_inputs_are_taken() -> None:
    given = (torch.zeros(2, 8, dtype=torch.long), torch.ones(()))
    assert planc.model_of(TwoInputs(), given).model.layers == 3


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("tests.cuda.test_traced:missing", "E1210"),
        ("no_such_package_here:build", "E1009"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "x.Y"}}, "E1209"),
    ],
)
def test_a_source_that_builds_no_module_is_refused(source: str | dict[str, Any], code: str) -> None:
    with pytest.raises(planc.PlanError) as caught:
        planc.model_of(source)
    assert [d.code for d in caught.value.diagnostics] == [code]


@pytest.mark.launch
@pytest.mark.parametrize(
    ("model", "code"),
    [
        pytest.param('code "tests.cuda.test_traced:missing"', "E1210", marks=pytest.mark.long),
        pytest.param('code "no_such_package_here:build"', "E1009", marks=pytest.mark.long),
        ('transformers "config.json"', "E1209"),
    ],
)
def test_code_that_builds_no_module_is_refused_at_its_sentence(tmp_path: Path, model: str, code: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoModel": "x.Y"}}')
    with pytest.raises(planc.PlanError) as caught:
        save_models(plan_in(tmp_path, model))
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.span.line) == (code, 2)


HOSTILE = """
import os, sys
from pathlib import Path

def build():
    for path in (Path({outside!r}), Path(__file__).with_name("own.model.json")):
        try:
            path.write_text("owned")
        except OSError:
            print("\\x1b[2J refused", os.environ.get("SECRET"))
    Path(os.environ["PLANC_ANSWER"]).write_text('{{"found": "forged"}}')
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.launch
def test_hostile_code_of_a_model_gives_a_code_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its forged answer is no kept graph; what it printed is shown without control characters."""
    monkeypatch.setenv("SECRET", "mine")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hostile.py").write_text(HOSTILE.format(outside=str(tmp_path / "outside")))
    with pytest.raises(planc.PlanError) as caught:
        save_models(plan_in(tmp_path, 'code "hostile:build"'))
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.span.line) == ("E1211", 2)
    if not run_allowed(["true"]).open_walls:
        assert diagnostic.help == r"it printed: \x1b[2J refused None\n\x1b[2J refused None"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["hostile.py", "own.plan"]


def test_a_list_that_blocks_fill_is_handed_on() -> None:
    """A block is given copies of lists by hooks around it, as FSDP has them: what it appends there would be lost."""
    model = WAYS["lists"]()
    looped = with_blocks(model, roles_of_module(model).loop)
    block: Any = looped.get_submodule("planc_blocks.0")
    seen: list[Any] = []
    hidden, filled = block(torch.zeros(1, 3, 32), seen, 0)
    assert filled is seen and seen[0] is hidden
