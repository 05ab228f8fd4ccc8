"""The plan under construction: the results of the sentences read so far, and the mistakes in them."""

from __future__ import annotations

import errno
import itertools
import os.path
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, Edit, Fix, Related
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.files import TooLargeError, read_bounded
from planc.ir.base import Cause
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh
from planc.ir.model import Model
from planc.ir.plan import (
    Batch,
    ChunkedLoss,
    Compile,
    Expect,
    ExpectNo,
    Freeze,
    Gather,
    Kernel,
    Lora,
    Offload,
    Optimizer,
    Overlap,
    Override,
    Plan,
    Precision,
    Price,
    Quantize,
    RealisedAs,
    Recompute,
    Replicate,
    Route,
    Shard,
    Split,
    Store,
    Train,
)
from planc.ir.serving import KvCache, Requests, Sleep, Sync, Weights
from planc.ir.target import AnyTarget
from planc.language.units import UNITS, kind_of
from planc.syntax.suggest import MOST_GUESSES, nearest, spelling_fix
from planc.syntax.tree import Node, Sentence, Word

MAX_NUMBER = 10**12
"""Upper limit of a size."""
MAX_VALUE = 1e21
"""Upper limit of a quantity, in its own unit."""
WHAT_IT_MEASURES = {"tokens": "a number of tokens", "money": "an amount of money"}
"""Quantities whose description is not `a` and their name."""
MOST_LEGAL = 1_000
"""Number of legal names that a lookup records."""


def file_content(path: Path, most_bytes: int, texts: Mapping[Path, str], *, alone: bool) -> bytes:
    """Return the bytes of one file.

    Args:
        path: the file's path.
        most_bytes: a larger file is refused.
        texts: texts that replace the files on disk, by resolved path.
        alone: True if only the files in `texts` exist.

    Raises:
        OSError: the file cannot be read; TooLargeError if it is larger, FileNotFoundError if it is missing.
    """
    text = texts.get(Path(os.path.realpath(path))) if texts else None
    if text is None and alone:
        raise FileNotFoundError(errno.ENOENT, "nothing beside the preset is read")
    data = read_bounded(path, most_bytes) if text is None else text.encode("utf-8", "surrogatepass")
    if len(data) > most_bytes:
        raise TooLargeError(errno.EFBIG, f"it is larger than {most_bytes // 1000:,} kB")
    return data


@dataclass(frozen=True)
class NameLookup:
    """A name in the text that was looked up (`word`), the legal names (at most 1,000), and what they name (`what`, such
    as `an axis of the mesh`)."""

    word: Word
    legal: tuple[str, ...]
    what: str


