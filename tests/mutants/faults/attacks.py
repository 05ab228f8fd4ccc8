"""Faults in what answers the attacks of `tests/house/attacks.toml`: the mend of each taken out, its test sees it."""

from __future__ import annotations

from .fault import Fault

QUOTING = "tests/cli/test_quoting.py"
LARGE = "tests/cli/test_large_plans.py"
BOUNDED = "tests/search/test_bounded.py"
FILES = "tests/house/test_files.py"
OUTSIDE = "tests/cli/test_outside_files.py"
FORGED = "tests/trainer/test_forged_checkpoints.py"
SHAPE = "tests/house/test_program_shape.py"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a docstring of a program breaks long words, and escapes in them",
        file="backends/xla/emit/program.py",
        text='subsequent_indent=" " * 9, break_long_words=False)',
        planted='subsequent_indent=" " * 9)',
        test=f"{QUOTING}::test_programs_of_a_plan_with_hostile_names_only_define_things",
    ),
    Fault(
        name="S1: a docstring holds a text as it is",
        file="planc/diag/quoting.py",
        text="""return printable(text.replace("\\\\", "\\\\\\\\")).replace('"', '\\\\"')""",
        planted="return text",
        test=f"{QUOTING}::test_programs_of_a_plan_with_hostile_names_only_define_things",
    ),
    Fault(
        name="S1: a program may name what it does not define",
        file="planc/ir/program_shape.py",
        text="if isinstance(node, ast.Name) and (node.id not in known or _hidden(node.id)):",
        planted="if isinstance(node, ast.Name) and _hidden(node.id):",
        test=f"{SHAPE}::test_a_program_with_a_strangers_code_does_not_pass",
    ),
    Fault(
        name="S1: a program is loaded whatever is in it",
        file="planc/ir/program_shape.py",
        text="    found = min(_findings(tree), default=(0, \"\"))\n",
        planted="    found = (0, \"\")\n",
        test=f"{SHAPE}::test_a_forged_program_is_not_loaded",
    ),
    Fault(
        name="S1: a program may not import what emitters write",
        file="planc/ir/program_shape.py",
        text='"numpy", "optax",',
        planted='"optax",',
        test=f"{SHAPE}::test_programs_of_many_plans_pass",
    ),
    Fault(
        name="S2: a pickle of the working folder is the grammar",
        file="planc/syntax/parse.py",
        text="from __future__ import annotations\n",
        planted="from __future__ import annotations\n\nimport os as _os\nimport pickle as _pickle\n\n"
        'for _file in ("planc/grammar", "grammar"):\n    if _os.path.isfile(_file):\n'
        '        _pickle.load(open(_file, "rb"))\n',
        test="tests/house/test_cache.py::test_nothing_of_the_working_folder_is_loaded",
    ),
    Fault(
        name="S2: a pickle of the cache folder is the grammar",
        file="planc/syntax/parse.py",
        text="from __future__ import annotations\n",
        planted="from __future__ import annotations\n\nimport pickle as _pickle\n\n"
        "from planc.cache import cache_folder as _folder\n\n"
        'if (_folder() / "grammar").is_file():\n    _pickle.load(open(_folder() / "grammar", "rb"))\n',
        test="tests/house/test_cache.py::test_no_pickle_and_no_pipe_of_the_cache_is_read",
    ),
    Fault(
        name="S3: a link that leads out of its folder is read",
        file="planc/files.py",
        text="return path.is_symlink() and not Path(",
        planted="return False and not Path(",
        test=f"{QUOTING}::test_a_plan_that_is_a_link_out_of_its_folder_is_not_quoted",
    ),
    Fault(
        name="S4, S12: a link that leads to itself is followed for ever",
        file="planc/files.py",
        text="        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)\n",
        planted="        handle = os.open(path.resolve(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)\n",
        test=f"{QUOTING}::test_files_that_are_no_plans_are_answered_at_once",
    ),
    Fault(
        name="S6: metrics replace any file",
        file="planc/trainer/telemetry/metrics_file.py",
        text="    except (OSError, ValueError):\n        return False\n    return isinstance(first",
        planted="    except (OSError, ValueError):\n        return True\n    return isinstance(first",
        test="tests/trainer/test_watching.py::test_metrics_replace_no_other_file",
    ),
    Fault(
        name="S7: a message is printed as it is",
        file="planc/diag/text.py",
        text='return printable(text.replace("\\n", " "))',
        planted='return text.replace("\\n", " ")',
        test=f"{QUOTING}::test_control_characters_of_a_plan_reach_no_terminal",
    ),
    Fault(
        name="S7: a file's name is printed as it is",
        file="planc/diag/text.py",
        text="lines.append(f\"  {paint('-->', 'frame')} {printable(d.span.where())}\")",
        planted="lines.append(f\"  {paint('-->', 'frame')} {d.span.where()}\")",
        test=f"{QUOTING}::test_a_diagnostic_moves_no_cursor",
    ),
    Fault(
        name="S7: a comma ends a property of a workflow's command",
        file="planc/diag/quoting.py",
        text='return workflow_message(text).replace(":", "%3A").replace(",", "%2C")',
        planted='return workflow_message(text).replace(":", "%3A")',
        test=f"{QUOTING}::test_a_workflow_command_is_one_line_with_its_own_properties",
    ),
    Fault(
        name="S7: a model has the whole name of its config's file",
        file="planc/ir/base.py",
        text='return re.sub(r"[^\\w.+-]", "_", file.rsplit("/", 1)[-1], flags=re.ASCII)[:80]',
        planted='return file.rsplit("/", 1)[-1]',
        test=f"{QUOTING}::test_a_model_is_named_after_its_config_without_odd_characters",
    ),
    Fault(
        name="S7: a command in a message has words of a shell's own",
        file="planc/diag/quoting.py",
        text="    return quote(text)\n",
        planted="    return text if quote else text\n",
        test=f"{QUOTING}::test_a_command_in_a_message_is_one_command",
    ),
    Fault(
        name="S7: a receipt is printed as it is",
        file="planc/trainer/receipt/crosscheck_text.py",
        text='"\\n".join(map(printable, "\\n".join(parts).split("\\n")))',
        planted='"\\n".join(map(str if printable else str, "\\n".join(parts).split("\\n")))',
        test="tests/trainer/test_crosscheck.py::test_a_strangers_receipt_moves_no_cursor",
    ),
    Fault(
        name="S8: the spelling of every unknown name is compared",
        file="planc/language/draft.py",
        text="near = nearest(word.text, legal, 1) if self.guesses <= MOST_GUESSES else []",
        planted="near = nearest(word.text, legal, 1) if MOST_GUESSES else []",
        test=f"{LARGE}::test_spellings_are_compared_for_the_findings_that_are_shown",
    ),
    Fault(
        name="S8: every two expectations are compared",
        file="planc/checks/plan/e0804_expects_apart.py",
        text="    strictest: dict[tuple[str, str], Expect] = {}\n    for other in plan.expects:\n"
        "        side = other.cmp[0]\n"
        '        one = strictest.get((other.metric, "<" if side == ">" else ">"))\n'
        "        same = strictest.get((other.metric, side))\n"
        "        strictest[other.metric, side] = other if same is None else max(same, other, key=_strictness)\n"
        "        if one is None:\n            continue\n",
        planted="    pairs = ((o, e) for n, o in enumerate(plan.expects) for e in plan.expects[:n])\n"
        "    for other, one in pairs:\n        if one.metric != other.metric or one.cmp[0] == other.cmp[0]:\n"
        "            continue\n",
        test=f"{LARGE}::test_expectations_are_compared_with_the_strictest_alone",
    ),
    Fault(
        name="S8: sentences of imports count file by file",
        file="planc/language/imports.py",
        text="    if files.sentences > MOST_SENTENCES:",
        planted="    if MOST_SENTENCES < 0:",
        test=f"{LARGE}::test_imports_count_together",
    ),
    Fault(
        name="S8: a message quotes a sentence without an end",
        file="planc/diag/diagnostic.py",
        text='return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."',
        planted="return text",
        test=f"{LARGE}::test_a_message_has_an_end",
    ),
    Fault(
        name="S9: an edit in the first line counts from before the byte-order mark",
        file="planc/cli/apply_fixes.py",
        text="    return source.text if source is not None else \"\"\n",
        planted="    return read_bounded(path, MAX_TEXT_BYTES).decode() if source is not None else \"\"\n",
        test="tests/cli/test_fix.py::test_an_edit_in_the_first_line_counts_from_behind_the_mark",
    ),
    Fault(
        name="S9: what was half written stays beside the file",
        file="planc/files.py",
        text="        with suppress(FileNotFoundError):\n            os.unlink(temporary)\n        raise\n",
        planted="        raise\n",
        test="tests/cli/test_fix.py::test_a_full_disk_leaves_the_file_and_nothing_else",
    ),
    Fault(
        name="S10: boxes make up a tensor when they are as many elements",
        file="planc/trainer/checkpoint/manifest.py",
        text="        return not any(corners.values())\n",
        planted="        from math import prod\n\n"
        "        return sum(prod(box.size) for box in self.boxes) == prod(self.shape)\n",
        test=f"{FORGED}::test_boxes_of_as_many_elements_as_a_tensor_may_lie_on_each_other",
    ),
    Fault(
        name="S10: a link in a checkpoint is followed",
        file="planc/trainer/checkpoint/directory.py",
        text="    if path.is_symlink():\n        path.unlink(missing_ok=True)\n",
        planted="    if path.is_mount():\n        path.unlink(missing_ok=True)\n",
        test=f"{FORGED}::test_links_in_a_folder_of_checkpoints_are_not_followed",
    ),
    Fault(
        name="S11: a checkpoint may have another step's name",
        file="planc/trainer/checkpoint/directory.py",
        text="    if named and int(named[1]) != manifest.step:\n",
        planted="    if named and int(named[1]) < 0:\n",
        test="tests/trainer/test_checkpoint.py::test_a_checkpoint_under_another_steps_name_is_refused",
    ),
    Fault(
        name="S12: a link to itself is resolved without a guard",
        file="planc/language/draft.py",
        text="except (OSError, ValueError, RuntimeError):",
        planted="except (OSError, ValueError):",
        test="tests/cli/test_fix.py::test_a_link_to_itself_is_outside_the_folder",
    ),
    Fault(
        name="S13: imports have no end",
        file="planc/language/imports.py",
        text="    if len(files.sources) > MOST_FILES:\n",
        planted="    if len(files.sources) > MOST_FILES * 1000:\n",
        test="tests/cli/test_fix.py::test_imports_have_an_end",
    ),
    Fault(
        name="S14: a pipe is a file",
        file="planc/files.py",
        text="    if stat.S_ISREG(mode):\n",
        planted="    if not stat.S_ISDIR(mode):\n",
        test=f"{FILES}::test_what_is_no_regular_file_is_refused_at_once",
    ),
    Fault(
        name="S14: a config that is a pipe is empty text",
        file="planc/files.py",
        text="    if stat.S_ISREG(mode):\n",
        planted="    if not stat.S_ISDIR(mode):\n",
        test=f"{QUOTING}::test_a_config_that_is_a_pipe_is_not_waited_for",
    ),
    Fault(
        name="S14: an index that is a pipe is an empty index",
        file="planc/trainer/data/tokens/files.py",
        text="    with open_regular(index) as file:\n        size_bytes = file.seek(0, 2)\n",
        planted="    with open(index, \"rb\", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as file:\n"
        "        size_bytes = os.fstat(file.fileno()).st_size + file.seek(0) * 0\n",
        test=f"{OUTSIDE}::test_an_index_that_is_a_pipe_is_not_waited_for",
    ),
    Fault(
        name="S14: a module opens a file by itself",
        file="planc/compare/plan_edit.py",
        text="from __future__ import annotations\n",
        planted="from __future__ import annotations\n\n_TEXT = __import__(\"pathlib\").Path(__file__).read_bytes()\n",
        test=f"{FILES}::test_only_the_listed_modules_open_files",
    ),
    Fault(
        name="S15: deeply nested JSON is a traceback",
        file="planc/files.py",
        text="    except RecursionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        planted="    except ZeroDivisionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        test=f"{FILES}::test_reading_is_bounded_and_tells_text_from_other_bytes",
    ),
    Fault(
        name="S15: a deeply nested receipt is a traceback",
        file="planc/files.py",
        text="    except RecursionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        planted="    except ZeroDivisionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        test=f"{OUTSIDE}::test_what_is_no_receipt_is_answered_at_once",
    ),
    Fault(
        name="S15: deeply nested weights are a traceback",
        file="planc/files.py",
        text="    except RecursionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        planted="    except ZeroDivisionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        test=f"{OUTSIDE}::test_weights_that_are_none_are_refused",
    ),
    Fault(
        name="S15: a deeply nested manifest is a traceback",
        file="planc/files.py",
        text="    except RecursionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        planted="    except ZeroDivisionError:\n        raise ValueError(\"it is nested too deeply\") from None\n",
        test=f"{FORGED}::test_a_manifest_nested_too_deeply_is_refused",
    ),
    Fault(
        name="S15: files beside a preset are read for its compiled plan",
        file="planc/language/draft.py",
        text="    if text is None and alone:\n",
        planted="    if text is None and alone and not texts:\n",
        test="tests/trainer/test_hostile_presets.py::test_nothing_on_disk_is_read",
    ),
    Fault(
        name="S16: an index of tokens is believed",
        file="planc/trainer/data/tokens/files.py",
        text="        if 4 * sequences > size_bytes - len(head):\n",
        planted="        if 4 * sequences < 0:\n",
        test=f"{OUTSIDE}::test_an_index_of_tokens_that_promises_too_much_is_refused",
    ),
    Fault(
        name="S16: sequences may have a negative length",
        file="planc/trainer/data/tokens/files.py",
        text="    if sizes.size and sizes.min() < 0:\n",
        planted="    if sizes.size and sizes.min() < -1000:\n",
        test=f"{OUTSIDE}::test_sequences_of_negative_length_are_refused",
    ),
    Fault(
        name="S17: a setting has as many digits as it likes",
        file="planc/cli/common.py",
        text="    if int(value) > MOST_SET:\n",
        planted="    if int(value) > MOST_SET**2:\n",
        test="tests/cli/test_cli.py::test_a_setting_beyond_every_number_of_a_plan_is_a_usage_error",
    ),
    Fault(
        name="S18: an output is written in place",
        file="planc/files.py",
        text="    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f\".{place.name[:80]}-\")\n",
        planted="    place.write_bytes(data)\n"
        "    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f\".{place.name[:80]}-\")\n",
        test=f"{OUTSIDE}::test_a_full_disk_keeps_the_old_file",
    ),
    Fault(
        name="S18: an output's mode is that of a temporary file",
        file="planc/files.py",
        text="            os.fchmod(file.fileno(), mode)\n",
        planted="",
        test=f"{OUTSIDE}::test_an_output_keeps_its_mode_and_its_link",
    ),
    Fault(
        name="S19: a closed output is written to",
        file="planc/cli/__init__.py",
        text="        if not _open_streams():\n            return 2\n",
        planted="",
        test="tests/cli/test_cli.py::test_a_closed_output_is_no_traceback",
    ),
    Fault(
        name="S20: a large space is not announced",
        file="planc/cli/commands/search.py",
        text="    if most_layouts >= ANNOUNCED:\n",
        planted="    if most_layouts < 0:\n",
        test=f"{BOUNDED}::test_a_space_of_nine_axes_is_announced_and_ended",
    ),
    Fault(
        name="S20: the meshes of a space that is searched in parts are all kept",
        file="planc/searching/branch_and_bound.py",
        text="        self.space.forget_meshes()\n",
        planted="        pass\n",
        test=f"{BOUNDED}::test_a_space_that_is_searched_in_parts_has_the_same_best",
    ),
    Fault(
        name="S20: an interrupt is not passed on to the search",
        file="planc/cli/commands/search.py",
        text="interrupted=lambda: bool(interrupted),",
        planted="interrupted=lambda: False,",
        test=f"{BOUNDED}::test_an_interrupt_ends_with_the_best_so_far",
    ),
    Fault(
        name="S20: any number of choices of words is searched",
        file="planc/searching/space.py",
        text="MOST_VARIANTS = ",
        planted="MOST_VARIANTS = 10**6 * ",
        test=f"{BOUNDED}::test_too_many_choices_of_words_are_refused",
    ),
    Fault(
        name="S21: a job has its plan's name as it is",
        file="backends/common/launch/__init__.py",
        text='return re.sub(r"[^a-z0-9-]+", "-", name.lower())[:50].strip("-") or "plan"',
        planted="return name",
        test=f"{QUOTING}::test_launch_files_hold_a_name_as_a_name",
    ),
    Fault(
        name="S23: a request with odd parameters is not answered",
        file="planc/editor/transport.py",
        text="        answer(lsp.ErrorCodes.InvalidParams,",
        planted="        str((lsp.ErrorCodes.InvalidParams, 0)) or answer(lsp.ErrorCodes.InvalidParams,",
        test="tests/editor/test_bounded.py::test_a_request_that_makes_no_sense_is_answered_with_an_error",
    ),
    Fault(
        name="S24: a message of any length is read",
        file="planc/editor/transport.py",
        text="        if length is not None and length > MOST_BYTES:\n",
        planted="        if length is not None and length > MOST_BYTES**3:\n",
        test="tests/editor/test_bounded.py::test_a_message_beyond_the_bound_ends_the_server_with_an_answer",
    ),
    Fault(
        name="S25: numbers of a preset have no upper bound",
        file="planc/trainer/preset/settings.py",
        text="MAX_COUNT = 10**12\n",
        planted="MAX_COUNT = 10**40\n",
        test="tests/trainer/test_watching.py::test_numbers_of_a_preset_have_bounds",
    ),
    Fault(
        name="S26: digits of any script count in a checkpoint's name",
        file="planc/trainer/checkpoint/directory.py",
        text='_NAME = re.compile(r"step-([0-9]{8,15})(?:\\.([0-9]{1,15}))?")',
        planted='_NAME = re.compile(r"step-(\\d{8,15})(?:\\.(\\d{1,15}))?")',
        test="tests/trainer/test_checkpoint.py::test_a_name_with_other_digits_is_no_checkpoint",
    ),
    Fault(
        name="T12: a link that leads out of its folder is read in other commands",
        file="planc/files.py",
        text="    if not follows_links and leads_out(path):\n",
        planted="    if not follows_links and not path and leads_out(path):\n",
        test=f"{OUTSIDE}::test_a_link_out_of_its_folder_is_neither_quoted_nor_written",
    ),
    Fault(
        name="T13: YAML is composed however deep it is nested",
        file="planc/interop/formats/yaml.py",
        text="            if depth > MAX_DEPTH + 1:\n",
        planted="            if depth > MAX_DEPTH**4:\n",
        test="tests/interop/test_hostile.py::test_nested_yaml_does_not_end_the_process",
    ),
    Fault(
        name="T14: the chain of switches has no end",
        file="planc/interop/topologies/slurm.py",
        text="            if len(seen) > MOST_LEVELS:\n",
        planted="            if len(seen) > MOST_LEVELS**4:\n",
        test="tests/interop/test_topologies.py::test_a_wrong_text_has_its_code_and_its_place",
    ),
    Fault(
        name="T14: a machine of too many sentences has no header",
        file="planc/cli/commands/graph.py",
        text="read_part(read).diagnostics if read.header else [*read.diagnostics]",
        planted="read_part(read).diagnostics",
        test="tests/interop/test_topologies.py::test_a_machine_of_too_many_sentences_is_said_to_be",
    ),
    Fault(
        name="T15: sums of any file are compared",
        file="planc/trainer/preset/load.py",
        text="            if not _is_looked_at(name, part, path.parent):\n",
        planted="            if not name:\n",
        test="tests/trainer/test_hostile_presets.py::test_sums_of_files_elsewhere_tell_nothing",
    ),
    Fault(
        name="T16: a panic of a tokenizer goes through",
        file="planc/trainer/data/tokens/tokenizer.py",
        text='if isinstance(error, Exception) or type(error).__name__ == "PanicException":',
        planted="if isinstance(error, Exception):",
        test="tests/trainer/test_tokens.py::test_a_strangers_tokenizer_is_refused_with_its_reason",
    ),
    Fault(
        name="T16: a tokenizer may make a text as long as it likes",
        file="planc/trainer/data/tokens/tokenizer.py",
        text="    return prod((max(1.0, own), *map(_growth, parts)))\n",
        planted="    return 1.0 + 0 * prod((max(1.0, own), *map(_growth, parts)))\n",
        test="tests/trainer/test_tokens.py::test_a_strangers_tokenizer_is_refused_with_its_reason",
    ),
    Fault(
        name="T17: the action's pip is imported from the pull request",
        file="action.yml",
        text='planc/bin/python" -I -m pip',
        planted='planc/bin/python" -m pip',
        test="tests/cli/test_action.py::test_no_module_of_a_pull_request_is_run",
    ),
    Fault(
        name="T18: a dry run imports from the working directory",
        file="planc/trainer/run/dry_run.py",
        text='words = ["-P", "-m", ',
        planted='words = ["-m", ',
        test="tests/house/test_started_pythons.py::test_a_dry_run_in_a_strangers_folder_runs_none_of_its_modules",
    ),
    Fault(
        name="T18: a Python of the working directory is started",
        file="planc/trainer/run/environment.py",
        text="python = Path(__file__).resolve().parents[3] / OWN[runtime]",
        planted="python = Path.cwd() / OWN[runtime]",
        test="tests/torch_xla/test_three.py::test_a_python_of_the_working_directory_is_not_started",
    ),
    Fault(
        name="T19: ops may read what later ones make",
        file="planc/ir/references.py",
        text="    yield from _disordered(model)\n",
        planted="",
        test="tests/trainer/test_hostile_presets.py::test_an_op_graph_that_no_model_has_is_refused",
    ),
)  # fmt: skip
