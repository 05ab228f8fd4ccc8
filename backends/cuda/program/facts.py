"""The facts of a plan that decide the text of its torch program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TorchFacts:
    """Facts of a plan. The program modules test them; the defaults are those of the modules as they stand."""

    balanced: bool = True
    """A rank holds a chunk from each end of a sequence, not one chunk."""
    window: int = 0
    """Tokens that a row of a ring attends to, itself included; 0 for all before it."""
    pads_values: bool = False
    """Values of a ring are narrower than keys."""
    saves_rings: bool = False
    """Recomputed blocks save the outputs of their rings."""
    reduce: str = "fp32"
    """The dtype in which gradients are summed: fp32 or bf16."""
    gathers_single: bool = True
    """torch names the all-gather with a gradient `all_gather_single_autograd`."""
    kernel_cause: str = ""
    """The sentence that chooses the attention kernel."""

    experts: str = "experts"
    """The end of the path of a block's experts module."""
    own_expert_axes: bool = True
    """The experts' weights are sharded over other axes than those of the rest."""
    capacity: bool = False
    """An expert has a number of slots; else every row is sent."""
    slots_factor: float = 1.25
    """Slots of all experts for one row."""
    exchange: str = "ep"
    """The mesh dimension of the all-to-all of rows; "" without."""
    sharing: str = "tp"
    """The mesh dimension of the ranks that share each expert; "" without."""
    gathers_rows: bool = True
    """The ranks that share an expert have different rows, which they all-gather."""
    holders: int = 2
    """Ranks that each have some of the experts."""
    senders: int = 4
    """Ranks from which an expert has rows."""
    dispatch: str = ""
    """Sentences, one for each step of the dispatch."""

    colocated: bool = True
    """Rank i of a generator is rank i of its trainer; else the generator's ranks follow the trainer's."""
    float8: bool = True
    """The generator holds matrices as float8, with scales."""
    block: int = 128
    """Elements along each side of a block of float8 with one scale; 0: one scale for a matrix."""

    divides_vocab: bool = True
    """The loss has logits with a part of the vocabulary on each rank."""
    vocab: str = "V / tp"
    """The size of the vocabulary's dim on a rank."""
    vocab_cause: str = ""
    """Why the ranks that divide the vocabulary reduce."""
    head: str = "head"
    """The path of the module that makes the logits."""
    chunks_cause: str = ""
    """The sentence that computes the loss in chunks of rows."""
    computes_fp32: bool = False
    """Matmuls are in fp32."""
    pipeline: bool = False
    """A rank has stages, some without the model's ends."""
    divides_sequence: bool = True
    """Ranks have different rows of a sequence."""
    divides_batch: bool = True
    """Ranks have different tokens."""
    reduces_last: bool = True
    """Gradients are reduced with the last microbatch of a step."""
    all_reduces_last: bool = True
    """Gradients are all-reduced over replicas with the last microbatch of a step."""
    frees_last: bool = True
    """Parameters stay gathered until the last microbatch of a step."""
    gather_cause: str = ""
    """The sentence that gathers parameters once a step."""
    loss_parallel: bool = True
    """torch reduces a compiled loss over the ranks that divide the vocabulary."""
    chunks: bool = True
    """The loss is computed in chunks of rows."""
    sums_gradients: bool = True
    """Gradients are partial over the tensor axes after the backward."""
    ties_ends: bool = True
    """The first and the last stage have copies of a weight."""
    fsdp: bool = True
    """fully_shard gathers parameters."""
    in_a_v: bool = True
    """Stages are assigned to ranks in a V."""

    @property
    def of_vocab(self) -> str:
        """A sentence about the parameters of a divided vocabulary."""
        return " `vocab` is V; `mesh` has the ranks\n    that divide it." if self.divides_vocab else ""


FACTS = TorchFacts()
