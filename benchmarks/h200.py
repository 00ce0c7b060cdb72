"""The figures of docs/benchmarks.md from the samples taken on H200s: `python -m benchmarks.h200`.

The runs themselves need the GPUs; benchmarks/h200.json holds what their servers said. Steady is the
server's decode counter from first full occupancy (126 of 128 running) to the last moment with a
queue, which is the last submission; whole is everything from the first request to the last answer.
"""

import json
from itertools import pairwise
from pathlib import Path

FULL = 126


def speeds(samples: list[list[float]], server: int, until: float = 1e9) -> tuple[float, float]:
    """Steady and whole output tokens per second of one server's samples.

    A sample is: seconds, server, running, queued, decoded tokens, requests ended.
    """
    own = [x for x in samples if x[1] == server and x[0] <= until]
    busy = [x for x in own if x[2]]
    full = next(x for x in own if x[2] >= FULL)
    last = [x for x in own if x[3]][-1]
    steady = (last[4] - full[4]) / (last[0] - full[0])
    return steady, (own[-1][4] - busy[0][4]) / (busy[-1][0] - busy[0][0])


def seconds(points: list[list[float]], first: int, last: int) -> float:
    """Seconds between two counts of finished requests, interpolated between (s, count) points."""

    def when(count: int) -> float:
        pairs = pairwise(points)
        (a, x), (b, y) = next(p for p in pairs if p[0][1] <= count <= p[1][1])
        return a + (b - a) * (count - x) / (y - x)

    return when(last) - when(first)


def main() -> None:
    found = json.loads((Path(__file__).parent / "h200.json").read_text())
    two, one = found["two_h200"], found["one_h200"]
    bench, bench_whole = speeds(two["bench_serving_one_gpu"], 0)
    cold, cold_whole = speeds(two["workflow_one_gpu_cold"], 0)
    both = [speeds(two["workflow_two_gpus"], k, two["killed_at_s"])[0] for k in (0, 1)]
    print(f"bench_serving, one GPU: steady {bench:,.0f} tok/s, whole {bench_whole:,.0f}")
    print(f"workflow, one GPU, first run of the machine: {cold:,.0f}, whole {cold_whole:,.0f}")
    print(f"workflow, two GPUs: {both[0]:,.0f} + {both[1]:,.0f} = {sum(both):,.0f}")
    print(f"  to two times the workflow's one: {sum(both) / 2 / cold:.2f}")
    print(f"  to two times bench_serving's one: {sum(both) / 2 / bench:.3f}")
    ours, theirs = one["workflow_rows_done"], one["bench_serving_rows_done"]
    for first, last in ((114, 1303), (300, 1353)):
        a, b = seconds(ours, first, last), seconds(theirs, first, last)
        print(f"one H200, requests {first} to {last}: workflow {a:.0f} s, bench_serving {b:.0f} s")


if __name__ == "__main__":
    main()
