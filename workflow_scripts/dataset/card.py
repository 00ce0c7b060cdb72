"""The dataset card, README.md beside the data, in the form that Hugging Face shows."""

import re
from pathlib import Path
from typing import Any

import yaml

from workflow_scripts.base.files import write_atomically
from workflow_scripts.base.sums import recorded
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import digest
from workflow_scripts.pages.text import environment
from workflow_scripts.tables.parquet import SIDES

TEMPLATE = Path(__file__).with_name("card.md.j2")
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**6, "100K<n<1M"))


def front_matter(config: Config, stats: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The card's metadata: licence, splits as `load_dataset` takes them, size, tags.

    `load_dataset` cannot load a split without rows. What it caches of a folder it finds again by
    these lines alone, not by the files: so they hold a digest of the files, or another run's rows
    would come back.
    """
    rows = {name: stats["rows"][name] for name in SIDES}
    total = sum(rows.values())
    splits = [{"split": name, "path": f"{name}-*.parquet"} for name, n in rows.items() if n]
    listed = recorded(folder).items()
    tables = [total for name, total in listed if name.endswith(".parquet") and "/" not in name]
    content = digest(*tables)
    about = f"run {stats['run']['run_hash']}, files {content}"
    default = {"config_name": "default", "description": about, "data_files": splits}
    size = next((name for most, name in SIZES if total < most), "1M<n<10M")
    return {
        "license": config.dataset.license or "unknown",
        "task_categories": ["text-generation"],
        "size_categories": [size],
        "tags": ["synthetic", "tracemill", "speculative-decoding"],
        "configs": [default] if splits else [],
    }


def cell(text: object) -> str:
    """A user's text in a line or a table's cell of Markdown: no line ends it, no bar splits it, and
    nothing of it is a link, an image or HTML."""
    return re.sub(r"([\\`\[\]<>|])", r"\\\1", " ".join(str(text).split()))


def write_card(
    path: Path,
    config: Config,
    stats: dict[str, Any],
    audit: dict[str, Any] | None,
    exports: dict[str, Any],
) -> None:
    """Write the card.

    Args:
        stats: what stats.json holds.
        audit: what audit/report.json holds, if there was an audit.
        exports: what write_exports wrote.
    """
    made = environment(html=False)
    made.filters["cell"] = cell
    front = yaml.safe_dump(front_matter(config, stats, path.parent), sort_keys=False)
    text = made.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        front=front,
        config=config,
        stats=stats,
        audit=audit,
        exports=exports,
        identity=stats["run"],
        model=Path(config.model.path).name,
    )
    write_atomically(path, text.encode("utf-8", "replace"))
