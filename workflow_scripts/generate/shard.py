"""One shard's generation: its rows on their way, all of them at once."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import orjson
import pyarrow as pa

from workflow_scripts.base.limits import raise_descriptors
from workflow_scripts.base.log import say
from workflow_scripts.config.sections import Generate
from workflow_scripts.engine.pool import Pool
from workflow_scripts.generate.asker import Asker
from workflow_scripts.generate.rows import Row
from workflow_scripts.model.given import NAMES, Given
from workflow_scripts.progress.shard import Progress

CHUNK = 128  # rows rendered and encoded at a time, in another thread
REPORT_S = 10.0  # between two progress lines


class TooManyFailed(Exception):
    """The shard's share of failed rows is over the limit; nothing is written out."""


class TakenOver(Exception):
    """Another job works on the shard from now on."""


class Shard:
    """The state of one shard's generation.

    Args:
        table: the shard's rows as the shard stage wrote them.
        asker: asks for a row's turns, or takes them from the journal.
        open_pool: opens the places at the servers, once there is a row to ask.
    """

    def __init__(
        self,
        settings: Generate,
        table: pa.Table,
        asker: Asker,
        progress: Progress,
        open_pool: Callable[[], AbstractAsyncContextManager[Pool]],
    ):
        self.settings = settings
        self.table = table
        self.asker = asker
        self.progress = progress
        self.open_pool = open_pool
        self.rows: list[Row] = []

    def _next_rows(self, start: int) -> list[Row]:
        """The next rows, as far as the journal goes. Runs in another thread."""
        part = self.table.slice(start, CHUNK).select(["row_id", "messages", *NAMES]).to_pylist()
        rows = [
            Row(fields["row_id"], orjson.loads(fields["messages"]), Given.read(fields))
            for fields in part
        ]
        self.asker.prepare(rows)
        for row in rows:
            self.asker.recall(row)
        return rows

    async def run(self) -> None:
        """Bring every row to its end: an answer or a failure.

        Raises:
            NoServer: no server answers any more.
            TakenOver: another job goes on.
            OSError: the journal cannot be written.
        """
        waiting: asyncio.Queue[Row | None] = asyncio.Queue(maxsize=2 * CHUNK)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            ticker = group.create_task(self._tick())
            workers: list[asyncio.Task[None]] = []
            for start in range(0, len(self.table), CHUNK):
                chunk = await asyncio.to_thread(self._next_rows, start)
                self.rows += chunk
                for row in chunk:
                    if row.over:
                        self._count(row)
                        continue
                    if not workers:
                        pool = await stack.enter_async_context(self.open_pool())
                        most = raise_descriptors()
                        number = min(pool.places.capacity, len(self.table), most)
                        if number == most:
                            say(
                                f"{number:,} requests at once, as many files as this process may "
                                f"open; the servers take {pool.places.capacity:,}: raise ulimit -n"
                            )
                        workers = [
                            group.create_task(self._work(waiting, pool)) for _ in range(number)
                        ]
                    await waiting.put(row)
            for _ in workers:
                await waiting.put(None)
            if workers:
                await asyncio.wait(workers)
            ticker.cancel()

    async def _work(self, waiting: asyncio.Queue[Row | None], pool: Pool) -> None:
        while (row := await waiting.get()) is not None:
            await self.asker.ask(row, pool)
            self._count(row)

    def _count(self, row: Row) -> None:
        row.conversation = []
        self.progress.count(row.tokens, row.failure, row.fresh)

    async def _tick(self) -> None:
        sync_s = self.settings.journal_sync_s
        elapsed = 0.0
        while True:
            await asyncio.sleep(min(sync_s, REPORT_S))
            await asyncio.to_thread(self.asker.journal.sync)
            if await asyncio.to_thread(self.asker.journal.wanted):
                raise TakenOver("a job started later goes on with it from the journal")
            elapsed += min(sync_s, REPORT_S)
            if elapsed >= REPORT_S:
                elapsed = 0.0
                self.progress.save(running=True)
                say(self.progress.line())

    def check_failed_share(self) -> None:
        """Raises TooManyFailed with the reasons, most frequent first."""
        failed = [(i, row.failure) for i, row in enumerate(self.rows) if row.failure]
        limit = self.settings.max_failed_fraction
        if len(failed) <= limit * len(self.rows):
            return
        reasons: dict[str, list[str]] = {}
        for index, failure in failed:
            source, line = self.table["source"][index], self.table["line"][index]
            reasons.setdefault(failure["reason"], []).append(
                f"{source}:{line}: {failure['message']}"
            )
        lines = [
            f"{len(where)} x {reason}, e.g. {where[0]}"
            for reason, where in sorted(reasons.items(), key=lambda item: -len(item[1]))
        ]
        raise TooManyFailed(
            f"{len(failed)} of {len(self.rows)} rows failed, more than generate."
            f"max_failed_fraction allows ({limit:g}); completed rows are kept, and the next run "
            "asks only for the failed ones:\n  " + "\n  ".join(lines)
        )
