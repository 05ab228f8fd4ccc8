"""How long a step of an emitted JAX program takes beside the one that was written by hand: `bench.py [PAIRS]`.

Steps in turn on virtual CPU devices of this machine, as `tests/cuda/by_hand/bench.py` does over gloo.
Writes docs/measured/by-hand-xla.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from planc.trainer.run.launch import run  # noqa: E402
from tests.cuda.by_hand.bench import row_of  # noqa: E402
from tests.rows import rows_of  # noqa: E402

PAGE = ROOT / "docs" / "measured" / "by-hand-xla.md"
WORKER = Path(__file__).with_name("worker.py")

HEAD = """# Emitted JAX beside JAX written by hand

Written by `tests/xla/by_hand/bench.py`. Three programs written by hand with jax and optax alone (`tests/xla/by_hand/`)
and those that planc emits for the same layouts, on four virtual CPU devices from the same weights: each compiles to the
same collectives, to the byte but for scalars (`tests/xla/test_by_hand.py`). Steps were timed in turn, emitted and by
hand; the ratio is that of each pair, and the bound the upper end of a bootstrap's 95 % interval of the median.

| layout | pairs | emitted | by hand | median ratio | upper bound |
|---|--:|--:|--:|--:|--:|
"""


def main(pairs: int) -> int:
    done = run([sys.executable, str(WORKER), str(pairs)], 1, timeout_s=1500)
    assert done.ok, done.outputs[0][-4000:]
    text = HEAD + "".join(row_of(row["name"], row["seconds"]) for row in rows_of(done.outputs[0]))
    PAGE.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 150))
