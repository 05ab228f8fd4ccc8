"""Muon, AdamW, decay groups and schedules: numpy's arithmetic, torch's and JAX's are the same."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from planc.catalog import build_model
from planc.diag import PlanError
from planc.ir.session import Settings
from planc.ir.updates import NEWTON_SCHULZ_STEPS, decay_of, is_orthogonalised
from planc.trainer.preset.load import load_preset
from planc.trainer.preset.settings import TrainTable
from planc.trainer.run.lr_schedule import learning_rate

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "plans" / "presets" / "tiny.toml"
Array = NDArray[np.float64]
SETTINGS = Settings(
    optimizer="muon", decay_groups=(("*.wq.*", 0.5), ("layers.*.attention.*", 0.75), ("norm.weight", 0.25))
)
LR, STEPS = 0.01, 3
MODEL = build_model("llama_micro", {"layers": 2})
NAMES = (
    *("layers.*.attention.wq.weight", "layers.*.attention.wk.weight", "layers.*.feed_forward.w2.weight"),
    *("layers.*.ffn_norm.weight", "tok_embeddings.weight", "norm.weight"),
)
SHAPES = {n: ((2,) if "*" in n else ()) + MODEL.shape(MODEL.param[n]) for n in NAMES}
"""Shapes of a stack of both layers, and of what no block has."""


def drawn(name: str, step: int) -> Array:
    seed = [*name.encode(), step]
    return np.random.default_rng(seed).standard_normal(SHAPES[name])


def orthogonal(m: Array) -> Array:
    """Newton-Schulz in fp64, of one matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m if m.shape[0] <= m.shape[1] else m.T
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if m.shape[0] <= m.shape[1] else x.T) * 0.2 * sqrt(max(m.shape))


def reference(name: str, *, muon: bool, decay: float) -> Array:
    """The parameter after STEPS updates, fp64."""
    w, m, v = drawn(name, 0), np.zeros(SHAPES[name]), np.zeros(SHAPES[name])
    for step in range(1, STEPS + 1):
        g = drawn(name, step)
        if muon:
            m = 0.95 * m + 0.05 * g
            u = np.stack([orthogonal(layer) for layer in 0.95 * m + 0.05 * g])
        else:
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            u = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
        w = w - LR * (u + decay * w)
    return w


EXPECTED = {
    "layers.*.attention.wq.weight": (True, 0.75),  # two groups fit: the last one counts
    "layers.*.attention.wk.weight": (True, 0.75),
    "layers.*.feed_forward.w2.weight": (True, 0.1),
    "layers.*.ffn_norm.weight": (False, 0.0),
    "tok_embeddings.weight": (False, 0.1),
    "norm.weight": (False, 0.25),
}


def test_which_update_a_parameter_gets() -> None:
    found = {n: (is_orthogonalised(MODEL, n), decay_of(MODEL, SETTINGS, n)) for n in SHAPES}
    assert found == EXPECTED


def test_torch_updates_as_the_reference_does() -> None:
    torch = pytest.importorskip("torch")
    from planc.backends.cuda.runtime.optimizer import optimizer_of

    holder = torch.nn.Module()
    for name in SHAPES:
        for layer, value in _layers(name, 0):
            _put(holder, name.replace("*", str(layer)), torch.nn.Parameter(torch.from_numpy(value).float()))
    optimizer = optimizer_of([holder], MODEL, SETTINGS)
    for group in optimizer.param_groups:
        group["lr"] = LR
    for step in range(1, STEPS + 1):
        for name in SHAPES:
            for layer, value in _layers(name, step):
                holder.get_parameter(name.replace("*", str(layer))).grad = torch.from_numpy(value).float()
        optimizer.step()
    for name, (muon, decay) in EXPECTED.items():
        found = [holder.get_parameter(name.replace("*", str(n))).detach().numpy() for n, _ in _layers(name, 0)]
        whole = np.stack(found) if "*" in name else found[0]
        np.testing.assert_allclose(whole, reference(name, muon=muon, decay=decay), rtol=0, atol=2e-5)


def _layers(name: str, step: int) -> list[tuple[int, Array]]:
    value = drawn(name, step)
    return list(enumerate(value)) if "*" in name else [(0, value)]


def _put(module: object, name: str, value: object) -> None:
    import torch

    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            setattr(module, part, torch.nn.Module())
        module = getattr(module, part)
    setattr(module, last, value)


