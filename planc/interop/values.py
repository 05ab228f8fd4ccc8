"""Reads the values of a system's fields, as the files, the command line or the system's defaults give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import printable
from planc.diag.span import Span
from planc.interop.document import Document, FieldValue, Given
from planc.interop.fields import Field, FieldTable
from planc.interop.launcher import world_size
from planc.ir.model import Model

T = TypeVar("T")
AUTO = "auto"
"""The value of a field that another file, or the system itself, fills in."""
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off", "none", "null", "")


@dataclass(frozen=True)
class Origin:
    """A field that a setting was read from. `span` is its place in a file; None for a default, and for a value given on
    the command line."""

    name: str
    value: FieldValue
    span: Span | None = None
    option: bool = False
    """True if it was given on the command line."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line's answers to questions that the files leave open: the words after `cluster` and `model` in the
    plan, the number of devices of that cluster, and values of fields by the system's own names (`given`)."""

    cluster: str = ""
    devices: int = 0
    model: str = ""
    given: dict[str, str] | None = None
    folder: Path = Path()
    """Folder of the plan; paths of a model's config are relative to it."""
    ignored: tuple[str, ...] = ()
    """Unknown fields that the user chose to leave out."""
    allow_code: bool = False
    """True if a launch script may be run by bash, behind walls, to see what it starts."""
    approximate: bool = False
    """True if fields that no sentence expresses are left out with a warning, for a plan that is only costed."""
    sources: bool = False
    """True if the comments of the plan have every field that a sentence comes from, defaults too."""


def _variables(value: str) -> tuple[str, ...]:
    """Returns the shell variables in `value`, a variable or an arithmetic expression; () for any other text.

    >>> _variables("$((WORLD_SIZE * 4))"), _variables("${TP_SIZE}"), _variables("$1"), _variables("$(nproc)")
    (('WORLD_SIZE',), ('TP_SIZE',), ('1',), ())
    """
    inside = re.fullmatch(r"\$\(\((.*)\)\)|\$\{?(\w+)\}?", value)
    names = re.findall(r"[A-Za-z_]\w*", inside[1] or "") + [inside[2]] * bool(inside[2]) if inside else []
    return tuple(dict.fromkeys(names))


def _settings(names: Iterable[str]) -> str:
    return " ".join(f"--set {name}=VALUE" for name in names)


class RefusedError(Exception):
    """A setting cannot be read; its diagnostic is already recorded."""


class LeftOutError(Exception):
    """A field was left out, or got another value (`Options.approximate`): settings that were read before are void."""


