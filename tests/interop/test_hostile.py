"""Hostile files of every format: each gets a code at a place, in bounded time, and makes nothing."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planc.interop.importing import import_files
from planc.interop.systems import systems
from planc.interop.values import Options

OPTIONS = Options(cluster="1 x h100_node", devices=8, model="llama3_8b")
ENDINGS = (".sh", ".yaml", ".json", ".toml")
LIMIT_S = 5.0
Maker = Callable[[Path], object]


def _text(text: str) -> Maker:
    return lambda path: path.write_text(text)


def _bytes(content: bytes) -> Maker:
    return lambda path: path.write_bytes(content)


def _made(of: Callable[..., str], *words: Any) -> Maker:
    """A file with a text that is made when it is wanted."""
    return lambda path: path.write_text(of(*words))


def _wide(ending: str, size: int) -> str:
    """A file of many fields, of about `size` bytes."""
    lines = {".sh": "  --f{0} 1 \\\n", ".yaml": "f{0}: 1\n", ".json": '"f{0}": 1,\n', ".toml": "f{0} = 1\n"}[ending]
    count = size // len(lines.format(100_000))
    inside = "".join(lines.format(i) for i in range(count))
    return {".sh": "torchrun pretrain_gpt.py \\\n" + inside + "  --end 1\n", ".json": "{" + inside + '"end": 1}'}.get(
        ending, inside
    )


def _deep(ending: str) -> str:
    return {
        ".sh": "A=" + "$((" * 20_000 + "1" + "))" * 20_000 + "\nrun --a $A\n",
        ".yaml": "a: " + "[" * 20_000,
        ".json": '{"a":' * 20_000 + "1" + "}" * 20_000,
        ".toml": "a = " + "[" * 20_000,
    }[ending]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
ONE_WORD = {".sh": "run --a ", ".yaml": "a: ", ".json": '{"a": "', ".toml": 'a = "'}
CLOSED = {".sh": "\n", ".yaml": "\n", ".json": '"}', ".toml": '"\n'}
AS_IT_IS_READ = ("aliases", "commands", "endless", "fifo", "folder", "itself", "not_utf8", "self", "too_large", "twice")
"""Beginnings of names of what no system's reader sees."""
CASES: dict[str, Maker] = {
    **{f"wide{e}": _made(_wide, e, 980_000) for e in ENDINGS},
    **{f"too_large{e}": _made(_wide, e, 4_200_000) for e in ENDINGS},
    **{f"deep{e}": _made(_deep, e) for e in ENDINGS},
    **{f"one_word{e}": _text(ONE_WORD[e] + "x" * 980_000 + CLOSED[e]) for e in ENDINGS},
    **{f"digits{e}": _text(ONE_WORD[e].rstrip('"') + "9" * 100_000 + CLOSED[e].lstrip('"')) for e in ENDINGS},
    **{f"nul{e}": _bytes(b"a: 1\x00\nb: 2\n") for e in ENDINGS},
    **{f"not_utf8{e}": _bytes(b"\xff\xfe\x00a") for e in ENDINGS},
    **{f"empty{e}": _bytes(b"") for e in ENDINGS},
    **{f"endless{e}": lambda path: path.symlink_to("/dev/zero") for e in ENDINGS},
    **{f"itself{e}": lambda path: path.symlink_to(path) for e in ENDINGS},
    **{f"fifo{e}": os.mkfifo for e in ENDINGS},
    **{f"folder{e}": Path.mkdir for e in ENDINGS},
    "deeper.yaml": _text("a: " + "[" * 500_000),  # libyaml ended the process
    "deeper_still.yaml": _text("{a: " * 500_000),
    "aliases.yaml": _text(BOMB),
    "self.yaml": _text("a: &a\n  b: *a\n"),
    "merge.yaml": _text("a: &a {b: 1}\nc:\n  <<: *a\n"),
    "tag.yaml": _text("zero_optimization: !!python/object/apply:os.system ['touch made']\n"),
    "twice.yaml": _text("distributed_type: FSDP\ndistributed_type: MULTI_GPU\n"),
    "twice.json": _text('{"zero_optimization": {"stage": 1, "stage": 3}}'),
    "twice.toml": _text("[a]\nb = 1\nb = 2\n"),
    "substitution.sh": _text("torchrun pretrain_gpt.py --num-layers $(touch made) --hidden-size `touch made`\n"),
    "commands.sh": _text("x{\n" * 25_000),
    "doubling.sh": _text("A=xxxxxxxxxx\n" + 'A="$A$A"\n' * 60 + "run --a $A\n"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_gets_a_code_in_time(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / name)
    before = time.process_time()
    found = import_files([tmp_path / name], OPTIONS)
    took_s = time.process_time() - before
    codes = {d.code for d in found.diagnostics if d.severity == "error"}
    assert codes and all(code.startswith("E13") for code in codes) and not found.text
    if name.startswith(AS_IT_IS_READ):
        assert codes == {"E1301"}
    assert all(d.span.line >= 1 and Path(d.span.file).name == name for d in found.diagnostics)
    assert took_s < LIMIT_S
    assert not (tmp_path / "made").exists() and not Path("made").exists()


def test_nested_yaml_does_not_end_the_process(tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text("- " * 300_000)
    code = f"import sys; from planc.cli import main; sys.exit(main(['import', {str(file)!r}]))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error[E1301]" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("system", list(systems()))
def test_a_field_beyond_reason_gets_a_code_in_every_system(system: str, tmp_path: Path) -> None:
    values = ["x" * 100_000, 10**400, -1, 1e308, [], [[[]]], "\x1b[31m", "$(x)", None]
    form = systems()[system].formats
    if "json" not in form and "yaml" not in form:
        pytest.skip("its files are neither JSON nor YAML")
    ending = "json" if "json" in form else "yaml"
    names = [
        f.name for f in systems()[system].fields if f.treatment == "read" and "*" not in f.name and "." not in f.name
    ]
    if not names:
        pytest.skip("its fields are all in sections")
    for value in values:
        file = tmp_path / f"a.{ending}"
        file.write_text(json.dumps(dict.fromkeys(names, value)))
        found = import_files([file], OPTIONS, system)
        assert found.text == "" or value is None or value in ([], {}), value
        assert all(
            d.code[1:3] == "13" and "\x1b" not in d.message and len(d.message) < 10_000 for d in found.diagnostics
        )
