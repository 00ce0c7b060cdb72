"""The records of a run as Markdown: mean and spread over seeds.

python -m benchmarks.drafter table --records benchmarks/drafter/records
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Record = dict[str, Any]


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def spread(values: list[float], digits: int = 2) -> str:
    """Mean and sample standard deviation."""
    if not values:
        return "-"
    told = f"{mean(values):,.{digits}f}"
    return told + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def by_arm(names: list[str]) -> dict[str, list[str]]:
    """Drafters, named <arm>-<seed>, of each arm."""
    told: dict[str, list[str]] = {}
    for name in names:
        told.setdefault(name.rsplit("-", 1)[0], []).append(name)
    return told


def figure(rows: list[Record], temperature: float, alone: bool, key: str) -> float | None:
    """A figure of one drafter's measurements."""
    for row in rows:
        if row["temperature"] == temperature and (row["in_flight"] == 1) == alone:
            value: float | None = row.get(key)
            return value
    return None


def arms_table(arms: dict[str, Record], trained: Record) -> list[str]:
    lines = [
        "| arm | rows | supervised tokens | rows of one token | tokens a batch |",
        "|---|---|---|---|---|",
    ]
    for name, arm in arms.items():
        cells = [f"{arm['rows']:,}", f"{arm['supervised_tokens']:,}", f"{arm['one_token_rows']:,}"]
        cells.append(f"{trained['batch_tokens'][name]:,}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def results_table(arms: list[str], trained: Record, measured: Record) -> list[str]:
    head = ["arm", "seeds", "trainer's validation", "engine, T 0", "T 0.6", "T 0, answers that end"]
    head += ["tok/s, T 0, {} at once", "tok/s, one at a time", "times the target alone"]
    plain = measured["alone"]
    many = plain[0]["in_flight"]
    lines = ["| " + " | ".join(head).format(many) + " |", "|---" * len(head) + "|"]
    alone = {one: figure(plain, 0.0, one, "tokens_per_s") for one in (False, True)}
    cells = [
        "the target alone",
        "",
        "",
        "1",
        "1",
        "1",
        f"{alone[False]:,.0f}",
        f"{alone[True]:,.0f}",
    ]
    lines.append("| " + " | ".join([*cells, "1"]) + " |")
    said = {d["drafter"]: d["validation"][-1]["accept_length"]
            for d in trained["drafters"] if d["validation"]}  # fmt: skip
    of = by_arm([name for name in measured["drafters"] if not name.startswith("again ")])
    for arm in [*arms, *(name for name in of if name not in arms)]:
        names = of.get(arm, [])
        rows = [measured["drafters"][name] for name in names]

        def all_of(temperature: float, one: bool, key: str, rows: Any = rows) -> list[float]:
            found = (figure(row, temperature, one, key) for row in rows)
            return [value for value in found if value is not None]

        speeds = {one: all_of(0.0, one, "tokens_per_s") for one in (False, True)}
        ratios = [
            spread([v / base for v in speeds[one]]) if (base := alone[one]) else "-"
            for one in (False, True)
        ]
        cells = [arm, str(len(names)), spread([said[n] for n in names if n in said])]
        cells += [spread(all_of(t, False, "accept_length")) for t in (0.0, 0.6)]
        cells.append(spread(all_of(0.0, False, "accept_length_stopped")))
        cells += [spread(speeds[False], 0), spread(speeds[True], 0), ", ".join(ratios)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="table", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--records", type=Path, default=Path(__file__).parent / "records")
    args = parser.parse_args(argv)
    arms = read(args.records, "arms")["arms"]
    trained, measured = read(args.records, "train"), read(args.records, "measure")
    print(f"{trained['steps']} steps each. Accept length: tokens a verification step.\n")
    print(
        "\n".join([*arms_table(arms, trained), "", *results_table(list(arms), trained, measured)])
    )
    for name, rows in measured["drafters"].items():
        first = name.removeprefix("again ")
        if first != name:
            both = [
                figure(x, 0.0, False, "accept_length") for x in (measured["drafters"][first], rows)
            ]
            print(f"\n{first}, put in first and once more last: {both[0]}, {both[1]}")
    return 0
