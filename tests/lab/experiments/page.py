"""The page `docs/measured/accelerator-<chip>.md`: every record of a state folder, predicted beside measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from planc.diag.quoting import markdown_cell
from tests.lab.experiments.experiment import Facts, Machine
from tests.lab.experiments.records import Record

HEAD = """# What one {name} does, beside what planc predicts

Written by `make accelerator`, from one JSON file an experiment. Each prediction was written down before its experiment
ran, by the bundled hardware file `{node}`; nothing here was used to make it. Versions: {versions}.
"""
"""`name`, `node`, `versions`."""


def page(machine: Machine, records: Sequence[Record]) -> str:
    """The page of the `records` of one `machine`."""
    versions = ", ".join(f"{name} {number}" for name, number in records[0].versions.items()) if records else "none"
    parts = [HEAD.format(name=machine.name, node=machine.node, versions=versions)]
    parts += [part for part in (_steps(records), _curves(records), _others(records), _left(records)) if part]
    return "\n".join(parts)


def _measured(records: Sequence[Record], fact: str) -> list[tuple[Record, Facts, Facts]]:
    """Records with their predictions and measurements, of experiments that measure `fact`."""
    found = [(r, r.predicted or {}, r.measured or {}) for r in records if r.status == "measured"]
    return [(r, p, m) for r, p, m in found if fact in m]


def _steps(records: Sequence[Record]) -> str:
    rows, step_errors, peak_errors = [], [], []
    for record, predicted, measured in _measured(records, "mfu"):
        error = predicted["step_s"] / measured["step_s"] - 1
        step_errors.append(abs(error))
        peak = ["", "", ""]
        if measured["peak_gib"] is not None:
            apart = predicted["peak_gib"] / measured["peak_gib"] - 1
            peak_errors.append(abs(apart))
            peak = [_peak(measured), f"{predicted['peak_gib']:.2f}", f"{apart:+.1%}"]
        rows.append(
            [
                record.title,
                f"{measured['step_s'] * 1e3:.1f}",
                f"{predicted['step_s'] * 1e3:.1f}",
                f"{error:+.1%}",
                f"{measured['tokens_per_s']:,.0f}",
                f"{measured['mfu']:.1%}",
                *peak,
                ", ".join(measured["features"]),
            ]
        )
    if not rows:
        return ""
    heads = [
        "steps of",
        "ms",
        "predicted",
        "error",
        "tokens/s",
        "MFU",
        "peak GiB (reserved)",
        "predicted",
        "error",
        "in use",
    ]
    said = f"Median error of a step: {median(step_errors):.1%}"
    said += f"; of the peak: {median(peak_errors):.1%}.\n" if peak_errors else ".\n"
    return f"## Steps\n\n{said}\n{_table(heads, rows)}"


def _peak(measured: Facts) -> str:
    """The peak of tensors (GiB), and of what the allocator took for them."""
    reserved = measured.get("reserved_gib")
    return f"{measured['peak_gib']:.2f}" + (f" ({reserved:.2f})" if reserved else "")


def _curves(records: Sequence[Record]) -> str:
    parts = []
    for _, predicted, measured in _measured(records, "probes"):
        rows = []
        for before, after in zip(predicted["probes"], measured["probes"], strict=True):
            size = " x ".join(f"{n:,}" for n in after["sizes"])
            what = f"{after['op']} over {after['sizes'][0]}" if after["kind"] == "collective" else after["kind"]
            ratio = before["s"] / after["s"] - 1
            rows.append(
                [what, after["dtype"], size, f"{after['s'] * 1e6:.1f}", f"{before['s'] * 1e6:.1f}", f"{ratio:+.0%}"]
            )
        numbers = [[name, f"{value:.4g}"] for name, value in measured["fitted"].items()]
        heads = ["probe", "dtype", "size", "us", "predicted", "error"]
        parts.append(f"## Curves\n\n{_table(heads, rows)}\nFitted to them:\n\n{_table(['number', 'value'], numbers)}")
    return "\n".join(parts)


def _others(records: Sequence[Record]) -> str:
    lines = []
    for record, _, measured in _measured(records, "max_abs"):
        verdict = "inside" if measured["ok"] else "outside"
        apart = "not compared" if measured["max_abs"] is None else f"{measured['max_abs']:.1e} nats apart at most"
        lines.append(f"- {record.title}: {apart}, {verdict} the budget of {measured['budget']:.0e}.")
    for record, _, measured in _measured(records, "asynchronous_s"):
        waits = f"{measured['asynchronous_s'] * 1e3:.0f} ms in the background, {measured['synchronous_s'] * 1e3:.0f} ms"
        lines.append(f"- {record.title}: {waits} otherwise.")
    lines += [*_hand_written(records), *_ranks(records), *_several(records), *_faults(records), *_data(records)]
    for record, predicted, measured in _measured(records, "fits"):
        if predicted["fits"] != measured["fits"]:
            lines.append(f"- {record.title}: **planc was wrong**: {'it ran' if measured['fits'] else 'out of memory'}.")
        elif not measured["fits"]:
            lines.append(f"- {record.title}: out of memory, as planc says.")
    return "## Others\n\n" + "\n".join(lines) + "\n" if lines else ""


VERDICTS = {None: "not seen without NCCL", True: "as predicted", False: "**not as predicted**"}
"""Words about the calls of NCCL."""


def _hand_written(records: Sequence[Record]) -> list[str]:
    return [
        f"- {record.title}: the emitted step takes {m['ratio']:.3f} of the other's ({m['ratio_lower']:.3f} to"
        f" {m['ratio_upper']:.3f}, {m['pairs']} pairs; at most {p['median_bar']} and {p['upper_bar']}:"
        f" {'held' if m['ok'] else '**not held**'}), {m['emitted_s'] * 1e3:.1f} and {m['by_hand_s'] * 1e3:.1f} ms."
        for record, p, m in _measured(records, "ratio")
    ]


def _ranks(records: Sequence[Record]) -> list[str]:
    lines = []
    for record, predicted, measured in _measured(records, "agree"):
        budgets = {plan["plan"]: plan for plan in predicted["plans"]}
        for plan in measured["plans"]:
            budget = budgets[plan["plan"]]
            wrong = "; ".join(plan["calls_otherwise"])
            calls = f"{plan['calls_as_predicted']} collectives as predicted{f', **{wrong}**' if wrong else ''}"
            lines.append(
                f"- {record.title}, {plan['dtype']}: losses {plan['loss_apart']:.1e} nats apart (at most"
                f" {budget['budget']:.0e}), gradients {plan['gradient']:.1e} ({budget['gradient_budget']:.0e});"
                f" {calls}: {'inside' if plan['ok'] else '**outside**'}."
            )
    return lines


def _several(records: Sequence[Record]) -> list[str]:
    lines = []
    for record, predicted, measured in _measured(records, "exposed_s"):
        calls = VERDICTS[measured["calls_as_predicted"]]
        counts = (measured["calls"] or {}).items()
        seen = ", ".join(f"{op} {n['count']} calls of {n['bytes']:,} bytes" for op, n in counts)
        lines.append(
            f"- {record.title}: {measured['exposed_s'] * 1e3:.1f} ms of {measured['communication_s'] * 1e3:.1f},"
            f" predicted {predicted['exposed_s'] * 1e3:.1f} of {predicted['communication_s'] * 1e3:.1f}; calls {calls}"
            f"{f': {seen}' if seen else ''}."
        )
    for record, predicted, measured in _measured(records, "rank_correlation"):
        pairs = zip(predicted["layouts"], measured["layouts"], strict=True)
        seconds = "; ".join(
            f"{p['layout']}: {p['step_s'] * 1e3:.1f} ms predicted, {m['step_s'] * 1e3:.1f} measured" for p, m in pairs
        )
        correlation = measured["rank_correlation"]
        shown = "none" if correlation is None else f"{correlation:.2f}"
        lines.append(
            f"- {record.title}: rank correlation {shown}, the first one loses {measured['first_loses']:.1%}. {seconds}."
        )
    return lines


def _faults(records: Sequence[Record]) -> list[str]:
    lines = []
    for record, _, m in _measured(records, "bit_equal"):
        where = "in a save" if m["killed_in_a_save"] else "**not in a save**"
        equal = "equal to the bit" if m["bit_equal"] else "**not equal**"
        lost = f"{m['lost_steps']} saved steps lost, {m['processes_left']} processes left"
        lines.append(f"- {record.title}: killed {where} ({m['kills']} tries), losses {equal}, {lost}.")
    for record, p, m in _measured(records, "names_rank"):
        ended = f"ended after {m['ended_s']:.0f} s" if m["ended"] else "**did not end**"
        named = "names the rank" if m["names_rank"] else "**does not name the rank**"
        lines.append(
            f"- {record.title}: {ended} (at most {p['ends_within_s']:.0f}), the message {named},"
            f" {m['processes_left']} processes left."
        )
    return lines


def _data(records: Sequence[Record]) -> list[str]:
    return [
        f"- {record.title}: "
        + ", ".join(
            f"{rate:,.0f} a second from {name} ({measured['share_of_step'][name]:.1%} of a step)"
            for name, rate in measured["tokens_per_s"].items()
        )
        + f"; needed are {predicted['needed_tokens_per_s']:,.0f}."
        for record, predicted, measured in _measured(records, "share_of_step")
    ]


def _left(records: Sequence[Record]) -> str:
    lines = [
        f"- {r.title}: {r.status}. {markdown_cell(r.reason)}"
        for r in records
        if r.status in ("refused", "failed", "skipped")
    ]
    lines += [f"- {r.title}: not measured yet." for r in records if r.status in ("predicted", "postponed")]
    return "## Not shown\n\n" + "\n".join(lines) + "\n" if lines else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: text columns to the left, numbers right."""
    align = ["--:" if i and rows[0][i][:1] in "+-.0123456789" else "---" for i in range(len(heads))]
    lines = [list(heads), align, *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
