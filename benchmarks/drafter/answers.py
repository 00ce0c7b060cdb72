"""What the target itself answers: the held-out prompts at temperature 0 and 0.6, and the arms'
prompts at a hot temperature, as another model's answers would be.

Writes answers.jsonl: set, temperature, id, messages, prompt_ids, output_ids.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.drafter import read_lines, record
from benchmarks.drafter.engine import ask_all, summed
from workflow_scripts.config.load import load
from workflow_scripts.model.prompts import Prompts

TEMPERATURES = (0.0, 0.6)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="answers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="prepare's folder")
    parser.add_argument("--url", required=True, help="a server of the target without a drafter")
    parser.add_argument("--hot", type=float, default=1.2, help="temperature of the off-policy arm")
    parser.add_argument("--hot-rows", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=200)
    args = parser.parse_args(argv)
    config = load(yaml.safe_load((args.out / "workflow.yaml").read_text()))
    prompts = Prompts.from_config(config)
    sets: list[tuple[str, float, list[dict[str, Any]]]] = [
        ("held_out", t, read_lines(args.out / "held_out.jsonl")) for t in TEMPERATURES
    ]
    sets.append(("hot", args.hot, read_lines(args.out / "found.jsonl")[: args.hot_rows]))
    told = []
    with (args.out / "answers.jsonl").open("w") as f:
        for name, temperature, rows in sets:
            questions = [row["messages"][:1] for row in rows]
            ids = [prompts.prompt_ids(question) for question in questions]
            most = config.sampling.max_new_tokens
            answers, seconds = ask_all(args.url, ids, temperature, most, args.in_flight)
            told.append({"set": name, "temperature": temperature, **summed(answers, seconds)})
            for row, question, prompt, answer in zip(rows, questions, ids, answers, strict=True):
                line = {"set": name, "temperature": temperature, "id": row["id"]}
                line |= {"messages": question, "prompt_ids": prompt, "finish": answer["finish"]}
                f.write(json.dumps(line | {"output_ids": answer["output_ids"]}) + "\n")
    record(args.out, "answers", told)
    return 0
