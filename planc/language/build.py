"""Compiles a plan file to a `Plan`: reads its imports, expands layouts, then reads every sentence in the order of its
verb."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, Edit, Fix, Related, has_errors, in_order
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.ir.plan import Plan, Precision
from planc.ir.serving import ServePlan, Weights
from planc.ir.target import TARGETS, AnyTarget
from planc.language.draft import Draft, NameLookup
from planc.language.fine_tuning import fine_tuned
from planc.language.foreign_words import in_own_words
from planc.language.framework_rules import filled
from planc.language.imports import Files, declared_here, read_imports
from planc.language.precedence import settle, whole_line
from planc.language.verbs import attention, readers
from planc.language.verbs.use import expand
from planc.syntax import Tree
from planc.syntax.lines import OLD_VERBS, VERBS
from planc.syntax.tree import Sentence

ONCE = (
    "model",
    "batch",
    "cluster",
    "mesh",
    "gather",
    "split",
    "optimizer",
    "freeze",
    "lora",
    "compute",
    "recompute",
    "route",
    "attention",
    "loss",
    "target",
    "realise",
    "train",
    "price",
    "cache",
    "requests",
    "sync",
)
SERVED = (
    *("let", "mesh", "view", "cluster", "shard", "replicate", "store", "split", "override"),
    *("expect_tokens", "expect", "cache", "requests", "sync", "sleep"),
)
"""Verbs of a serve plan, beside `import` and `use`; the last four are of serve plans alone."""
NEEDED = {
    "model": "model llama3_8b",
    "batch": "batch 512 x 8192 tokens microbatch 1",
    "cluster": "cluster 1 x h100_node",
    "mesh": "mesh fsdp 8",
    "compute": "compute bf16 reduce fp32",
}
WHOSE = {
    "training": 'it is of serve plans, which begin with `serve NAME of "train.plan"`',
    "serve": "model, precision and batch are the training plan's; a generator has a layout, a cache and requests",
}
"""Help of E1501 by the kind of plan that the sentence is in."""
NOWHERE = Path(os.path.realpath(os.devnull)) / "preset"
"""The folder of a plan that is in no file; no such path exists on any machine."""
MENDED = Precision(compute="bf16", reduce="fp32")
"""Precision that the fix of E0107 writes into a plan without a `compute` sentence."""


@dataclass(frozen=True)
class Built:
    """The result of reading a plan file: the plan unless there are errors, the diagnostics, and the texts of all files
    read."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    sources: dict[str, Source]
    sentences: tuple[Sentence, ...] = ()
    lookups: tuple[NameLookup, ...] = ()
    """Every name in the text that was looked up, with the names that are legal there."""
    files: tuple[str, ...] = ()
    """Paths of the other files that the plan reads, relative to the plan's folder."""
    mended: Plan | None = None
    """If there are errors: the plan with all their fixes applied as far as possible, for finding further mistakes."""
    left_out: frozenset[str] = frozenset()
    """Verbs of sentences that are missing from `mended`."""
    target: AnyTarget | None = None
    """The target of the plan's `target` sentence."""
    on: frozenset[str] = frozenset()
    """Targets that the file has sentences for, after `on TARGET:`."""
    machine: tuple[Sentence, ...] = ()
    """The declarations of the cluster's hardware, from a hardware file or the plan itself."""
    numbers: Mapping[Span, int] = field(default_factory=dict)
    """Values of the words that name a `let`, by their location."""
    serve: ServePlan | None = None
    """The serve plan, if the file is one without errors; `plan` is then its layout."""


def build_file(
    path: Path,
    given: dict[str, int] | None = None,
    target: str = "",
    unsaved: Mapping[Path, str] | None = None,
) -> Built:
    """Read the plan file at `path` and its imports. Mistakes in the files become diagnostics, never exceptions.

    `given` has the values of `--set NAME=VALUE`, by name. `target` is the target whose `on TARGET:` sentences apply, ""
    for none. `unsaved` holds texts that replace the files on disk, by resolved path.
    """
    files = Files(root=path.parent, unsaved=unsaved or {})
    read = files.read(path, path.name)
    if isinstance(read, Diagnostic):
        return Built(None, (read,), files.sources)
    return build_plan(read, files, given or {}, target)


