"""Generate one shard: ask for every row that has no answer yet, then write the shard out.

Every answer goes to the shard's journal first. Whatever ends this program, the next run takes from
the journals what is there and asks only for the rest.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from workflow_scripts.base.files import file_sha256
from workflow_scripts.base.log import say
from workflow_scripts.base.signals import cancel_on_signals
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.http import http_transport
from workflow_scripts.engine.own_places import OwnPlaces
from workflow_scripts.engine.places import Places
from workflow_scripts.engine.pool import Pool
from workflow_scripts.generate.asker import Asker
from workflow_scripts.generate.journal import wait_for
from workflow_scripts.generate.retries import next_round
from workflow_scripts.generate.rows import write_records, write_shard
from workflow_scripts.generate.shard import Shard
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.progress.shard import Progress
from workflow_scripts.serve.attached import open_engines
from workflow_scripts.serve.client import HostPlaces


@asynccontextmanager
async def open_pool(
    config: Config, run_hash: str, shard: int, prompts: Prompts, vocab_size: int
) -> AsyncIterator[Pool]:
    """Places at the servers that the configuration names, for one shard's requests."""
    end_ids = sorted(prompts.end_ids)
    async with AsyncExitStack() as stack:
        places: Places
        if config.engine.kind == "sglang":
            http = await stack.enter_async_context(http_transport())
            host = HostPlaces(config, run_hash, shard, end_ids, http, say)
            places = await stack.enter_async_context(host)
        else:
            wait_s = config.engine.reconnect_s
            found = open_engines(config, end_ids, prompts, wait_s)
            engines = await stack.enter_async_context(found)
            own = OwnPlaces(engines, config.generate, wait_s, say)
            places = await stack.enter_async_context(own)
        yield Pool(places, config.generate, config.sampling, vocab_size)


def generate(
    config: Config,
    run_hash: str,
    shard_file: Path,
    shard: int,
    all_rows: int,
    folder: Path,
    retry_failed: bool = False,
    written: str | None = None,
) -> dict[str, Any]:
    """Generate one shard and write `folder`/shard-<k>.parquet and .json.

    Args:
        written: the first half of the shard file's SHA-256 as the shard stage wrote it.

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
    if written is not None and file_sha256(shard_file)[:32] != written:
        raise OSError(
            f"{shard_file}: not what the shard stage wrote (its SHA-256 differs from the manifest's"
            "); run again with --forcerun shard: answered rows are not asked again"
        )
    table = pq.read_table(shard_file)
    if not len(table):  # more shards than rows: no model is loaded for nothing
        folder.mkdir(parents=True, exist_ok=True)
        return write_records(target, (), run_hash)
    prompts = Prompts.from_config(config)
    journal = wait_for(folder / "journal", shard, config.shards, 600.0, say)
    progress = Progress(folder / "journal", shard, config.shards, len(table), all_rows)
    if journal.damaged:
        say(f"{journal.path}: {journal.damaged} damaged lines skipped; their rows are asked again")
    asker = Asker(config, prompts, run_hash, journal, retry_failed)
    # dummy weights also answer with ids that no text has
    known = asker.vocab_size if config.engine.rehearsal else min(asker.vocab_size, prompts.size)
    pool = partial(open_pool, config, run_hash, shard, prompts, known)
    state = Shard(config.generate, table, asker, progress, pool)
    if retry_failed and (journal.failed or not journal.sealed):
        next_round(folder / "journal", shard, config.shards)
    try:
        asyncio.run(_until_signal(state))
        state.check_failed_share()
        journal.seal()
        return write_shard(target, table, state.rows, journal, asker.course, run_hash)
    finally:
        progress.save(running=False)
        say(progress.line())
        journal.close()


async def _until_signal(state: Shard) -> None:
    """Run, ending in order on SIGTERM and SIGINT: requests aborted, journal closed."""
    cancel_on_signals()
    try:
        await state.run()
    except ExceptionGroup as errors:  # of the task group; the first one stopped the others
        raise errors.exceptions[0] from None
