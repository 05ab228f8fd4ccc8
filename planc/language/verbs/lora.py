"""`lora rank R [alpha A] on PART, ...`: trains low-rank updates of the blocks' matrices, which are frozen
themselves."""

from __future__ import annotations

from dataclasses import replace

from planc.ir.dims import CARRIED
from planc.ir.model import EXPERTS, Model
from planc.ir.plan import Lora
from planc.language.draft import Draft
from planc.language.op_names import read_op_names
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("lora",)
ORDER = 6
PEFT = {
    "q_proj": "attention.q",
    "k_proj": "attention.k",
    "v_proj": "attention.v",
    "o_proj": "attention.out",
    "gate_proj": "ffn.gate",
    "up_proj": "ffn.up",
    "down_proj": "ffn.down",
}
"""Names of `target_modules` in PEFT's configs, which a sentence may have too."""


def read(sentence: Sentence, draft: Draft) -> None:
    numbers = [p for p in sentence.node.parts if isinstance(p, Word) or p.kind != "names"]
    rank = draft.integer(numbers[0])
    alpha = draft.integer(numbers[1]) if len(numbers) > 1 else rank
    if draft.model is None or rank is None or alpha is None:
        return
    ops = _matmuls(sentence.names(0), draft, draft.model)
    if ops is None or not _takes_updates(sentence, numbers[0], rank, ops, draft, draft.model):
        return
    draft.lora = Lora(rank=rank, alpha=alpha, ops=ops, cause=draft.cause(sentence))


def _matmuls(words: list[Word], draft: Draft, model: Model) -> tuple[str, ...] | None:
    """Return the names of the blocks' matmuls that `words` mean, in block order. A word is an op name or a dim of the
    weight."""
    words = [replace(word, text=PEFT.get(word.text, word.text)) for word in words]
    matmuls = [op for op in model.block_ops if op.kind == "matmul"]
    dims = dict.fromkeys(d for op in matmuls for p in op.params for d in model.param[p].dims if d != "embed")
    alone = [w for w in words if w.text not in dims or any(op.name.startswith(f"{w.text}.") for op in matmuls)]
    wanted = {d for w in words if w not in alone for d in CARRIED.get(w.text, (w.text,))}
    named = read_op_names(alone, matmuls, f"a matmul of a block of {model.name}", draft, tuple(dims))
    if named is None:
        return None
    return tuple(
        op.name
        for op in matmuls
        if any(op.name == n or op.name.startswith(f"{n}.") for n in named)
        or any(d in wanted for p in op.params for d in model.param[p].dims)
    )


def _takes_updates(
    sentence: Sentence, place: Word | Node, rank: int, ops: tuple[str, ...], draft: Draft, model: Model
) -> bool:
    """True if each of the matmuls `ops` can have an update of this rank: its weight must be a dense matrix with both
    sides longer than the rank. Otherwise the first that cannot is reported."""
    for op in (op for op in model.block_ops if op.name in ops):
        shape = model.shape(model.param[op.params[0]])
        if len(shape) != 2 or op.region == EXPERTS or op.params[0] != f"{op.module}.weight":
            what = f"{op.name} has no matrix [out, in] of its own"
            help = "name matmuls of attention, or of a dense feed-forward layer"
            draft.report("E0120", sentence.span, what, help=help)
            return False
        if rank >= min(shape):
            what = f"a rank of {rank} is no less than that of {op.params[0]}, {shape[0]} x {shape[1]}"
            draft.report("E0120", place.span, what, help=f"at most {min(shape) - 1}, or train the weight itself")
            return False
    return True
