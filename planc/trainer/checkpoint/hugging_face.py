"""Weights in Hugging Face's format: one or more safetensors files, and an index of their tensors.

Nothing in the files is executed: the header of a file is JSON, and the rest are numbers. Pickle files are refused.
Names are those of the transformers package (5.23). A parameter has the same shape there as in planc.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from planc.backends.cuda.runtime.hf_adapter import checkpoint_name
from planc.diag import Diagnostic, PlanError, Span
from planc.files import new_folder, read_json, write_atomically
from planc.ir.model import LORA_A, LORA_B
from planc.trainer.checkpoint.safetensors_header import read_header
from planc.trainer.run.initial_weights import initial, names

if TYPE_CHECKING:
    from planc.ir.model import Model
    from planc.ir.session import Initial, Weights

INDEX, ALONE = "model.safetensors.index.json", "model.safetensors"
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen3": "Qwen3"}
"""Families whose blocks use these names, and the prefix of their classes."""
NUMBERS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""Supported dtypes of a safetensors file; bfloat16 is the upper half of a float32."""
MAX_INDEX_BYTES = 64_000_000
"""Limit on the size of an index."""
MOST_BYTES = 2 * 2**30
"""Largest size in bytes of one written file, unless a single tensor is larger."""


class TensorPlace(NamedTuple):
    """Location of a tensor: file, dtype, shape and byte offsets."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of the tensor's first byte in the file."""


