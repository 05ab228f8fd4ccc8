"""Facts of real launch scripts, and the page that is made of them."""

import json
from collections import Counter

from tests.lab.measure.scripts import FACTS, PAGE, READ, page

FOUND = json.loads(FACTS.read_text())
ROWS = [row for of in FOUND.values() for row in of["scripts"].values()]


def test_the_page_is_that_of_the_facts() -> None:
    assert PAGE.read_text() == page(FOUND)


def test_there_are_enough_and_both_readers_agree() -> None:
    """Both plans of a script are equal wherever its text and its run both give one."""
    kinds = Counter(row[0] for row in ROWS)
    assert kinds["Megatron-LM"] >= 300 and len(FOUND) >= 20
    assert Counter(row[3] for row in ROWS if {row[1], row[2]} <= {*READ})[False] == 0
    assert all(len(of["commit"]) == 40 for of in FOUND.values())
