"""Requests a second and CPU time of the HTTP clients that an engine could be asked through.

    python -m benchmarks.http_clients [--requests 3000] [--in-flight 64 256] [--repeats 3]

The server is a process of its own that answers at once with a completion of 1,000 ids. Every client
sends the same requests, in turn, each repeat; the median of the repeats is printed.
"""

import argparse
import asyncio
import multiprocessing
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from statistics import median

import aiohttp
import httpx
import orjson
from aiohttp import web

from workflow_scripts.engine.http import JSON_HEADERS, http_transport

BODY = orjson.dumps({"rid": "a" * 32, "input_ids": list(range(1000, 1200))})
ANSWER = orjson.dumps({"output_ids": list(range(100_000, 101_000)), "meta_info": {"id": "a"}})
TIMEOUT = {"timeout": {"connect": 10.0, "pool": 10.0, "read": None}}
Ask = Callable[[], Awaitable[object]]


def serve(listener: socket.socket) -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_post("/generate", answer)
    web.run_app(app, sock=listener, print=None)


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> None:
            async with session.post(url, data=BODY, headers=JSON_HEADERS) as response:
                await response.read()

        yield ask


@asynccontextmanager
async def through(transport: httpx.AsyncBaseTransport, url: str) -> AsyncIterator[Ask]:
    address = httpx.URL(url)
    async with transport:

        async def ask() -> None:
            request = httpx.Request(
                "POST", address, content=BODY, headers=JSON_HEADERS, extensions=TIMEOUT
            )
            response = await transport.handle_async_request(request)
            await response.aread()
            await response.aclose()

        yield ask


async def measured(ask: Ask, requests: int, in_flight: int) -> tuple[float, float]:
    """CPU milliseconds a request, and requests a second."""
    left = iter(range(requests))

    async def work() -> None:
        for _ in left:
            await ask()

    usage, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    now, seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - began
    cpu = now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime
    return 1000 * cpu / requests, requests / seconds


async def compare(url: str, args: argparse.Namespace) -> None:
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    clients: dict[str, Callable[[], AbstractAsyncContextManager[Ask]]] = {
        "aiohttp": lambda: bare(url),
        "httpx over aiohttp": lambda: through(http_transport(), url),
        "httpx's own": lambda: through(httpx.AsyncHTTPTransport(limits=unlimited), url),
    }
    for in_flight in args.in_flight:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
        for _ in range(args.repeats):
            for name, client in clients.items():
                async with client() as ask:
                    found[name].append(await measured(ask, args.requests, in_flight))
        for name, runs in found.items():
            cpu, speed = (median(values) for values in zip(*runs, strict=True))
            print(f"{in_flight:4} in flight  {name:20} {cpu:7.3f} ms CPU {speed:7,.0f} requests/s")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        server = multiprocessing.Process(target=serve, args=(listener,), daemon=True)
        server.start()
        try:
            port = listener.getsockname()[1]
            asyncio.run(compare(f"http://127.0.0.1:{port}/generate", args))
        finally:
            server.terminate()
            server.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
