"""Seconds, megabytes a second and peak memory of the audit's two optional checks.

    python -m benchmarks.optional_checks [--rows 1000000]

Texts have 100 to 300 characters, 200 on average. For the near-duplicates four prompts of five are
different, one of ten is equal to an earlier one and one of ten has a word or two changed; `equal`
has 87 % equal ones, `template` a shared opening that makes all nearly alike, but not enough. For
the contamination the held-out sets have 10,000 rows and one text of a hundred holds a row of them.

Each check runs in a process of its own; memory is the process's peak less what it held before.
"""

import argparse
import json
import multiprocessing
import platform
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from workflow_scripts.texts.contamination import HeldOut
from workflow_scripts.texts.near_duplicates import clusters

VOCABULARY = 50_000
HELD_OUT = 10_000
TEMPLATE = " ".join(f"word{i}" for i in range(40))


def vocabulary() -> list[str]:
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(VOCABULARY)]


def text(rng: random.Random, known: list[str]) -> str:
    return " ".join(rng.choices(known, k=rng.randint(16, 47)))


def prompts(rows: int) -> Iterator[str]:
    rng, known = random.Random(2), vocabulary()
    for row in range(rows):
        if row % 10 in (8, 9):  # an earlier one again: its own generator repeats it
            earlier = text(random.Random(rng.randrange(row // 10 + 1)), known)
            if row % 10 == 9:
                earlier = earlier.replace(" ", f" {rng.choice(known)} ", 1)
            yield earlier
        elif row % 10 == 0:
            yield text(random.Random(row // 10), known)
        else:
            yield text(rng, known)


def equal(rows: int) -> Iterator[str]:
    rng, known = random.Random(3), vocabulary()
    for row in range(rows):
        yield text(rng, known) if row % 100 < 13 else TEMPLATE


def template(rows: int) -> Iterator[str]:
    rng, known = random.Random(4), vocabulary()
    for _ in range(rows):
        yield f"{TEMPLATE} " + " ".join(rng.choices(known, k=6))


def near_duplicates(texts: Callable[[int], Iterator[str]], rows: int) -> dict[str, Any]:
    size = 0

    def counted() -> Iterator[str]:
        nonlocal size
        for item in texts(rows):
            size += len(item)
            yield item

    found = clusters(counted(), 0.8)
    return {"bytes": size, "clusters": len(set(found))}


def contamination(texts: Callable[[int], Iterator[str]], rows: int) -> dict[str, Any]:
    found = HeldOut(13)
    rng, known = random.Random(5), vocabulary()
    held_out = [text(rng, known) for _ in range(HELD_OUT)]
    for row, item in enumerate(held_out):
        found.add(f"set{row % 3}", item)
    size = hits = 0
    for row, item in enumerate(texts(rows)):
        if row % 100 == 0:
            item = f"{item} {held_out[row // 100 % HELD_OUT]}"
        size += len(item)
        hits += bool(found.hits(item))
    return {"bytes": size, "hits": hits, "counts": found.counts()}


CASES: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[int], Iterator[str]]]] = {
    "near_duplicates": (near_duplicates, prompts),
    "near_duplicates equal": (near_duplicates, equal),
    "near_duplicates template": (near_duplicates, template),
    "contamination": (contamination, prompts),
}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measure(case: str, rows: int) -> dict[str, Any]:
    check, texts = CASES[case]
    start = time.perf_counter()
    for _ in texts(rows):
        pass
    made = time.perf_counter() - start  # what building the texts takes, which is not the check's
    before = peak()
    start = time.perf_counter()
    found = check(texts, rows)
    seconds = time.perf_counter() - start - made
    return {
        "seconds": round(seconds, 1),
        "mb_per_s": round(found["bytes"] / 1e6 / seconds, 2),
        "peak_mb": round(peak() - before),
        **found,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    args = parser.parse_args(argv)
    results: dict[str, Any] = {"rows": args.rows, "python": platform.python_version()}
    for case in args.cases:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            results[case] = pool.submit(measure, case, args.rows).result()
        print(case, results[case], file=sys.stderr)
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
