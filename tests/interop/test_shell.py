"""Forms of shell scripts: what a command gets, what is certain, and what is left to the shell. Nothing is run."""

from pathlib import Path

import pytest

from planc.diag.span import Source
from planc.interop.document import Given
from planc.interop.formats import read_document
from planc.interop.formats.shell import read_scripts
from planc.interop.importing import import_files
from planc.interop.values import Options


def given(script: str, **variables: str) -> dict[str, Given]:
    return read_scripts([Source.of("run.sh", script)], variables, {"run.sh": "flags"})[0].fields


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("export TP=4\nrun --a $TP", "4"),
        ("export A=1 TP=4\nrun --a $TP", "4"),
        ("f() { local TP=4; run --a $TP; }\nf", "4"),
        ("A=1 TP=4\nrun --a $TP", "4"),
        ("declare -i TP=4\nrun --a $TP", "4"),
        ("run --a ${B:-${C:-2}}", "2"),
        ("N=8\nrun --a $((N / 2))", "4"),
        ("N=8\nA=4\nrun --a $((2 * A * $N))", "64"),
        ("run --a 2 2>&1 | tee log.txt", "2"),
        ("run --b --a 2 > log.txt", "2"),
        ("run --a 2 &> log.txt &", "2"),
        ("K=a\ncase $K in a|b) X=1 ;; *) X=2 ;; esac\nrun --a $X", "1"),
        ("K=c\ncase $K in a|b) X=1 ;; *) X=2 ;; esac\nrun --a $X", "2"),
        ("B=true\nif $B; then X=1; else X=2; fi\nrun --a $X", "1"),
        ('L=\nif [ -z "$L" ]; then X=1; else X=2; fi\nrun --a $X', "1"),
        ("if (( 2 > 1 )); then X=1; else X=2; fi\nrun --a $X", "1"),
        ("X=1\nif [[ 1 == 2 && -n $U ]]; then X=2; fi\nrun --a $X", "1"),
        ("[ 1 = 2 ] && X=2 || X=1\nrun --a $X", "1"),
        ("if true; then X=(--a 1); fi\nrun ${X[@]}", "1"),
        ("X=(--b --a 1)\nrun --a 2 $X", "2"),
        ('C="run --a 1"\neval $C', "1"),
        ('C="run --a 1"\nsrun bash -c "echo && $C --r \\$RANK"', "1"),
        ("export T=1\nbash -c 'run --a $T'", "1"),
        ("T=1\nbash -c 'run --a $T'", "$T"),
        ("bash <<EOF\nrun --a 1\nEOF\n", "1"),
        ("cat <<EOF\nrun --a 2\nEOF\nrun --a 1", "1"),
        ("f() { run --a $1; }\nf 1", "1"),
        ('run --b x "$@" --a 1', "1"),
        ("exit 0\nrun --a 1", None),
        ("run --a 1\nexit 0\nrun --a 1 --b 2", "1"),
        ("f() { run --a 2 --b 1; }\nrun --a 1", "1"),
        ("done; fi\n} ) ;; then\nrun --a 1", "1"),
        ("X='$Y'\nY=2\nrun --a '$Y'", "$Y"),
        ("A=$(seq 3)\nrun --a $A", "$(seq 3)"),
    ],
)
def test_a_command_gets_what_a_shell_would_give_it(script: str, value: str | None) -> None:
    found = given(script).get("a")
    assert (found and found.value, found is None or found.certain) == (value, True)


@pytest.mark.parametrize(
    "script",
    [
        'if [ $1 = x ]; then X="--a"; else X=""; fi\nrun $X',
        'if [ $1 = x ]; then X=""; else X="--a"; fi\nrun $X',
        'if [ $1 = x ]; then X="--a"; elif [ $1 = y ]; then X=" "; fi\nrun $X',
        'case $1 in x) X="--a" ;; *) X= ;; esac\nrun $X',
        'K=x\ncase $K in x) X="--a" ;;& x) X= ;; esac\nrun $X',
        "[ $1 = x ] && X=--a\nrun $X",
        "command -v nvcc && X=--a\nrun --b 1 --c 2 $X",
        "for i in 1 2; do X=--a; done\nrun $X",
        "while read line; do X=--a; done\nrun $X",
        "X=--a\nif [ -f x ]; then unset X; fi\nrun $X",
        "if [ -f x ]; then X=--a; fi\nif [ $X = --a ]; then Y=--a; fi\nrun $Y",
        "if [ -f x ]; then run --a; fi",
    ],
)
def test_a_flag_of_an_undecided_branch_is_not_certain(script: str) -> None:
    assert not given(script)["a"].certain


def test_values_of_variables_and_arguments_are_given() -> None:
    assert given("run --a $1 --b $2", **{"1": "4", "2": "x"})["a"].value == "4"
    assert given("shift\nrun --a $1", **{"2": "4"})["a"].value == "4"
    assert given("TP=$1\nrun --a $TP", TP="4")["a"].value == "4"
    assert given("TP=${TP:-2}\nrun --a $TP", TP="4")["a"].value == "4"
    assert given("TP=2\nrun --a $TP", TP="4")["a"].value == "2", "the script sets it itself"


def test_a_file_that_a_script_reads_is_a_part_of_it() -> None:
    run = Source.of("run.sh", 'source "$(dirname "$0")/sizes.sh"\nrun ${SIZES[@]} --b 1')
    sizes = Source.of("sizes.sh", "SIZES=(\n  --a 4\n)\n")
    for files in ([run, sizes], [sizes, run]):
        (document,) = read_scripts(files, {}, {})
        assert document.fields["a"].value == "4" and document.fields["a"].span.file == "sizes.sh"
    apart = Source.of("run.sh", "run ${SIZES[@]} --b 1")
    (document,) = read_scripts([apart, sizes], {}, {})
    assert document.fields["a"].value == "4"


def test_lines_of_flags_are_one_list_in_a_file_that_is_no_script() -> None:
    assert set(read_document("run.args", "--a 1\n--b 2\n", "flags").fields) == {"a", "b"}
    assert set(read_document("run.sh", "--a 1\n--b 2\n", "flags").fields) == set()


def test_a_script_without_a_command_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("ARGS=(--num-layers 32)\necho done\n")
    options = Options(cluster="1 x h100_node", devices=8, model="llama3_8b", given={"micro_batch_size": "1"})
    found = import_files([tmp_path / "run.sh"], replace_given(options), "megatron")
    assert not found.text and {d.code for d in found.diagnostics if d.severity == "error"} == {"E1306"}


def replace_given(options: Options) -> Options:
    """The options with a sequence length too: all that Megatron-LM needs but a command."""
    return Options(
        cluster=options.cluster, devices=8, model=options.model, given={**(options.given or {}), "seq_length": "4096"}
    )
