"""Measures how many real launch scripts planc imports.

    python -m tests.lab.measure.scripts FOLDER [--allow-code] [--json FILE] [--only WORD] [--facts]

`--facts` writes what was seen of each script (not its text) into `scripts.json` beside this file, and the page of it.

FOLDER has a folder `OWNER+NAME` for each public repository, a checkout with its commit in `.commit`. A script counts if
it names a program that trains and a flag for a size or a degree; each text counts once. It is imported as by a person
who answers what he is asked: machines, a vocabulary, the files that the script reads, its arguments. `answers` has what
was given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planc.interop.formats.shell import SCRIPTS
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options

TRAINS = re.compile(
    r"\b(?:pretrain|finetune|train)\w*\.py\b|\bmegatron (?:sft|pt)\b"
    r"|\bmax_?text[./](?:trainers[./]pre_train[./])?train\b",
    re.IGNORECASE,
)
SIZED = re.compile(
    r"--(?:micro[-_]batch|num[-_]layers|hidden[-_]size|tensor[-_]model[-_]parallel)|\bper_device_batch_size="
)
KINDS = (
    ("reinforcement learning", re.compile(r"--rollout|--advantage|slime")),
    ("MaxText", re.compile(r"max_?text[./]", re.IGNORECASE)),
    ("ms-swift", re.compile(r"\bmegatron (?:sft|pt)\b")),
    (
        "another model",
        re.compile(
            r"(?:pretrain|finetune|train)_?\w*(?:bert|t5|ict|vision|vlm|retro|mamba|hybrid|dino|esm)\w*\.py|(?:de|en)coder[-_]seq"
            r"|--model[-_]provider|--hybrid|--vision|--img|--patch[-_](?:size|dim)|--spec ",
            re.IGNORECASE,
        ),
    ),
    ("Megatron-LM", re.compile(r"--micro[-_]batch[-_]size|--tensor[-_]model[-_]parallel|--model[-_]parallel")),
)
"""Kinds of scripts, and what only they have; the first counts."""
VOCABULARY = "50304"
ARGUMENTS = {
    "MODEL_SIZE": "7B", "BATCH_SIZE": "1", "GLOBAL_BATCH_SIZE": "64", "LR": "1e-5", "MIN_LR": "1e-6", "SEQ_LEN": "2048",
    "PAD_LEN": "2048", "EXTRA_VOCAB_SIZE": "85", "PR": "bf16", "TP": "1", "PP": "1", "CP": "1", "EP": "1", "ETP": "1",
    "AC": "none", "DO": "true", "FL": "false", "SP": "false", "TE": "false", "MOE": "false", "SAVE_INTERVAL": "1000",
    "TRAIN_TOKENS": "1000000000", "WARMUP_TOKENS": "10000000", "TRAIN_ITERS": "1000", "SFT": "false", "ENV": "dsw",
    "ZERO_STAGE": "1", "OPTIMIZER_OFFLOAD": "false", "MP_AC_LAYERS": "1", "MP_VP": "", "MP_SFT_PACKING": "false",
}  # fmt: skip
"""Values of arguments that scripts take in order, by the names of the variables that they are assigned to."""


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields the scripts under `folder` that start a training, each text once, and their texts without comments."""
    seen: set[str] = set()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in SCRIPTS and p.is_file()):
        text = path.read_text(errors="replace")
        body = re.sub(r"(?m)^\s*#.*$", "", text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if TRAINS.search(body) and SIZED.search(body) and digest not in seen:
            seen.add(digest)
            yield path, body


def kind(body: str) -> str:
    return next((name for name, pattern in KINDS if pattern.search(body)), "another program")


def arguments(body: str) -> dict[str, str]:
    """Returns the arguments that a script takes in order, `MODEL_SIZE=$2`."""
    found = re.findall(r"(?m)^\s*(?:export\s+)?(\w+)=\"?\$\{?(\d+)\}?\"?\s*(?:#.*)?$", body)
    sizes = re.search(r"MODEL_SIZE\}?\"? *=+ *\"?([\w.-]+)", re.sub(r"MODEL_SIZE=\$\S+", "", body))
    known = {**ARGUMENTS, "MODEL_SIZE": sizes[1] if sizes else ARGUMENTS["MODEL_SIZE"]}  # the first that it knows
    return {number: known.get(name, "") for name, number in found if known.get(name)}


def outcome(path: Path, body: str, root: Path, allow_code: bool = False) -> tuple[Imported, str, list[str]]:
    """Returns the import of the script `path`, `exact`, `approximate` or the codes of its errors, and the answers that
    were given."""
    given = arguments(body)
    files, nodes, ranks, found = [path], 1, 8, None
    ignored: tuple[str, ...] = ()
    for _ in range(6):
        cluster, devices = f"{nodes} x h100_node" + (f"({ranks})" if ranks < 8 else ""), nodes * ranks
        options = Options(
            cluster=cluster,
            devices=devices,
            given=given,
            folder=path.parent,
            approximate=True,
            ignored=ignored,
            allow_code=allow_code,
        )
        found = import_files(files, options)
        errors = [d for d in found.diagnostics if d.severity == "error"]
        if not errors:
            break
        before = (dict(given), nodes, ranks, list(files), ignored)
        for one in errors:
            said = one.message
            if one.code == "E1306" and "vocab_size" in said:
                given |= {"vocab_size": VOCABULARY}
            files += [p for name in beside(one.help) for p in nearest(path, name, root) if p not in files]
            if one.code != "E1307":
                continue
            if started := re.search(r"start (\d+)$", said):
                count = int(started[1])
                if count % 8 == 0 and ranks == 8 and nodes == 1:
                    nodes = count // 8
                else:
                    ignored = ("nnodes", "nproc_per_node")
            elif (inner := re.search(r"parallelism = (\d+)$", said)) and int(inner[1]) > nodes * ranks:
                nodes, ranks = -(-int(inner[1]) // 8), 8
            elif batch := re.search(
                r"global batch (\d+) is no multiple of (\d+) data-parallel ranks x micro batch (\d+)", said
            ):
                most, data, micro = map(int, batch.groups())
                wanted = next((n for n in range(min(most // micro, data), 0, -1) if most % (n * micro) == 0), data)
                count = nodes * ranks // data * wanted
                nodes, ranks = (count // 8, 8) if count % 8 == 0 else (1, count) if count < 8 else (nodes, ranks)
            elif axes := re.search(r"ici axes have (\d+) ranks together, and there are 8$", said):
                nodes = int(axes[1]) // 8 or 1
            elif group := re.search(r"(\d+) ranks of a stage are no multiple of expert parallelism (\d+)", said):
                nodes = nodes * -(-int(group[2]) // int(group[1]))
        if before == (given, nodes, ranks, files, ignored):
            break
    assert found is not None
    answers = [
        f"--cluster {cluster}",
        *(f"--set {n}={v}" for n, v in given.items()),
        *(f"--ignore {n}" for n in ignored),
    ]
    answers += [f.name for f in files[1:]]
    codes = sorted({d.code for d in found.diagnostics if d.severity == "error"})
    return found, "+".join(codes) or ("approximate" if near(found) else "exact"), answers


def near(found: Imported) -> bool:
    return bool({d.code for d in found.diagnostics} & {"W1310", "W1314", "W1315"})


def beside(help: str) -> list[str]:
    named = re.search(r"or name (.*) too, which the script reads", help)
    return named[1].split(", ") if named else []


def nearest(path: Path, name: str, root: Path) -> list[Path]:
    """Returns the file `name` of the repository `root` that is nearest to the script `path`."""
    found = [p for p in root.rglob(name) if p.is_file()] if re.fullmatch(r"[\w.-]+", name) else []
    shared = {p: len([1 for a, b in zip(p.parts, path.parts, strict=False) if a == b]) for p in found}
    return sorted(found, key=lambda p: -shared[p])[:1]


def plan(found: Imported) -> list[str]:
    """Returns the sentences of an imported plan."""
    return [" ".join(line.partition("#")[0].split()) for line in found.text.split("\n")]


def measured(
    folder: Path, only: str = "", allow_code: bool = False, part: tuple[int, int] = (0, 1)
) -> Iterator[dict[str, Any]]:
    for number, (path, body) in enumerate(texts(folder)):
        relative = path.relative_to(folder)
        if only not in str(relative) or number % part[1] != part[0]:
            continue
        root = folder / relative.parts[0]
        found, how, answers = outcome(path, body, root)
        ran, how_run, _ = outcome(path, body, root, allow_code=True) if allow_code else (found, "", [])
        if any("read as text" in d.message for d in ran.diagnostics if d.code == "N1316"):
            how_run = "nothing started"
        both = {how, how_run} <= {*READ}
        yield {
            "repository": relative.parts[0].replace("+", "/", 1),
            "path": str(Path(*relative.parts[1:])),
            "kind": kind(body),
            "outcome": how,
            "run": how_run,
            "agree": plan(found) == plan(ran) if both else None,
            "run_messages": [
                f"{d.code}: {d.message}" for d in ran.diagnostics if d.code[0] == "E" or d.code == "N1316"
            ],
            "answers": answers,
            "messages": [f"{d.code} {d.span.line}: {d.message}" for d in found.diagnostics if d.severity == "error"],
        }


FACTS = Path(__file__).with_name("scripts.json")
PAGE = Path(__file__).parents[3] / "docs" / "measured" / "scripts.md"
READ = ("exact", "approximate")


def facts(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Returns, by repository, its commit and of each script: its kind, the outcome of the import of its text and, if
    bash ran it, that outcome, and whether the two plans are equal."""
    found: dict[str, Any] = {}
    for row in rows:
        name = row["repository"]
        commit = (folder / name.replace("/", "+", 1) / ".commit").read_text().strip()
        of = found.setdefault(name, {"commit": commit, "scripts": {}})
        of["scripts"][row["path"]] = [row["kind"], row["outcome"], row["run"], row["agree"]]
    return dict(sorted(found.items()))


def page(found: dict[str, Any]) -> str:
    """Returns the page of the measured scripts."""
    rows = [row for of in found.values() for row in of["scripts"].values()]
    kinds = dict.fromkeys(name for name, _ in KINDS) | {"another program": None}
    by_kind = [_row(name, [row for row in rows if row[0] == name]) for name in kinds]
    counted = ("Megatron-LM", "MaxText", "ms-swift")
    by_repository = []
    for name, of in found.items():
        if mine := [row for row in of["scripts"].values() if row[0] in counted]:
            by_repository.append(_row(f"{name} `{of['commit'][:10]}`", mine))
    heads = "scripts | read as text: exact | approximate | run by bash: exact | approximate"
    heads += " | either | both, equal | both, not equal |"
    rule = "|---" + "|--:" * 8 + "|"
    return f"""# Real launch scripts

Public scripts that start a training, each text once, as their repositories had them at the commits below. Each is
imported with the machines that it starts (`h100_node`), a vocabulary where it has none, the files that it reads, and
values of the arguments that it takes in order. `tests/lab/measure/scripts.json` has the outcome of every script by its
path, and the codes of those that are refused; `python -m tests.lab.measure.scripts FOLDER --allow-code` measures again.
"Another model" trains no decoder of text alone, "another program" has its own words, and a step of reinforcement
learning is not costed.

| kind | {heads}
{rule}
{chr(10).join(by_kind)}

Of {", ".join(counted[:-1])} and {counted[-1]}:

| repository | {heads}
{rule}
{chr(10).join(by_repository)}
"""


def _row(name: str, rows: list[list[Any]]) -> str:
    text, run = (Counter(row[i] for row in rows) for i in (1, 2))
    either = sum(bool({row[1], row[2]} & {*READ}) for row in rows)
    agree = Counter(row[3] for row in rows)
    numbers = [len(rows), *(text[how] for how in READ), *(run[how] for how in READ), either, agree[True], agree[False]]
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--allow-code", action="store_true")
    parser.add_argument("--facts", action="store_true")
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="every Nth script, from I"
    )
    options = parser.parse_args()
    rows = list(measured(options.folder, options.only, options.allow_code, options.part))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.facts:
        found_facts = facts(rows, options.folder)
        FACTS.write_text(json.dumps(found_facts, indent=0) + "\n")
        PAGE.write_text(page(found_facts))
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_kind[row["kind"]][row["outcome"]] += 1
    for name, found in by_kind.items():
        total, good = found.total(), found["exact"] + found["approximate"]
        print(f"{name}: {good} of {total} imported, {found['exact']} exactly; {found.most_common(8)}")
        if options.allow_code:
            run = [row for row in rows if row["kind"] == name]
            good = sum(row["run"] in ("exact", "approximate") for row in run)
            either = sum({row["run"], row["outcome"]} & {"exact", "approximate"} != set() for row in run)
            agree = Counter(row["agree"] for row in run)
            print(f"  run: {good}, either: {either}, both agree {agree[True]}, differ {agree[False]}")


if __name__ == "__main__":
    main()
