"""What `python -m sglang.launch_server` is in tests: the stand-in server, its start recorded.

FAKE_STARTS names a file that gets a line per start. FAKE_OPTIONS is a JSON object of options of the
stand-in; its key `start` holds, for starts by number from 0, `fail`, a number of seconds to wait,
or options of their own. Its key `play` makes the server follow its flags: it runs as many requests
as they allow, a step takes `plain` or, with speculation, `draft` ([seconds, seconds a request]) and
gives an accept length of SGLANG_SIMULATE_ACC_LEN tokens; its `special` are options by requests.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def read_flags(words: list[str]) -> dict[str, str]:
    """Flags by name; a switch is empty."""
    found = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            value = words[i + 1] if i + 1 < len(words) else "--"
            found[word] = "" if value.startswith("--") else value
    return found


def played(given: dict[str, str], play: dict[str, Any]) -> dict[str, Any]:
    """Options of the stand-in for the flags it was started with."""
    drafts = "--speculative-algorithm" in given
    accept = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", 1)) if drafts else 1.0
    most = int(given.get("--max-running-requests", 48))
    if slots := int(given.get("--max-mamba-cache-size", 0)):
        most = min(most, slots // (5 if "--mamba-scheduler-strategy" in given else 3))
    fixed, each = play["draft" if drafts else "plain"]
    options: dict[str, Any] = {"max_running": most, "state_slots": slots}
    options["token_seconds"] = (fixed + each * most) / accept
    options["told"] = json.dumps({"speculative_algorithm": given.get("--speculative-algorithm")})
    options["load_format"] = given.get("--load-format", "auto")
    options["accept_length"] = accept if drafts else 0
    return options | play.get("special", {}).get(str(most), {})


def main() -> None:
    given = read_flags(sys.argv[3:])
    record = {
        "pid": os.getpid(),
        "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
        "port": int(given["--port"]),
        "nccl_port": int(given["--nccl-port"]),
        "argv": sys.argv[3:],
        "accept": os.environ.get("SGLANG_SIMULATE_ACC_LEN"),
        "node": os.environ.get("SLURMD_NODENAME"),
        "given": os.environ.get("SLURM_STEP_GPUS"),  # by Slurm, whatever the job sees
    }
    path = Path(os.environ["FAKE_STARTS"])
    with path.open("a") as f:
        f.write(json.dumps(record) + "\n")
    number = len(path.read_text().splitlines()) - 1
    options = json.loads(os.environ["FAKE_OPTIONS"])
    special = options.pop("start", {}).get(str(number), {})
    if play := options.pop("play", None):
        options |= played(given, play)
    if special == "fail" or options.pop("fail", False):
        sys.exit("torch.cuda.OutOfMemoryError: CUDA out of memory (a planted failure)")
    if isinstance(special, (int, float)):
        time.sleep(special)
        special = {}
    options |= special
    options |= {"port": given["--port"], "model_path": given["--model-path"]}
    options.setdefault("served_model_name", given["--served-model-name"])
    command = [sys.executable, "-m", "tests.stand_ins.sglang"]
    for name, value in options.items():
        words = value if isinstance(value, list) and name != "faults" else [value]
        words = [json.dumps(w) if name == "faults" else str(w) for w in words]
        command += ["--" + name.replace("_", "-"), *words]
    root = str(Path(__file__).resolve().parents[3])
    os.execve(command[0], command, os.environ | {"PYTHONPATH": root})


main()
