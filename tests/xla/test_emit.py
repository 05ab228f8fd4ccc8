"""The emitted text, without jax: what it says, that it stands alone, and that it is well written."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from planc.backends.common.source_writer import WIDTH, file_of
from planc.backends.xla.emit.program import NO_PLAN, emit
from planc.ir.sharding import Sharded
from tests.plans import propagated
from tests.random_plans.programs import defined_twice
from tests.xla.cases import FLOAT8, FSDP_TP, LAYOUTS, NARROW_STATE, plan_of, sharded
from tests.xla.moe_cases import MOE, moe_sharded

BF16 = "compute bf16 reduce fp32"
EXTRA: dict[str, tuple[str, ...]] = {
    "bf16": (*FSDP_TP, BF16),
    "bf16_dp": ("dp 4", "use ddp over dp", BF16),
    "bf16_step": ("fsdp 4", "use fsdp over fsdp", "gather params per step", BF16),
    "bf16_microbatch": ("fsdp 4", "use fsdp over fsdp", "gather params per microbatch", BF16),
    **NARROW_STATE,
    **FLOAT8,
    "compiled": (*FSDP_TP, "compile blocks, loss as inductor"),
    "reduce_bf16": (*FSDP_TP, "compute bf16 reduce bf16"),
    "long_axis_names": (
        "the_replicas_of_the_model 2 > the_fully_sharded_axis 2 > the_tensor_parallel_axis 2",
        "use hsdp over the_replicas_of_the_model, the_fully_sharded_axis",
        "use tp over the_tensor_parallel_axis",
        "use sp over the_tensor_parallel_axis",
    ),
}


def case(name: str) -> Sharded:
    return sharded(name) if name in LAYOUTS else propagated(plan_of(name, *EXTRA[name]))


@pytest.fixture(params=[*LAYOUTS, *EXTRA])
def text(request: pytest.FixtureRequest) -> str:
    return emit(case(request.param))


def test_the_same_plan_gives_the_same_bytes(text: str, request: pytest.FixtureRequest) -> None:
    assert emit(case(request.node.callspec.params["text"])) == text


def test_it_imports_no_planc(text: str) -> None:
    tree = ast.parse(text)
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names}
    standard = {"__future__", "collections", "contextlib", "contextvars", "functools", "re", "typing", "warnings"}
    assert roots <= standard | {"jax", "numpy", "optax"}


def test_it_has_no_branch_on_configuration(text: str) -> None:
    """The one branch is on the version of JAX that runs the program."""
    tree = ast.parse(text)
    guards = [n for n in tree.body if isinstance(n, ast.If)]
    assert [ast.unparse(n.test) for n in guards] == ["JAX != (0, 10)"]
    assert [n.lineno for n in ast.walk(tree) if isinstance(n, ast.If | ast.IfExp)] == [guards[0].lineno]


def test_every_private_function_is_used(text: str) -> None:
    tree = ast.parse(text)
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    private = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("_")}
    assert private <= read


def test_the_end_of_the_file_is_the_same_for_every_plan() -> None:
    """For those whose state rests on the device in fp32, and for the others, whose own functions of state are above."""
    experts = (emit(moe_sharded(name)) for name in MOE)
    texts = [*(emit(case(name)) for name in (*LAYOUTS, *EXTRA)), *experts]
    ends = {text.partition(NO_PLAN)[2] for text in texts}
    assert len(ends) == 2 and all("def shardings" in end for end in ends)
    assert ["def init_state" in end for end in sorted(ends, key=len)] == [False, True]


def test_ruff_has_nothing_to_say(tmp_path: Path) -> None:
    for name in (*LAYOUTS, *EXTRA):
        (tmp_path / f"{name}.py").write_text(emit(case(name)))
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "110", str(tmp_path)]
    for command in (["format", "--diff"], ["check", "--select", "E,F,I,UP,B,SIM,C4,RET"]):
        done = subprocess.run([*ruff, *command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_torus_is_laid_out_by_its_links(tmp_path: Path) -> None:
    plan = plan_of("torus", "fsdp 4 > tp 2", *FSDP_TP[1:], cluster="tpu_v5p(2x2x2)")
    text = emit(propagated(plan))
    assert "mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)" in text
    path = tmp_path / "torus.py"
    path.write_text(text)
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "110", "--diff", str(path)]
    assert subprocess.run(ruff, capture_output=True, check=False).returncode == 0


def test_sentences_stand_beside_what_they_cause() -> None:
    text = emit(sharded("fsdp_tp_sp"))
    assert 'MESH = {"fsdp": 2, "tp": 2}  # outermost first; fsdp_tp_sp.plan:5  mesh fsdp 2 > tp 2' in text
    assert '"attention.out": P("fsdp", "tp", None),  # reduce-scatter sequence over tp from attention.out' in text
    assert "# reduce-scatter over fsdp, each microbatch" in text


def test_zero_stages_differ_in_what_is_divided() -> None:
    whole = "{k} = USED"
    zero1, zero2, dp = (emit(sharded(name)) for name in ("zero1", "zero2", "dp"))
    assert "PARAMS = USED" in zero1 and "GRADS = USED" in zero1 and "OPTIMIZER = {" in zero1
    assert "PARAMS = USED" in zero2 and "GRADS = {" in zero2 and "OPTIMIZER = GRADS" in zero2
    assert all(whole.format(k=k) in dp for k in ("PARAMS", "GRADS", "OPTIMIZER"))


def test_gradients_of_overridden_weights_take_two_steps() -> None:
    """A weight that lies otherwise than its product: XLA's partitioner takes wrong sums on the way to a third."""
    text = emit(sharded("override_on_three_axes"))
    assert 'SUMMED = GRADS | {\n    "layers.*.feed_forward.w3.weight": P(None, None),\n}' in text
    assert "dw = with_sharding_constraint(dw, SUMMED[_pattern(name)])" in text
    assert "SUMMED" not in emit(sharded("fsdp_tp_sp"))


