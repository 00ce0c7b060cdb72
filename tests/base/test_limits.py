"""Open files: the soft limit is raised, and a lower hard one is kept to."""

import subprocess
import sys

import pytest

from tests.made.paths import ROOT

PROGRAM = """
import resource
from workflow_scripts.base.limits import raise_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard"), [(128, 500), (200, 200)])
def test_as_many_as_the_hard_limit_allows(soft: int, hard: int) -> None:
    command = [sys.executable, "-c", PROGRAM.format(soft=soft, hard=hard)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard - 64), str(hard)]
