"""Imports files of another system as a plan: recognises the system, reads its fields, and writes the plan's sentences.
Each sentence has a comment with the fields that it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Any

from planc.diag.diagnostic import Diagnostic, has_errors, in_order
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import printable
from planc.diag.span import Source, Span
from planc.files import read_text
from planc.interop.document import Document, Format, Given, UnreadableError
from planc.interop.fields import Field
from planc.interop.formats import format_of, read_document
from planc.interop.launcher import NODES, RANKS
from planc.interop.plan_text import PlanSentence, plan_text, sentences
from planc.interop.setup import TrainingSetup
from planc.interop.system import System
from planc.interop.systems import systems
from planc.interop.values import LeftOutError, Options, Origin, RefusedError, Values
from planc.ir.model import Model
from planc.picture.units import approximate
from planc.syntax.suggest import MOST_GUESSES, nearest

PYTHON = (
    "a Python file is never run; import what it dumps: torchtitan's debug.save_config_file, the run_config.yaml of"
    " Megatron-Bridge's checkpoints"
)
NEMO1 = {"model.mcore_gpt", "model.encoder_seq_length", "exp_manager.explicit_log_dir", "exp_manager.exp_dir"}
"""Fields that only NeMo 1.0 configurations have."""
MAX_BYTES = 1_000_000
"""Maximum size of a configuration file (bytes)."""


@dataclass(frozen=True)
class Imported:
    """Result of an import: its diagnostics and, without errors, the plan's `text` and the configuration (`setup`)."""

    diagnostics: tuple[Diagnostic, ...]
    sources: dict[str, Source]
    system: System | None = None
    setup: TrainingSetup | None = None
    text: str = ""
    origins: Mapping[str, tuple[Origin, ...]] | None = None
    """The fields that each setting was read from."""
    lines: Mapping[int, tuple[Origin, ...]] | None = None
    """The fields that each line of `text` comes from."""
    chain: str = ""
    """The batch arithmetic, from the system's own fields to microbatches per rank."""
    inexact: tuple[str, ...] = ()
    """Fields that the plan says only nearly, or not at all."""
    documents: tuple[Document, ...] = ()
    """The files as they were read."""


def import_files(
    files: Sequence[Path], options: Options, system: str = "", unsaved: Mapping[Path, str] | None = None
) -> Imported:
    """Imports `files`, which together are one configuration, as a plan. `system` is the name of their system; ""
    recognises it from the files.

    `options` are the command line's answers to questions that the files leave open. Mistakes in the files raise
    nothing: they are in `Imported.diagnostics`, with their places. `unsaved` has texts that are read in place of files.
    """
    documents, findings, sources = _documents(files, options, system, unsaved or {})
    if has_errors(findings) or not documents:
        return Imported(in_order(findings), sources)
    if old := next((d for d in documents if NEMO1 & d.fields.keys()), None):
        message = f"{printable(Path(old.file).name)} is of NeMo 1.0, whose files planc does not read"
        help = "its successor is Megatron-Bridge, whose run_config.yaml is read"
        return Imported((Diagnostic("E1302", message, old.whole(), help=help),), sources)
    if all(map(_is_model, documents)) and not options.given and not system:
        message = f"{printable(Path(documents[0].file).name)} is a model's config, which says no layout"
        help = "`planc init config.json --cluster CLUSTER` writes a plan for it; or name the trainer's file too"
        return Imported((Diagnostic("E1306", message, documents[0].whole(), help=help),), sources)
    documents, options = _with_model(documents, options)
    chosen = systems()[system] if system else _recognised(documents)
    if chosen is None:
        known = ", ".join(systems())
        message = f"{printable(files[0].name)} is of no system whose files planc knows by their look"
        wrong = Diagnostic("E1302", message, documents[0].whole(), help=f"say it with --from: {known}")
        return Imported(in_order([*findings, wrong]), sources)
    documents = [
        replace(d, fields={n: g for n, g in d.fields.items() if chosen.known(n)}) if _is_only_model(d) else d
        for d in documents
    ]
    found = imported(chosen, documents, options, _plan_name(files[0]))
    diagnostics = in_order([*findings, *found.diagnostics])
    return replace(found, sources=sources, diagnostics=diagnostics, documents=tuple(documents))


