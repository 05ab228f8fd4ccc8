"""Reads the matrix of connections between GPUs and NICs of one host that `nvidia-smi topo -m` prints.

NV# is the number of NVLinks of a pair; if all pairs of GPUs have the same number, NVSwitches connect them. PIX and PXB
mean a common PCIe switch, PHB and NODE a common socket, SYS different sockets (nvidia-smi's own legend).
"""

from __future__ import annotations

import re

from planc.diag.span import Source
from planc.interop.topologies.hardware_text import HardwareText, lines_of, wrong
from planc.ir.hardware import Cluster

WORDS = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS", re.ASCII)
DEVICE = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|mlx\d_(?:bond_)?\d{1,4}|bnxt_re\d{1,4}", re.ASCII)
NVLINK_BYTES_PER_S = 25e9
"""One NVLink one way, of the third and fourth generation; 50e9 of the fifth (nvidia.com/en-us/data-center/nvlink)."""
SOCKETS_BYTES_PER_S = 40e9
"""Between two sockets one way: a round figure, as in tests of two-socket hosts."""


def looks_so(text: str) -> bool:
    """True if `text` has the header of the matrix that `nvidia-smi topo -m` prints."""
    return re.search(r"^[^\S\n]*GPU0\s+(?:GPU1|NIC0|mlx|CPU)", text, re.MULTILINE) is not None


def read(source: Source, machine: Cluster) -> HardwareText:
    """Returns the host in `source` as a hardware file. PCIe's bandwidth and NVLink's latency are those of `machine`."""
    rows = _rows(source)
    found = HardwareText(source, machine, "read from nvidia-smi topo -m")
    gpus = [name for name in rows if name.startswith("GPU")]
    if not gpus:
        raise wrong(source, "E1424", 1, "no row begins with GPU0")
    for name, (line, _) in rows.items():
        found.point(name.lower(), "chip" if name in gpus else "nic", "host0", line)
    _nvlinks(found, rows, gpus)
    _pcie(found, rows)
    return found


def _rows(source: Source) -> dict[str, tuple[int, dict[str, str]]]:
    """Returns for each device its line number, and its type of connection (NV8, PIX, ...) to each other device."""
    heads: list[str] = []
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for n, line in lines_of(source):
        cells = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if not heads:
            heads = [c for c in cells if DEVICE.fullmatch(c)]
            if len(heads) != len({*heads}):
                raise wrong(source, "E1425", n, "a device has two columns")
            continue
        if not DEVICE.fullmatch(cells[0]):
            if found:
                break
            continue
        name, words = cells[0], cells[1 : 1 + len(heads)]
        if name in found:
            raise wrong(source, "E1425", n, f"`{name}` has two rows", name)
        if len(words) < len(heads) or not all(WORDS.fullmatch(w) for w in words):
            raise wrong(
                source, "E1424", n, f"the row of `{name}` has not a word for each of {len(heads)} devices", name
            )
        found[name] = n, dict(zip(heads, words, strict=True))
    missing = [name for name in heads if name not in found]
    if missing or not heads:
        message = f"the matrix ends before the row of `{missing[0]}`" if missing else "there is no matrix"
        last = max((n for n, _ in lines_of(source)), default=1)
        raise wrong(source, "E1424", last, message, help="copy the whole output")
    for name, (n, words_of) in found.items():
        for other, word in words_of.items():
            if (other in found and found[other][1].get(name) != word) or (word == "X") != (name == other):
                raise wrong(source, "E1424", n, f"`{name}` and `{other}` are not joined alike both ways", name)
    return found


def _nvlinks(found: HardwareText, rows: dict[str, tuple[int, dict[str, str]]], gpus: list[str]) -> None:
    counts = {rows[a][1][b] for a in gpus for b in gpus if a != b}
    one = next(iter(counts), "")
    link = found.machine.link
    each = 2 * NVLINK_BYTES_PER_S if found.machine.chip.name.startswith(("b200", "b300", "gb")) else NVLINK_BYTES_PER_S
    if len(counts) == 1 and one.startswith("NV") and len(gpus) > 2:
        found.point("nvswitch", "switch", "host0", 1)
        name = found.link("nvlink", int(one[2:]) * each, link.latency_s, link.efficiency)
        for gpu in gpus:
            found.wire(gpu.lower(), "nvswitch", name)
        return
    for i, a in enumerate(gpus):
        for b in gpus[i + 1 :]:
            if (word := rows[a][1][b]).startswith("NV"):
                name = found.link("nvlink", each, link.latency_s, link.efficiency)
                found.wire(a.lower(), b.lower(), name, int(word[2:]))


def _pcie(found: HardwareText, rows: dict[str, tuple[int, dict[str, str]]]) -> None:
    """Adds PCIe switches, sockets and the links between them."""
    pcie = found.link("pcie", found.machine.chip.host_bandwidth_bytes_per_s or 32e9, 2e-6, 0.8)
    near = _classes(rows, ("PIX", "PXB"))
    far = _classes(rows, ("PIX", "PXB", "PHB", "NODE"))
    for number, members in enumerate(far):
        socket = found.point(f"cpu{number}", "socket", "host0", 1)
        for other in range(number):
            upi = found.link("upi", SOCKETS_BYTES_PER_S, 2e-6)
            found.wire(f"cpu{other}", socket, upi)
        for k, group in enumerate(g for g in near if g[0] in members):
            above = socket
            if len(group) > 1:
                above = found.point(f"plx{number}_{k}", "switch", "host0", 1)
                found.wire(above, socket, pcie)
            for name in group:
                found.wire(name.lower(), above, pcie)


def _classes(rows: dict[str, tuple[int, dict[str, str]]], words: tuple[str, ...]) -> list[list[str]]:
    """Groups the devices that connections of the types `words` join, directly or over other devices."""
    left, found = dict.fromkeys(rows), []
    while left:
        group = [next(iter(left))]
        del left[group[0]]
        for name in group:  # which grows
            near = [other for other, word in rows[name][1].items() if word in words and other in left]
            group += near
            for other in near:
                del left[other]
        found.append(group)
    return found
