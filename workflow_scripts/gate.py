"""Judge the evidence of an earlier rule: end with 0 and leave a mark, or fail with the reason.

Evidence and judgement are separate rules because Snakemake deletes what a failed rule wrote.
"""

import argparse
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import read_json, write_atomically
from workflow_scripts.base.locks import sole
from workflow_scripts.base.log import say
from workflow_scripts.config.audit import Audit
from workflow_scripts.config.load import read_run


def audit_faults(report: dict[str, Any], settings: Audit) -> list[str]:
    """Why nothing should be generated from this input."""
    if not report["accepted"]:
        reasons = ", ".join(f"{n} {name}" for name, n in report["reject_reasons"].items())
        return [
            f"no usable row in the input ({reasons or 'it is empty'}); see audit/rejected.jsonl"
        ]
    faults = []
    share = report["rejected"] / (report["accepted"] + report["rejected"])
    if share > settings.max_rejected_fraction:
        faults.append(
            f"{100 * share:.1f} % of the input lines are unusable, more than "
            f"audit.max_rejected_fraction ({settings.max_rejected_fraction:g}); "
            "see audit/rejected.jsonl, each with its line and reason"
        )
    if report["verdict"] in settings.stop_on:
        faults.append(
            f"the verdict is `{report['verdict']}` ({100 * report['trivial_share']:.1f} % trivial "
            "responses) and audit.stop_on says to stop; remove it there to go on"
        )
    return faults


def dataset_faults(stats: dict[str, Any]) -> list[str]:
    """Why this is no dataset to train on."""
    rows = stats["rows"]
    if rows["train"]:
        return []
    reasons = ", ".join(f"{n} {name}" for name, n in stats["drop_reasons"].items())
    return [
        f"no training row is left: {rows['dropped']} dropped ({reasons or 'nothing was completed'})"
        ", see dataset/rejected.parquet; loosen dataset.filters, or raise sampling.max_new_tokens"
    ]


def verify_faults(evidence: dict[str, Any]) -> list[str]:
    """The checks that failed."""
    return [
        f"{c['check']}: {c['count']} {c['fault']}, e.g. {c['examples'][0]}"
        for c in evidence["checks"]
        if not c["ok"]
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("gate", choices=("audit", "dataset", "verify"))
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="written if the gate opens")
    args = parser.parse_args(argv)
    config, _ = read_run(args.run)
    try:
        with sole(args.run.parent, f"{args.gate}_gate"):
            evidence = read_json(args.evidence)
            if args.gate == "audit":
                faults = audit_faults(evidence, config.audit)
            elif args.gate == "dataset":
                faults = dataset_faults(evidence)
            else:
                faults = verify_faults(evidence)
            if not faults:
                write_atomically(args.output, b"ok\n")
    except ConfigError as error:
        faults = [str(error)]
    for fault in faults:
        say(f"{args.gate} gate: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
