"""Names that clouds and Hugging Face give to machines and models, and what the language calls them."""

from __future__ import annotations

import re

from planc.catalog import model_names
from planc.language import library
from planc.syntax.suggest import nearest

CLOUDS = (
    (r"p4d\.24xlarge|a2[-_]highgpu[-_]8g|(?:standard_)?nd96asr_v4", "a100_40_node"),
    (r"p4de\.24xlarge|a2[-_]ultragpu[-_]8g|(?:standard_)?nd96amsr_a100_v4", "a100_node"),
    (r"p5\.48xlarge|a3[-_](?:high|mega)gpu[-_]8g|(?:standard_)?nd96isr_h100_v5|bm\.gpu\.h100\.8", "h100_node"),
    (r"p5en?\.48xlarge|a3[-_]ultragpu[-_]8g|(?:standard_)?nd96isr_h200_v5|bm\.gpu\.h200\.8", "h200_node"),
    (r"p6[-_]b200\.48xlarge|a4[-_]highgpu[-_]8g", "b200_node"),
    (r"(?:standard_)?nd96isr_mi300x_v5|bm\.gpu\.mi300x\.8", "mi300x_node"),
)
"""Instance types of AWS, Google Cloud, Azure and Oracle with 8 GPUs, and the bundled node with these GPUs. The network
of a cloud may be another than that of the hardware file."""
SLICES = {"v4": ("tpu_v4", 2, 3), "v5p": ("tpu_v5p", 2, 3), "v5e": ("tpu_v5e", 1, 2), "v6e": ("tpu_v6e", 1, 2)}
"""Google Cloud's TPU slices: the torus, how many of the number in the slice's name are one chip (v4 and v5p count
TensorCores), and the dims of its shape. Source: https://cloud.google.com/tpu/docs/v5p, and the pages beside it."""
MOST_FLAT = 256
"""Chips of the largest slice with two dims."""
_VARIANT = re.compile(r"(?:[-_](?:hf|instruct|chat|base|it|pt|v\d[\d.]*|preview|thinking|fp8|bf16))+$")


def node_named(name: str) -> str:
    """Return the bundled node or torus that `name` means: its own name, or a cloud's instance type; "" for none.

    >>> node_named("p5.48xlarge")
    'h100_node'
    """
    if name in library.machines():
        return name
    return next((node for pattern, node in CLOUDS if re.fullmatch(pattern, name)), "")


def slice_shape(kind: str, count: int) -> str:
    """Return the torus and the shape of Google Cloud's TPU slice `kind`-`count`; "" if there is no such slice.

    >>> slice_shape("v5e", 16), slice_shape("v5p", 128)
    ('tpu_v5e(4x4)', 'tpu_v5p(4x4x4)')
    """
    torus, each, dims = SLICES.get(kind.replace("litepod", "e"), ("", 1, 1))
    chips = count // each
    if not torus or chips < 4 or chips & (chips - 1) or (dims == 2 and chips > MOST_FLAT):
        return ""
    doublings = chips.bit_length() - 1
    sides = sorted(2 ** ((doublings + i) // dims) for i in range(dims))
    if chips == 4 and dims == 3:
        sides.reverse()  # the slice of one host is 2x2x1
    return f"{torus}({'x'.join(map(str, sides))})"


def model_named(name: str, *, exact: bool = False) -> str:
    """Return the model of the catalog that `name`, of Hugging Face's hub or in spoken words, means; "" for none.
    `exact`: only one whose letters and digits are those of `name`.

    >>> model_named("meta-llama/Llama-3.1-8B-Instruct"), model_named("llama 8b")
    ('llama3_1_8b', 'llama3_8b')
    """
    plain = _VARIANT.sub("", name.rsplit("/", 1)[-1].lower()).removeprefix("meta-")
    legal, key = model_names(), re.sub(r"[^a-z0-9]", "", plain)
    same = [n for n in legal if n.replace("_", "") == key]
    if same or exact or "/" in name:
        return same[0] if same else ""
    sized = [n for n in legal if n.rsplit("_", 1)[-1] == plain.rsplit(maxsplit=1)[-1]]
    return next(iter(nearest(key, sized, 1)), "")