def build_alone(text: str, name: str, files: Mapping[str, str]) -> Built:
    """Read a plan that is in no file, without access to the disk.

    Args:
        text: the plan's text.
        name: the file name for diagnostics.
        files: the only files that the plan's sentences can name, by path from the plan's folder.
    """
    texts = {Path(os.path.realpath(NOWHERE / path)): content for path, content in files.items() if "\0" not in path}
    known = Files(root=NOWHERE, unsaved={**texts, NOWHERE: text}, alone=True)
    read = known.read(NOWHERE, name)
    if isinstance(read, Diagnostic):
        return Built(None, (read,), known.sources)
    return build_plan(read, known, {})


def build_serve(
    path: Path,
    given: dict[str, int] | None = None,
    unsaved: Mapping[Path, str] | None = None,
    *,
    read_trainer: Callable[[Path], Built] = build_file,
) -> Built:
    """Read the serve plan at `path`, its training plan and its imports. Mistakes in the files become diagnostics.

    Args:
        path: path of the serve plan.
        given: the values of `--set NAME=VALUE` for the serve plan.
        unsaved: texts that replace the files on disk, by resolved path.
        read_trainer: reads the training plan, whose path it takes.
    """
    files = Files(root=path.parent, unsaved=unsaved or {})
    read = files.read(path, path.name)
    if isinstance(read, Diagnostic):
        return Built(None, (read,), files.sources)
    if read.header is None or read.header.verb != "serve":
        return build_plan(read, files, given or {})
    draft = Draft(files.root, {}, files.unsaved, files.alone, list(read.diagnostics))
    trainer = _trainer(read.header, draft, read_trainer)
    if trainer is None:
        return Built(None, in_order(draft.diagnostics), files.sources)
    return build_plan(read, files, given or {}, trainer=trainer)


def _trainer(header: Sentence, draft: Draft, read: Callable[[Path], Built]) -> Plan | None:
    """Return the training plan that the `header` of a serve plan names; None (reported) if it cannot be served."""
    word = header.node.words("STRING")[0]
    name = word.text.strip('"')
    path = draft.inside(name, word.span)
    if path is None:
        return None
    built = read(path)
    if built.plan is None:
        first = next(d for d in built.diagnostics if d.severity == "error")
        message = f"the training plan {name} has a mistake: {first.message}"
        draft.report("E1502", word.span, message, help=f"`planc check {name}` shows all ({first.code})")
        return None
    if built.plan.lora is not None:
        help = "serve a plan that trains the weights themselves; engines load such updates as adapters of their own"
        draft.report(
            "E1502", word.span, f"{name} trains low-rank updates (`lora`), which planc does not merge", help=help
        )
        return None
    return built.plan


def build_plan(
    file: Tree, files: Files, given: dict[str, int], target: str = "", *, trainer: Plan | None = None
) -> Built:
    """Compile the parsed plan `file`.

    Args:
        file: the sentences of a plan or, with a `trainer`, of a serve plan.
        files: collects the files read.
        given: the values of `--set NAME=VALUE`.
        target: the target whose `on TARGET:` sentences apply, "" for none.
        trainer: the training plan whose weights a serve plan serves.
    """
    draft = Draft(files.root, given, files.unsaved, files.alone, list(file.diagnostics))
    if trainer is not None:
        draft.trainer, draft.model, draft.cluster, draft.batch = trainer, trainer.model, trainer.cluster, trainer.batch
        draft.precision, draft.route = trainer.precision, trainer.route
    header = file.header
    if header is not None and header.verb != ("plan" if trainer is None else "serve"):
        draft.report("E0106", header.span, f"a {header.verb} file is not a plan", help="name a plan file")
        return Built(None, in_order(draft.diagnostics), files.sources)
    left_out = _unread_verbs(file, draft)
    own = read_imports(file.sentences, files, draft)
    on = frozenset(s.target for s in own if s.target)
    meant = declared_here([s for s in own if _applies_to_target(s, target, draft)], draft)
    expanded = expand(meant, files.layouts, draft)
    left_out |= {"use"} if draft.losses else set()
    sentences = settle(expanded, draft)
    left_out |= {"shard", "store"} if draft.losses else set()
    left_out |= _read(sentences, draft)
    files.add(draft.read)
    _unknown_settings(draft, header)
    if header is not None:
        _missing(sentences, header, file, draft)
    diagnostics = in_order(list(in_own_words(_once_each(draft.diagnostics), files.sources.values())))
    plan = None if header is None else _plan(draft, header, files)
    serve = _serve_plan(plan, draft, sentences) if plan and not has_errors(diagnostics) else None
    right, mended = (None, plan) if has_errors(diagnostics) else (plan, None)
    lookups, read = tuple(draft.lookups), tuple(draft.files)
    return Built(
        right,
        diagnostics,
        files.sources,
        tuple(sentences),
        lookups,
        read,
        mended,
        frozenset(left_out),
        draft.target,
        on,
        tuple(draft.machine),
        draft.numbers,
        serve,
    )


