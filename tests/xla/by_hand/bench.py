"""How long a step of an emitted JAX program takes beside the one that was written by hand: `bench.py [PAIRS]`.

Steps in turn on virtual CPU devices of this machine, as `tests/cuda/by_hand/bench.py` does over gloo; and what the
TPU's compiler makes of those with a kernel. Writes docs/measured/by-hand-xla.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from planc.trainer.run.launch import run  # noqa: E402
from tests.cuda.by_hand.bench import row_of  # noqa: E402
from tests.rows import rows_of  # noqa: E402

PAGE = ROOT / "docs" / "measured" / "by-hand-xla.md"
WORKER, ON_TPU = (Path(__file__).with_name(name) for name in ("worker.py", "on_tpu.py"))

HEAD = """# Emitted JAX beside JAX written by hand

Written by `tests/xla/by_hand/bench.py`. Four programs written by hand with jax and optax alone (`tests/xla/by_hand/`)
and those that planc emits for the same layouts, on four virtual CPU devices from the same weights: each compiles to the
same collectives, to the byte but for scalars (`tests/xla/test_by_hand.py`). Steps were timed in turn, emitted and by
hand; the ratio is that of each pair, and the bound the upper end of a bootstrap's 95 % interval of the median.
`kernel` is `fsdp` with splash attention, a kernel that is interpreted on a CPU.

| layout | pairs | emitted | by hand | median ratio | upper bound |
|---|--:|--:|--:|--:|--:|
"""

TPU = """
Both programs with the kernel, a larger model of 4 layers and sequences of 2,048 tokens, compiled by the TPU's compiler
for four v5p (fp32); cycles are its own estimate of a step, transfers left out.

| | emitted | by hand | ratio |
|---|--:|--:|--:|
"""


def on_tpu() -> str:
    """The section about the TPU's compiler."""
    done = run([sys.executable, str(ON_TPU)], 1, timeout_s=3000)
    assert done.ok, done.outputs[0][-4000:]
    (row,) = rows_of(done.outputs[0])
    emitted, by_hand = row["emitted"], row["by_hand"]
    figures = [
        ("calls of kernels", emitted["kernels"], by_hand["kernels"]),
        *(
            (f"bytes sent by {op or 'all'}", *(_sent(one, op) for one in (emitted, by_hand)))
            for op in ("all_gather", "")
        ),
        ("peak bytes", emitted["peak_bytes"], by_hand["peak_bytes"]),
        ("cycles", emitted["cycles"], by_hand["cycles"]),
    ]
    return TPU + "".join(f"| {what} | {a:,} | {b:,} | {a / b:.3f} |\n" for what, a, b in figures)


def _sent(program: dict[str, Any], op: str) -> int:
    return sum(n for key, n in program["wire_bytes"].items() if key.startswith(op))


def main(pairs: int) -> int:
    done = run([sys.executable, str(WORKER), str(pairs)], 1, timeout_s=1500)
    assert done.ok, done.outputs[0][-4000:]
    text = HEAD + "".join(row_of(row["name"], row["seconds"]) for row in rows_of(done.outputs[0])) + on_tpu()
    PAGE.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 150))
