"""`snakemake --lint`, clean but for what docs/design.md lists as exceptions.

The list of messages is compared whole: a new one fails, and so does an exception that is gone.
"""

import re
import subprocess
import sys

EXCEPTIONS = {
    # Rules run the Python that runs Snakemake, from one locked environment (see docs/design.md).
    "Specify a conda environment or container for each rule.",
}


def main() -> int:
    command = [sys.executable, "-m", "snakemake", "--lint"]
    found = subprocess.run(command, capture_output=True, text=True)
    titles = set(re.findall(r"^    \* (.*?):?$", found.stdout + found.stderr, re.MULTILINE))
    if not titles and found.returncode != 0:
        print(found.stdout + found.stderr)
        return 1
    new = titles - EXCEPTIONS
    gone = EXCEPTIONS - titles
    for title in sorted(new):
        print(f"snakemake --lint: {title}")
    for title in sorted(gone):
        print(f"no exception any more, take it off the list: {title}")
    if not new and not gone:
        print(f"snakemake --lint: clean, with {len(EXCEPTIONS)} listed exception")
    return 1 if new or gone else 0


if __name__ == "__main__":
    raise SystemExit(main())
