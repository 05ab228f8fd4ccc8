"""Faults in the reading of other systems' files: a word that is lost, and who sees it."""

from __future__ import annotations

from .fault import Fault

LEDGER = "tests/interop/test_ledger.py"
WORDS = f"{LEDGER}::test_a_word_that_a_script_loses_is_told"
FORMS = "tests/interop/test_shell.py"
ASSERTS = "tests/interop/test_megatron_asserts.py"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="import: what a branch of a script sets is lost where the last one sets nothing",
        file="planc/interop/formats/variables.py",
        text="        words += _flags_beside(words, more) if words else more\n",
        planted="        words = more\n",
        test=f"{FORMS}::test_a_flag_of_an_undecided_branch_is_not_certain",
    ),
    Fault(
        name="import: a test before && is taken to hold",
        file="planc/interop/formats/interpret.py",
        text="                self._fork([(step,)], all_of_them=False)\n",
        planted="                self._step(step)\n",
        test=WORDS,
    ),
    Fault(
        name="import: words behind a comment or a blank are no loss",
        file="planc/interop/formats/shell.py",
        text='"loose" if is_loose else "unread"',
        planted='"unread"',
        test=WORDS,
    ),
    Fault(
        name="import: words that only the shell knows are dropped behind a value",
        file="planc/interop/formats/shell.py",
        text='        more += [Left(one.text, one.span, "open") for one in values[1:] if "$" in one.text]\n',
        planted="",
        test=WORDS,
    ),
    Fault(
        name="import: what a script does not use is not named",
        file="planc/interop/formats/shell.py",
        text="        if word not in read:\n",
        planted="        if word not in read and not word.span.line:\n",
        test=f"{LEDGER}::test_words_of_a_document_are_counted",
    ),
    Fault(
        name="import: a flag that is noted may have any words behind it",
        file="planc/interop/importing.py",
        text='if document.format == "flags" and (wrong := _wrong_count(given.value, known.default)):',
        planted='if document.format == "toml" and (wrong := _wrong_count(given.value, known.default)):',
        test=WORDS,
    ),
    Fault(
        name="import: a pattern takes what changes nothing",
        file="planc/interop/systems/torchtitan.toml",
        text='{names = "training.disable_cuda_graphs", noted',
        planted='{names = "training.disable_cuda_graphs optimizer.*", noted',
        test=f"{LEDGER}::test_what_changes_nothing_is_known_by_its_name",
    ),
    Fault(
        name="import: a field that nothing looks at is not named",
        file="planc/interop/importing.py",
        text="    findings += _unused(system, values)\n",
        planted="",
        test=f"{LEDGER}::test_a_field_that_nothing_looks_at_is_named",
    ),
    Fault(
        name="import: a second run of a script is no matter",
        file="planc/interop/importing.py",
        text="        for other in document.others:\n",
        planted="        for other in document.others[:0]:\n",
        test=WORDS,
    ),
    Fault(
        name="import: what Megatron-LM asserts is not asked",
        file="planc/interop/importing.py",
        text="    if system.asserts is not None:\n",
        planted="    if system.asserts is not None and not values.documents:\n",
        test=f"{ASSERTS}::test_what_megatron_asserts_is_a_finding",
    ),
    Fault(
        name="import: a plan that the language does not read is written",
        file="planc/interop/importing.py",
        text="    if not wrong:\n        return found\n",
        planted="    if not wrong or found.text:\n        return found\n",
        test=f"{ASSERTS}::test_a_plan_that_the_language_does_not_read_is_not_written",
    ),
    Fault(
        name="import: findings go where the plan goes",
        file="planc/cli/commands/import_.py",
        text="        with redirect_stdout(sys.stderr):\n",
        planted="        with redirect_stdout(sys.stdout):\n",
        test="tests/interop/test_commands.py::test_findings_of_an_import_are_not_in_the_plan",
    ),
    Fault(
        name="onto: a flag that says the same in another way stays",
        file="planc/interop/onto.py",
        text=", *self._alternatives(found, given, wanted)]",
        planted="]",
        test="tests/interop/test_onto.py::test_line_ends_stay_and_the_command_says_what_it_changed",
    ),
)
