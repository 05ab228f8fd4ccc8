"""A short form of `make faults`: one run on each stack that is killed in a save, in a collective or a step, asked to
end, stopped and damaged, and comes to the losses of a run that nothing happened to."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.faults import campaign
from tests.faults.campaign import Site, Trial

pytestmark = [pytest.mark.launch, pytest.mark.slow]  # it aims at moments: minutes on a quiet machine


@pytest.fixture(params=["cuda", "xla"], scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("faults") / request.param, request.param, steps=24)


def test_what_is_saved_is_never_lost_and_nothing_wrong_is_resumed(site: Site) -> None:
    dice = random.Random(8)
    moment = "collective" if site.stack == "cuda" else "step"
    done: list[Trial] = [campaign.kill(site, dice, "save"), campaign.kill(site, dice, moment)]
    if site.last() is not None:
        done += [campaign.damage(site, dice) for _ in range(8)]
    done += [campaign.term(site, dice), campaign.finish(site)]
    assert [trial.line for trial in done if trial.wrong] == []


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named(site: Site) -> None:
    dice = random.Random(3)
    campaign.begin_again(site)
    assert campaign.hang(site, dice).wrong == []


def test_a_trial_can_go_wrong(site: Site, tmp_path: Path) -> None:
    """The judge sees a lost step, and losses that are not the run's."""
    assert site.last() is not None
    trial = Trial(site.stack, "none")
    campaign.look(site, trial, said=10**6)
    assert re.search("step 1000000 was saved, and the newest is", trial.wrong[0])
    trial, whole = Trial(site.stack, "none"), site.losses
    site.losses = [loss + 1e-7 for loss in whole]
    campaign.look(site, trial, said=0)
    site.losses = whole
    assert trial.wrong == ["the losses are not those of the whole run"]
