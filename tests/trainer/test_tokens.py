"""Token files, text made tokens, and the order in which sequences are shown."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planc.diag import PlanError
from planc.trainer.data.sources import source_of
from planc.trainer.data.stream import Evaluated
from planc.trainer.data.tokens.files import DataError, Stream, TokenFile, token_files
from planc.trainer.data.tokens.permutation import Permutation
from planc.trainer.data.tokens.source import TokenSource
from planc.trainer.preset.load import Preset, load_preset
from planc.trainer.run.train import prepare, train

TINY = Path(__file__).resolve().parents[2] / "plans" / "presets" / "tiny.toml"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANC_CACHE", str(tmp_path / "cache"))


def preset(folder: Path, data: str, checkpoint: str = "") -> Preset:
    """The tiny preset (8 x 128 tokens, 256 of them known) with other data."""
    head = TINY.read_text().partition("[data]")[0].replace("../tiny.plan", "absent.plan")
    path = folder / "run.toml"
    path.write_text(f"{head}[data]\n{data}\n[checkpoint]\n{checkpoint}\n")
    return load_preset(path)


def numbers(count: int, most: int = 250) -> np.ndarray:
    return np.arange(count, dtype=np.uint16) % most


def source(stream: Stream, *, sequences: int = 4, seed: int = 0, **more: object) -> TokenSource:
    return TokenSource(stream, "sum", 249, sequences, 16, seed, **more)  # type: ignore[arg-type]


def plain(folder: Path, values: np.ndarray, name: str = "a.bin") -> Stream:
    (folder / name).write_bytes(values.tobytes())
    return Stream(token_files(folder / name, values.dtype.name))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_a_permutation_meets_every_index_once(count: int) -> None:
    order = Permutation(count, "key")(np.arange(count, dtype=np.uint64))
    assert sorted(order.tolist()) == list(range(count))


def test_permutations_differ_and_mix() -> None:
    indices = np.arange(1000, dtype=np.uint64)
    one, other = Permutation(1000, "a")(indices), Permutation(1000, "b")(indices)
    assert (one == other).mean() < 0.02
    assert (one == indices).mean() < 0.02
    assert abs(np.corrcoef(indices, one)[0, 1]) < 0.1


def test_the_order_does_not_change_between_versions() -> None:
    """Recorded once: another order would let old runs go on with text they have seen."""
    assert Permutation(1000, "0 epoch 0")(np.arange(6, dtype=np.uint64)).tolist() == RECORDED


RECORDED = [20, 516, 559, 645, 196, 311]


def test_the_three_formats_hold_the_same_tokens(tmp_path: Path) -> None:
    values = numbers(700)
    np.save(tmp_path / "a.npy", values.astype(np.int64))
    (tmp_path / "b.bin").write_bytes(values.astype("<u4").tobytes())
    (tmp_path / "c.bin").write_bytes(values.astype("<i4").tobytes())
    sizes = np.array([300, 400], "<i4")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 3)
    (tmp_path / "c.idx").write_bytes(head + sizes.tobytes() + b"\0" * 40)
    for name in ("a.npy", "b.bin", "c.bin"):
        stream = Stream(token_files(tmp_path / name, "uint32"))
        assert len(stream) == 700
        assert np.array_equal(stream.read(0, 700), values)
        assert stream.files[0].largest() == 249
    whole = Stream(token_files(tmp_path, "uint32"))
    assert len(whole) == 2100
    assert np.array_equal(whole.read(690, 720), np.concatenate([values[690:], values, values[:10]]))


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    (file,) = plain(tmp_path, numbers(5000)).files
    assert isinstance(file.values, np.memmap)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.bin", b"abc", "no whole number of uint16"),
        ("a.npy", b"not an array", "no numpy array"),
        ("a.npy", b"\x93NUMPY\x01\x00\x76\x00{'descr': (" + b" " * 109, "no numpy array"),
        ("a.bin", b"", "holds no tokens"),
        ("a.txt", b"ab", "neither .npy nor .bin"),
    ],
)
def test_files_that_hold_no_tokens(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=said):
        token_files(tmp_path / name, "uint16")


def test_an_index_of_other_data(tmp_path: Path) -> None:
    plain(tmp_path, numbers(100))
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 1)
    (tmp_path / "a.idx").write_bytes(head + np.array([99], "<i4").tobytes())
    with pytest.raises(DataError, match="holds 100 tokens, and its index speaks of 99"):
        token_files(tmp_path / "a.bin", "uint16")
    (tmp_path / "a.idx").write_bytes(b"something else entirely, and long enough for a header")
    with pytest.raises(DataError, match="no index of Megatron"):
        token_files(tmp_path / "a.bin", "uint16")


def test_an_epoch_shows_every_sequence_once_and_the_held_out_ones_never(tmp_path: Path) -> None:
    data = source(plain(tmp_path, numbers(16 * 40 + 1, 65000)), held_share=0.1)
    assert (data.count, data.held_count) == (40, 4)
    epoch = [int(row[0]) // 16 for step in range(1, 10) for row in data.batch(step)[0]]
    assert sorted(epoch) == list(range(36))
    second = [int(row[0]) // 16 for step in range(10, 19) for row in data.batch(step)[0]]
    assert sorted(second) == list(range(36))
    assert second != epoch
    assert {int(row[0]) // 16 for row in data.held_out(0)[0]} == {36, 37, 38, 39}
    tokens, targets = data.batch(1)
    assert tokens.dtype == np.int32
    assert np.array_equal(tokens + 1, targets)


def test_every_data_parallel_degree_sees_the_same_order(tmp_path: Path) -> None:
    """Ranks cut one global batch; other batch sizes pass through the same order too."""
    stream = plain(tmp_path, numbers(16 * 40 + 1))
    rows = [row for step in (1, 2) for row in source(stream, sequences=6).batch(step)[0]]
    other = [row for step in (1, 2, 3) for row in source(stream, sequences=4).batch(step)[0]]
    assert np.array_equal(rows, other)


def test_a_run_whose_batch_grows_goes_on_where_it_was(tmp_path: Path) -> None:
    stream = plain(tmp_path, numbers(16 * 40 + 1))
    whole = [row for step in (1, 2, 3) for row in source(stream).batch(step)[0]]
    goes_on = source(stream, sequences=8).going_on(1, 4)
    assert np.array_equal(goes_on.batch(2)[0], whole[4:])


def test_the_order_may_be_that_of_the_file(tmp_path: Path) -> None:
    data = source(plain(tmp_path, numbers(16 * 40 + 1, 65000)), shuffle=False, held_share=0.1)
    assert [int(row[0]) for row in data.batch(2)[0]] == [64, 80, 96, 112]


def test_text_becomes_bytes_with_ends_of_documents(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("änd\r\n" * 300, newline="")
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"text": f"document {i}"}) for i in range(200)))
    (folder / ".hidden").write_text("never")
    data = source_of(preset(tmp_path, 'source = "text"\npath = "text"'))
    assert isinstance(data, TokenSource)
    text = bytes(data.stream.read(0, len(data.stream)).astype(np.uint8))
    assert sorted(text.split(b"\0")[:-1]) == sorted(
        [b"\xc3\xa4nd\r\n" * 300, *(f"document {i}".encode() for i in range(200))]
    )
    assert data.refusal(256) == ""


def test_a_real_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = [f"w{i}" for i in range(100)]
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate([*words, "<unk>", "</s>"])}, unk_token="<unk>")
    fast = tokenizers.Tokenizer(model)
    fast.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("\n".join(words * 30))
    data = source_of(preset(tmp_path, 'source = "text"\npath = "a.txt"\ntokenizer = "tokenizer.json"'))
    assert isinstance(data, TokenSource)
    assert data.stream.read(0, 101).tolist() == [*range(100), 0]
    assert data.stream.read(len(data.stream) - 2, 2).tolist() == [99, 101]
    assert data.largest == 101
    (tmp_path / "tokenizer.json").write_text("{}")
    broken = preset(tmp_path, 'source = "text"\npath = "a.txt"\ntokenizer = "tokenizer.json"')
    with pytest.raises(PlanError, match="no tokenizer"):
        source_of(broken)


def test_text_is_made_tokens_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc " * 2000)
    one = source_of(preset(tmp_path, 'source = "text"\npath = "a.txt"'))
    cached = next((tmp_path / "cache" / "tokens").iterdir())
    before = cached.stat().st_mtime_ns
    assert source_of(preset(tmp_path, 'source = "text"\npath = "a.txt"')).sha256 == one.sha256
    assert cached.stat().st_mtime_ns == before
    (tmp_path / "a.txt").write_text("abd " * 2000)
    assert source_of(preset(tmp_path, 'source = "text"\npath = "a.txt"')).sha256 != one.sha256


@pytest.mark.parametrize("more", ["held_out = 0.2", "shuffle = false"])
def test_the_fingerprint_tells_how_the_data_are_cut(tmp_path: Path, more: str) -> None:
    np.save(tmp_path / "a.npy", numbers(9000))
    text = 'source = "tokens"\npath = "a.npy"\n'
    assert source_of(preset(tmp_path, text)).sha256 != source_of(preset(tmp_path, text + more)).sha256


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        ('source = "tokens"\npath = "absent"', "E1032", "absent is not there"),
        ('source = "text"\npath = "empty"', "E1032", "holds no text"),
        ('source = "tokens"\npath = "empty"', "E1032", "no .npy and no .bin"),
        ('source = "text"\npath = "latin.txt"', "E1032", "not UTF-8 text"),
        ('source = "text"\npath = "broken.jsonl"', "E1032", "line 2 of broken.jsonl"),
        ('source = "text"\npath = "text.txt"\ntokenizer = "no.json"', "E1032", "no.json is not there"),
        ('source = "tokens"\npath = "large.npy"', "E1013", "token 300, the vocabulary has 256"),
        ('source = "tokens"\npath = "short.npy"', "E1013", "it has 200 tokens"),
        ('source = "tokens"', "E1003", "needs a path"),
        ('source = "tokens"\npath = "short.npy"\ntokenizer = "bytes"', "E1003", "`tokenizer` says nothing"),
        ('source = "tokens"\npath = "large.npy"\nheld_out = 0', "E1003", "nothing to evaluate"),
    ],
)
def test_data_that_a_run_cannot_use(tmp_path: Path, data: str, code: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes("ä".encode("latin-1") * 9)
    (tmp_path / "text.txt").write_text("abc")
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    np.save(tmp_path / "large.npy", numbers(9000, 301))
    np.save(tmp_path / "short.npy", numbers(200))

    def start() -> None:
        prepare(preset(tmp_path, data).path, "cuda")

    with pytest.raises(PlanError) as error:
        start()
    (found,) = error.value.diagnostics
    assert found.code == code
    assert said in found.message
    assert (tmp_path / "run.toml").read_text().splitlines()[found.span.line - 1] in ("[data]", *data.split("\n")) or (
        found.span.line == 1
    )


EVALUATED = 'source = "tokens"\npath = "a.npy"\nheld_out = 0\n[evaluation]\nsource = "tokens"\npath = "b.npy"\n'
"""Sequences of b.npy are evaluated, and all of a.npy is trained on."""


def test_held_out_losses_may_be_of_other_data(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(9000))
    np.save(tmp_path / "b.npy", (numbers(9000) + 7) % 256)
    np.save(tmp_path / "c.npy", numbers(9000))
    trained = EVALUATED.partition("held_out")[0] + "shuffle = true\n"
    both, alone = (source_of(preset(tmp_path, text)) for text in (EVALUATED, trained))
    length = both.batch(1)[0].shape[1]
    assert isinstance(both, Evaluated) and isinstance(both.source, TokenSource) and isinstance(alone, TokenSource)
    assert (both.source.train_count, alone.train_count) == (70, 69)
    rows = np.concatenate([both.held_out(index)[0] for index in range(3)])
    assert np.array_equal(rows.ravel(), (numbers(9000)[: rows.size] + 7) % 256) and rows.shape[1] == length
    other = source_of(preset(tmp_path, EVALUATED.replace("b.npy", "c.npy")))
    assert other.sha256 == both.sha256 != alone.sha256, "a run may go on with other data for evaluation"
    assert both.going_on(4, 100).held_out(0)[0].tolist() == both.held_out(0)[0].tolist()


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (EVALUATED, "E1032", "b.npy is not there"),
        (EVALUATED.replace("b.npy", "large.npy"), "E1013", "for evaluation it holds token 300"),
        (EVALUATED.replace("b.npy", "tiny.npy"), "E1013", "for evaluation it has 20 tokens"),
        (EVALUATED + "held_out = 0.5", "E1003", "held out whole"),
        (EVALUATED + "shuffle = false", "E1003", "held out whole"),
    ],
)
def test_data_that_cannot_be_evaluated(tmp_path: Path, data: str, code: str, said: str) -> None:
    np.save(tmp_path / "a.npy", numbers(9000))
    np.save(tmp_path / "large.npy", numbers(9000, 301))
    np.save(tmp_path / "tiny.npy", numbers(20))
    with pytest.raises(PlanError) as error:
        prepare(preset(tmp_path, data).path, "cuda")
    assert [(d.code, said in d.message) for d in error.value.diagnostics] == [(code, True)]


def test_a_token_file_that_changed_is_other_data(tmp_path: Path) -> None:
    values = numbers(9000)
    np.save(tmp_path / "a.npy", values)
    before = source_of(preset(tmp_path, 'source = "tokens"\npath = "a.npy"')).sha256
    values[5000] += 1
    np.save(tmp_path / "a.npy", values)
    assert source_of(preset(tmp_path, 'source = "tokens"\npath = "a.npy"')).sha256 != before


def test_a_token_below_zero_is_found(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([3, -1, 4], np.int32))
    (file,) = token_files(tmp_path / "a.npy", "")
    assert isinstance(file, TokenFile)
    with pytest.raises(DataError, match="below 0"):
        file.largest()


@pytest.mark.long
@pytest.mark.launch
def test_both_stacks_are_shown_the_same_tokens(tmp_path: Path) -> None:
    """A token file in its shuffled order: the first losses agree, as they would not on other tokens."""
    drawn = np.random.default_rng(0).integers(0, 256, 128 * 300, dtype=np.uint16)
    np.save(tmp_path / "a.npy", np.minimum(drawn, drawn[::-1]))
    preset(tmp_path, 'source = "tokens"\npath = "a.npy"')
    cuda, xla = (train(tmp_path / "run.toml", t, steps=2, single=True, timeout_s=300) for t in ("cuda", "xla"))
    assert cuda.data_sha256 == xla.data_sha256
    assert cuda.losses == pytest.approx(xla.losses, rel=1e-5)
    assert cuda.measured.heldout_losses == pytest.approx(xla.measured.heldout_losses, rel=1e-5)


PIECE: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
LONGER = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 40}
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "merges of no token": ({"model": {**PIECE, "merges": ["a b"]}}, "is no tokenizer"),
    "forty times as long, twice": (
        {"model": PIECE, "normalizer": {"type": "Sequence", "normalizers": [LONGER, LONGER]}}, "times as long",
    ),
    "an unknown token that is none": (
        {"model": {**PIECE, "type": "WordPiece", "unk_token": "z", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 9}}, "does not take the text apart",
    ),
    "a pattern without an end": (
        {"model": PIECE, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|a|aa)+$"}, "behavior": "Isolated",
                                           "invert": False}}, "does not take the text apart",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_strangers_tokenizer_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    """Panics of the package's Rust are no Exceptions; a short file may ask for gigabytes of text."""
    pytest.importorskip("tokenizers")
    fields, said = ODD[name]
    (tmp_path / "t.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], **fields}))
    (tmp_path / "a.txt").write_text(("a" * 40 + "b\n") * 100)
    odd = preset(tmp_path, 'source = "text"\npath = "a.txt"\ntokenizer = "t.json"\nend_of_document = 0')
    with pytest.raises(PlanError, match=said) as raised:
        source_of(odd)
    assert [d.code for d in raised.value.diagnostics] == ["E1032"]
