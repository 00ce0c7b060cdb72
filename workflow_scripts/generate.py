"""Generate one shard: ask for every row that has no answer yet, then write the shard out.

Every answer goes to the shard's journal first. Whatever ends this program, the next run takes from
the journals what is there and asks only for the rest.
"""

import argparse
import asyncio
import os
import signal
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts.answers import classify, texts
from workflow_scripts.config import Config, ConfigError, read_run
from workflow_scripts.dispatch import Failure, NoServer, OwnPlaces, Places, Pool
from workflow_scripts.engines import EngineError, http_transport, open_engines
from workflow_scripts.host_places import HostPlaces
from workflow_scripts.identity import digest, model_vocab_size, rehearsal_length, request_seed
from workflow_scripts.journal import Journal, Place, wait_for
from workflow_scripts.progress import Progress, say, write_atomically
from workflow_scripts.prompts import PromptError, Prompts, is_asked
from workflow_scripts.shard_rows import Row, Turn, write_shard
from workflow_scripts.workflow import RETRY_VARIABLE, read_round, round_path

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
        retry_failed: ask rows again whose failure was final.
    """

    def __init__(
        self,
        config: Config,
        prompts: Prompts,
        run_hash: str,
        journal: Journal,
        progress: Progress,
        table: pa.Table,
        retry_failed: bool,
    ):
        self.config = config
        self.prompts = prompts
        self.run_hash = run_hash
        self.journal = journal
        self.progress = progress
        self.table = table
        self.rows: list[Row] = []
        self.vocab_size = model_vocab_size(config) or prompts.vocab_size
        self.final = {} if retry_failed else dict(journal.failed)

    # ---- one row ----

    def _next_rows(self, start: int) -> list[Row]:
        part = self.table.slice(start, CHUNK).select(["row_id", "messages"]).to_pylist()
        rows = [Row(fields["row_id"], orjson.loads(fields["messages"])) for fields in part]
        self.prepare(rows)
        return rows

    def prepare(self, rows: list[Row]) -> None:
        """Go to each row's next assistant turn and make its prompt. Runs in another thread."""
        rendered, owners = [], []
        for row in rows:
            while row.at < len(row.conversation) and not is_asked(row.conversation[row.at]):
                row.at += 1
            if row.over:
                continue
            try:
                rendered.append(self.prompts.render(row.conversation[: row.at]))
                owners.append(row)
            except PromptError as error:
                row.failure = {"reason": "template_refused", "message": str(error), "attempts": 0}
        for row, ids in zip(owners, self.prompts.encode(rendered), strict=True):
            row.next_prompt = ids
            row.next_seed = request_seed(self.config.sampling.seed, row.row_id, len(row.turns))
            row.next_request = self._request(row, ids)

    def _request(self, row: Row, prompt_ids: list[int]) -> str:
        """Identity of the row's next request."""
        turn, ids = len(row.turns), array("i", prompt_ids).tobytes()
        return digest(self.run_hash, row.row_id, str(turn), str(row.next_seed), ids)

    def recall(self, row: Row) -> bool:
        """Take the row's turns from the journal as far as they go; True if nothing is to ask."""
        while not row.over:
            if row.next_prompt is None:
                self.prepare([row])
                continue
            if place := self.journal.done.get(row.next_request):
                self._take(row, place, self.journal.read(place))
            elif place := self.final.get(row.next_request):
                row.failure = self.journal.read(place)
            else:
                return False
        return True

    async def ask(self, row: Row, pool: Pool) -> None:
        """Ask for the row's turns until the conversation is over."""
        while not self.recall(row):
            row.fresh = True
            assert row.next_prompt is not None
            prompt_ids = row.next_prompt
            record = self._unfit(prompt_ids)
            if record is None:
                spread = self.config.engine.rehearsal_tokens
                fixed = rehearsal_length(spread, row.row_id, len(row.turns)) if spread else None
                found = await pool.ask(prompt_ids, row.next_seed, fixed)
                if isinstance(found, Failure):
                    record = {name: getattr(found, name) for name in Failure.__slots__}
                else:
                    answer, attempts = found
                    record = {
                        "output_ids": answer.output_ids,
                        "finish": answer.finish,
                        "class": classify(self.prompts, prompt_ids, answer),
                        "retractions": answer.retractions,
                        "accept_length": answer.accept_length,
                        "attempts": attempts,
                    }
            record["request"] = row.next_request
            record["row_id"] = row.row_id
            place = self.journal.append(record)
            if "output_ids" in record:
                self._take(row, place, record)
            else:
                row.failure = record

    def _unfit(self, prompt_ids: list[int]) -> dict[str, Any] | None:
        """A failure for a prompt that no server may see: one id outside the vocabulary ends an
        SGLang server."""
        if prompt_ids and max(prompt_ids) >= self.vocab_size:
            message = f"the prompt has the id {max(prompt_ids)}; the model has {self.vocab_size}"
            return {"reason": "id_outside_vocabulary", "message": message, "attempts": 0}
        return None

    def _take(self, row: Row, place: Place, record: dict[str, Any]) -> None:
        """Add an answer to the conversation; stop where there is none to go on from."""
        assert row.next_prompt is not None
        prompt_ids, output_ids = row.next_prompt, record["output_ids"]
        row.turns.append(Turn(array("i", prompt_ids).tobytes(), row.next_request, place))
        row.tokens += len(output_ids)
        row.next_prompt = None
        last = row.at == len(row.conversation) - 1
        if record["class"] in ("complete", "truncated_in_answer") and not last:
            ((reasoning, answer),) = texts(self.prompts, [(prompt_ids, output_ids)])
            row.conversation[row.at] = {"role": "assistant", "content": answer}
            if reasoning is not None:
                row.conversation[row.at]["reasoning_content"] = reasoning
            row.at += 1
        else:  # a later turn would answer a conversation that never took place
            row.at = len(row.conversation)

    # ---- all rows ----

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
                    if self.recall(row):
                        self._count(row)
                        continue
                    if not workers:
                        pool = await stack.enter_async_context(open_pool(self.config, self))
                        number = min(pool.places.capacity, len(self.table))
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
            await self.ask(row, pool)
            self._count(row)

    def _count(self, row: Row) -> None:
        row.conversation = []
        self.progress.count(row.tokens, row.failure, row.fresh)

    async def _tick(self) -> None:
        sync_s = self.config.generate.journal_sync_s
        elapsed = 0.0
        while True:
            await asyncio.sleep(min(sync_s, REPORT_S))
            await asyncio.to_thread(self.journal.sync)
            if await asyncio.to_thread(self.journal.wanted):
                raise TakenOver("a job started later goes on with it from the journal")
            elapsed += min(sync_s, REPORT_S)
            if elapsed >= REPORT_S:
                elapsed = 0.0
                self.progress.save(running=True)
                say(self.progress.line())

    def check_failed_share(self) -> None:
        """Raises TooManyFailed with the reasons, most frequent first."""
        failed = [(i, row.failure) for i, row in enumerate(self.rows) if row.failure]
        limit = self.config.generate.max_failed_fraction
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