def own_names(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield planc's name and the shape of every parameter of `model`, without parameters of low-rank updates."""
    return ((name, shape) for name, shape in names(model) if not name.endswith((LORA_A, LORA_B)))


def imported(model: Model, folder: Path, span: Span, seed: int = 0) -> Initial:
    """Return a function that gives the initial values of the parameters of `model`, from the safetensors files in
    `folder`, as transformers writes them. Such files have no low-rank updates: these are initialized as in a run with
    this `seed`.

    Raises PlanError at `span` (E1030, E1031) before any value is read, if the files do not match the model.
    """
    places = _tensor_places(folder, span)
    _compare(model, places, folder, span)
    drawn = initial(model, seed)

    def values(name: str, shape: tuple[int, ...]) -> Weights:
        if name.endswith((LORA_A, LORA_B)):
            return drawn(name, shape)
        found = _read(places[checkpoint_name(name)])
        assert found.shape == shape
        return found

    return values


def exported(model: Model, values: Iterable[tuple[str, Weights]], folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Write the parameters of `model` to `folder` as safetensors files, with the index and a config that transformers
    reads.

    Args:
        model: the model of the parameters. Raises PlanError if its family has no table of names.
        values: (parameter name in full, whole array) for every parameter except low-rank updates, in any order; the
            arrays are written as float32.
        folder: a folder that is absent or empty; on failure it is left unchanged.
        most_bytes: limit on the size of a file; only a single tensor may exceed it.
    """
    if model.family not in FAMILIES:
        raise PlanError([_no_table(model, Span(str(folder), 1, 1, 1, 1))])
    with new_folder(folder) as filling:
        _write(model, values, filling, most_bytes)


def _write(model: Model, values: Iterable[tuple[str, Weights]], folder: Path, most_bytes: int) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    sizes = {checkpoint_name(name): 4 * prod(shape) for name, shape in own_names(model)}
    files = _shared_out(sizes, most_bytes)
    waiting: dict[str, dict[str, Weights]] = {}
    for name, value in values:
        theirs = checkpoint_name(name)
        group = waiting.setdefault(files[theirs], {})
        group[theirs] = np.ascontiguousarray(value, np.float32)
        if len(group) == sum(file == files[theirs] for file in files.values()):
            try:
                save_file(waiting.pop(files[theirs]), folder / files[theirs], metadata={"format": "pt"})
            except SafetensorError as error:
                raise OSError(str(error)) from None
    assert not waiting, "not every parameter was given"
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": files}
    write_atomically(folder / INDEX, json.dumps(index, indent=1) + "\n")
    write_atomically(folder / "config.json", json.dumps(_config(model), indent=1) + "\n")


def _shared_out(sizes: Mapping[str, int], most_bytes: int) -> dict[str, str]:
    """Return the name of the file for each tensor: files are filled in order, up to `most_bytes` or one tensor."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > most_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return {n: f"model-{i:05}-of-{len(groups):05}.safetensors" for i, g in enumerate(groups, 1) for n in g}


def _config(model: Model) -> dict[str, Any]:
    """Return the config.json that transformers needs to build the model, without training settings."""
    s = model.sizes
    return {
        "architectures": [f"{FAMILIES[model.family]}ForCausalLM"],
        "model_type": model.family,
        "hidden_size": s["embed"],
        "intermediate_size": s["ffn"],
        "num_hidden_layers": model.layers,
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": s["head_dim"],
        "vocab_size": s["vocab"],
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        **({"rope_scaling": model.rope_scaling} if model.rope_scaling else {}),
        **_window_fields(model),
        "tie_word_embeddings": model.tied,
        "torch_dtype": "float32",
    }


def _window_fields(model: Model) -> dict[str, Any]:
    """Return the config's fields about sliding-window attention. Without these fields, some families default to a
    window of 4096 tokens."""
    of = {kind: next(op.window for op in model.ops[kind] if op.kind == "attention") for kind in model.blocks}
    window = max(of.values())
    if model.family == "mistral":
        return {"sliding_window": window or None}
    if not window:
        return {}
    kinds = ["sliding_attention" if of[kind] else "full_attention" for kind in model.kinds]
    return {"use_sliding_window": True, "sliding_window": window, "layer_types": kinds}


def _tensor_places(folder: Path, span: Span) -> dict[str, TensorPlace]:
    """Return the file and offset of every tensor in `folder`, by name. Raises PlanError (E1030) if a file cannot be
    read."""
    try:
        if (folder / INDEX).is_file():
            files = _indexed(folder / INDEX)
        else:
            files = [ALONE] if (folder / ALONE).is_file() else []
        found = {
            name: TensorPlace(folder / file, *entry)
            for file in files
            for name, entry in read_header(folder / file).items()
        }
    except (OSError, ValueError) as error:
        raise PlanError([Diagnostic("E1030", f"{folder}: the weights cannot be read: {error}", span)]) from None
    if not found:
        pickles = sorted(p.name for p in folder.glob("*.bin")) if folder.is_dir() else []
        what = f"only pickles ({pickles[0]}), which run code when they are read" if pickles else "no weights"
        message = f"{folder} holds {what}"
        raise PlanError([Diagnostic("E1030", message, span, help=f"expected: {INDEX} or {ALONE}")])
    return found


def _indexed(index: Path) -> list[str]:
    """Return the file names in an index; all must be in its folder. Raises OSError or ValueError for an invalid
    index."""
    values = read_json(index, MAX_INDEX_BYTES, follows_links=True)  # a cache of models is made of links
    files = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(files, dict) or not all(isinstance(f, str) for f in files.values()):
        raise ValueError(f"{index.name} has no weight_map")
    if odd := sorted(f for f in files.values() if f != Path(f).name or f.startswith(".") or not f.isprintable()):
        raise ValueError(f"{index.name} names {odd[0]!r}, which is no file beside it")
    return sorted(set(files.values()))


def _read(place: TensorPlace) -> Weights:
    raw: Any = np.memmap(place.file, NUMBERS[place.dtype], "r", offset=place.start, shape=place.shape)
    values: Weights = (raw.astype(np.uint32) << 16).view(np.float32) if place.dtype == "BF16" else np.array(raw, "<f4")
    return values


def _compare(model: Model, places: Mapping[str, TensorPlace], folder: Path, span: Span) -> None:
    """Raise PlanError (E1031) unless the folder has exactly the model's parameters."""
    if model.family not in FAMILIES:
        raise PlanError([_no_table(model, span)])
    wanted = {checkpoint_name(name): shape for name, shape in own_names(model)}
    wrong = [
        f"{name} is {_shape(places[name].shape)} there and {_shape(shape)} here"
        for name, shape in wanted.items()
        if name in places and places[name].shape != shape
    ]
    wrong += [f"{name} is not there" for name in wanted if name not in places]
    others = [name for name in places if name not in wanted and not _derived(model, name)]
    wrong += [f"{name} is not in the model" for name in others]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise PlanError([Diagnostic("E1031", f"{folder} is not {model.name}: {wrong[0]}{more}", span)])


def _derived(model: Model, name: str) -> bool:
    """True for a tensor that is no parameter: rotary frequencies in old files, or the head's copy of a tied
    embedding."""
    return name.endswith("rotary_emb.inv_freq") or (model.tied and name == checkpoint_name("output.weight"))


def _no_table(model: Model, span: Span) -> Diagnostic:
    message = f"there is no table of names for the {model.family} family"
    return Diagnostic("E1031", message, span, help=f"there are {', '.join(FAMILIES)}")


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
