"""The tables of a preset file. Every field is a key; unknown keys are errors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planc.ir.frozen import Frozen

MAX_COUNT = 10**12
"""Largest number of steps, batches or files."""
MAX_SEED = 2**63 - 1
"""Largest seed that torch, JAX and numpy all take."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Rate = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]


class PlanPart(Frozen):
    """`[plan]`: written by `planc embed`. Paths are relative to the preset."""

    source: str = ""
    sha256: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the source and of each import, by path; of the compiled plan and its files, under `compiled`."""
    set: dict[str, int] = Field(default_factory=dict)
    """Values given with `--set` when the plan was embedded."""
    compiled: str = ""
    """The plan in full, as `planc expand` writes it: what is trained."""
    files: dict[str, str] = Field(default_factory=dict)
    """Texts of the files that its sentences name, by path: a model's config or op graph, a schedule."""


class TrainTable(Frozen):
    """`[train]`: steps, learning rate schedule, optimizer, evaluation and logging."""

    steps: Positive
    seed: Seed = 0
    weights: str = ""
    """A folder of first values in Hugging Face's format, relative to the preset; empty: drawn from the seed."""
    lr: Rate
    """The peak, reached after the warm-up."""
    warmup_steps: Count = 0
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """After the warm-up: a cosine; stable and then a linear decay (WSD); or always the peak."""
    min_lr: NotNegative = 0.0
    """Final learning rate of the schedule, at `steps`."""
    decay_steps: Count = 0
    """Schedule `wsd`: number of last steps over which the learning rate decays."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: for the matrices of the blocks; AdamW for the rest."""
    momentum: Share = 0.95
    """Muon's."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: Rate = 1e-8
    weight_decay: NotNegative = 0.1
    decay_groups: dict[str, NotNegative] = Field(default_factory=dict)
    """Another decay for parameters by a pattern of their names, such as `"*.attention.*" = 0.05`; the last one that
    fits counts."""
    clip_norm: NotNegative = 1.0
    """0: gradients are not clipped."""
    balance_loss: NotNegative = 0.0
    """The coefficient of the load-balancing loss of models with experts; 0: none."""
    deterministic: bool = False
    """Bit-identical runs on the same machines, at some cost in speed."""
    log_every: Positive = 10
    eval_every: Count = 0
    """Steps between held-out losses; 0: before the first step and after the last one alone."""
    eval_batches: Count = 4
    """Global batches of one held-out loss; 0: none."""
    on_nan: Literal["stop", "skip"] = "stop"
    """Answer to a loss or gradient norm that is not finite: end the run, or skip the update (10 in a row end it)."""
    hang_s: NotNegative = 600.0
    """The longest that no rank may get on, compilation included, before the run is ended; 0: for ever."""

    @model_validator(mode="after")
    def _rates_in_order(self) -> TrainTable:
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr} is above lr {self.lr}")
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} is more than steps {self.steps}: lr is never reached")
        if (self.schedule == "wsd") != (self.decay_steps > 0):
            raise ValueError("schedule `wsd` needs decay_steps, and decay_steps need the schedule `wsd`")
        if self.warmup_steps + self.decay_steps > self.steps:
            raise ValueError(f"warmup_steps and decay_steps are more than steps {self.steps}")
        if self.optimizer != "muon" and "momentum" in self.model_fields_set:
            raise ValueError(f"momentum is Muon's; the optimizer is {self.optimizer}")
        return self


class DataTable(Frozen):
    """`[data]`: where the tokens come from. `path` and `tokenizer` are relative to the preset."""

    source: Literal["python-stdlib", "text", "tokens"] = "python-stdlib"
    """Bytes of Python's own library; a file or folder of text; a file or folder of tokens."""
    max_bytes: Annotated[int, Field(ge=1 << 16, le=MAX_COUNT)] = 1 << 22
    """Source `python-stdlib`: the most text to use in bytes, held-out part included."""
    path: str = ""
    """Sources `text` and `tokens`: the file or folder."""
    tokenizer: str = "bytes"
    """Source `text`: `bytes`, or a tokenizer.json."""
    end_of_document: int | str | None = None
    """Source `text`: the token after each document; by default 0 for bytes, else the tokenizer's own."""
    dtype: Literal["uint8", "uint16", "uint32", "int32"] = "uint16"
    """Source `tokens`: dtype of a .bin file without an index, little-endian."""
    held_out: Share = 0.01
    """Sources `text` and `tokens`: share of the sequences, at the end, that is held out; 0 for none."""
    shuffle: bool = True
    """Sources `text` and `tokens`: another order in every epoch; false keeps the files' order."""

    @model_validator(mode="after")
    def _keys_of_the_source(self) -> DataTable:
        if foreign := sorted(self.model_fields_set - {"source", *DATA_KEYS[self.source]}):
            raise ValueError(f"`{foreign[0]}` says nothing about the source {self.source}")
        if self.source != "python-stdlib" and not self.path:
            raise ValueError(f"the source {self.source} needs a path")
        return self


