"""Days, device hours and price of the whole run: equal to the sums by hand, and to each other where they must be."""

from math import ceil
from pathlib import Path

import pytest

import planc
from planc.ir.read_plan import read_plan
from planc.ir.report import Report, RunCost
from tests.plans import BODY, HEAD, codes, plan_of, written

RUN = "train for 1 T tokens\nprice 2.50 USD per device hour\n"


def checked(folder: Path, more: str, head: str = HEAD) -> Report:
    return planc.check(written(folder, head + BODY + more))


def run_of(folder: Path, more: str, head: str = HEAD) -> RunCost:
    run = checked(folder, more, head).run
    assert run is not None
    return run


def test_the_run_is_its_steps_over_the_share_that_trains(tmp_path: Path) -> None:
    """The closed form, from the report's own step and goodput: 64 devices at 2.50 USD an hour."""
    report = checked(tmp_path, RUN)
    run, step, good = report.run, report.step, report.goodput
    assert run and step and good and report.tokens_per_step
    steps = ceil(10**12 / (64 * 8192))
    hours = steps * step.time_s / good.runtime / 3600
    assert run.steps == steps
    assert run.days == pytest.approx(hours / 24, rel=1e-12)
    assert run.device_hours == pytest.approx(hours * 64, rel=1e-12)
    assert run.price == pytest.approx(hours * 64 * 2.50, rel=1e-12)
    assert (run.price_per_hour, run.currency, run.tokens) == (160.0, "USD", 10**12)


@pytest.mark.parametrize(
    ("price", "per_hour"),
    [
        ("2.50 USD per device hour", 160.0),
        ("2.50 USD per chip hour", 160.0),
        ("20 USD per node hour", 160.0),
        ("0.02 kEUR per node hour", 160.0),
        ("0.00002 MGBP per node hour", 160.0),
        ("0 USD per node hour", 0.0),
    ],
)
def test_a_price_counts_what_it_is_for(price: str, per_hour: float, tmp_path: Path) -> None:
    assert run_of(tmp_path, f"price {price}\n").price_per_hour == pytest.approx(per_hour)


def test_two_devices_of_a_chip_share_its_price(tmp_path: Path) -> None:
    """A TPU7x chip is two framework devices: 2 USD a chip are 1 USD a device."""
    head = HEAD.replace("8 x h100_node", "tpu_7x(4x4x2)")
    prices = ("2 USD per chip", "1 USD per device")
    hourly = [run_of(tmp_path, f"price {p} hour\n", head).price_per_hour for p in prices]
    assert hourly == [64.0, 64.0]


@pytest.mark.parametrize(
    ("tokens", "count"), [("524288", 524288), ("300 k", 3e5), ("2.5 M", 2.5e6), ("15 B", 15e9), ("15 T", 15e12)]
)
def test_tokens_have_units(tokens: str, count: float, tmp_path: Path) -> None:
    run = run_of(tmp_path, f"train for {tokens} tokens\n")
    assert (run.tokens, run.steps) == (count, ceil(count / 524288))
    assert run.price is None and run.currency is None


def test_a_plan_without_the_sentences_is_as_before(tmp_path: Path) -> None:
    """No figures, and no keys in its compiled form."""
    assert checked(tmp_path, "").run is None
    plain = plan_of(tmp_path, HEAD + BODY + "expect memory <= 70 GiB\n").to_json()
    assert not {"train", "price"} & plain.keys() and "currency" not in plain["expects"][0]


def test_the_compiled_form_reads_back(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + BODY + RUN + "expect price <= 2 MUSD\n")
    again = read_plan(plan.to_json())
    assert again == plan and again.expects[0].currency == "USD"


def test_the_plan_s_own_price_wins_over_the_hardware_file_s(tmp_path: Path) -> None:
    (tmp_path / "prices.plan").write_text("hardware prices\nprice 3 USD per node hour\n")
    imported = HEAD.replace("model ", 'import "prices.plan"\nmodel ')
    assert run_of(tmp_path, "", imported).price_per_hour == 24.0
    assert run_of(tmp_path, "price 1 USD per node hour\n", imported).price_per_hour == 8.0


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (RUN + "expect days <= 1\n", ["E0801"]),
        (RUN + "expect device_hours <= 1\n", ["E0801"]),
        (RUN + "expect price < 1 kUSD\n", ["E0801"]),
        (RUN + "expect price < 9 MUSD\nexpect days <= 900\n", []),
        (RUN + "expect price < 1 MEUR\n", ["E0807"]),
        (RUN + "expect price < 1 GiB\n", ["E0103"]),
        (RUN + "expect price < 1\n", ["E0103"]),
        (RUN + "expect days < 30 s\n", ["E0103"]),
        ("expect days <= 30\n", ["E0806"]),
        ("train for 1 T tokens\nexpect price <= 1 MUSD\n", ["E0806"]),
        (RUN + "expect days <= 30\nexpect days > 31\n", ["E0804"]),
        (RUN + RUN, ["E0107", "E0107"]),
        ("train for 0 tokens\n", ["E0103"]),
        ("train for 2000 T tokens\n", ["E0103"]),
        ("train for 15 GiB tokens\n", ["E0103"]),
        ("price 1 - 2 USD per device hour\n", ["E0103"]),
        ("price 1 USD per gpu hour\n", ["E0108"]),
        ("price 1 XAU per device hour\n", ["E0103"]),
        ("price 1 USD per device\n", ["E0102"]),
        ("train 15 T tokens\n", ["E0102"]),
    ],
)
def test_findings(more: str, expected: list[str], tmp_path: Path) -> None:
    found = [c for c in codes(tmp_path, HEAD + BODY + more) if c[0] == "E"]
    assert found == expected