def _with_model(documents: list[Document], options: Options) -> tuple[list[Document], Options]:
    """Returns `documents` and `options`; if a Hugging Face `config.json` is among them, `options.model` names that
    file.

    Of such a config only the fields that affect parallelism stay in the document. The sentence `model from` reads its
    sizes.
    """
    rest = [d if not _is_model(d) else replace(d, fields=_model_fields(d)) for d in documents]
    models = [d for d in documents if _is_model(d)]
    if not models or options.model:
        return rest, options
    folder, file = options.folder.resolve(), Path(models[0].file).resolve()
    name = file.relative_to(folder) if file.is_relative_to(folder) else file
    return rest, replace(options, model=f'from "{name.as_posix()}"')


def _is_model(document: Document) -> bool:
    return document.format == "json" and {"model_type", "vocab_size"} <= document.fields.keys()


MODEL_FIELDS = ("model_type", "dtype", "torch_dtype")


def _model_fields(document: Document) -> dict[str, Given]:
    return {name: document.fields[name] for name in MODEL_FIELDS if name in document.fields}


def _is_only_model(document: Document) -> bool:
    return "model_type" in document.fields and document.fields.keys() <= set(MODEL_FIELDS)


def import_(
    *files: str | Path, cluster: str = "", model: str = "", system: str = "", set: dict[str, str] | None = None
) -> Imported:
    """Imports another system's files, which together are one configuration, as a plan.

    Args:
        files: paths of the files.
        cluster: words of a `cluster` sentence, if the files do not name the machines.
        model: words of a `model` sentence, if the files do not name a model of the catalog.
        system: name of the files' system; "" recognises it from the files.
        set: values of fields that the files leave open, by the system's names.

    Returns the plan's text (`Imported.text`), its setup, and the fields that each sentence comes from.

    Raises:
        PlanError: the files cannot be read as a plan; it contains every diagnostic.
        KeyError: there is no such system.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "zero2.json")
    ...     count = file.write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}')
    ...     given = {"gradient_accumulation_steps": "4", "max_length": "4096", "bf16.enabled": "true"}
    ...     found = import_(file, cluster="2 x h100_node", model="llama3_8b", set=given)
    >>> found.setup.zero, found.setup.data_parallel, found.setup.sequences
    (2, 16, 128)
    """
    from planc.interop.words import read_cluster

    paths = [Path(file) for file in files]
    devices = 0
    if cluster:
        machines = read_cluster(cluster, paths[0].parent)
        if isinstance(machines, tuple):
            raise PlanError(machines)
        devices = machines.devices
    if system and system not in systems():
        raise KeyError(system)
    options = Options(cluster=cluster, devices=devices, model=model, given=set, folder=paths[0].parent)
    imported = import_files(paths, options, system)
    if imported.setup is None:
        raise PlanError(imported.diagnostics)
    return imported


def _documents(
    files: Sequence[Path], options: Options, system: str, unsaved: Mapping[Path, str]
) -> tuple[list[Document], list[Diagnostic], dict[str, Source]]:
    """Returns the documents of `files`, the diagnostics of unreadable files, and the texts of the readable ones."""
    documents: list[Document] = []
    findings: list[Diagnostic] = []
    scripts: list[Source] = []
    kinds: dict[str, str] = {}
    sources: dict[str, Source] = {}
    for file in files:
        try:
            if file.suffix == ".py":
                raise ValueError(PYTHON)
            text = unsaved[file] if file in unsaved else read_text(file, MAX_BYTES)
            format, source = _format(file, system), Source.of(str(file), text)
            sources[source.file] = source
            if format in ("flags", "assignments"):
                scripts.append(source)
                kinds |= {source.file: format} if system or format == "assignments" else {}
            else:
                documents.append(read_document(str(file), source.text, format))
        except UnreadableError as error:
            findings.append(Diagnostic("E1301", f"{printable(file.name)}: {error}", error.span))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            where = Span(str(file), 1, 1, 1, 1)
            findings.append(Diagnostic("E1301", f"{printable(file.name)} cannot be read: {reason}", where))
    if scripts:
        from planc.interop.formats.shell import read_scripts

        try:
            given = {**_of_slurm(options), **(options.given or {})}
            found: list[Document] = []
            if options.allow_code:
                from planc.interop.formats.started import started

                ran = started(scripts[0], scripts[1:], given, int(given.get("SLURM_GPUS_ON_NODE", "8")))
                found = [replace(d, taken=frozenset(given)) for d in read_scripts([ran.source], {}, kinds)]
                how = "read from what the script starts, as bash ran it" if any(d.fields for d in found) else ""
                said = f"{how or 'bash started no training: read as text'}{'; ' * bool(ran.ended)}{ran.ended}"
                findings.append(Diagnostic("N1316", said, Span(ran.source.file, 1, 1, 1, 1)))
                sources |= {ran.source.file: ran.source} if how else {}
            if not any(d.fields for d in found):
                found = read_scripts(scripts, given, kinds, unset=options.approximate)
            documents = [*found, *documents]
        except UnreadableError as error:
            name = printable(Path(error.span.file).name)
            findings.append(Diagnostic("E1301", f"{name}: {error}", error.span))
    order = [str(file) for file in files]
    return sorted(documents, key=lambda d: order.index(d.file)), findings, sources