@pytest.mark.parametrize("more", [pytest.param(0, marks=pytest.mark.long), 40])
def test_jax_updates_as_the_reference_does(more: int) -> None:
    """Where ranks have uneven parts, a leaf has `more` zeros behind each dim of a matrix, and keeps them."""
    jax = pytest.importorskip("jax")
    from planc.backends.xla.runtime.optimizer import updates_of

    def leaves(step: int) -> dict[str, Any]:
        padded = {
            n: [(0, 0)] * (len(s) - 2) + [(0, more)] * 2 if len(s) > 2 else [(0, 0)] * len(s) for n, s in SHAPES.items()
        }
        return {name: jax.numpy.float32(np.pad(drawn(name, step), padded[name])) for name in SHAPES}

    optimizer = updates_of(MODEL, SETTINGS)
    params = leaves(0)
    state = optimizer.init(params)
    with jax.default_matmul_precision("highest"):
        for step in range(1, STEPS + 1):
            updates, state = jax.jit(optimizer.update)(leaves(step), state, params)
            params = {name: w - LR * updates[name] for name, w in params.items()}
    for name, (muon, decay) in EXPECTED.items():
        own = params[name][tuple(map(slice, SHAPES[name]))]
        assert float(abs(params[name]).sum()) == pytest.approx(float(abs(own).sum())), "zeros moved"
        np.testing.assert_allclose(own, reference(name, muon=muon, decay=decay), rtol=0, atol=2e-5)


def test_jax_has_whole_matrices_in_every_step_of_the_iteration() -> None:
    """On a mesh: those that it begins with, and those of each step; without one nothing is asked for."""
    jax = pytest.importorskip("jax")
    from planc.backends.xla.runtime.optimizer import orthogonal as on_mesh

    def said() -> list[str]:
        equations = jax.make_jaxpr(on_mesh)(np.ones((3, 8, 4), np.float32)).eqns
        return [str(e.params["sharding"].spec[-2:]) for e in equations if e.primitive.name == "sharding_constraint"]

    assert said() == []
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2, 2), ("dp", "tp"))):
        assert said()[::2] == ["(UNCONSTRAINED, None)"] * (1 + NEWTON_SCHULZ_STEPS)
        assert said()[1::2] == ["(None, None)"] * (1 + NEWTON_SCHULZ_STEPS)


def test_jax_has_the_matrices_of_one_layer_at_a_time() -> None:
    """Whole matrices of all layers would be as much as the model on each device."""
    jax = pytest.importorskip("jax")
    from planc.backends.xla.runtime.optimizer import updates_of

    optimizer = updates_of(MODEL, SETTINGS)
    params = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    equations = jax.make_jaxpr(optimizer.update)(params, optimizer.init(params), params).eqns
    products = [e for e in equations if e.primitive.name == "dot_general"]
    loops = [e.params["length"] for e in equations if e.primitive.name == "scan"]
    assert (products, loops) == ([], [MODEL.layers] * len([n for n, (muon, _) in EXPECTED.items() if muon]))


def test_muon_holds_one_moment_of_a_matrix() -> None:
    jax = pytest.importorskip("jax")
    from planc.backends.xla.runtime.optimizer import updates_of

    state = updates_of(MODEL, SETTINGS).init({name: jax.numpy.float32(drawn(name, 0)) for name in SHAPES})
    held = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    wq = [path for path in held if "attention.wq" in path]
    assert len(wq) == 1
    assert "mu" in wq[0]
    assert len([path for path in held if "tok_embeddings" in path]) == 2


def test_an_update_of_muon_is_nearly_orthogonal() -> None:
    found = np.linalg.svd(orthogonal(drawn("layers.*.feed_forward.w2.weight", 1)[0]), compute_uv=False)
    scaled = found / (0.2 * sqrt(max(SHAPES["layers.*.feed_forward.w2.weight"])))
    assert scaled.min() > 0.6
    assert scaled.max() < 1.3


def test_wsd_is_stable_and_then_falls_in_a_line() -> None:
    train = TrainTable(steps=100, lr=1.0, min_lr=0.1, warmup_steps=10, schedule="wsd", decay_steps=20)
    rates = [learning_rate(train, step) for step in range(1, 103)]
    assert rates[4] == pytest.approx(0.5)
    assert rates[9:80] == [1.0] * 71
    assert rates[89] == pytest.approx(0.55)
    assert rates[99:] == [pytest.approx(0.1)] * 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('schedule = "wsd"', "needs decay_steps"),
        ("decay_steps = 5", "needs decay_steps"),
        ('schedule = "wsd"\ndecay_steps = 95', "more than steps 100"),
        ("momentum = 0.9", "momentum is Muon's"),
        ('optimizer = "sgd"', "'adamw' or 'muon'"),
        ('decay_groups = {"*.wqq.*" = 0.5}', "fits no parameter"),
        ('decay_groups = {"*.wq.*" = -1.0}', "greater than or equal to 0"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, more: str, said: str) -> None:
    text = TINY.read_text().replace("../tiny.plan", "absent.plan").replace('schedule = "cosine"\n', "")
    path = tmp_path / "run.toml"
    path.write_text(text.replace("seed = 0\n", f"seed = 0\n{more}\n"))
    with pytest.raises(PlanError) as error:
        load_preset(path)
    found = error.value.diagnostics[0]
    assert found.code == "E1003"
    assert said in found.message
