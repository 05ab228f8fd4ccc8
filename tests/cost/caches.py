"""KV caches that engines printed in public logs, and predictions: `python -m tests.cost.caches` writes the page."""

import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from planc.costing.serving import Serving, cache_size, served_memory, tokens_in
from planc.ir.served import CacheSize, ServedMemory
from planc.ir.sharding import Sharded
from tests.plans import cluster_of, sharded_of

GIB = 2.0**30
EXPERTS = ("gpt_oss", "deepseek", "_a22b", "_a3b")


class Row(NamedTuple):
    """A published run, and its predictions."""

    published: dict[str, Any]
    size: CacheSize
    whole: ServedMemory | None
    """The prediction from the card's memory, where the engine's share is published."""

    @property
    def whole_gib(self) -> float:
        """GiB of the cache of the whole prediction; weights of a dtype that planc has not are as printed."""
        assert self.whole is not None and self.whole.cache
        weights = self.published["weights"]
        more = self.whole.weights.total / GIB - weights if isinstance(weights, float) else 0.0
        return self.whole.cache / GIB + more

    @property
    def tokens_error(self) -> float | None:
        """Relative error of the tokens in the printed memory, or of the bytes of the printed request."""
        p = self.published
        if "request_gib" in p:
            return self.size.request_bytes(p["request_tokens"]) / GIB / p["request_gib"] - 1
        if "tokens" not in p or "available_gib" not in p:
            return None
        return tokens_in(self.size, p["available_gib"] * GIB) / p["tokens"] - 1

    @property
    def printed_gib(self) -> float:
        """GiB of the cache, as printed or from the printed tokens."""
        p = self.published
        return float(p.get("available_gib", p.get("tokens", 0) * self.size.every_token_bytes / GIB))

    @property
    def off_by(self) -> float | None:
        """Error of the whole prediction, as a share of the card's memory."""
        if self.whole is None:
            return None
        return (self.whole_gib - self.printed_gib) * GIB / self.whole.capacity


def rows() -> list[Row]:
    """Return the rows of `caches.toml` with their predictions."""
    return [_row(p) for p in tomllib.loads(Path(__file__).with_name("caches.toml").read_text())["cache"]]


def _row(p: dict[str, Any]) -> Row:
    sharded = _generator(p["model"], p["cluster"], p["tp"])
    size = cache_size(sharded, 0, p.get("cache", "bf16"))
    return Row(p, size, _whole(sharded, p) if "utilization" in p else None)


def _whole(sharded: Sharded, p: dict[str, Any]) -> ServedMemory:
    dtype, _, block = ("bf16" if isinstance(p["weights"], float) else p["weights"]).partition(" ")
    return served_memory(
        sharded,
        Serving(
            weights=dtype,
            weights_block=int(block or 0),
            cache=p.get("cache", "bf16"),
            utilisation=p["utilization"],
            prefill_tokens=p.get("prefill"),
            concurrent=p.get("requests"),
            visible_bytes=p["total_gib"] * GIB if "total_gib" in p else None,
        ),
    )


@cache
def _generator(model: str, cluster: str, tp: int) -> Sharded:
    """Return the layouts of replicas of `tp` devices, whose experts are divided over their width."""
    devices = cluster_of(cluster).devices
    copies = devices // tp
    axes = [f"dp {copies}"] * (copies > 1) + [f"tp {tp}"] * (tp > 1)
    text = f"plan generator\nmodel {model}\nbatch {devices} x 4096 tokens microbatch 1\ncluster {cluster}\n"
    text += f"mesh {' > '.join(axes)}\ncompute bf16 reduce fp32\n"
    text += "use ddp over dp\n" * (copies > 1) + "use tp over tp\n" * (tp > 1)
    text += "use etp over tp\n" * (tp > 1 and any(name in model for name in EXPERTS))
    with tempfile.TemporaryDirectory() as folder:
        return sharded_of(Path(folder), text)


PAGE = Path(__file__).parents[2] / "docs" / "measured" / "kv-caches.md"
INTRODUCTION = """# KV caches that engines printed

Written by `python -m tests.cost.caches`. What vLLM and SGLang print at their start in public logs, beside what planc
predicts from the model, the layout and the card. First the tokens in the memory that the log prints (or the bytes of
the longest request that it asks for): this shows the bytes of a token on one device. Then the whole, where the engine's
share of the card is published: card x share - weights - activations - what is outside torch; the last column is the
error as a share of the card, not of the cache. The `fitted` runs gave one constant, the sampler's bytes of a logit; the
others had no influence on any. What is known to be off: vLLM 0.2.5 on four ranks lost 14 GiB a rank that its log does
not name; models with a vision encoder are not predicted. vLLM counts a token of a layer with a sliding window as whole
(gpt-oss), and so does the second column; requests that fit are counted with their windows.

"""


def page() -> str:
    """Return the page with the rows as a table."""
    lines = [
        "| engine | model | devices | bytes a token | tokens off by | printed GiB | predicted GiB | off by | source |",
        "|---|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows():
        p = row.published
        error = "" if row.tokens_error is None else f"{row.tokens_error:+.1%}"
        ends = ["", "", ""]
        if (off := row.off_by) is not None:
            ends = [f"{row.printed_gib:.2f}", f"{row.whole_gib:.2f}", f"{off:+.1%}"]
        engine = p["engine"] + (" (fitted)" if p.get("fitted") else "")
        card = p["cluster"].split()[-1].removesuffix("_node")
        url, _, note = p["source"].partition(" ")
        source = f"[log]({url}) {note}".strip()
        cells = [engine, p["model"], f"{p['tp']} x {card}", f"{row.size.every_token_bytes:,.0f}", error, *ends, source]
        lines.append(f"| {' | '.join(cells)} |")
    return INTRODUCTION + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