def _of_slurm(options: Options) -> dict[str, str]:
    """Returns the environment variables in which Slurm tells a script the size of the cluster."""
    nodes = int(found[1]) if (found := re.match(r"(\d{1,6}) x ", options.cluster)) else 1
    if not options.devices or options.devices % nodes:
        return {}
    sizes = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes))
    sizes |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(options.devices // nodes))
    return sizes | dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"), "0")


def _format(file: Path, system: str) -> Format:
    """Returns the format of `file` by its extension; the first format of `system` if it does not use that."""
    formats: list[Format] = [found] if (found := format_of(file.name)) else []
    if system:
        formats = [f for f in formats if f in systems()[system].formats] or list(systems()[system].formats[:1])
    return formats[0] if formats else "flags"


def _recognised(documents: Sequence[Document]) -> System | None:
    for system in systems().values():
        if any(d.format in system.formats and system.recognises(d) for d in documents):
            return system
    return None


def _plan_name(file: Path) -> str:
    name = re.sub(r"\W+", "_", file.stem, flags=re.ASCII).strip("_")[:60]
    return name if name[:1].isalpha() else f"plan_{name}".rstrip("_")


def imported(system: System, documents: Sequence[Document], options: Options, name: str) -> Imported:
    """Returns the plan `name` of one configuration of `system`, from its `documents` and the command line's
    `options`."""
    sources = {document.file: document.source for document in documents}
    values = Values(system, documents, options)
    findings = [*_field_findings(system, values), *_left_findings(system, values)]
    settings, origins, graph = _settings(system, values)
    settings["name"] = name
    findings += values.found()
    if has_errors(findings):
        return Imported(in_order(findings), sources, system)
    findings += _unused(system, values)
    setup = TrainingSetup(**settings, graph=graph)
    chain = batch_chain(system, setup, origins)
    comments = _Comments(system, setup, origins, whole=options.sources)
    left_out = tuple(n for d in values.documents for n in d.fields if n in options.ignored)
    silent = comments.silent if options.sources else {}
    head = (*_left_out(left_out), *_inexact(values), *_head(system, documents, chain, silent))
    text = plan_text(setup, comments.by_sentence, head)
    lines = _line_origins(text, setup, origins)
    inexact = tuple(values.inexact)
    plan = Imported(in_order(findings), sources, system, setup, text, origins, lines, chain, inexact)
    return _opened(plan, (options.folder / f"{name}.plan").resolve())


def _settings(system: System, values: Values) -> tuple[dict[str, Any], dict[str, tuple[Origin, ...]], Model | None]:
    """Returns the settings that can be read, the fields that each comes from, and the model. Starts anew whenever a
    field had to be left out."""
    first = list(values.diagnostics)
    while True:
        settings: dict[str, Any] = {}
        origins: dict[str, tuple[Origin, ...]] = {}
        try:
            for setting, read in system.settings.items():
                with values.recorded() as found:
                    try:
                        settings[setting] = read(values)
                    except RefusedError:
                        continue
                    origins[setting] = tuple(found.values())
            if system.asserts is not None:
                system.asserts(values)
            return settings, origins, _graph(values)
        except LeftOutError:
            values.diagnostics = [*first, *(d for d in values.approximations if d not in first)]


def _opened(found: Imported, path: Path) -> Imported:
    """Returns `found` if its plan, at `path`, has no errors; otherwise an import with only the diagnostics."""
    from planc.language.build import build_file

    wrong = [d for d in build_file(path, unsaved={path: found.text}).diagnostics if d.severity == "error"]
    if not wrong:
        return found
    errors = [one for d in wrong for one in in_files(d, Path(path.name), found)]  # as the language calls it
    return Imported(in_order([*found.diagnostics, *errors]), found.sources, found.system)


def in_files(found: Diagnostic, path: Path, imported: Imported) -> Iterator[Diagnostic]:
    """Yields `found`, a diagnostic about the plan at `path`, but placed at the field that its sentence comes from. A
    fix, which would edit the plan's text, is dropped."""
    if found.span.file != str(path):
        yield found
        return
    origins = (imported.lines or {}).get(found.span.line, ())
    given = next((o.span for o in origins if o.span is not None), None)
    sentence = imported.text.split("\n")[found.span.line - 1].partition("#")[0]
    shown = f"in the plan: {' '.join(sentence.split())}"
    if given is None:
        shown += _defaults(origins, imported)
    whole = Span(next(iter(imported.sources)), 1, 1, 1, 1)
    help = f"{found.help}; {shown}" if found.help else shown
    yield replace(found, span=given or whole, label="", help=help, related=(), fix=None)


def _defaults(origins: tuple[Origin, ...], imported: Imported) -> str:
    assert imported.system is not None
    shown = ", ".join(f"{o.name} = {printable(str(o.value))[:40]}" for o in origins if not o.option)
    return f", a default of {imported.system.title} ({shown})" if shown else ""


def _graph(values: Values) -> Model | None:
    try:
        return values.model()
    except RefusedError:
        return None


def _field_findings(system: System, values: Values) -> Iterator[Diagnostic]:
    """Yields E1303 for unknown fields, E1304 for fields that no sentence expresses, N1308 for fields without effect."""
    noted: dict[str, list[str]] = {}
    comments: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}
    compared = 0
    for document in values.documents:
        for spelling, given in document.fields.items():
            known = system.known(spelling)
            if known is None and document.format == "json" and spelling.rpartition(".")[2][:1] == "_":
                comments.setdefault(document.file, []).append(spelling)
            elif known is None:
                if spelling in values.options.ignored:
                    continue
                compared += 1
                compare = compared <= MOST_GUESSES
                if compare and values.options.approximate and _is_of_a_fork(system, document, spelling):
                    unknown.setdefault(document.file, []).append(spelling)
                    values.inexact[spelling] = None
                else:
                    yield _unknown(system, spelling, given, compare)
            elif known.treatment == "noted":
                noted.setdefault(document.file, []).append(spelling)
                if document.format == "flags" and (wrong := _wrong_count(given.value, known.default)):
                    yield Diagnostic("E1305", f"`{spelling}` takes {wrong}", given.span, help=_without(spelling))
            elif spelling in values.options.ignored:
                continue
            elif known.treatment == "refused" and not _is_default(given.value, known.default):
                shown = printable(str(given.value))[:60]
                message = f"`{spelling}` = {shown}: {known.why}"
                if values.options.approximate and known.off:
                    yield Diagnostic("W1310", f"{message}; it is left out: {known.off}", given.span)
                    values.inexact[spelling] = None
                else:
                    yield Diagnostic("E1304", message, given.span, help=_without(spelling))
    for file, names in noted.items():
        message = f"fields that change neither layout, memory nor time as planc counts them: {', '.join(names)}"
        yield Diagnostic("N1308", printable(message), Span(file, 1, 1, 1, 1))
    for file, names in unknown.items():
        message = f"planc does not know these fields, and leaves out what they change: {', '.join(names)}"
        yield Diagnostic("W1314", printable(message), Span(file, 1, 1, 1, 1), help=_UNKNOWN)
    for file, names in comments.items():
        yield Diagnostic("N1311", f"comments, by their names: {printable(', '.join(names))}", Span(file, 1, 1, 1, 1))


