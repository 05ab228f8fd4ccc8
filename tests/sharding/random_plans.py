"""Random plans that check without an error: meshes of up to 64 ranks, dense and with experts."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

SIZES = (1, 2, 4)


@dataclass(frozen=True)
class Written:
    """A plan's sentences, those of its mesh and machine first."""

    head: tuple[str, ...]
    body: tuple[str, ...] = field(default_factory=tuple)

    @property
    def text(self) -> str:
        return "\n".join(("plan example", *self.head, *self.body)) + "\n"


@st.composite
def written(draw: st.DrawFn, *, experts: bool | None = None) -> Written:
    """`llama3_8b` or `mixtral_8x7b` with few layers, over pp, replica, fsdp, cp and tp of random sizes."""
    moe = draw(st.booleans()) if experts is None else experts
    names = draw(st.permutations(["replica", "fsdp", "cp"]))
    sizes = {"pp": draw(st.sampled_from(SIZES)), **{n: draw(st.sampled_from(SIZES)) for n in names}}
    sizes["tp"] = draw(st.sampled_from(SIZES))
    devices = 1
    for n in sizes.values():
        devices *= n
    microbatches = 2 * sizes["pp"]
    sequences = microbatches * sizes["replica"] * sizes["fsdp"]
    model = f"{'mixtral_8x7b' if moe else 'llama3_8b'}(layers = {4 * sizes['pp']})"
    head = [
        f"model {model}",
        f"batch {sequences} x {2048 * sizes['cp']} tokens microbatch 1",
        f"cluster {max(1, devices // 8)} x h100_node" if devices >= 8 else f"cluster {devices} x one",
        "mesh " + " > ".join(f"{n} {size}" for n, size in sizes.items()),
    ]
    if devices < 8:
        head.insert(0, 'import "one.plan"')
    return Written(tuple(head), tuple(_body(draw, sizes, moe)))


def _body(draw: st.DrawFn, sizes: dict[str, int], moe: bool) -> list[str]:
    lines = ["shard batch over replica, fsdp"]
    nouns = draw(st.sampled_from(["optimizer", "grads, optimizer", "params, optimizer", "params, grads, optimizer"]))
    lines.append(f"store {nouns} over {draw(st.sampled_from(['fsdp', 'replica, fsdp']))}")
    if "params" in nouns:
        lines.append(f"gather params per {draw(st.sampled_from(['pass', 'microbatch', 'step']))}")
    lines.append("shard heads, vocab over tp" if moe else "shard heads, ffn, vocab over tp")
    lines.append(f"shard sequence over {draw(st.sampled_from(['cp, tp', 'tp, cp']))} in residual")
    lines.append(f"shard sequence over cp in {', '.join(('embedding', 'projection', 'attention', 'head'))}")
    if not moe:
        lines.append("shard sequence over cp in ffn")
    if draw(st.booleans()):
        lines.append(f"attention.core as {draw(st.sampled_from(['ring', 'all_gather']))}")
    if moe and sizes["fsdp"] > 1:
        lines.append("shard experts over fsdp")
        lines.append(f"store {nouns} over replica for experts")
    if sizes["pp"] > 1:
        lines.append(f"split layers over pp as {draw(st.sampled_from(['gpipe', '1f1b', 'interleaved_1f1b']))}")
    lines.append(f"recompute {draw(st.sampled_from(['none', 'blocks', 'attention.core', 'attention.norm']))}")
    lines.append("compute bf16 reduce fp32")
    return lines


ONE = """hardware one
link      near(bandwidth = 450 GB/s, latency = 3 us)
chip      h100(bf16 = 989 TFLOP/s, memory = 80 GiB, memory_bandwidth = 3350 GB/s)
node      one = 1 x h100 over near
network   net = leaf 64 at 400 GB/s
"""
