"""A pipeline of chunks keeps inputs of layers for the backward, and no copy of a chunk's weights an iteration."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.trainer.run.launch import run
from tests.rows import rows_of


@pytest.mark.long
@pytest.mark.launch
def test_more_microbatches_hold_no_more_weights() -> None:
    done = run([sys.executable, str(Path(__file__).with_name("held.py"))], 1, timeout_s=600)
    assert done.ok, done.outputs[0][-4000:]
    (row,) = rows_of(done.outputs[0])
    few, many = row["temporary_bytes"]
    assert 0 < many - few < row["chunk_bytes"], "24 more iterations may not hold 24 more copies of the weights"