def _unknown(system: System, spelling: str, given: Given, compare: bool) -> Diagnostic:
    near = nearest(spelling, [n for f in system.fields for n in (f.name, *f.aliases)], 1) if compare else []
    message = f"planc does not know {system.title}'s `{printable(spelling)[:80]}`"
    help = (
        f"did you mean `{near[0]}`?"
        if near
        else f"leave it out with --ignore {printable(spelling)[:80]} if it changes nothing"
    )
    return Diagnostic("E1303", message, given.span, help=help)


_UNKNOWN = "memory and time may be higher or lower with them; --ignore NAME for one that changes neither"


def _is_of_a_fork(system: System, document: Document, spelling: str) -> bool:
    """True if an unknown word of a command line is a flag of the user's own version of the program: one that resembles
    no flag that planc reads."""
    if document.format not in ("flags", "assignments"):
        return False
    names = [n for f in system.fields if f.treatment != "noted" for n in (f.name, *f.aliases)]
    return not get_close_matches(spelling, names, 1, 0.82 if len(spelling) > 8 else 0.7)


def _wrong_count(value: object, default: object) -> str:
    """Describes a wrong number of values of a flag; "" if it is right. A flag with the default False takes no value,
    with a tuple several, with any other default one."""
    if default is False and str(value).lower() not in ("true", "false"):
        return f"no value, and has {printable(str(value))[:60]}"
    several = isinstance(value, tuple) and not isinstance(default, tuple)
    return f"one value, and has {printable(' '.join(map(str, value)))[:60]}" if several else ""  # type: ignore[call-overload]