class Values:
    """Reads the values of a system's fields one by one.

    Each field that is read is recorded as an origin of the current setting. A diagnostic is recorded, at the place of
    the value, for a wrong value and for a value that no sentence of a plan expresses.
    """

    def __init__(self, system: FieldTable, documents: Iterable[Document], options: Options) -> None:
        self.system, self.options = system, options
        self.documents = tuple(system.prepared(d) if system.prepared else d for d in documents)
        self.diagnostics: list[Diagnostic] = []
        self.approximations: list[Diagnostic] = []
        """Diagnostics that hold also if the settings are read anew."""
        self._of_shell: dict[str, tuple[Diagnostic, str, tuple[str, ...]]] = {}
        """Fields whose value only the shell knows: the diagnostic, the value as written, and what to give instead."""
        self.inexact: dict[str, None] = {}
        """Fields that the plan says only nearly, or not at all."""
        self._origins: dict[str, Origin] = {}
        self._model: Model | None = None
        self._given: dict[str, Given] = {}
        self._spelled: dict[str, str] = {}
        self._optional: set[str] = set()
        self.looked_at: set[str] = set()
        """Names of the fields that settings have read."""
        for document in self.documents:
            for spelling, given in document.fields.items():
                if spelling in options.ignored:
                    continue
                known = system.known(spelling)
                name = known.name if known and "*" not in known.name else spelling
                before = self._given.get(name)
                if before is not None and before.span.file != document.file and AUTO in (before.value, given.value):
                    if given.value == AUTO:  # the other file fills it in
                        continue
                elif before is not None and before.span.file != document.file and before.value != given.value:
                    message = f"`{spelling}` is {given.value} here and {before.value} in {before.span.file}"
                    self.diagnostics.append(Diagnostic("E1307", printable(message)[:200], given.span))
                self._given[name], self._spelled[name] = given, spelling
        whole = self.documents[0].whole()
        for spelling, text in (options.given or {}).items():
            known = system.known(spelling)
            if known is None and any(spelling in document.taken for document in self.documents):
                continue  # a variable or an argument of a script
            if known is None:
                message = f"planc does not know {system.title}'s `{printable(spelling)[:80]}`, which --set names"
                self.diagnostics.append(Diagnostic("E1303", message, whole))
                continue
            name = known.name if "*" not in known.name else spelling
            self._given[name] = Given(text, whole)
            self._optional.add(name)

    # Raw values and their origins.

    @contextmanager
    def recorded(self) -> Iterator[dict[str, Origin]]:
        """Returns a context that collects the fields read inside it, the origins of one setting."""
        before, self._origins = self._origins, {}
        try:
            yield self._origins
        finally:
            self._origins = before | self._origins

    def is_given(self, name: str) -> bool:
        """True if a file or the command line sets `name`. The field does not become an origin of the setting."""
        self.looked_at.add(self._own(name))
        return self._own(name) in self._given

    def _own(self, name: str) -> str:
        """Returns the system's name of another system's field `name`, whose settings it reuses; "" if it has none."""
        return self.system.calls.get(name, name).removeprefix("not ")

    def spelled(self, name: str) -> str:
        """Returns the spelling with which a file sets `name`."""
        return self._spelled.get(self._own(name), "")

    def has(self, name: str) -> bool:
        """True if the system has the field `name`, which may have another name there (`FieldTable.calls`)."""
        return bool(self._own(name))

    def raw(self, name: str) -> FieldValue:
        """Returns the value of the field `name` as written in the file, or its default, unconverted."""
        name = self._own(name)
        if not name:
            return None
        field = self._field(name)
        self.looked_at.add(field.name if "*" not in field.name else name)
        given = self._given.get(name)
        if given is not None and not given.certain:
            message = f"only the shell knows whether `{self._spelled.get(name, name)}` is given: it stands in a branch"
            raise self.report("E1305", message, name, help=f"give its value with --set {name}=VALUE")
        optional = name in self._optional
        value = field.default if given is None else given.value
        span = None if given is None or optional else given.span
        self._origins[name] = Origin(self._spelled.get(name, name), value, span, optional)
        return value

    def place(self, *names: str) -> Span:
        """Returns the place of the first of the fields `names` that a file sets; else the start of the first file."""
        spans = (self._given[own].span for own in map(self._own, names) if own in self._given)
        return next(spans, self.documents[0].whole())

    # Values by type.

    def whole(self, name: str, *, minimum: int = 1) -> int:
        """Returns the value of `name` as an integer of at least `minimum`."""
        return self._number(name, int, minimum, "a whole number")

    def maybe_whole(self, name: str, *, minimum: int = 0) -> int | None:
        """Returns the value of `name` as an integer of at least `minimum`; None if the field is unset or `none`."""
        return None if self._is_none(self.raw(name)) else self.whole(name, minimum=minimum)

    def number(self, name: str, *, minimum: float = 0.0) -> float:
        """Returns the value of `name` as a number of at least `minimum`."""
        return self._number(name, float, minimum, "a number")

    def maybe_number(self, name: str, *, minimum: float = 0.0) -> float | None:
        """Returns the value of `name` as a number of at least `minimum`; None if the field is unset or `none`."""
        return None if self._is_none(self.raw(name)) else self.number(name, minimum=minimum)

    def flag(self, name: str) -> bool:
        """Returns the value of `name` as a boolean; a flag without a value is true."""
        return self._flag(name) != self.system.calls.get(name, "").startswith("not ")

    def _flag(self, name: str) -> bool:
        value = self.raw(name)
        if isinstance(value, bool):
            return value
        if value is None:
            return False
        text = str(value).lower()
        if text in (*_TRUE, *_FALSE):
            return text in _TRUE
        raise self.wrong(name, "true or false")

    def text(self, name: str, *legal: str) -> str:
        """Returns the value of `name` as text; "" if unset. Raises RefusedError for a text that is not `legal`."""
        value = self.raw(name)
        text = "" if value is None else str(value)
        if legal and text not in legal:
            raise self.wrong(name, f"one of {', '.join(legal)}")
        return text

    def words(self, name: str) -> tuple[str, ...]:
        """Returns the value of `name` as words: the items of a list, or a text split at commas; () if it is unset."""
        value = self.raw(name)
        if self._is_none(value):
            return ()
        return tuple(str(v) for v in value) if isinstance(value, tuple) else tuple(str(value).split(","))

    def devices(self) -> int:
        """Returns the number of devices of the cluster that the command line names. If the launcher in the files starts
        fewer ranks on each of its nodes, these use a part of them. Raises RefusedError if no cluster is named, or if
        the launcher starts another number of ranks than this."""
        if not self.options.devices:
            raise self.missing("--cluster", "the machines")
        for document in self.documents:
            launcher = {n: g for n, g in (document.launcher or {}).items() if n not in self.options.ignored}
            if (started := world_size(launcher)) is None:
                continue
            nodes, ranks, names, span = started
            self.narrow(ranks, nodes)
            if "(" in self.options.cluster:
                self._origins[names] = Origin(names.replace("`", ""), str(ranks), span, False)
            if ranks != self.options.devices:
                message = f"{self.options.cluster} has {self.options.devices} devices; {names} start {ranks}"
                help = "where the environment sets it, leave it out: --ignore nnodes --ignore nproc_per_node"
                self.diagnostics.append(Diagnostic("E1307", message, span, help=help))
                raise RefusedError(message)
        self._origins["--cluster"] = Origin("--cluster", self.options.cluster, None, True)
        return self.options.devices

    def narrow(self, count: int, nodes: int = 1) -> None:
        """Reduces a cluster of `nodes` larger nodes to `count` devices, `1 x h100_node` to `1 x h100_node(2)`."""
        words = re.fullmatch(r"(?:(\d+) x )?([A-Za-z_]\w*)", self.options.cluster.strip())
        if words and int(words[1] or 1) == nodes and 0 < count < self.options.devices and count % nodes == 0:
            self.options = replace(self.options, cluster=f"{nodes} x {words[2]}({count // nodes})", devices=count)

    def model(self) -> Model:
        """Returns the model that the `model` setting describes. Other settings need the names of its ops."""
        from planc.interop.words import read_model

        if self._model is None:
            words = str(self.system.settings["model"](self))
            found = read_model(words, self.options.folder)
            if isinstance(found, tuple):
                self.diagnostics += [one for one in found if one not in self.diagnostics]
                raise RefusedError(words)
            self._model = found
        return self._model

    def needed(self, name: str) -> int:
        """Returns the value of `name` as an integer. Raises RefusedError (E1306) if nothing sets it."""
        if self._is_none(self.raw(name)):
            raise self.missing(f"--set {name}=N", f"`{name}`")
        return self.whole(name)

    # Findings.

    def wrong(self, name: str, legal: str) -> RefusedError:
        """Records E1305 (the value of `name` is not `legal`, such as `true or false`); returns the exception to
        raise."""
        value = printable(str(self.raw(name)))[:60]
        shell = "; the script leaves it to the shell" if "$" in value else ""
        own = _variables(value)
        or_own = f", or the script's own with {_settings(own)}" if own else ""
        help = f"give its value with --set {name}=VALUE{or_own}" if shell else ""
        message = f"`{name}` is {value}, which is not {legal}{shell}"
        error = self.report("E1305", message, name, help=help)
        if shell:
            found = next(d for d in self.diagnostics if d.message == message)
            self._of_shell[name] = (found, value, own or (name,))
        return error

    def found(self) -> list[Diagnostic]:
        """Returns the diagnostics; those of values that only the shell knows are one, which names every variable."""
        asked = {id(d): (name, value, own) for name, (d, value, own) in self._of_shell.items()}
        of_shell = [d for d in self.diagnostics if id(d) in asked]
        if len(of_shell) < 2:
            return self.diagnostics
        first, *rest = of_shell
        shown = ", ".join(f"`{name}` ({value})" for name, value, _ in asked.values())
        variables = dict.fromkeys(v for _, _, own in asked.values() for v in own)
        one = Diagnostic(
            "E1305",
            f"the script leaves {len(of_shell)} values to the shell: {shown}",
            first.span,
            help=f"give them all: {_settings(variables)}",
            related=tuple(Related(d.span, f"`{asked[id(d)][0]}`") for d in rest if d.span != first.span),
        )
        return [one if d is first else d for d in self.diagnostics if d is first or id(d) not in asked]

    def refused(self, why: str, *names: str, instead: str = "", off: str = "") -> RefusedError | LeftOutError:
        """Records E1304 (no sentence of a plan expresses the values of the fields `names`); returns the exception to
        raise. `why` is the reason; `instead` is an option with a value that a plan can express ("": none). With `off`,
        which says how memory and time are off then, an approximate import takes that value, or leaves the fields out.
        """
        spelled = [self._spelled.get(n, n) for n in map(self._own, names)]
        given = [name for name in spelled if name in self._given or self._own(name) in self._given]
        help = instead or f"--ignore {given[0]} leaves it out: its default counts then" if instead or given else ""
        other = dict(re.findall(r"--set (\w+)=(\w+)", instead))
        if self.options.approximate and off and (other or given):
            how = ", ".join(f"{name} = {value}" for name, value in other.items()) or "its default"
            self.approximate(f"{why}; the plan has {how}: {off}", *names)
            place = self.place(*names)
            for own in map(self._own, names):
                self._given.pop(own, None)
            self._given |= {self._own(name): Given(value, place) for name, value in other.items()}
            return LeftOutError(why)
        return self.report("E1304", f"{', '.join(f'`{n}`' for n in spelled)}: {why}", *names, help=help)

    def approximate(self, why: str, *names: str) -> None:
        """Records W1310 (a plan expresses the fields `names` only approximately); `why` is the difference."""
        shown = ", ".join(f"`{self._spelled.get(n, n)}`" for n in names)
        self.report("W1310", f"{shown}: {why}", *names)
        self.approximations = [d for d in self.diagnostics if d.code == "W1310"]
        self.inexact |= dict.fromkeys(self._spelled.get(n, n) for n in names)

    def apart(self, why: str, *names: str) -> RefusedError:
        """Records E1307 (the values of `names` contradict each other: `why`); returns the exception to raise."""
        return self.report("E1307", why, *names)

    def missing(self, option: str, what: str) -> RefusedError:
        """Records E1306 (the files do not say `what`; `option` gives it); returns the exception to raise."""
        message = f"{self.system.title}'s file does not say {what}"
        beside = dict.fromkeys(name for document in self.documents for name in document.unfound)
        more = f", or name {', '.join(map(printable, beside))} too, which the script reads" if beside else ""
        return self.report("E1306", message, help=f"give it with {option}{more}")

    def report(self, code: str, message: str, *names: str, help: str = "") -> RefusedError:
        """Records a diagnostic with `code` and `message` at the first of the fields `names` that is set, and returns
        the exception to raise."""
        found = Diagnostic(code, message, self.place(*names), help=help)
        if found not in self.diagnostics:
            self.diagnostics.append(found)
        return RefusedError(message)

    def _field(self, name: str) -> Field:
        field = self.system.known(name)
        assert field is not None, f"{self.system.name} has no field {name}"
        return field

    def _is_none(self, value: FieldValue) -> bool:
        return value is None or (isinstance(value, str) and value.lower() in ("none", "null", ""))

    def _number(self, name: str, kind: Callable[[str], T], minimum: float, what: str) -> T:
        value = self.raw(name)
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError
            number = kind(str(value).replace("_", "")) if kind is not int else _whole(value)
            if not minimum <= number <= 10**15:  # type: ignore[operator]
                raise ValueError
        except (ValueError, OverflowError):
            raise self.wrong(name, f"{what} of at least {minimum:g}") from None
        return number  # type: ignore[return-value]


def _whole(value: str | int | float) -> int:
    """Returns `value` as an integer, also if it is written as `1e3` or `8.0`. Raises ValueError for another value."""
    if isinstance(value, str) and len(value) > 40:
        raise ValueError
    number = float(value)
    if number != int(number):
        raise ValueError
    return int(number)