def test_state_is_kept_in_its_dtype_and_computed_with_in_fp32() -> None:
    whole, moments, wide = (emit(case(name)) for name in ("state_bf16", "moments_bf16", "fsdp"))
    nouns = ("PARAMS", "GRADS", "OPTIMIZER")
    assert all(f"{noun}_DTYPE = jnp.bfloat16" in whole for noun in nouns)
    assert ["OPTIMIZER_DTYPE = jnp.bfloat16" in moments, "GRADS_DTYPE = jnp.float32" in moments] == [True, True]
    assert "_accumulate(loss_fn, held, tokens, targets)" in whole and "params, updates), PARAMS_DTYPE)" in whole
    assert "lambda a, b: (a + b).astype(a.dtype)" in whole and "return narrow(" in whole
    assert "optimizer.update(grads, _wide(state), params)" in whole
    assert not any(f"{noun}_DTYPE" in wide for noun in nouns)


def test_matmuls_are_narrow_by_their_parameter_and_layer() -> None:
    spared, mixed = emit(case("float8_rowwise")), emit(case("float8_tensorwise_tp"))
    assert '"layers.*.attention.wo.weight": "float8_rowwise",' in spared and '"output.weight": "f' not in spared
    assert "SEGMENTS = (\n    (0, 1, WIDE),\n    (1, 4, ()),\n)" in spared
    assert "SEGMENTS = (\n    (0, 1, WIDE_1),\n    (1, 3, WIDE_0),\n    (3, 4, ()),\n)" in mixed
    assert '"float8_rowwise": (_float8_rowwise, _float8_rowwise),' in mixed and "dtype=jnp.float8_e5m2" in mixed
    assert "def _float8_tensorwise" not in spared and "NARROW" not in emit(case("bf16"))
    assert "SEGMENTS" not in emit(case("int8_tp"))


def test_a_region_that_is_compiled_is_named_where_the_whole_step_is() -> None:
    text = emit(case("compiled"))
    assert "compile blocks, loss as inductor\n    return jax.jit(\n" in text


def test_state_on_the_host_is_updated_layer_by_layer() -> None:
    both, moments, params = (
        emit(case(name)) for name in ("offload_state", "offload_optimizer_tp", "offload_params_zero1")
    )
    rests = '"{}": _resting(shardings(mesh, params), PARAMS_MEMORY)'.format("params")
    assert [rests in text for text in (both, moments, params)] == [True, False, True]
    assert ['OPTIMIZER_MEMORY = "pinned_host"' in text for text in (both, moments, params)] == [True, True, False]
    assert ["held = _copies(" in t for t in (both, moments, params)] == [
        True,
        False,
        True,
    ]
    assert all("jax.lax.fori_loop(0, layers, functools.partial(layer, layers), held)" in t for t in (both, moments))
    assert all("jax.lax.dynamic_slice_in_dim(x, i, int(len(x) == layers))" in t for t in (both, moments, params))
    assert "_placed(_placed(old, PARAMS), OPTIMIZER)" in params and "_placed(old" not in both


def test_activations_on_the_host_are_named_where_they_are_kept() -> None:
    hidden, some = (emit(case(name)) for name in ("offload_hidden", "offload_some"))
    assert 'OFFLOADED = ("hidden",)' in hidden and 'block(checkpoint_name(x, "hidden"), layer)' in hidden
    assert "names_which_can_be_saved=()," in hidden and "KEPT" not in hidden
    assert (
        "names_which_can_be_saved=KEPT," in some and '"ffn.gate",' not in some.partition("KEPT = ")[2].partition(")")[0]
    )


