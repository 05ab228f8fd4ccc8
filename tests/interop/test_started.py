"""Launch scripts that bash runs (`--allow-code`): what they would start is what is read, as the reader that runs
nothing reads it, and nothing comes out of the walls."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from planc.allowed import run_allowed
from planc.cli import main
from planc.diag.span import Source
from planc.interop.formats import started as module
from planc.interop.formats.started import Started, started
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options
from tests.interop.scripts import SCRIPT


@pytest.fixture(scope="module", autouse=True)
def walls() -> None:
    if run_allowed(["true"]).open_walls:
        pytest.skip("this system refuses namespaces, and runs no script")


TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
FLAGS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear"
    " --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192 --bf16 --micro-batch-size 1"
    " --global-batch-size 64"
)
BOTH = {
    "array": SCRIPT,
    "export and default": f"export TP=4\ntorchrun pretrain_gpt.py {FLAGS} {TP} ${{A:-${{TP}}}}",
    "arithmetic": f"N=8\ntorchrun pretrain_gpt.py {FLAGS} {TP} $((N / 2)) 2>&1 | tee log.txt",
    "branch": f'X=\'{FLAGS}\'\nif [ -n "$WANDB" ]; then X="$X --no-such-flag"; fi\npython3 pretrain_gpt.py $X',
    "srun": f"CMD='python pretrain_gpt.py {FLAGS}'\nexport CMD\nsrun -N 1 bash -c 'exec $CMD --fp8-format e4m3'",
    "eval": f"O='{FLAGS}'\nrun=\"deepspeed pretrain_gpt.py $O --deepspeed &> x\"\necho $run\neval $run",
    "case": f"S=8b\ncase $S in 7b) T=2;; 8b) T=4;; esac\npython pretrain_gpt.py {FLAGS} {TP} $T",
    "function": f'go() {{ torchrun pretrain_gpt.py {FLAGS} "$@"; }}\ngo {TP} 2',
    "arguments": f"python pretrain_gpt.py {FLAGS} {TP} $1 {PP} ${{2}}",
    "here-string": f"read -r A B <<< '1 2'\npython pretrain_gpt.py {FLAGS}",
    "slurm": f"srun python pretrain_gpt.py {FLAGS} --micro-batch-size $SLURM_NNODES",
}


def imported(folder: Path, text: str, *, allow_code: bool) -> Imported:
    (folder / "run.sh").write_text(text)
    options = Options(
        cluster="1 x h100_node",
        devices=8,
        folder=folder,
        given={"1": "2", "2": "4"} if "$1" in text else {},
        allow_code=allow_code,
        approximate=True,
    )
    return import_files([folder / "run.sh"], options)


def sentences(found: Imported) -> list[str]:
    assert found.setup is not None, found.diagnostics
    lines = (" ".join(line.partition("#")[0].split()) for line in found.text.split("\n"))
    return [line for line in lines if line]


@pytest.mark.parametrize("text", BOTH.values(), ids=BOTH)
def test_both_readers_agree(text: str, tmp_path: Path) -> None:
    ran = imported(tmp_path, text, allow_code=True)
    assert sentences(ran) == sentences(imported(tmp_path, text, allow_code=False))
    assert "N1316" in {d.code for d in ran.diagnostics}


def test_what_only_a_shell_can_say_is_read(tmp_path: Path) -> None:
    text = f"""set -eu
cd "$(cd "$(dirname "$0")/../.." && pwd)"
for i in 1 2; do T=$((${{T:-1}} * 2)); done
GPUS=$(python -c 'import torch; print(torch.cuda.device_count())')
LINES=$(nvidia-smi -L | wc -l)
mkdir -p /no/such/folder && module load cuda
if [ "$GPUS" = "$LINES" ]; then torchrun --nproc_per_node $GPUS pretrain_gpt.py {FLAGS} \\
  --tensor-model-parallel-size $T; fi
"""
    assert any("tp 4" in line for line in sentences(imported(tmp_path, text, allow_code=True)))
    assert imported(tmp_path, text, allow_code=False).setup is None


def run(text: str) -> Started:
    return started(Source.of("run.sh", text), [], {}, 8)


def test_nothing_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    outside = tmp_path / "outside"
    found = run(f"echo x > {outside}; python a.py $SECRET_TOKEN end; (sleep 100 &) ; exit 3")
    assert found.source.text == "python a.py end" and "status 3" in found.ended
    assert not outside.exists() or "does not wall off" in found.ended
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, time_s=0.5))
    assert "longer than 0.5 s" in run("while true; do :; done").ended
    assert run("yes").ended.startswith(("it printed more than", "it ran longer than"))


@pytest.mark.parametrize("answer", [b"", b"x", b"9999999\0a\0", b"1\0", b"-1\0a\0b\0", b"1\0a\0b\0zz\0", b"\xff\0" * 9])
def test_a_forged_record_is_read_as_far_as_it_goes(answer: bytes) -> None:
    assert all(words for words in module._commands(answer))


def test_the_command_line_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text(BOTH["arguments"])
    monkeypatch.chdir(tmp_path)
    words = ["run.sh", "--cluster", "1 x h100_node", "--allow-code", "--set", "1=2", "--set", "2=4"]
    assert main(["import", *words]) == 0
    assert "pp 4 > tp 2" in capsys.readouterr().out
    assert main(["import", "run.sh", "--cluster", "1 x h100_node", "--allow-code"]) == 1


def test_a_script_that_bash_ends_is_read_as_text(tmp_path: Path) -> None:
    found = imported(tmp_path, f"python pretrain_gpt.py {FLAGS} > /no/such/folder/log", allow_code=True)
    assert "read as text" in next(d.message for d in found.diagnostics if d.code == "N1316")
    assert sentences(found)
    found = imported(tmp_path, "set -e\nfalse\npython pretrain_gpt.py", allow_code=True)
    assert {"N1316", "E1306"} <= {d.code for d in found.diagnostics}


def test_no_script_is_run_without_walls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    monkeypatch.setattr(module, "run_allowed", partial(run_allowed, namespaces=False))
    found = imported(tmp_path, f"rm -rf {kept}\npython pretrain_gpt.py {FLAGS}", allow_code=True)
    assert kept.exists() and found.setup is not None
    assert any("was not started" in d.message for d in found.diagnostics)