def _unread_verbs(file: Tree, draft: Draft) -> set[str]:
    """Return the verbs of the sentences that could not be parsed. If one of these verbs is unknown, add all verbs that
    a plan may repeat, since the sentence may have been meant as any of them."""
    firsts = {text.split(maxsplit=1)[0] for text in file.unread}
    draft.unread |= {word for text in file.unread for word in re.findall(r"\w+", text)}
    return firsts if firsts <= {*VERBS, *OLD_VERBS} else firsts | set(VERBS) - set(ONCE)


def _once_each(found: list[Diagnostic]) -> list[Diagnostic]:
    """Remove the diagnostic about a malformed name (`llama3-8b`) if another one says that the name is unknown."""
    unknown = {d.span for d in found if d.code == "E0108"}
    return [d for d in found if d.code != "E0102" or d.span not in unknown]


def _applies_to_target(sentence: Sentence, target: str, draft: Draft) -> bool:
    if sentence.target and sentence.target not in TARGETS:
        legal = f"legal: {', '.join(TARGETS)}"
        draft.report("E0108", sentence.span, f"`{sentence.target}` is not a target", help=legal)
    if sentence.target and sentence.verb == "target":
        help = "write it alone: it says for which target the sentences after `on` are read"
        draft.report("E0108", sentence.span, "`target` is no sentence of one target", help=help)
        return False
    return sentence.target in ("", target)


def _read(sentences: list[Sentence], draft: Draft) -> set[str]:
    known = readers()
    first: dict[str, Sentence] = {}
    left_out: set[str] = set()
    for sentence in sorted(sentences, key=lambda s: known[s.verb][0] if s.verb in known else 0):
        if sentence.verb not in known:
            draft.report(
                "E0109",
                sentence.span,
                f"planc does not compile `{sentence.verb}` here yet",
                label="not compiled",
            )
        elif (sentence.verb in SERVED[-4:]) if draft.trainer is None else sentence.verb not in SERVED:
            kind = "training" if draft.trainer is None else "serve"
            message = f"a {kind} plan has no `{_verb(sentence)}` sentence"
            draft.report("E1501", (sentence.via or sentence).span, message, help=WHOSE[kind])
        elif _verb(sentence) in ONCE and _decides(sentence) in first:
            _report_given_twice(sentence, first[_decides(sentence)], draft)
        else:
            first.setdefault(_decides(sentence), sentence)
            losses = draft.losses
            known[sentence.verb][1](sentence, draft)
            left_out |= {sentence.verb} if draft.losses > losses else set()
    return left_out


def _verb(sentence: Sentence) -> str:
    return sentence.verb.removesuffix("_from")


def _decides(sentence: Sentence) -> str:
    """Return the decision that a sentence makes, at most once per plan: its verb or, for `attention.core`, the kernel
    or the context-parallel method."""
    return attention.role(sentence) if sentence.verb == "attention" else _verb(sentence)


def _report_given_twice(sentence: Sentence, first: Sentence, draft: Draft) -> None:
    where = sentence.via or sentence
    draft.report(
        "E0107",
        where.span,
        f"`{_verb(sentence)}` is given twice",
        related=(Related((first.via or first).span, "first here"),),
        help="keep one of them",
        fix=Fix("remove this sentence", (Edit(whole_line(where.span), ""),)),
    )


def _unknown_settings(draft: Draft, header: Sentence | None) -> None:
    for name in draft.given:
        if name not in draft.params and header is not None:
            legal = ", ".join(draft.params) or "none"
            missing = f"--set {name}: the plan has no `let {name}`"
            draft.report("E0108", header.span, missing, help=f"`let` names: {legal}")


