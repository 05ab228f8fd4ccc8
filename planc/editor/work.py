"""Jobs for the thread in which planc runs: one at a time, requests before checks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
Job = Callable[[], Awaitable[None]]
REQUEST, CHECK = 0, 1


class Work:
    """A queue of jobs, run in sequence, and the thread for their slow part."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "planc")
        self._queue: asyncio.PriorityQueue[tuple[int, int, Job]] | None = None
        self._numbers = itertools.count()
        self._checks: set[str] = set()
        """Files with a pending check."""
        self._draining: asyncio.Task[None] | None = None

    def check(self, uri: str, job: Callable[[str], Awaitable[None]]) -> None:
        """Run `job` on the file at `uri` when nothing else is pending, once even if requested again meanwhile."""
        if uri in self._checks:
            return
        self._checks.add(uri)

        async def run() -> None:
            self._checks.discard(uri)
            await job(uri)

        self._put(CHECK, run)

    async def ask(
        self, work: Callable[[], Result], is_stale: Callable[[], bool], waiting_s: float, running_s: float
    ) -> Result | None:
        """Return the result of `work`, which runs in planc's thread before all pending checks.

        None if the request is stale when it could start, does not start within `waiting_s`, or runs longer than
        `running_s`. After a cancellation or a timeout, `work` is no longer started.
        """
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[None] = loop.create_future()
        answer: asyncio.Future[Result | None] = loop.create_future()

        async def run() -> None:
            if begun.done() or answer.done():
                return
            begun.set_result(None)
            try:
                found = None if is_stale() else await self.run(work)
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
                return
            if not answer.done():
                answer.set_result(found)

        self._put(REQUEST, run)
        # `wait_for` of Python 3.11 forgets a cancellation that comes in the moment in which its future is done.
        try:
            async with asyncio.timeout(waiting_s):
                await begun
            async with asyncio.timeout(running_s):
                return await answer
        except TimeoutError:
            return None

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which runs in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _put(self, priority: int, job: Job) -> None:
        if self._queue is None:
            self._queue = asyncio.PriorityQueue()
            self._draining = asyncio.get_running_loop().create_task(self._drain(self._queue))
        self._queue.put_nowait((priority, next(self._numbers), job))

    async def _drain(self, queue: asyncio.PriorityQueue[tuple[int, int, Job]]) -> None:
        while True:
            _, _, job = await queue.get()
            await job()