def _left_findings(system: System, values: Values) -> Iterator[Diagnostic]:
    """Yields diagnostics for the words of a script that set no field, so that no word is ignored silently."""
    for document in values.documents:
        if document.format in ("flags", "assignments") and not document.fields:
            yield Diagnostic("E1306", "no command of the script has settings", document.whole())
        unread = [left for left in document.left if left.kind == "unread"]
        launcher = [n for n in document.launcher or {} if n not in (*NODES, *RANKS)]
        shown = [f"line {left.span.line} `{printable(left.text)[:200]}`" for left in unread]
        shown += [f"of the launcher {', '.join(map(printable, launcher))}"] if launcher else []
        if shown:
            place = unread[0].span if unread else document.whole()
            yield Diagnostic("N1311", f"the plan is not read from: {', '.join(shown)}", place)
        if document.assumed:
            message = f"the script is read as if these were not set: {printable(', '.join(document.assumed))}"
            yield Diagnostic("W1315", message, document.whole(), help="give them with --set NAME=VALUE, --set 1=VALUE")
        for left in document.left:
            text = printable(left.text)[:80]
            if left.kind == "loose":
                yield Diagnostic("E1313", f"no command takes `{text}`", left.span, help=_LOOSE)
            elif left.kind == "open":
                message = f"only the shell knows which words `{text}` stands for"
                help = f"give it with --set {text.strip('${}').partition('[')[0]}=WORDS, or name the file that sets it"
                yield Diagnostic("E1305", message, left.span, help=help)
            elif left.kind == "unknown":
                yield Diagnostic("E1303", f"planc does not know torchrun's `{text}`", left.span)
            elif left.kind == "twice":
                yield Diagnostic("W1312", f"`{text}` is given again further on: the last one counts", left.span)
        for other in document.others:
            names = [n for n in other if (known := system.known(n)) and known.treatment != "noted"]
            if names:
                message = f"another command has settings too, which the plan is not read from: {', '.join(names)}"
                yield Diagnostic("W1312", message, other[names[0]].span)


COMMENT = 60
"""Characters of a short comment of a sentence."""
_LOOSE = "the line before does not go on: a blank behind its backslash, or a comment between"


def _unused(system: System, values: Values) -> Iterator[Diagnostic]:
    """Yields N1311 for known fields that no setting of this configuration reads."""
    for document in values.documents:
        names = [n for n, g in document.fields.items() if _is_unused(system.known(n), n, g, values)]
        if names:
            message = f"fields that no part of this configuration looks at: {', '.join(names)}"
            yield Diagnostic("N1311", message, document.fields[names[0]].span)


def _is_unused(known: Field | None, spelling: str, given: Given, values: Values) -> bool:
    if known is None or known.treatment != "read":
        return False
    return (known.name if "*" not in known.name else spelling) not in values.looked_at


def _without(spelling: str) -> str:
    return f"leave it out with --ignore {printable(spelling)} if the plan shall be without it"


def _is_default(value: object, default: object) -> bool:
    """True if `value` equals the default, in any spelling: `false`, `0` and None are equal."""
    if value == default or str(value).lower() == str(default).lower():
        return True
    none = (None, False, 0, "", "none", "null", "false", "0", ())
    return default in (None, False, 0, "", ()) and (value.lower() if isinstance(value, str) else value) in none


# Where each sentence is from.