DATA_KEYS = {
    "python-stdlib": ("max_bytes",),
    "text": ("path", "tokenizer", "end_of_document", "held_out", "shuffle"),
    "tokens": ("path", "dtype", "held_out", "shuffle"),
}
"""Keys of [data] that each source reads."""


COURSE = (
    "seed", "lr", "warmup_steps", "schedule", "min_lr", "steps", "betas", "eps", "weight_decay", "clip_norm",
    "optimizer", "momentum", "decay_groups", "decay_steps", "balance_loss",
    "batch_sequences", "sequence_tokens", "data",
)  # fmt: skip
"""Settings that a resumed run may not change unless allowed: each would change the losses."""


class Checkpoint(Frozen):
    """`[checkpoint]`: where and how often state is saved, and what a resumed run accepts."""

    folder: str = ""
    """Relative to the preset; the folder of one run. Empty: nothing is saved."""
    every_steps: Count = 0
    """Steps between checkpoints; 0: after the last step and at a preemption alone."""
    keep: Count = 3
    """Number of newest checkpoints to keep; 0 for all."""
    asynchronous: bool = True
    """Training goes on while a checkpoint is written; false: it waits."""
    timeout_s: Rate = 600.0
    """The longest that rank 0 waits for the other ranks' files."""
    elastic: str = ""
    """A data-parallel axis that may shrink when a run starts with fewer devices than its plan has; empty: none."""
    on_damage: Literal["refuse", "previous"] = "refuse"
    """Answer to a damaged newest checkpoint: refuse, or resume from the newest whole one."""
    allow: tuple[str, ...] = ()
    """Settings that may differ from the checkpoint's when a run goes on: keys of [train], `batch_sequences`,
    `sequence_tokens`, `data`."""

    @model_validator(mode="after")
    def _known(self) -> Checkpoint:
        if unknown := [name for name in self.allow if name not in COURSE]:
            raise ValueError(f"allow: `{unknown[0]}` is none of {', '.join(COURSE)}")
        return self


class WatchTable(Frozen):
    """`[watch]`: what a run writes besides its receipt: metrics and profiles. Paths are relative to the preset."""

    metrics: str = ""
    """The metrics file; empty: in the folder of the checkpoints, else beside the receipt, else under `runs`."""
    tensorboard: str = ""
    """A folder for TensorBoard; empty: none."""
    wandb: str = ""
    """A folder for an offline run of Weights & Biases; empty: none."""
    profile_steps: tuple[Positive, Positive] | None = None
    """The first and the last step of a profiler's trace."""
    profile: str = "profile"
    """The folder of the trace."""

    @model_validator(mode="after")
    def _in_order(self) -> WatchTable:
        if self.profile_steps and self.profile_steps[0] > self.profile_steps[1]:
            raise ValueError("profile_steps: the first step comes after the last")
        return self


class PresetTables(Frozen):
    """A whole preset file."""

    plan: PlanPart = PlanPart()
    train: TrainTable
    data: DataTable = DataTable()
    evaluation: DataTable | None = None
    """`[evaluation]`: other data for held-out losses, all of which is held out; by default a part of [data]."""
    checkpoint: Checkpoint = Checkpoint()
    watch: WatchTable = WatchTable()

    @model_validator(mode="after")
    def _something_to_evaluate(self) -> PresetTables:
        if self.data.held_out == 0 and self.train.eval_batches > 0 and self.evaluation is None:
            raise ValueError("[data] held_out = 0 leaves nothing to evaluate: write [train] eval_batches = 0")
        if self.evaluation and (split := sorted({"held_out", "shuffle"} & self.evaluation.model_fields_set)):
            raise ValueError(f"[evaluation] is held out whole, in its own order: leave `{split[0]}` out")
        return self
