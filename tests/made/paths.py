"""Where the project and the tests' data are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
RECORDED = DATA / "sglang/0.5.11"  # what real servers said