class _Comments:
    """Writes the comments of the plan, one for each sentence: the fields that the sentence comes from.

    The value of a field that decides several settings is shown once, at the setting that depends on the fewest fields.
    `silent` has the defaults that no comment shows. Unless `whole`, a comment is short: the first fields that were
    given, or that all are defaults.
    """

    def __init__(
        self, system: System, setup: TrainingSetup, origins: Mapping[str, tuple[Origin, ...]], *, whole: bool
    ) -> None:
        self._system, self._origins, self._whole = system, origins, whole
        self._home: dict[str, str] = {}
        for setting, found in sorted(origins.items(), key=lambda item: len(item[1])):
            for origin in found:
                self._home.setdefault(origin.name, setting)
        self._shown: set[str] = set()
        self.by_sentence = tuple(self._sentence(sentence) for sentence in sentences(setup))
        self.silent = {
            o.name: o.value
            for found in origins.values()
            for o in found
            if o.name not in self._shown and o.span is None and not o.option
        }

    def _sentence(self, sentence: PlanSentence) -> str:
        found = {o.name: o for s in sentence.settings for o in self._origins.get(s, ())}
        own = [o for o in found.values() if self._home[o.name] in sentence.settings and o.name not in self._shown]
        self._shown |= {o.name for o in own}
        given = [_origin_text(o) for o in own if o.span is not None or o.option]
        defaults = [_origin_text(o) for o in own if o.span is None and not o.option]
        if not given and not defaults:  # its fields are shown elsewhere
            given = [o.name for o in found.values() if o.span is not None or o.option][:3]
            defaults = [] if given else [_origin_text(o) for o in found.values()][:3]
        if not self._whole:
            return _first_of(given) if given else f"default of {self._system.title}" if defaults else ""
        words = [", ".join(given)] if given else []
        words += [f"default of {self._system.title} {self._system.version}: {', '.join(defaults)}"] if defaults else []
        return "; ".join(words)


def _first_of(given: Sequence[str]) -> str:
    """Returns the texts in `given` that fit into a short comment, and how many do not."""
    ends = accumulate(len(text) + 2 for text in given)
    shown = max(1, sum(end <= COMMENT for end in ends))
    more = f", and {len(given) - shown} more" if shown < len(given) else ""
    return ", ".join(given[:shown]) + more


def _origin_text(origin: Origin) -> str:
    return f"{origin.name} of the command line" if origin.option else f"{origin.name} = {_shown(origin.value)}"


def _shown(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return printable(text)[:60]


def _left_out(names: Sequence[str]) -> tuple[str, ...]:
    return (f"left out by --ignore: {', '.join(map(printable, names))}",) if names else ()


def _inexact(values: Values) -> tuple[str, ...]:
    near = [*values.inexact]
    said = [f"{approximate(near)} said nearly, or left out: {printable(', '.join(near))}"] if near else []
    assumed = [name for document in values.documents for name in document.assumed]
    said += [f"approximate: read as if these were not set: {printable(', '.join(assumed))}"] if assumed else []
    return tuple(said)


def _head(system: System, documents: Sequence[Document], chain: str, silent: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the comments at the top of the plan: the files, the batch arithmetic, defaults without a sentence."""
    files = ", ".join(Path(d.file).name for d in documents)
    starts = [" ".join(d.program) for d in documents if d.program]
    started = f": {printable(', '.join(starts))[:200]}" if starts else ""
    lines = [f"{files}, read as {system.title} {system.version}{started}", chain]
    if silent:
        words = ", ".join(f"{name} = {_shown(value)}" for name, value in silent.items())
        lines.append(f"defaults of {system.title} {system.version} that need no sentence: {words}")
    return tuple(lines)


def batch_chain(system: System, setup: TrainingSetup, origins: Mapping[str, tuple[Origin, ...]]) -> str:
    """Returns the batch arithmetic of `setup` as text: the batch fields of `system`, the sequences per step, and the
    microbatches per data-parallel rank. `origins` has the fields that each setting was read from."""
    found = {o.name: o.value for s in ("sequences", "microbatch", "sequence_tokens") for o in origins.get(s, ())}
    words = {name: found[name] for name in system.batch_words if found.get(name) is not None}
    theirs = ", ".join(f"{name} = {_shown(value)}" for name, value in words.items())
    ranks = setup.data_parallel
    each = setup.sequences // (ranks * setup.microbatch)
    return (
        f"batch: {theirs} -> {setup.sequences} sequences a step = {ranks} data-parallel ranks x {each} microbatches"
        f" x {setup.microbatch} sequences"
    )


def _line_origins(
    text: str, setup: TrainingSetup, origins: Mapping[str, tuple[Origin, ...]]
) -> dict[int, tuple[Origin, ...]]:
    """Returns, by line number of the plan's text, the fields that the sentence on that line comes from."""
    numbers = (n for n, line in enumerate(text.split("\n"), 1) if line and not line.startswith(("#", "plan ")))
    return {
        number: tuple(o for setting in sentence.settings for o in origins.get(setting, ()))
        for number, sentence in zip(numbers, sentences(setup), strict=True)
    }
