"""Topics of `planc explain` other than codes and models: verbs, layouts, hardware, pipeline schedules."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.syntax.lines import MACHINE

EXAMPLES = 3
"""Number of sentences shown for a verb."""
WRITTEN = {"attention": "attention.core"}
"""Spelling of a verb in a file, if its reader's name differs."""
DECLARATION = re.compile(rf"^({'|'.join(MACHINE)})\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Topic:
    """One page of `planc explain`: its kind and name, a text, and the same facts for JSON."""

    kind: str
    name: str
    text: str
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, **self.facts}


def topics() -> dict[str, dict[str, Callable[[str], Topic]]]:
    """Return for each kind of page its names, each with the function that makes the page from the name."""
    return {
        "verb": dict.fromkeys(_verbs(), _verb),
        "layout": dict.fromkeys(_texts("layouts"), _layout),
        **_hardware_names(),
        "schedule": dict.fromkeys(_schedules(), _schedule),
    }


def topics_of(name: str, kind: str = "") -> list[Topic]:
    """Return the pages called `name`; only those of `kind`, unless that is ""."""
    return [pages[name](name) for k, pages in topics().items() if kind in ("", k) and name in pages]


def _verbs() -> dict[str, str]:
    """Return every verb of the language, with the docstring of the module that parses its sentences."""
    from planc.language import imports
    from planc.language.verbs import hardware, readers

    documented = {WRITTEN.get(verb, verb): inspect.getmodule(read) for verb, (_, read) in readers().items()}
    modules = {**documented, "import": imports, **dict.fromkeys(MACHINE, hardware)}
    return {verb: inspect.getdoc(module) or "" for verb, module in modules.items()}


def _verb(name: str) -> Topic:
    summary, examples = _verbs()[name], _sentences(name)
    shown = "\n".join(f"  {sentence}" for sentence in examples)
    text = f"verb {name}\n\n{summary}" + (f"\n\nin bundled plans:\n{shown}" if examples else "")
    return Topic("verb", name, text, {"summary": summary, "examples": examples})


def _sentences(verb: str) -> list[str]:
    """Return the different sentences with this verb in the bundled plans."""
    words = re.escape(verb.replace("_", " "))
    found: dict[str, None] = {}
    for _, text in sorted(_texts("", "field").items()):
        for line in text.splitlines():
            sentence = line.partition("#")[0].rstrip()
            if re.match(rf"{words}\b(?! *from)", sentence):
                found.setdefault(sentence)
        if len(found) >= EXAMPLES:
            break
    return list(found)[:EXAMPLES]


def _layout(name: str) -> Topic:
    header, _, sentences = _texts("layouts")[name].partition("\n")
    given = header.partition(" over ")[2]
    text = f"layout {name}\n\n`use {name} over {given}` stands for\n\n{_indented(sentences)}"
    return Topic("layout", name, text, {"use": f"use {name} over {given}", "sentences": sentences.splitlines()})


def _hardware_names() -> dict[str, dict[str, Callable[[str], Topic]]]:
    """Return the names that the bundled hardware files declare, by kind."""
    found: dict[str, dict[str, Callable[[str], Topic]]] = {}
    for text in _texts("hardware").values():
        for kind, name in DECLARATION.findall(text):
            found.setdefault(kind, {})[name] = _hardware
    return found


def _hardware(name: str) -> Topic:
    """Return the page of a chip, link, node, torus or network: its declaration and comments, and other names in its
    file."""
    file, text = next((f, t) for f, t in _texts("hardware").items() if (name in (n for _, n in DECLARATION.findall(t))))
    kind = next(k for k, n in DECLARATION.findall(text) if n == name)
    sentence = next(line for line in text.splitlines() if re.match(rf"{kind}\s+{name}\b", line))
    sources = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    others = [f"{k} {n}" for k, n in DECLARATION.findall(text) if n != name]
    shown = re.sub(r", (?=\w+ = )", ",\n    ", re.sub(r"\s+", " ", sentence).replace("(", "(\n    ", 1))
    parts = [f"{kind} {name}, of plans/hardware/{file}.plan", shown, "\n".join(sources)]
    parts += [f"in the same file: {', '.join(others)}"] if others else []
    facts = {"file": f"plans/hardware/{file}.plan", "sentence": sentence, "sources": sources, "others": others}
    return Topic(kind, name, "\n\n".join(parts), facts)


def _schedules() -> dict[str, str]:
    """Return every pipeline schedule, with the docstring of its module."""
    from planc.pipeline.schedules import schedules

    schedules()
    modules = [module for name, module in sys.modules.items() if name.startswith("planc.pipeline.schedules.")]
    return {module.SCHEDULE.name: inspect.getdoc(module) or "" for module in modules}


def _schedule(name: str) -> Topic:
    from planc.pipeline.schedules import schedules

    schedule, summary = schedules()[name], _schedules()[name]
    stages = "chunks = N, of your choice" if schedule.free_chunks else str(schedule.chunks)
    text = f"schedule {name}\n\n{summary}\n\nstages of each rank: {stages}\nsplit layers over AXIS as {name}"
    facts = {
        "summary": summary,
        "chunks": None if schedule.free_chunks else schedule.chunks,
        "placement": schedule.placement,
        "equal_stages": schedule.equal_stages,
        "even_ranks": schedule.even_ranks,
    }
    return Topic("schedule", name, text, facts)


def _texts(*folders: str) -> dict[str, str]:
    """Return the texts of the bundled files in `folders` of `plans/`, by file name."""
    found: dict[str, str] = {}
    for folder in folders:
        place = files("planc.plans").joinpath(folder) if folder else files("planc.plans")
        found |= {f.name.removesuffix(".plan"): f.read_text() for f in place.iterdir() if f.name.endswith(".plan")}
    return found


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
