"""Import never loses a flag: every word of a file is read, named, or refused.

A word counts as accounted for if a typo in it is seen, in the plan, in its comments (`--sources`) or in a finding, or
if it is a value of a field that the import names as one without effect. Words in and words accounted for are counted
over the real configurations of `facts/`, over scripts that planc writes, and over scripts that were changed.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planc.driver import load
from planc.interop.document import Document
from planc.interop.exporting import export_plan
from planc.interop.formats import read_document
from planc.interop.importing import Imported, import_files
from planc.interop.system import System
from planc.interop.systems import systems
from planc.interop.values import Options
from planc.ir.plan import Plan
from tests.interop.scripts import SCRIPT
from tests.interop.test_real import FILES, script
from tests.interop.test_real_trainers import read as read_row
from tests.interop.test_real_trainers import rows

_ALIVE: list[System] = []
"""Systems with a planted fault; kept, as an index of fields goes by the identity of its system."""
FACTS = Path(__file__).parent / "facts"
MADE = """#!/bin/bash
# a comment is no word
export CUDA_DEVICE_MAX_CONNECTIONS=1
mkdir -p logs && cd logs
MODEL=big
if [[ $MODEL == big ]]; then SIZES=(--num-layers 32 --hidden-size 4096 --num-attention-heads 32); else SIZES=(); fi
LENGTH=${LENGTH:-4096}
FLAGS="--seq-length $LENGTH --max-position-embeddings $LENGTH --vocab-size 50304 --bf16"
UNUSED="--fp8-format hybrid"
flags() { echo never called; }
torchrun --nproc-per-node 8 --rdzv-backend c10d pretrain_gpt.py ${SIZES[@]} $FLAGS \\
  --micro-batch-size 1 --global-batch-size 64 --lr 1e-4 2>&1 | tee out.log
"""
"""A script of many forms: what is read, what is only named, and what decides."""


def read(text: str, folder: Path, devices: int = 8, system: str = "", name: str = "run.sh") -> Imported:
    (folder / name).write_text(text)
    options = Options(cluster=f"{devices // 8} x h100_node", devices=devices, folder=folder, sources=True)
    return import_files([folder / name], options, system)


def told(found: Imported) -> tuple[str, tuple[str, ...]]:
    """All that the import says."""
    return found.text, tuple(f"{d.code} {d.message}" for d in found.diagnostics)


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each word of a script, by blanks and the shell's marks alone; comments are left out."""
    for line in re.finditer(r"[^\n]+", text):
        if not line[0].lstrip().startswith("#"):
            text = re.sub(r"\d>&\d", lambda found: " " * len(found[0]), line[0].partition(" # ")[0])
            for word in re.finditer(r"[\w$][\w.$:/-]*|--[\w-]+", text):
                yield line.start() + word.start(), line.start() + word.end()


def with_typo(word: str) -> str:
    """The word with another letter or digit at its end."""
    return word[:-1] + ("7" if word[-1] != "7" else "9") if word[-1].isdigit() else word + "q"


def is_named_value(text: str, start: int, found: Imported) -> bool:
    """True for a value of a field that the import names as one without effect, or as the launcher's."""
    before = re.findall(r"--([\w-]+)|([\w.]+)=", text[:start].rsplit("\n", 1)[-1])
    named = " ".join(d.message for d in found.diagnostics if d.code in ("N1308", "N1311"))
    last = "".join(before[-1]).replace("-", "_") if before else "no field"
    return re.search(rf"\b{last}\b", named) is not None


def unaccounted(text: str, found: Imported, folder: Path, places: list[tuple[int, int]], **how: Any) -> list[str]:
    """The words at `places` of which nobody says what becomes of them."""
    lost = []
    for start, end in places:
        changed = text[:start] + with_typo(text[start:end]) + text[end:]
        if told(read(changed, folder, **how)) == told(found) and not is_named_value(text, start, found):
            lost.append(text[start:end])
    return lost


@pytest.mark.parametrize(
    "text", [pytest.param(SCRIPT, marks=pytest.mark.long, id="array"), pytest.param(MADE, id="forms")]
)
def test_every_word_of_a_script_is_accounted_for(text: str, tmp_path: Path) -> None:
    found = read(text, tmp_path)
    places = list(words_of(text))
    assert found.setup is not None and len(places) > 50
    lost = unaccounted(text, found, tmp_path, places)
    assert (len(places) - len(lost), lost) == (len(places), [])


def test_every_word_of_a_script_that_planc_writes_is_accounted_for(tmp_path: Path) -> None:
    """MaxText's `key=value` words, among them."""
    path = tmp_path / "p.plan"
    path.write_text(
        "plan p\nmodel llama3_8b\nbatch 64 x 4096 tokens microbatch 4\ncluster 2 x h100_node\nmesh fsdp 16\n"
        "use fsdp over fsdp\ncompute bf16 reduce fp32\nrecompute blocks\n"
    )
    plan = load(path)
    assert isinstance(plan, Plan)
    text = export_plan(plan, "maxtext").text
    found = read(text, tmp_path, 16)
    places = [(s, e) for s, e in words_of(text) if "python3" not in text[s:e]]
    assert found.setup is not None and len(places) > 10
    assert unaccounted(text, found, tmp_path, places, devices=16) == []


