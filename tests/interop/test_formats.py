"""Surface formats: fields with their values and places, and text that is none of them."""

import pytest

from planc.interop.document import MAX_FIELDS, Document, Format, UnreadableError
from planc.interop.formats import read_document
from planc.interop.formats.arithmetic import evaluate
from tests.interop.scripts import SCRIPT


def quoted(document: Document, name: str) -> str:
    return document.source.quote(document.fields[name].span)


def test_flags_of_a_script_are_those_of_the_command_with_the_most() -> None:
    document = read_document("run.sh", SCRIPT, "flags")
    assert document.program == ("torchrun", "pretrain_gpt.py")
    assert document.launcher["nproc_per_node"].value == "8"
    assert document.fields["hidden_size"].value == "4096" and quoted(document, "hidden_size") == "--hidden-size 4096"
    assert document.fields["tensor_model_parallel_size"].value == "4"
    assert document.fields["swiglu"].value is True and quoted(document, "swiglu") == "--swiglu"
    assert document.fields["lr"].value == "1e-4" and "of" not in document.fields


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("run --a ${B:-7}", "7"),
        ("B=3\nrun --a $B", "3"),
        ('B="--a 3"\nrun $B', "3"),
        ("run --a=3", "3"),
        ("run --a $((4 * (2 + 1)))", "12"),
        ("run --a '$B'", "$B"),
        ("run --a $(rm -rf /)", "$(rm -rf /)"),
        ("run --a $UNSET", "$UNSET"),
        ("run \\\n  --a \\\n  3", "3"),
        ("X=(--a 1)\nX+=(--a 2)\nrun ${X[@]}", "2"),
        ("run --a 1 2 3", ("1", "2", "3")),
        ('run --a "x y"', "x y"),
        ('X=("--a 1" "--b")\nX+=("--c")\nrun ${X[@]}', "1"),
        ('X=("--b" "--a 1" "--c")\nrun --d "${X[@]}"', "1"),
        ("run --a -1", "-1"),
    ],
)
def test_words_are_those_of_a_shell_and_nothing_is_run(script: str, value: object) -> None:
    assert read_document("run.sh", script, "flags").fields["a"].value == value


@pytest.mark.parametrize(
    ("script", "value", "certain"),
    [
        ('D=fp8\nif [[ "$D" == "fp8" ]]; then\nX=1\nelse\nX=2\nfi\nrun --a $X', "1", True),
        ('D=bf16\nif [ "${D}" = fp8 ]; then\nX=1\nelse\nX=2\nfi\nrun --a $X', "2", True),
        ("D=a\nif [ $D = b ]; then\nX=1\nelif [ $D = a ]; then\nX=2\nelse\nX=3\nfi\nrun --a $X", "2", True),
        ('X=1\nif [ -n "${KEY}" ]; then\nX=2\nfi\nrun --a $X', "2", False),
        ('if [ "${1:-M}" = M ] || [ -z "$2" ]; then\nX=(--a 1)\nfi\nrun ${X[@]}', "1", True),
        ("N=2\nif [ $N -gt 1 ] && [ -d out ]; then\nX=(--a 1)\nfi\nrun ${X[@]}", "1", False),
        ("if [ ! 1 = 2 ]; then\nrun --a 1\nfi", "1", True),
        ("for i in 1 2; do\nX=$i\ndone\nrun --a 1 --b $X", "1", True),
    ],
)
def test_branches_are_decided_or_marked(script: str, value: str, certain: bool) -> None:
    given = read_document("run.sh", script, "flags").fields["a"]
    assert (given.value, given.certain) == (value, certain)


def test_what_a_loop_sets_is_not_certain() -> None:
    document = read_document("run.sh", "for i in 1 2; do\nX=$i\ndone\nrun --a 1 --b $X", "flags")
    assert not document.fields["b"].certain


def test_assignments_are_words_with_an_equals_sign() -> None:
    document = read_document("run.sh", "python3 -m train base.yml model_name=llama3-8b +x.y=2 run", "assignments")
    assert {n: g.value for n, g in document.fields.items()} == {"model_name": "llama3-8b", "x.y": "2"}


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("yaml", "a:\n  b: 1e-4\n  c: [1, x]\n  d: yes\n  e: 'yes'\n  f: null\n"),
        ("json", '{"a": {"b": 1e-4, "c": [1, "x"], "d": true, "e": "yes", "f": null}}'),
    ],
)
def test_yaml_and_json_give_values_of_the_core_types(format: Format, text: str) -> None:
    document = read_document("a", text, format)
    values = {name: given.value for name, given in document.fields.items()}
    assert values == {"a.b": 1e-4, "a.c": (1, "x"), "a.d": True, "a.e": "yes", "a.f": None}
    assert quoted(document, "a.b") == "1e-4"


def test_toml_values_stand_at_their_lines() -> None:
    document = read_document("a.toml", "[a]\nb = 1\n[a.c]\n'd' = [1, 'x']\n", "toml")
    assert {name: given.value for name, given in document.fields.items()} == {"a.b": 1, "a.c.d": (1, "x")}
    assert quoted(document, "a.b") == "1" and document.fields["a.c.d"].span.line == 4


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("yaml", BOMB),
        ("yaml", "a: &a\n  b: *a\n"),
        ("yaml", "a: " + "[" * 5000),
        ("yaml", "a: " + "{b: " * 60 + "1" + "}" * 60),
        ("yaml", "- 1\n- 2\n"),
        ("yaml", "a: 1\n---\nb: 2\n"),
        ("yaml", "a: [1\n"),
        ("yaml", "[a, b]: 1\n"),
        ("json", "[" * 100_000),
        ("json", '{"a": 1'),
        ("json", "{'a': 1}"),
        ("toml", "a = "),
        ("toml", "a = " + "[" * 100_000),
        ("flags", "run --a 'x"),
        ("flags", "X=(--a 1"),
        ("flags", "run " + " ".join(f"--f{i}" for i in range(MAX_FIELDS + 2))),
        ("flags", "A=xxxxxxxxxx\n" + "\n".join('A="$A$A"' for _ in range(60)) + "\nrun --a $A"),
    ],
)
def test_text_beyond_reason_is_refused_with_a_place(format: Format, text: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        read_document("a", text, format)
    assert refused.value.span.line >= 1


def test_a_tag_makes_no_object() -> None:
    document = read_document("a.yaml", "a: !!python/object/apply:os.system ['touch x']\nb: !x 1\n", "yaml")
    assert document.fields["a"].value == ("touch x",) and document.fields["b"].value == "1"


@pytest.mark.parametrize("text", ["", "1 +", "(1", "1 2", "1 / 0", "9" * 40 + " * 9", "*"])
def test_what_is_no_sum_has_no_value(text: str) -> None:
    assert evaluate(text) is None