@dataclass
class Draft:
    """The plan under construction: the results of the sentences read so far, and the diagnostics about them."""

    root: Path = field(default_factory=Path)
    """The folder of the plan; nothing outside it is read."""
    given: dict[str, int] = field(default_factory=dict)
    """Values of `--set`."""
    unsaved: Mapping[Path, str] = field(default_factory=dict)
    """Texts that replace the files on disk, by resolved path."""
    alone: bool = False
    """True if only the files in `unsaved` exist: nothing is read from disk."""
    diagnostics: list[Diagnostic] = field(default_factory=list)
    read: dict[str, tuple[Source, bytes]] = field(default_factory=dict)
    """Files read in addition to the plan and its imports, by path from the plan's folder."""
    files: list[str] = field(default_factory=list)
    """Files that sentences name (`import`, `model from`, `csv`), by path from the plan's folder."""
    params: dict[str, int] = field(default_factory=dict)
    model: Model | None = None
    batch: Batch | None = None
    cluster: Cluster | None = None
    mesh: Mesh | None = None
    refused: set[str] = field(default_factory=set)
    """Axes of a refused view: sentences that name them are not reported."""
    hardware: list[Sentence] = field(default_factory=list)
    """Hardware declarations in imported files and in the plan itself."""
    machine: Sequence[Sentence] = ()
    """The declarations of the cluster's machine, also those of a bundled file."""
    numbers: dict[Span, int] = field(default_factory=dict)
    """Values of the words that name a `let`, by their location."""
    shards: list[Shard] = field(default_factory=list)
    replicates: list[Replicate] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    gather: Gather | None = None
    split: Split | None = None
    optimizer: Optimizer = Optimizer()
    freeze: Freeze | None = None
    lora: Lora | None = None
    precision: Precision | None = None
    recompute: Recompute = Recompute()
    route: Route = Route()
    attention: Kernel | None = None
    quantize: list[Quantize] = field(default_factory=list)
    offloads: list[Offload] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    compiles: list[Compile] = field(default_factory=list)
    chunked_loss: ChunkedLoss | None = None
    realise: RealisedAs | None = None
    overrides: list[Override] = field(default_factory=list)
    target: AnyTarget | None = None
    train: Train | None = None
    price: Price | None = None
    trainer: Plan | None = None
    """The training plan whose weights are served, if the file is a serve plan."""
    weights: Weights | None = None
    kv_cache: KvCache | None = None
    requests: Requests | None = None
    sync: Sync = Sync()
    sleeps: list[Sleep] = field(default_factory=list)
    expects: list[Expect] = field(default_factory=list)
    expects_no: list[ExpectNo] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    """Words of sentences that could not be parsed: they may declare a name, so an unknown one among them is not
    reported."""
    losses: int = 0
    """Number of mistakes for which a sentence was dropped instead of read as fixed."""
    lookups: list[NameLookup] = field(default_factory=list)
    """Every name that was looked up, for editors: what is at a location, and the alternatives."""
    guesses: int = 0
    """Number of unknown names that were compared with the legal ones."""
    written: int = 0
    """Number of sentences written by layouts, each counted once per axis in it."""

    def report(
        self,
        code: str,
        span: Span,
        message: str,
        *,
        label: str = "",
        help: str = "",
        related: tuple[Related, ...] = (),
        fix: Fix | None = None,
    ) -> None:
        """Add a diagnostic at `span`; the other arguments are those of `Diagnostic`. An error also increments
        `losses`."""
        self.losses += code[0] == "E"
        self.diagnostics.append(Diagnostic(code, message, span, label, help, related, fix))

    def unknown(self, word: Word, legal: Iterable[str], what: str, more: str = "") -> str | None:
        """Report E0108, "`word` is not `what`", where `what` is a text such as "an axis of the mesh"; `more` is further
        help, shown if no name is near.

        Returns the name in `legal` with the nearest spelling, to continue with; None if no name is near. If a sentence
        that could not be parsed contains the word, it may declare it: then nothing is reported, and None returned.
        """
        legal = legal if isinstance(legal, tuple) else tuple(legal)
        self._looked_up(word, legal, what)
        if word.text in self.unread:
            self.losses += 1
            return None
        self.guesses += 1
        near = nearest(word.text, legal, 1) if self.guesses <= MOST_GUESSES else []
        shown = ", ".join(legal[:14]) + (", ..." if len(legal) > 14 else "")
        said = f"legal: {shown}" if legal else ""
        self.report(
            "E0108",
            word.span,
            f"`{word.text}` is not {what}",
            help=f"did you mean `{near[0]}`? {said}" if near else said + more,
            fix=spelling_fix(word.span, word.text, legal) if near else None,
        )
        return near[0] if near else None

    def _looked_up(self, word: Word, legal: Collection[str], what: str) -> None:
        names = legal if isinstance(legal, tuple) else tuple(itertools.islice(legal, MOST_LEGAL))
        self.lookups.append(NameLookup(word, names[:MOST_LEGAL], what))

    def one_of(self, word: Word, legal: Collection[str], what: str, more: str = "") -> str | None:
        """Return the text of `word` if it is in `legal`. Otherwise report E0108, "`word` is not `what`", and return the
        legal name with the nearest spelling, or None. `more` is further help."""
        if word.text in legal:
            self._looked_up(word, legal, what)
            return word.text
        guess = self.unknown(word, legal, what, more)
        self.losses -= guess is not None
        return guess

    def axes(self, words: list[Word]) -> tuple[str, ...] | None:
        """Return the mesh axes that `words` name; None (reported) if an axis is unknown or named twice."""
        if self.mesh is None or any(w.text in self.refused for w in words):
            return None
        names = [self.one_of(w, self.mesh.every, "an axis of the mesh", self._wider_mesh(w)) for w in words]
        if None in names:
            return None
        for first, second in itertools.pairwise(words):
            if first.text in [w.text for w in words[words.index(second) :]]:
                self.report("E0108", second.span, f"axis `{first.text}` is named twice")
                return None
        return tuple(n for n in names if n is not None)

    def _wider_mesh(self, word: Word) -> str:
        """Return the help for `word`, which is no axis: the mesh with one more, before the innermost."""
        assert self.mesh is not None
        if word.text in self.mesh.every or not self.mesh.sizes:
            return ""
        *outer, inner = [f"{name} {size}" for name, size in self.mesh.sizes.items()]
        return f"; the mesh with it: `mesh {' > '.join([*outer, f'{word.text} N', inner])}`"

    def regions(self, sentence: Sentence) -> list[str] | None:
        """Return the regions (parts of the model with a layout of their own, such as the experts) that `sentence` names
        after `in` or `for`. [""] stands for the whole model; None (reported) for an unknown region."""
        scope = sentence.node.node("in", "for")
        if scope is None:
            return [""]
        if self.model is None:
            return None
        words = scope.nodes("names")[0].words()
        found = [self.one_of(w, self.model.regions, f"a region of {self.model.name}") for w in words]
        return None if None in found else [r for r in found if r is not None]

    def cause(self, sentence: Sentence) -> Cause:
        """Return the location and text of `sentence`; for a sentence from a layout also the `use` sentence that
        includes it."""
        via = sentence.via
        return Cause(span=via.span if via else sentence.span, sentence=sentence.text, via=via.text if via else "")

    def inside(self, name: str, span: Span) -> Path | None:
        """Return the path of the file `name`. If it is outside the plan's folder, report E0111 at `span` and return
        None."""
        root = self.root.resolve()
        try:
            path = (root / name).resolve()
        except (OSError, ValueError, RuntimeError):  # a link that leads to itself is a RuntimeError before Python 3.13
            path = Path("/")
        if path.is_relative_to(root) and not Path(name).is_absolute():
            self.files.append(os.path.normpath(name))
            return path
        outside = f"{name} is outside the folder of the plan"
        self.report("E0111", span, outside, help="keep what a plan reads beside it")
        return None

    def content(self, path: Path, most_bytes: int) -> bytes:
        """Return the bytes of the file at `path`. Raises TooLargeError above `most_bytes`, and OSError if it cannot be
        read."""
        return file_content(path, most_bytes, self.unsaved, alone=self.alone)

    # Numbers.

    def free(self, part: Node | Word | None, what: str) -> bool:
        """True if `part` is `?`, a value that `planc search` has to find. Then E0115 is reported: "`what` is left
        open"."""
        if not isinstance(part, Word) or part.kind != "FREE":
            return False
        self.report("E0115", part.span, f"{what} is left open", help="`planc search FILE` finds a value; or write one")
        return True

    def integer(self, part: Node | Word, *, minimum: int = 1) -> int | None:
        """Return the value of `part`: a number, the name of a `let`, or arithmetic on these, without a unit.

        Returns None (reported) unless the value is an integer from `minimum` to MAX_NUMBER.
        """
        value = self._value(part)
        if value is None:
            return None
        if value != int(value) or value < minimum or value > MAX_NUMBER:
            problem = "is not a whole number" if value != int(value) else f"is below {minimum}"
            problem = problem if value <= MAX_NUMBER else "is too large"
            plain = isinstance(part, Word) and part.kind in ("INT", "FLOAT")
            shown = self._value_text(part) if plain else f"{self._value_text(part)} = {value:g}"
            self.report(
                "E0103", part.span, f"{shown} {problem}", help=f"a whole number from {minimum} to {MAX_NUMBER:.0e}"
            )
            return None
        return int(value)

    def quantity(self, node: Node | Word, kind: str) -> float | None:
        """Return the value of `node`, a number with a unit, in SI units or bytes. `kind` is the quantity, a key of
        `UNITS`.

        Returns None (reported) if the number has no unit, or the unit of another quantity.
        """
        parts = node.parts if isinstance(node, Node) and node.kind == "quantity" else (node,)
        value = self._value(parts[0])
        unit = parts[1] if len(parts) > 1 else None
        text = unit.text if isinstance(unit, Word) else ""
        if value is None:
            return None
        if text not in UNITS[kind]:
            self._wrong_unit(node, unit if isinstance(unit, Word) else None, kind)
            return None
        return float(value * UNITS[kind][text])

    def _wrong_unit(self, node: Node | Word, unit: Word | None, kind: str) -> None:
        legal = list(UNITS[kind])
        span = unit.span if unit else node.span
        what, named = WHAT_IT_MEASURES.get(kind, f"a {kind}"), [u or "no unit" for u in legal]
        if unit:
            self.lookups.append(NameLookup(unit, tuple(legal), f"a unit of {kind}"))
        given = f"`{unit.text}` measures {kind_of(unit.text) or 'nothing known'}" if unit else "no unit is given"
        near = nearest(unit.text, legal, 1) if unit else []
        choice = near[0] if near else next((u for u in ("GiB", "GB/s", "TFLOP/s") if u in legal), legal[0])
        edit = Edit(span, choice) if unit else Edit(_end_of(span), f" {choice}")
        self.report(
            "E0103",
            span,
            f"{what} is wanted here, but {given}",
            label=f"wants {' or '.join(named[:6])}",
            help=f"units of {kind}: {', '.join(named)}",
            fix=Fix(f"write `{choice}`", (edit,)),
        )

    def _value(self, part: Node | Word) -> float | None:
        if isinstance(part, Word):
            return self._number_of_word(part)
        if part.kind == "quantity":
            if len(part.parts) > 1:
                self.report("E0103", part.parts[1].span, "a plain number is wanted here, without a unit")
                return None
            return self._value(part.parts[0])
        left, right = (self._value(p) for p in part.parts)
        if left is None or right is None:
            return None
        if part.kind == "divide" and right == 0:
            self.report("E0103", part.span, "division by 0")
            return None
        value = _computed(part.kind, left, right)
        if abs(value) > MAX_VALUE:
            self.report("E0103", part.span, "the result is too large")
            return None
        return value

    def _number_of_word(self, word: Word) -> float | None:
        if word.kind in ("INT", "FLOAT"):
            if len(word.text) > 20:
                self.report("E0103", word.span, f"a number of {len(word.text)} digits is too large")
                return None
            if float(word.text) > MAX_VALUE:
                self.report("E0103", word.span, f"{word.text} is too large")
                return None
            return int(word.text) if word.kind == "INT" else float(word.text)
        name = self.one_of(word, self.params, "a number that `let` names")
        if name is None:
            return None
        self.numbers[word.span] = self.params[name]
        return self.params[name]

    def _value_text(self, part: Node | Word) -> str:
        words = [part] if isinstance(part, Word) else list(part.all_words())
        return "the value" if len(words) != 1 else f"`{words[0].text}`"


def _computed(kind: str, left: float, right: float) -> float:
    if kind == "divide":
        return left / right
    if kind == "add":
        return left + right
    return left - right if kind == "subtract" else left * right


def _end_of(span: Span) -> Span:
    return Span(span.file, span.end_line, span.end_column, span.end_line, span.end_column)
