"""Does Tracemill's data make a better drafter? Steps and figures: README.md beside this file."""

import json
from pathlib import Path
from typing import Any


def record(out: Path, name: str, value: Any) -> None:
    """Keep a step's raw result as records/<name>.json of the run's folder, and print it."""
    folder = out / "records"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1)
    (folder / f"{name}.json").write_text(text + "\n")
    print(name, text if len(text) < 2000 else text[:2000] + " ...", flush=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]
