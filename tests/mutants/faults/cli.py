"""Faults in what the commands read, write and answer."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="the templates of pages escape nothing",
        file="planc/picture/render.py",
        text="autoescape=True",
        planted="autoescape=False",
        test="tests/report/test_plan_page.py::test_a_hostile_plan_stays_text",
    ),
    Fault(
        name="marks that turn the direction of text reach a page",
        file="planc/picture/render.py",
        text="    return code not in BARRED and",
        planted="    return",
        test="tests/report/test_plan_page.py::test_a_hostile_plan_with_errors_stays_text",
    ),
    Fault(
        name="a report's sentences lose the seconds that none of them asks for",
        file="planc/report/views/sentences.py",
        text="        other_s=sum(i.seconds for i in other),",
        planted="        other_s=0.0,",
        test="tests/report/test_plan_page.py::test_sums_of_a_page_are_those_of_its_data_and_of_the_report",
    ),
    Fault(
        name="the language server's checks go before requests",
        file="planc/editor/work.py",
        text="REQUEST, CHECK = 0, 1",
        planted="REQUEST, CHECK = 1, 0",
        test="tests/editor/test_bounded.py::test_requests_go_before_checks_and_a_check_waits_once",
    ),
    Fault(
        name="the language server reads a message of any length",
        file="planc/editor/transport.py",
        text="if length is not None and length > MOST_BYTES:",
        planted="if length is not None and length < 0:",
        test="tests/editor/test_bounded.py::test_frames_are_read_one_by_one",
    ),
    Fault(
        name="a row of a sweep loses a key of its schema",
        file="planc/compare/sweep.py",
        text="""                "why": r.why or None,\n""",
        planted="",
        test="tests/cli/test_schemas.py::test_an_answer_agrees_with_its_schema",
    ),
    Fault(
        name="a report gains a field that its schema does not have",
        file="planc/ir/report.py",
        text="    peak_at: str\n",
        planted="    peak_at: str\n    rank: int = 0\n",
        test="tests/house/test_docs.py::test_the_published_schemas_are_those_of_the_types",
    ),
    Fault(
        name="a bias of one number for each expert is taken for a matrix",
        file="planc/checks/cost/w0305_empty_shards.py",
        text="""inside_expert = dims[0] == ("experts",) and len(dims) > 1""",
        planted="""inside_expert = dims[0] == ("experts",)""",
        test="tests/catalog/test_every_model.py::test_no_model_crashes_under_a_plain_layout",
    ),
    Fault(
        name="search writes plans without the files that they read",
        file="planc/cli/commands/search.py",
        text="        write_atomically(place, data)\n",
        planted="        pass\n",
        test="tests/search/test_search.py::test_what_it_writes_can_be_opened_elsewhere",
    ),
    Fault(
        name="a search does not end when it is asked to",
        file="planc/search/branch_and_bound.py",
        text='return self.cut_short in ("time", "interrupt")',
        planted="return False",
        test="tests/search/test_bounded.py::test_what_was_found_until_the_end_is_returned",
    ),
    Fault(
        name="a layout whose saved activations do not fit is no nearest miss",
        file="planc/search/branch_and_bound.py",
        text="self.bounds.shapes(family) for family in families",
        planted="self.bounds.shapes(family, self.room_gib) for family in families",
        test="tests/search/test_search.py::test_the_nearest_miss_needs_the_least_memory",
    ),
    Fault(
        name="links of meshes that differ in a view's sizes are taken for the same",
        file="planc/cost/step/transfers.py",
        text="(links.cache, (axes, plan.mesh.every_size))",
        planted="(links.cache, (axes, *plan.mesh.sizes.values()))",
        test="tests/search/test_search.py::test_it_equals_brute_force",
    ),
    Fault(
        name="fix picks one of two names that are equally near",
        file="planc/syntax/suggest.py",
        text="safe=slips == near)",
        planted="safe=True)",
        test="tests/cli/test_fix.py::test_what_changes_the_plan_is_not_applied",
    ),
    Fault(
        name="fix corrects the model, batch or cluster unasked",
        file="planc/cli/apply_fixes.py",
        text="return fix is not None and fix.safe and "
        "not any(_changes_owned_sentence(edit, text) for edit in fix.edits)",
        planted="return fix is not None and fix.safe",
        test="tests/cli/test_fix.py::test_what_changes_the_plan_is_not_applied",
    ),
    Fault(
        name="an emitted program without its framework is a traceback",
        file="planc/ir/program.py",
        text="raise missing_framework(error, target, span) from None",
        planted="raise",
        test="tests/cli/test_not_installed.py::test_programs_name_what_is_missing",
    ),
    Fault(
        name="fix drops the byte-order mark",
        file="planc/cli/apply_fixes.py",
        text="write_atomically(path, mark + text.encode())",
        planted="write_atomically(path, text)",
        test="tests/cli/test_fix.py::test_bytes_that_no_edit_touches_stay",
    ),
    Fault(
        name="a link is replaced by a copy of its file",
        file="planc/files.py",
        text="place = Path(os.path.realpath(path))",
        planted="place = path",
        test="tests/cli/test_fix.py::test_links_and_permissions_stay",
    ),
    Fault(
        name="a file that cannot be read is a mistake of the plan",
        file="planc/cli/common.py",
        text="if any(d.code in UNREADABLE and d.span.empty for d in diagnostics):",
        planted="if False:",
        test="tests/cli/test_cli.py::test_a_missing_file_cannot_be_read",
    ),
    Fault(
        name="a network that is cut short is read as far as it goes",
        file="planc/interop/topologies/ibnetdiscover.py",
        text="    _both_ends(source, adapters)",
        planted="    assert adapters",
        test="tests/interop/test_topologies.py::test_a_wrong_text_has_its_code_and_its_place",
    ),
)
