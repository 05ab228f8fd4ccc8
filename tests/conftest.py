"""Shared by every test: a private cache, goldens, launches, the policy for GPU tests, seconds per room and tier."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.launches import Row, scope_of, shared_rows

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("planc", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("planc")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor write the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def golden() -> Callable[[Path, str], None]:
    """`golden(path, text)`: the text is what is committed at `path`. `make goldens` rewrites it."""

    def compare(path: Path, text: str) -> None:
        if "PLANC_UPDATE_GOLDENS" in os.environ:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden at {path.relative_to(ROOT)}: make goldens"
        assert text == path.read_text(), f"{path.relative_to(ROOT)} differs: make goldens, and read the diff"

    return compare


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> Callable[[str], Callable[[str], Row]]:
    """`rows(launch)(case)`: every case that this run asks for is trained in one launch."""
    return shared_rows(request.session.items)


@pytest.fixture
def row(request: pytest.FixtureRequest, rows: Callable[[str], Callable[[str], Row]]) -> Row:
    """The row that the worker of a shared launch reports of the test's case."""
    mark = request.node.get_closest_marker("trained")
    assert mark is not None, "tests that read a row name their case with tests.launches.case"
    launch, name = mark.args
    return rows(launch)(name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers of pytest-xdist get a scope of tests at a time, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scopes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shared launches come first, then the others, as they take longest. GPU tests are skipped, with the reason, where
    no device is."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("trained", "launch")])
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not Path("/dev/nvidia0").exists():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; this machine has none"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds and tests of each room, split into tests that launch processes and those that do not."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                path = report.nodeid.split("::")[0].split("/")
                room = path[1] if len(path) > 2 else "tests"
                tier = f"{room}, launches" if "launch" in report.keywords else room
                seconds[tier] += report.duration
                tests[tier] += report.when == "call"
    for tier in sorted(seconds, key=lambda t: -seconds[t]):
        terminalreporter.write_line(f"{seconds[tier]:7.1f} s  {tests[tier]:4d} tests  {tier}")