@asynccontextmanager
async def open_pool(config: Config, shard: Shard) -> AsyncIterator[Pool]:
    """Places at the servers that the configuration names, for this shard's requests."""
    end_ids = sorted(shard.prompts.end_ids)
    async with AsyncExitStack() as stack:
        places: Places
        if config.engine.kind == "sglang":
            http = await stack.enter_async_context(http_transport())
            number = shard.progress.shard
            places = await stack.enter_async_context(
                HostPlaces(config, shard.run_hash, number, end_ids, http, say)
            )
        else:
            engines = await stack.enter_async_context(open_engines(config, end_ids, say))
            own = OwnPlaces(engines, config.generate, config.engine.reconnect_s, say)
            places = await stack.enter_async_context(own)
        yield Pool(places, config.generate, config.sampling, shard.vocab_size)


def generate(
    config: Config,
    run_hash: str,
    shard_file: Path,
    shard: int,
    all_rows: int,
    folder: Path,
    retry_failed: bool = False,
) -> dict[str, Any]:
    """Generate one shard and write `folder`/shard-<k>.parquet and .json.

    Returns:
        The counts that the .json file holds.

    Raises:
        TooManyFailed, TakenOver, NoServer, OSError: nothing is written out, the journal stays.
    """
    target = folder / f"shard-{shard:04d}"
    target.with_suffix(".json").unlink(missing_ok=True)  # of an earlier time: not done any more
    if not shard_file.exists():
        raise FileNotFoundError(
            f"{shard_file} is gone; delete {shard_file.with_name('manifest.json')} and run again, "
            "which makes all shards' rows anew"
        )
    table = pq.read_table(shard_file)
    prompts = Prompts.from_config(config)
    journal = wait_for(folder / "journal", shard, config.shards, 600.0, say)
    progress = Progress(folder / "journal", shard, config.shards, len(table), all_rows)
    if journal.damaged:
        say(f"{journal.path}: {journal.damaged} damaged lines skipped; their rows are asked again")
    state = Shard(config, prompts, run_hash, journal, progress, table, retry_failed)
    if retry_failed and (journal.failed or not journal.sealed):
        next_round(folder / "journal", shard, config.shards)
    try:
        asyncio.run(_until_signal(state))
        state.check_failed_share()
        journal.seal()
        return write_shard(target, table, state.rows, journal, prompts, run_hash)
    finally:
        progress.save(running=False)
        say(progress.line())
        journal.close()


def next_round(journals: Path, shard: int, shards: int) -> None:
    """Count a retry of the shard's failed rows, as `Run.retry_round` expects it."""
    name = f"{shard:04d}"
    count = read_round(journals, name, shards) + 1
    write_atomically(round_path(journals, name, shards), str(count).encode())


async def _until_signal(state: Shard) -> None:
    """Run, ending in order on SIGTERM and SIGINT: requests aborted, journal closed."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, task.cancel)
    try:
        await state.run()
    except ExceptionGroup as errors:  # of the task group; the first one stopped the others
        raise errors.exceptions[0] from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--shard", type=int, required=True, help="number of the shard, from 0")
    parser.add_argument("--manifest", type=Path, required=True, help="beside the shards' rows")
    parser.add_argument("--output", type=Path, required=True, help=".../shard-<number>.parquet")
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    all_rows = orjson.loads(args.manifest.read_bytes())["asked"]
    try:
        counts = generate(
            config,
            identity["run_hash"],
            args.manifest.with_name(args.output.name),
            args.shard,
            all_rows,
            args.output.parent,
            retry_failed=bool(os.environ.get(RETRY_VARIABLE)),
        )
    except (TooManyFailed, TakenOver, NoServer, EngineError, ConfigError, OSError) as error:
        say(f"shard {args.shard}: {error}")
        return 1
    except asyncio.CancelledError:
        say(f"shard {args.shard}: stopped; the next run goes on from the journal")
        return 130
    say(f"shard {args.shard}: {counts['completed']} completed, {counts['failed']} failed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
