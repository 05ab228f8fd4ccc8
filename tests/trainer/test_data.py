"""The stream is a function of seed and step alone, and the held-out text is never trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from planc.trainer.data.stream import PythonStdlib


def source(root: Path, *, sequences: int = 4, seed: int = 0, max_bytes: int = 1 << 20) -> PythonStdlib:
    return PythonStdlib(sequences, 16, seed, max_bytes, root=root)


def library(root: Path, files: int = 40) -> Path:
    """A small standard library: each file repeats its own letter pair."""
    for number in range(files):
        (root / f"m{number}.py").write_text(f"<{number:02}>" * 50)
    (root / "test").mkdir(exist_ok=True)
    (root / "test" / "test_m0.py").write_text("never " * 100)
    return root


def test_a_batch_depends_on_seed_and_step_alone(tmp_path: Path) -> None:
    library(tmp_path)
    once, again = source(tmp_path), source(tmp_path)
    again.batch(7)
    assert np.array_equal(once.batch(3), again.batch(3))
    assert not np.array_equal(once.batch(3), once.batch(4))
    assert not np.array_equal(once.batch(3), source(tmp_path, seed=1).batch(3))


def test_targets_are_the_tokens_that_follow(tmp_path: Path) -> None:
    tokens, targets = source(library(tmp_path)).batch(0)
    assert tokens.shape == targets.shape == (4, 16)
    assert tokens.dtype == targets.dtype == np.int32
    assert np.array_equal(tokens[:, 1:], targets[:, :-1])
    assert tokens.min() >= 0
    assert tokens.max() < 256


def test_the_stream_does_not_change_between_versions(tmp_path: Path) -> None:
    """Recorded once: a change here makes old receipts incomparable without any hash showing it."""
    tokens, _ = source(library(tmp_path), sequences=2).batch(0)
    assert ["".join(map(chr, row)) for row in tokens] == RECORDED


RECORDED = ["3><33><33><33><3", "7><07><07><07><0"]


def test_held_out_text_is_not_trained_on(tmp_path: Path) -> None:
    data = source(library(tmp_path))
    train, held_out = (part.tobytes() for part in data._train_and_held_out)
    assert train and held_out
    assert {held_out[i : i + 4] for i in range(0, 200, 4)} & {train[i : i + 4] for i in range(0, 8000, 4)} == set()
    assert b"never" not in train + held_out
    assert all(row.astype(np.uint8).tobytes() in held_out for row in data.held_out(0)[0])
    assert all(row.astype(np.uint8).tobytes() in train for row in data.batch(0)[0])


def test_the_fingerprint_follows_the_text(tmp_path: Path) -> None:
    before = source(library(tmp_path)).sha256
    assert source(tmp_path, seed=1).sha256 == before
    assert source(tmp_path, max_bytes=5000).sha256 != before
    (tmp_path / "m1.py").write_text("other")
    assert source(tmp_path).sha256 != before


def test_the_real_library_is_large_enough() -> None:
    data = PythonStdlib(2, 128, 0, 1 << 20)
    train, held_out = data._train_and_held_out
    assert len(train) > 500_000
    assert len(held_out) > 20_000
