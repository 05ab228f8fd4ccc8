"""What every test shares: a private cache, goldens, one policy for GPU tests, seconds per room and tier."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests are skipped, with the reason, where no device is."""
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