def test_dims_that_ranks_exchange_are_laid_out_before_and_after() -> None:
    text = emit(case("ulysses"))
    rows, heads = 'P("fsdp", "cp", None, None)', 'P("fsdp", None, "cp", None)'
    table = text.partition("EXCHANGED: ")[2].partition("\n}")[0]
    assert f'"attention.q": (({rows},), ()),' in table and f'"attention.mixed": ((), ({rows},)),' in table
    assert f'"attention.q": {heads},' in text and "EXCHANGED.get(name" in text and "EXCHANGED" not in emit(case("cp"))


def test_heads_that_two_axes_divide_are_cut_by_tensor_ranks_first() -> None:
    """As their weights are: an all-to-all over the other axis cuts what a tensor rank has."""
    text = emit(case("ulysses_tp"))
    assert '"attention.q": P("fsdp", None, ("tp", "cp"), None),' in text


def test_the_kernel_is_told_where_the_rows_of_a_rank_lie() -> None:
    gathered, in_order, ring = (
        emit(case(name)) for name in ("long_splash_cp", "long_splash_cp_in_order", "long_splash_ring")
    )
    assert "mask.q_sequence = np.asarray(positions(rows), np.int32)" in gathered and "np.argsort(positions(" in gathered
    assert "q_sequence" not in in_order and "q_seq_shards=SEQUENCE_RANKS" in in_order
    assert "_splash_attention_bwd" in ring and 'checkpoint_name(x, "attention.kernel")' in ring
    assert "dot_product_attention" not in gathered + in_order + ring


def test_parameters_that_ranks_cannot_share_are_filled_up_and_cut_again() -> None:
    text = emit(case("uneven_tp"))
    assert '"output.weight": ((137, 138), (64, 64)),  # 0.7% more' in text
    assert text.count("loss_fn = _without_padding(loss_fn)") == 3 and "def pad(" in text
    assert "PADDED" not in emit(case("fsdp_tp_sp"))


RING, AGAIN = "use cp over cp as ring", "recompute blocks every 2 layers"
THREE_CUTS = {
    "ring_again": ("cp 2", RING, AGAIN),
    "uneven_again": ("tp 2", "use tp over tp", AGAIN),
    "uneven_ring": ("cp 2 > tp 2", RING, "use tp over tp"),
    "uneven_ring_again": ("cp 2 > tp 2", RING, "use tp over tp", AGAIN),
}
"""Programs that cut rows for a ring, layers into groups and parameters from what fills them up: two of these or all."""


@pytest.mark.parametrize("name", THREE_CUTS)
def test_no_two_passes_write_one_name(name: str) -> None:
    model = f"llama_micro(layers = 4, vocab = {137 if name.startswith('uneven') else 256})"
    text = emit(propagated(plan_of(name, *THREE_CUTS[name], model=model)))
    assert defined_twice(text) == []
    helpers = {"ring": "_rows_from", "again": "_grouped", "uneven": "_unpadded"}
    assert [h in text for h in helpers.values()] == [word in name for word in helpers]


def test_a_name_that_is_defined_twice_is_a_fault_of_ours() -> None:
    once, other = "def one() -> None: ...", "TWO: dict[str, int] = {}"
    assert file_of([other], ["", once]) == f"{other}\n\n\n{once}\n"
    for twice in ([once, once], [once, "class one: ..."], [once, "TWO = 3"], [once, "one = 3"]):
        with pytest.raises(AssertionError, match="twice"):
            file_of([other], twice)


def test_lines_that_names_of_a_plan_make_long_are_split_as_ruff_would(tmp_path: Path) -> None:
    name = "a_name_that_a_plan_has"
    lines = (
        f'    return now | {{"{name}": made({name}, {name}), "layers": layers, "shares": shares, "others": {name}}}',
        f"    x, _ = scan(partial(group, first, between), x, cut(stack, begin, groups, {name}), {name}[0], {name})",
        f"    x = scan({', '.join([name] * 9)})",
        f'    """The first devices as a mesh of {name} and {name}, neighbours linked on the torus of {name}."""',
        f"def {name}({name}: jax.Array, shares: jax.Array, others: jax.Array) -> tuple[jax.Array, jax.Array, Any]:",
    )
    text = file_of(["import jax"], ["def f() -> None:\n" + "\n".join(lines[:4]), lines[4] + "\n    return 0"])
    assert max(map(len, text.splitlines())) <= WIDTH < min(map(len, lines))
    (tmp_path / "long.py").write_text(text)
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(WIDTH), "--diff", str(tmp_path)]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_picks_are_of_layers_alone() -> None:
    """Stages of unequal length are filled up; the experts' picks of what fills them are cut off."""
    sentences = ("pp 2", "split layers over pp as looped_bfs(chunks = 2)")
    for layers, cut in ((5, 1), (8, 0)):
        text = emit(propagated(plan_of("picks", *sentences, model=f"mixtral_micro(layers = {layers})")))
        assert text.count("picks.reshape(-1, *picks.shape[-2:])[held]") == cut
