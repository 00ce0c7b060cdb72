"""What `python -m sglang.launch_server` is in tests: the stand-in server, its start recorded.

FAKE_STARTS names a file that gets a line per start. FAKE_OPTIONS is a JSON object of options of the
stand-in; its key `start` holds, for starts by number from 0, `fail`, a number of seconds to wait,
or options of their own.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    given = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=False))
    record = {
        "pid": os.getpid(),
        "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
        "port": int(given["--port"]),
        "nccl_port": int(given["--nccl-port"]),
        "argv": sys.argv[3:],
        "node": os.environ.get("SLURMD_NODENAME"),
        "given": os.environ.get("SLURM_STEP_GPUS"),  # by Slurm, whatever the job sees
    }
    path = Path(os.environ["FAKE_STARTS"])
    with path.open("a") as f:
        f.write(json.dumps(record) + "\n")
    number = len(path.read_text().splitlines()) - 1
    options = json.loads(os.environ["FAKE_OPTIONS"])
    special = options.pop("start", {}).get(str(number), {})
    if special == "fail":
        sys.exit("torch.cuda.OutOfMemoryError: CUDA out of memory (a planted failure)")
    if isinstance(special, (int, float)):
        time.sleep(special)
        special = {}
    options |= special
    options |= {"port": given["--port"], "model_path": given["--model-path"]}
    options.setdefault("served_model_name", given["--served-model-name"])
    command = [sys.executable, str(Path(__file__).parent.parent / "stand_in_sglang.py")]
    for name, value in options.items():
        words = value if isinstance(value, list) and name != "faults" else [value]
        words = [json.dumps(w) if name == "faults" else str(w) for w in words]
        command += ["--" + name.replace("_", "-"), *words]
    os.execv(command[0], command)


main()
