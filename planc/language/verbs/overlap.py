"""`overlap AXIS as METHOD`: how transfers over an axis overlap compute."""

from __future__ import annotations

from planc.ir.plan import Overlap
from planc.language.draft import Draft
from planc.language.options import method_name, read_options
from planc.syntax.tree import Sentence

VERBS = ("overlap",)
ORDER = 5
METHODS = ("async_matmul", "windowed_einsum", "weight_gradients", "dual_batch", "none")
"""Methods: a matmul split into chunks that overlap with their transfers (as on CUDA, and as in XLA), all-reduces of
dgrad overlapped with wgrad matmuls (Megatron), one microbatch's transfers overlapped with another's compute (dual
batch), and none: gathers and reductions over the axis are exposed."""


def read(sentence: Sentence, draft: Draft) -> None:
    axes = draft.axes([sentence.node.words("NAME")[0]])
    method = sentence.node.node("method")
    assert method is not None
    name = method_name(method, METHODS, "a way to overlap", draft)
    options = read_options(method, {}, draft)
    if axes is not None and name is not None and options is not None:
        draft.overlaps.append(Overlap(axis=axes[0], method=name, cause=draft.cause(sentence)))
