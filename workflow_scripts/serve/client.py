"""A job's places at the host's servers."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.sections import Config
from workflow_scripts.engine.places import NoServer, Place
from workflow_scripts.engine.protocol import EngineError
from workflow_scripts.engine.sglang import SGLang
from workflow_scripts.serve.address import spec
from workflow_scripts.serve.link import DaemonLink

PING_S = 30.0  # without a message from the daemon, after which it is asked for one
NOTICED_S = 0.5  # until the daemon notices a lost server, or a job the loss of the daemon
UNHEARD = 4  # times in a row, after which it counts as gone


class HostPlaces:
    """Places at the host's servers, granted by its daemon one by one.

    Raises (while connecting):
        ConfigError: the daemon cannot start; it says why.
    """

    def __init__(
        self,
        config: Config,
        run_hash: str,
        shard: int,
        end_ids: list[int],
        http: httpx.AsyncBaseTransport,
        say: Callable[[str], None],
    ):
        hello = {
            "op": "hello",
            "spec": spec(config, run_hash),
            "shard": f"{shard:04d}",
            "concurrency": config.generate.concurrency,
        }
        self.link = DaemonLink(config.output_dir, f"{shard:04d}", hello, say)
        self.sampling = config.sampling
        self.end_ids = end_ids
        self.http = http
        self.say = say
        self.capacity = 0
        self._engines: dict[str, SGLang] = {}
        self._waiting: deque[asyncio.Future[Place]] = deque()
        self._held: set[str] = set()
        self._fatal: str | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "HostPlaces":
        try:
            self.capacity = await self.link.connect()
        except BaseException:
            await self.__aexit__()
            raise
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self.link.close()

    async def _read(self) -> None:
        """Hand out places as they are granted; come back if the daemon is lost."""
        while True:
            message = await self._message()
            if message is None:
                self.say("the host's daemon is gone; starting another")
                self._held.clear()  # their servers end with it
                try:
                    self.capacity = await self.link.connect()
                except (ConfigError, OSError) as error:
                    self._fail(str(error))
                    return
                for _ in self._waiting:
                    self.link.send(op="take")
            elif "fatal" in message:
                self._fail(message["fatal"])
            elif "lease" in message:
                self._granted(message)

    async def _message(self) -> dict[str, Any] | None:
        """The daemon's next message; None when it is gone, or hears nothing any more."""
        for _ in range(UNHEARD):
            try:
                async with asyncio.timeout(PING_S):
                    return await self.link.receive()
            except TimeoutError:
                self.link.send(op="ping")
        self.say(f"the host's daemon has not answered for {UNHEARD * PING_S:.0f} s")
        return None

    def _granted(self, message: dict[str, Any]) -> None:
        url = message["url"]
        if url not in self._engines:
            engine = SGLang(url, self.sampling, self.end_ids, self.http)
            self._engines[url] = engine
        self._engines[url].since = time.monotonic() - message["age_s"]
        place = Place(message["lease"], self._engines[url], message["context"])
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                self._held.add(place.rid)
                future.set_result(place)
                return
        self.link.send(op="free", lease=place.rid, tokens=0, fault="unused")

    def _fail(self, text: str) -> None:
        self._fatal = text
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(NoServer(text))

    async def take(self) -> Place:
        if self._fatal is not None:
            raise NoServer(self._fatal)
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.link.send(op="take")
        return await future

    async def free(self, place: Place, tokens: int, error: EngineError | None) -> bool:
        if error is not None and error.reason == "connection_lost":
            await asyncio.sleep(NOTICED_S)
        held = place.rid in self._held
        if held:
            self._held.discard(place.rid)
            fault = error.reason if error else None
            self.link.send(op="free", lease=place.rid, tokens=tokens, fault=fault)
        if error is not None and error.reason == "unreachable":
            await asyncio.sleep(NOTICED_S)
        return held
