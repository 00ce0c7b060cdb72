"""What Snakemake itself costs with thousands of shards, beside a bare workflow of as many jobs.

    python -m benchmarks.scheduling [--shards 2000] [--repeats 1]

Three steps: a dry run with nothing done (the DAG is built), a run, and a run with nothing to do. In
the workflow only `generate` has work left, and its program is replaced by one `touch`, so that what
is measured is Snakemake. The bare workflow has one rule that touches a file and nothing else. CPU
seconds of Snakemake and all it starts are what counts where the machine is shared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.made.workspace import Workspace, chat

BARE = """\
rule all:
    input:
        expand("out/{{i}}", i=range({shards})),

rule one:
    output:
        "out/{{i}}",
    threads: 0
    shell:
        "touch {{output}}"
"""


GENERATED = """

rule generated:
    input:
        expand(rules.generate.output, shard=RUN.shards),
"""


def workspace(folder: Path, shards: int) -> Workspace:
    """The workflow, its shards made, its generation replaced."""
    work = Workspace.create(folder, [chat(f"Question {i}?") for i in range(2 * shards)])
    engine = {"kind": "attach", "urls": ["http://127.0.0.1:9"]}
    work.configure(shards=shards, engine=engine)
    done = work.run("shard")
    assert done.code == 0, done.output
    rule = folder / "rules/generate.smk"
    text = rule.read_text()
    assert "stage generate" in text
    start = text.index('        """\n        stage generate')
    rule.write_text(text[:start] + '        "touch {output}"\n')
    snakefile = folder / "Snakefile"
    snakefile.write_text(snakefile.read_text() + GENERATED)
    return work


def measured(command: list[str], folder: Path) -> dict[str, Any]:
    """Wall and CPU seconds of a command and its children."""
    start = time.monotonic()
    with (folder / "out.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    assert status == 0, (folder / "out.log").read_text()[-3000:]
    return {"wall_s": round(wall, 1), "cpu_s": round(used.ru_utime + used.ru_stime, 1)}


def steps(folder: Path, target: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "snakemake", "--cores", "7", "--scheduler", "greedy"]
    command += ["--nolock", target, "--resources", "place=100"]
    found = {"dry run": measured([*command, "-n", "--quiet", "all"], folder)}
    found["run"] = measured([*command, "--quiet", "all"], folder)
    found["nothing to do"] = measured(command, folder)
    assert "Nothing to be done" in (folder / "out.log").read_text()
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args(argv)
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as name:
            bare = Path(name) / "bare"
            bare.mkdir()
            (bare / "Snakefile").write_text(BARE.format(shards=args.shards))
            work = workspace(Path(name) / "w", args.shards)
            found = {"bare": steps(bare, "all"), "workflow": steps(work.folder, "generated")}
        print(json.dumps({"shards": args.shards, "load": os.getloadavg()[0], **found}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
