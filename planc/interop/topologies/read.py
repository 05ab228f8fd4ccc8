"""Converts another tool's description of a machine to a hardware file; recognises the tool from the text."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.span import Source, Span
from planc.files import MAX_TEXT_BYTES, read_text
from planc.interop.topologies import ibnetdiscover, jax_devices, nccl_graphs, nccl_xml, nvidia_smi, slurm
from planc.interop.topologies.hardware_text import plain_word, wrong
from planc.ir.hardware import Cluster
from planc.language import library
from planc.language.draft import Draft
from planc.language.verbs.cluster import read as read_cluster
from planc.syntax import parse_text

READERS: tuple[ModuleType, ...] = (nccl_xml, nccl_graphs, jax_devices, ibnetdiscover, nvidia_smi, slurm)
MACHINES = tuple(sorted(library.machines()))
"""Bundled machines that may supply missing figures."""


def read_topology(path: Path, machine: str, name: str = "") -> tuple[str, Source]:
    """Returns the hardware file of the machine whose topology is in the file at `path`, and the source of that file.
    `name` is the machine's name in the hardware file ("": the file's name without extension).

    Bandwidths that the topology lacks are those of `machine`, a machine of planc's library. Raises PlanError for a text
    that is not a topology, is truncated, or lists a device twice.
    """
    try:
        source = Source.of(str(path), read_text(path, MAX_TEXT_BYTES))
    except (OSError, ValueError) as error:
        place = Span(str(path), 1, 1, 1, 1)
        raise PlanError([Diagnostic("E0104", f"cannot read {path}: {error}", place)]) from error
    reader = next((r for r in READERS if r.looks_so(source.text)), None)
    if reader is None:
        known = "nvidia-smi topo -m, NCCL's XML, Slurm's topology.conf or .yaml, ibnetdiscover, jax.devices()"
        raise wrong(source, "E1424", 1, "the text is of no tool that is known", help=f"known: {known}")
    cluster = bundled(machine)
    found = reader.read(source, cluster)
    return found.text(plain_word(name or path.stem), chip_sentence(machine, cluster.chip.name)), source


def chip_sentence(machine: str, chip: str) -> str:
    """Returns the sentence that declares `chip` in the hardware file of `machine`, a machine of planc's library.

    >>> chip_sentence("h100_node", "h100")[:15]
    'chip      h100('
    """
    text = library.machine_text(machine)
    for sentence in parse_text(text, "").sentences:
        if sentence.verb == "chip" and sentence.node.node("call") is not None:
            written = "\n".join(text.split("\n")[sentence.span.line - 1 : sentence.span.end_line])
            if written.split("(")[0].split()[-1] == chip:
                return written
    raise KeyError(chip)


def bundled(machine: str) -> Cluster:
    """Returns a cluster of one node of `machine`, a machine of planc's library; of a small slice if it is a torus.
    Raises KeyError for an unknown machine.

    >>> bundled("h100_node").devices
    8
    """
    file = library.hardware_file(library.machines()[machine])
    torus = next((s for s in file.sentences if s.verb == "torus" and s.node.words("NAME")[0].text == machine), None)
    shapes = ("(4x4)", "(4x4x4)") if torus else ("",)
    for shape in shapes:
        draft = Draft()
        for sentence in parse_text(f"plan one\ncluster 1 x {machine}{shape}\n", "").sentences:
            read_cluster(sentence, draft)
        if draft.cluster is not None:
            return draft.cluster
    raise KeyError(machine)
