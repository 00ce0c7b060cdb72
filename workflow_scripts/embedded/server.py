"""Serve one GGUF model over llama.cpp's HTTP API, as a process that is easy to start and to stop.

    python -m workflow_scripts.embedded.server --model models/x/model.gguf --slots 8 --context 1024

Standard output carries exactly one line, printed once ``/health`` answers 200::

    {"ready": true, "url": "http://127.0.0.1:40123", "pid": 17, "slots": 8, "context": 1024}

``context`` is what llama.cpp granted to each slot, in tokens, which can differ from what was asked
for (it rounds up to a multiple of 256 and stops at the model's own limit). Everything else, the
engine's own messages included, goes to standard error.

The process ends at once, without waiting for requests, on SIGTERM or SIGINT (status 0; by the
signal itself while the model still loads) and when its parent is gone. Exit status 2 means that
the arguments or the model file are unusable, 1 that the engine failed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn, TextIO
from urllib.parse import urlsplit

# Part of the run's hash: raise it when a setting below changes what a seed gives.
NUMERICS = 1
PARENT_POLL_SECONDS = 0.5
# llama.cpp answers within 0.1 s of loading on a quiet machine; the rest is for a very busy one.
HEALTH_SECONDS = 60.0
# Connections beyond the slots that get a thread: queued requests, aborts, /metrics and /health.
# llama.cpp's own default leaves so few that a health check hangs behind queued completions.
SPARE_HTTP_THREADS = 64


class StartError(RuntimeError):
    """The engine could not be started; the message says what, where and what to do."""


def usable_cores() -> int:
    """Number of CPU cores this process may use, which a container or Slurm can have reduced."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_model_file(path: Path) -> None:
    """Raise StartError unless ``path`` begins like a GGUF file.

    llama.cpp reports every failure to start with the same sentence, so the two common ones are
    found here.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise StartError(
            f"cannot read the model file {path}: {error.strerror}; "
            "make it with python -m workflow_scripts.embedded.model"
        ) from error
    if magic != b"GGUF":
        raise StartError(f"{path} is not a GGUF file (it begins with {magic!r}); give --model one")


def take_stdout() -> TextIO:
    """Return the real standard output, and let file descriptor 1 mean standard error from now on.

    Done on the descriptor since the engine's C++ code does not know ``sys.stdout``.
    """
    sys.stdout.flush()
    real = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return real


def start_engine(args: argparse.Namespace) -> Any:
    """Load the model, start llama.cpp's HTTP server in this process, and return its handle.

    Raises StartError when llama.cpp refuses; its reason is on standard error by then.
    """
    # Idle OpenMP threads spin by default; on a machine with other work that costs a factor, and
    # the library reads the variable only once, while it is loaded.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(args.model)
    params.model_alias = {args.model.absolute().parent.name}
    params.hostnames = [args.host]
    params.port = args.port
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.context  # llama.cpp divides it among the slots
    params.kv_unified = False  # a slot never loses room to another one
    params.n_threads_http = args.slots + SPARE_HTTP_THREADS
    params.cpuparams.n_threads = args.decode_threads
    params.cpuparams_batch.n_threads = args.batch_threads
    # Both for the sake of a seed that means something: on a busy server most prompts get slightly
    # other numbers, and so other tokens, than on an idle one with flash attention, and some do when
    # shared batches are cut at 512 tokens. Like this it is rare (seen in 0 of 64 rows with as many
    # requests as slots, in 3 of 64 with twice as many) and costs about a tenth more CPU time.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_ubatch = params.n_batch
    params.n_gpu_layers = 0
    params.fit_params = False  # it would shrink the context to a guess of the free memory
    params.cache_ram_mib = 0  # else up to 8 GiB of memory for the prompts of idle slots
    params.cache_idle_slots = False
    params.ui = False
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.verbosity = args.verbosity
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise StartError(
            f"llama.cpp could not serve {args.model} on {args.host}:{args.port} with {args.slots} "
            f"slots of {args.context} tokens: {error} Its reason stands above; a port in use, a "
            "damaged model file and too little memory are the usual ones."
        ) from error


def get_json(url: str, path: str, timeout: float = 5.0) -> tuple[int, Any]:
    """GET ``url + path``; return the status and the decoded body.

    Raises OSError, http.client.HTTPException or ValueError. ``http.client`` because it ignores
    proxy settings, which must not apply to the loopback address. ``timeout`` is in seconds.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def wait_until_healthy(url: str, parent: int, limit: float = HEALTH_SECONDS) -> None:
    """Return once ``/health`` answers 200; raise StartError after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    last = "no answer"
    while time.monotonic() < deadline:
        leave_if_orphaned(parent)
        try:
            status, body = get_json(url, "/health")
            if status == 200:
                return
            last = f"HTTP {status} {body}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            last = repr(error)
        time.sleep(0.02)
    raise StartError(f"{url}/health did not answer 200 within {limit:.0f} s, last: {last}")


def leave(status: int, message: str = "") -> NoReturn:
    """End the process at once.

    ``os._exit`` because the engine's own shutdown waits for the requests in flight, which can take
    a minute.
    """
    if message:
        with contextlib.suppress(OSError):  # nobody may read standard error any more
            os.write(2, f"embedded_server: {message}\n".encode())
    os._exit(status)


def leave_if_orphaned(parent: int) -> None:
    """End the process if ``parent`` (a process id) is no longer its parent.

    A poll instead of PR_SET_PDEATHSIG: that one fires when the *thread* that started this process
    ends, so a server started from a worker thread would be killed too early.
    """
    if os.getppid() != parent:
        leave(0, f"parent process {parent} is gone, leaving")


def build_parser() -> argparse.ArgumentParser:
    """Command line of the server."""
    parser = argparse.ArgumentParser(
        prog="embedded_server", description="Serve a GGUF model on the CPU over HTTP."
    )
    cores = usable_cores()
    parser.add_argument("--model", type=Path, required=True, help="GGUF file to serve")
    parser.add_argument("--slots", type=int, default=8, help="requests answered at a time")
    parser.add_argument("--context", type=int, default=1024, help="tokens of context per slot")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 picks a free one")
    parser.add_argument(
        "--decode-threads",
        type=int,
        default=1,
        help="threads that generate tokens; more than 1 lost on a small model and a busy machine",
    )
    parser.add_argument(
        "--batch-threads", type=int, default=cores, help="threads that read prompts (all cores)"
    )
    parser.add_argument(
        "--parent-pid",
        type=int,
        default=None,
        help="process that starts this one; given, its death is noticed even if it comes before "
        "the first check (default: whoever is the parent at the start)",
    )
    parser.add_argument("--verbosity", type=int, default=1, help="llama.cpp's log level, 1 errors")
    return parser


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Parse and check the command line; ends the program with status 2 on a wrong value."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for name in ("slots", "context", "decode_threads", "batch_threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}, must be 1 or more")
    if not 0 <= args.port <= 65535:
        parser.error(f"--port is {args.port}, must be 0 (pick a free one) to 65535")
    return args


def main(argv: list[str] | None = None) -> int:
    """Start the server and stay until a signal or the parent's end; returns only on failure."""
    parent = os.getppid()
    args = parse_args(argv)
    if args.parent_pid is not None:
        parent = args.parent_pid
    leave_if_orphaned(parent)
    stdout = take_stdout()
    # Loading holds Python's lock, so a Python handler would run late: let the kernel act.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        check_model_file(args.model)
    except StartError as error:
        print(f"embedded_server: {error}", file=sys.stderr)
        return 2
    try:
        server = start_engine(args)
        signal.signal(signal.SIGTERM, lambda *_: leave(0))
        signal.signal(signal.SIGINT, lambda *_: leave(0))
        url = server.listening_address
        wait_until_healthy(url, parent)
        _, props = get_json(url, "/props")
    except (StartError, OSError, http.client.HTTPException, ValueError) as error:
        leave(1, str(error))  # not return: a running engine would hold the interpreter's exit
    ready = {
        "ready": True,
        "url": url,
        "pid": os.getpid(),
        "slots": props["total_slots"],
        "context": props["default_generation_settings"]["n_ctx"],
    }
    try:
        print(json.dumps(ready), file=stdout, flush=True)
    except OSError as error:
        leave(1, f"nobody reads standard output: {error}")
    while True:
        time.sleep(PARENT_POLL_SECONDS)
        leave_if_orphaned(parent)


if __name__ == "__main__":
    sys.exit(main())