def _missing(sentences: list[Sentence], header: Sentence, file: Tree, draft: Draft) -> None:
    """Report each mandatory verb that no sentence has. Nothing is reported if a sentence has an unknown verb, since it
    may be a misspelling of the missing one."""
    written = {_verb(s) for s in sentences} | {text.split(maxsplit=1)[0] for text in file.unread}
    if any(text.split(maxsplit=1)[0] not in VERBS for text in file.unread):
        return
    for verb, example in NEEDED.items():
        if verb not in written and (draft.trainer is None or verb == "mesh"):
            draft.report(
                "E0107",
                header.span,
                f"the plan has no `{verb}` sentence",
                help=f"such as: {example}{_in_fp32(draft) if verb == 'compute' else ''}",
                fix=None if verb == "mesh" else Fix(f"add `{example}`", (_added(example, header, draft),)),
            )


def _added(example: str, header: Sentence, draft: Draft) -> Edit:
    """Return the edit that adds the sentence `example` after the header of the plan. A `compute` sentence goes below
    the mesh if the mesh is in the same file."""
    verb, _, rest = example.partition(" ")
    above = draft.mesh.cause if verb == "compute" and draft.mesh else None
    line = 1 + (above.span.end_line if above and above.span.file == header.span.file else header.span.end_line)
    return Edit(Span(header.span.file, line, 1, line, 1), f"{verb:<9} {rest}\n")


def _in_fp32(draft: Draft) -> str:
    peaks = draft.cluster.chip.flops_per_s if draft.cluster else {}
    slower = f", at {100 * peaks['fp32'] / peaks['bf16']:.0f} % of the rate" if peaks.keys() >= {"fp32", "bf16"} else ""
    return f"; `compute fp32` has activations of twice the bytes, and runs matmuls in fp32{slower}"


def _plan(draft: Draft, header: Sentence, files: Files) -> Plan | None:
    if not (draft.model and draft.batch and draft.cluster and draft.mesh):
        assert has_errors(draft.diagnostics)
        return None
    batch = draft.batch
    if draft.trainer is not None:
        # One sequence a device: no rule about microbatches finds fault with a layout that runs none.
        batch = replace(batch, sequences=draft.mesh.devices, microbatch_sequences=1)
    plan = Plan(
        name=header.node.words("NAME")[0].text,
        model=fine_tuned(draft.model, draft.freeze, draft.lora),
        batch=batch,
        cluster=draft.cluster,
        mesh=draft.mesh,
        shards=tuple(draft.shards),
        replicates=tuple(draft.replicates),
        stores=tuple(draft.stores),
        gather=draft.gather,
        split=draft.split,
        optimizer=draft.optimizer,
        freeze=draft.freeze,
        lora=draft.lora,
        precision=draft.precision or MENDED,
        recompute=draft.recompute,
        route=draft.route,
        attention=draft.attention,
        quantize=tuple(draft.quantize),
        offloads=tuple(draft.offloads),
        overlaps=tuple(draft.overlaps),
        compiles=tuple(draft.compiles),
        chunked_loss=draft.chunked_loss,
        realise=draft.realise,
        overrides=tuple(draft.overrides),
        train=draft.train,
        price=draft.price,
        expects=() if draft.trainer else tuple(draft.expects),
        expects_no=tuple(draft.expects_no),
        file=header.span.file,
        sources=files.sha256,
        set=draft.given,
    )
    return filled(plan)


def _serve_plan(layout: Plan, draft: Draft, sentences: list[Sentence]) -> ServePlan | None:
    """Return the serve plan with this `layout`; None for a training plan."""
    trainer = draft.trainer
    if trainer is None:
        return None
    return ServePlan(
        name=layout.name,
        trainer=trainer,
        layout=layout,
        weights=draft.weights or Weights(dtype=trainer.precision.compute),
        cache=draft.kv_cache,
        requests=draft.requests,
        sync=draft.sync,
        sleeps=tuple(draft.sleeps),
        expects=tuple(draft.expects),
        colocated=all(s.verb != "cluster" for s in sentences),
        file=layout.file,
        sources={**trainer.sources, **layout.sources},
    )
