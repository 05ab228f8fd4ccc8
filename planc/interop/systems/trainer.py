"""Arguments of Hugging Face's Trainer, in a JSON or YAML file that accompanies a DeepSpeed file, an Accelerate file or
a DistributedConfig. Names and defaults are those of `TrainingArguments` of transformers 5.23.0."""

from __future__ import annotations

from typing import Literal

from planc.interop.document import Document
from planc.interop.fields import field_tables
from planc.interop.setup import TrainingSetup
from planc.interop.values import AUTO, Values
from planc.ir.plan import Precision, Recompute

VERSION = "5.23.0"
BATCH = "per_device_train_batch_size"
REENTRANT = "activation_checkpointing_kwargs.use_reentrant"
OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"), "adamw"),
    "muon": "muon",
}

FIELDS = field_tables("trainer")["fields"]


def recognises(document: Document) -> bool:
    """True if `document` is a file of Trainer arguments."""
    return bool({BATCH, "num_train_epochs", "output_dir"} & document.fields.keys())


def is_beside(v: Values) -> bool:
    """True if a file of Trainer arguments is given; arguments that it does not set then have the Trainer's defaults."""
    return any(recognises(document) for document in v.documents)


def require(v: Values, name: str) -> None:
    """Raises RefusedError if nothing gives the Trainer's argument `name`: no file or option sets it, and no file of
    Trainer arguments is among the files, so its default does not hold either."""
    if not v.is_given(name) and not is_beside(v):
        raise v.missing(f"--set {name}=VALUE, or a file of Trainer arguments beside it", f"`{name}`")


def microbatch(v: Values) -> int:
    """Returns the sequences per device and forward pass."""
    require(v, BATCH)
    return v.whole(BATCH)


def accumulation(v: Values) -> int:
    """Returns the microbatches per step; 1 by default."""
    value = v.raw("gradient_accumulation_steps")
    return 1 if value in (None, AUTO) else v.whole("gradient_accumulation_steps")


def sequence_tokens(v: Values) -> int:
    """Returns the tokens per sequence. Only the training script knows them, so the user gives them with `--set`."""
    return v.needed("sequence_length")


def half(v: Values) -> Literal["bf16", "fp16", ""]:
    """Returns the dtype that autocast computes in; "" without it."""
    if v.flag("fp16") and v.flag("bf16"):
        raise v.apart("at most one of fp16 and bf16 can be true", "fp16", "bf16")
    return "fp16" if v.flag("fp16") else "bf16" if v.flag("bf16") else ""


def products(v: Values) -> Literal["tf32", ""]:
    """Returns the dtype that matmuls of fp32 tensors are rounded to; "" if they keep all bits, torch's default."""
    return "tf32" if v.system.known("tf32") and v.flag("tf32") else ""


def autocast(v: Values) -> Precision:
    """Returns the dtypes of compute and gradient reduction with fp32 parameters, whose gradients are fp32."""
    dtype = half(v)
    return Precision(compute=dtype, reduce="fp32") if dtype else Precision(products=products(v))


def optimizer(v: Values) -> str:
    """Returns adamw or muon, by the name in `optim`."""
    name = v.text("optim")
    if name not in OPTIMIZERS:
        raise v.refused("planc's optimizers are AdamW and Muon with all of their state", "optim")
    return OPTIMIZERS[name]


def recompute(v: Values) -> Recompute:
    """Returns the recomputation of every decoder layer, or none. Torch's reentrant checkpoint recomputes a layer to its
    end, beyond what the backward needs."""
    if not v.flag("activation_checkpointing"):
        return Recompute()
    return Recompute(ops=("whole_blocks",) if v.flag(REENTRANT) else ("blocks",))


def recompute_beside(s: TrainingSetup) -> dict[str, bool]:
    """Returns the Trainer's arguments for the recomputation in the setup `s`."""
    found = {"activation_checkpointing": True} if s.recompute.blocks else {}
    return found | ({REENTRANT: True} if "whole_blocks" in s.recompute.ops else {})


def compiled(v: Values) -> tuple[str, ...]:
    """Returns the parts that `torch.compile` of the model compiles: blocks and loss, which the model's forward
    includes; () if it is off."""
    named = v.text("torch_compile_backend") or v.text("torch_compile_mode")  # either turns it on
    return ("blocks", "loss") if named or v.flag("torch_compile") else ()
