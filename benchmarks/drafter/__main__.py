"""A drafter trained on Tracemill's data, step by step: `python -m benchmarks.drafter STEP --help`.

README.md beside this file has the steps in order. Each imports its own libraries only, since the
workflow, the trainer and the server live in three environments.
"""

import sys
from importlib import import_module

STEPS = ("prepare", "answers", "arms", "features", "train", "convert", "measure", "table")


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in STEPS:
        print(f"usage: python -m benchmarks.drafter {{{','.join(STEPS)}}} ...", file=sys.stderr)
        return 2
    step: int = import_module(f"benchmarks.drafter.{argv[0]}").main(argv[1:])
    return step


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