@pytest.mark.parametrize(
    "real",
    [
        pytest.param(real, id=real["path"].split("/")[-2], marks=[] if number % 8 == 0 else pytest.mark.long)
        for number, real in enumerate(FILES)
    ],
)
def test_no_change_of_a_real_configuration_is_silent(real: dict[str, Any], tmp_path: Path) -> None:
    """A typo in a flag, a flag given again, and a flag in a branch that only the shell decides."""
    rng, text = random.Random(real["path"]), script(real["flags"])
    how = {"devices": real["devices"], "system": "megatron"}
    found = read(text, tmp_path, **how)
    flags = [word for word in text.split() if word.startswith("--")]
    for flag in rng.sample(flags, 2):
        typo = read(text.replace(f"{flag} ", f"{flag}q ", 1).replace(f"{flag}\n", f"{flag}q\n"), tmp_path, **how)
        assert "E1303" in {d.code for d in typo.diagnostics} and not typo.text
    (words,) = re.findall(rf"{rng.choice(flags)}\b(?: [^-\s][^\s]*)*", text)[:1]
    twice = read(f"{text.rstrip()} {words}\n", tmp_path, **how)
    assert [d.message for d in twice.diagnostics if d.code == "W1312"] and twice.text
    branch = f"if [ -f there ]; then\n  MORE='{words}'\nelse\n  MORE=''\nfi\n" + text.replace(words, "$MORE", 1)
    name = words.split()[0].lstrip("-").replace("-", "_")
    told_of = {
        d.code for d in read(branch, tmp_path, **how).diagnostics if f"`{name}`" in d.message or "MORE" in d.message
    }
    assert told_of & {"E1305", "E1304"}
    assert told(found) != told(twice)


def test_no_field_of_another_format_is_taken_by_a_pattern() -> None:
    """Each field of the real DeepSpeed, Accelerate and torchtitan files, misspelt, is one that planc does not know."""
    swallowed = []
    titan = json.loads((FACTS / "torchtitan.json").read_text())["flags"]
    own = [("torchtitan", name) for name in titan]
    for system, name in [*((row["system"], name) for row in rows() for name in row["fields"]), *own]:
        known = systems()[system].known(f"{name}q")
        if known is not None and known.treatment != "refused":
            swallowed.append((system, name))
    assert swallowed == []


@pytest.mark.parametrize("name", systems())
def test_what_changes_nothing_is_known_by_its_name(name: str) -> None:
    """A pattern would swallow a typo, and the field of a newer release that matters."""
    assert [f.name for f in systems()[name].fields if f.treatment == "noted" and "*" in f.name] == []


def test_a_field_that_nothing_looks_at_is_named(tmp_path: Path) -> None:
    found = read(SCRIPT.replace("--bf16", "--bf16 --kv-lora-rank 512"), tmp_path)
    (note,) = [d.message for d in found.diagnostics if d.code == "N1311" and "no part" in d.message]
    assert "kv_lora_rank" in note and found.text


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("--swiglu ", "--swiglu stray ", "E1305"),
        ("--lr 1e-4", "--lr 1e-4 1e-5", "E1305"),
        ("--lr 1e-4", "--lr 1e-4 --data-path 1 a $MORE", "E1305"),
        ("--lr 1e-4", "--finetune stray", "E1305"),
        ("--bf16 \\", "--bf16 \\ ", "E1313"),
        ("--bf16 \\", "--bf16 \\\n   # a comment ends the command", "E1313"),
        ("--nproc_per_node", "--nproc_pre_node", "E1303"),
        ("--bf16", "-bf16", "E1303"),
        ("${MODEL_ARGS[@]}", "${MODEL_ARGZ[@]}", "E1305"),
        ("torchrun", "python old.py --tensor-model-parallel-size 2\ntorchrun", "W1312"),
        ("torchrun", "[ -n $KEY ] && MODEL_ARGS+=(--kv-channels 64)\ntorchrun", "E1305"),
        ("torchrun", "if [ -n $KEY ]; then MODEL_ARGS+=(--kv-channels 64); fi\ntorchrun", "E1305"),
        ("torchrun", "for x in 1 2; do MODEL_ARGS+=(--kv-channels $x); done\ntorchrun", "E1305"),
    ],
)
def test_a_word_that_a_script_loses_is_told(old: str, new: str, code: str, tmp_path: Path) -> None:
    assert old in SCRIPT
    found = read(SCRIPT.replace(old, new, 1), tmp_path)
    assert code in {d.code for d in found.diagnostics}
    assert bool(found.text) == code.startswith("W")


def test_words_of_a_document_are_counted(tmp_path: Path) -> None:
    """Words left and words read make all words of the script."""
    document = read_document("run.sh", MADE, "flags")
    left = sum(one.words for one in document.left if one.kind == "unread")
    names = [one.text for one in document.left]
    assert 0 < left < document.words and any("UNUSED" in name for name in names)
    assert any("never called" in name for name in names) and not any("torchrun" in name for name in names)


def test_a_misspelt_field_of_a_real_file_is_refused_by_name() -> None:
    """One field of each real file, through the whole import."""
    for row in rows()[::6]:
        name = sorted(row["fields"])[len(row["path"]) % len(row["fields"])]
        found = read_row({**row, "fields": {f"{n}q" if n == name else n: v for n, v in row["fields"].items()}})
        assert any(d.code in ("E1303", "E1304") and f"`{name}q`" in d.message for d in found.diagnostics), row["path"]


def test_the_ledger_sees_a_lost_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A reader that drops a field is found out by the count."""
    own = systems()["megatron"]

    def without(document: Document) -> Document:
        return replace(document, fields={n: g for n, g in document.fields.items() if not n.startswith("bf1")})

    planted = replace(own, prepared=without)
    _ALIVE.append(planted)
    monkeypatch.setitem(systems(), "megatron", planted)
    found = read(SCRIPT, tmp_path)
    places = [(m.start(), m.end()) for m in re.finditer("--bf16", SCRIPT)]
    assert unaccounted(SCRIPT, found, tmp_path, places) == ["--bf16"]
