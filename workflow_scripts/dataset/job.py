"""Build the training data: one row a generated turn, from the engine's own ids.

input_ids are the prompt's ids as they were sent and the completion's as they came back; loss_mask
is 1 on exactly the completion. What a filter drops stands in rejected.parquet with its reason.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from workflow_scripts.base import sums
from workflow_scripts.base.files import write_atomically
from workflow_scripts.config.sections import Config
from workflow_scripts.dataset.card import write_card
from workflow_scripts.dataset.drift import Drift
from workflow_scripts.dataset.exports import write_exports
from workflow_scripts.dataset.filters import Found, SampleFilters
from workflow_scripts.dataset.frequencies import coverage
from workflow_scripts.dataset.page import Gallery
from workflow_scripts.dataset.samples import Sample, read_samples
from workflow_scripts.dataset.survey import Survey, survey
from workflow_scripts.dataset.training_table import Side, train_table
from workflow_scripts.model.prompts import Prompts
from workflow_scripts.tables.columns import DROPPED
from workflow_scripts.tables.parquet import SIDES, TableWriter, read_batches, table_writer

BATCH = 512  # merged rows at a time
MANY_KEPT = 10_000  # kept rows from which on a faster encoder pays for its seconds of start
OF_SOURCE = ("rows", "dropped", "prompt_tokens", "supervised_tokens", "reasoning_tokens")


class Builder:
    """Sorts samples into the sides of the dataset and its rejects, and counts.

    Args:
        folder: the dataset's folder.
        rejected: writer of rejected.parquet.
        metadata: for the Parquet files.
    """

    def __init__(
        self,
        config: Config,
        prompts: Prompts,
        survey: Survey,
        folder: Path,
        rejected: TableWriter,
        metadata: dict[str, str],
        drift: Drift,
    ):
        self.prompts = prompts
        self.survey = survey
        self.filters = SampleFilters(config, prompts, survey)
        self.rejected = rejected
        rows = config.dataset.rows_per_file
        self.sides = {name: Side(folder, name, rows, metadata) for name in SIDES}
        self.gallery = Gallery(prompts)
        self.drift = drift
        self.dropped: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.sources: dict[str, Counter[str]] = {}
        self.spelling = 0

    def add(self, batch: list[Sample]) -> None:
        """Take samples in the order of the merged rows."""
        kept: list[Sample] = []
        for sample in batch:
            self.classes[sample.fields["class"]] += 1
            if ended := sample.fields["ended"]:
                self.ended[ended] += 1
            sample.fields["prompt_cluster"] = self.survey.cluster(sample.row)
            if self.drift.chosen(sample):
                self.drift.check(sample, self.prompts)
            if found := self.filters.reason(sample):
                self._drop(sample, found)
            else:
                kept.append(sample)
        table = train_table(kept)
        chosen: dict[str, list[int]] = {name: [] for name in SIDES}
        for index, found in enumerate(self.filters.batch(kept, table)):
            if found:
                self._drop(kept[index], found)
            else:
                side = self._side(kept[index])
                chosen[side].append(index)
                self._count(kept[index], side)
        for name, rows in chosen.items():
            self.sides[name].add(table.take(pa.array(rows, pa.int64())))

    def _side(self, sample: Sample) -> str:
        if self.filters.for_drafter(sample):
            return "drafter"
        return "validation" if self.survey.held_out[sample.row] else "train"

    def _count(self, sample: Sample, side: str) -> None:
        counts = self.sources.setdefault(sample.fields["source"], Counter())
        counts["rows"] += 1
        counts["prompt_tokens"] += len(sample.prompt_ids)
        counts["supervised_tokens"] += len(sample.output_ids)
        counts["reasoning_tokens"] += sample.fields["reasoning_length"]
        texts = [m["content"] for m in sample.messages if isinstance(m["content"], str)]
        if any(self.prompts.spellings.masked(text) is not text for text in texts):
            self.spelling += bool(self.prompts.spellings.found(texts))
        self.gallery.keep(sample, side)

    def _drop(self, sample: Sample, found: Found) -> None:
        reason, message = found
        self.dropped[reason] += 1
        self.sources.setdefault(sample.fields["source"], Counter())["dropped"] += 1
        self.gallery.drop(sample, reason, message)
        fields = {name: sample.fields.get(name) for name in DROPPED.names}
        fields |= {"reason": reason, "message": message, "length": sample.length}
        self.rejected.add([fields | {"completion_length": len(sample.output_ids)}])

    def finish(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Close the files; returns what stats.json holds."""
        for name, side in self.sides.items():
            side.finish(even_empty=name == "train")
        sides = self.sides.values()
        lengths: Counter[int] = sum((side.lengths for side in sides), Counter())
        learnt = self.sides["train"].learnt + self.sides["drafter"].learnt
        reasoning = sum(counts["reasoning_tokens"] for counts in self.sources.values())
        return {
            "rows": {
                **{name: side.rows for name, side in self.sides.items()},
                "dropped": self.dropped.total(),
            },
            "tokens": sum(side.tokens for side in sides),
            "supervised_tokens": sum(side.supervised for side in sides),
            "reasoning_tokens": reasoning,
            "drafter_vocabulary": coverage(learnt),
            "drop_reasons": dict(self.dropped.most_common()),
            "classes": dict(self.classes.most_common()),
            "ended": dict(self.ended.most_common()),
            "sources": {
                name: {key: counts[key] for key in OF_SOURCE}
                for name, counts in sorted(self.sources.items())
            },
            "completion_token_counts": {str(k): lengths[k] for k in sorted(lengths)},
            "prompt_clusters": len(set(self.survey.prompts.tolist())),
            "drift": self.drift.as_dict(),
            "rows_spelling_control_tokens": self.spelling,
            "run": identity,
        }


def build(
    completions: Path,
    folder: Path,
    config: Config,
    prompts: Prompts,
    identity: dict[str, Any],
    audit: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the training data, its exports, statistics, card and page.

    Args:
        completions: merged/completions.parquet.
        folder: the dataset's folder, which exists.
        identity: the run's identity, run_hash included.
        audit: audit/report.json, for the card.

    Returns:
        What stats.json holds.

    Raises:
        TemplateChanged: prompts render to other ids than when they were answered.
        ConfigError: a filter of the user's cannot be used.
    """
    kept = pl.scan_parquet(completions).filter(pl.col("origin") == "kept").select(pl.len())
    if kept.collect().item() > MANY_KEPT:  # only kept responses are encoded
        prompts.hasten()
    known = survey(completions, config)
    calls_too = config.audit.rules.asks_calls
    names = ("run_hash", "chat_template", "tokenizer", "thinking")
    metadata = {f"tracemill.{name}": str(identity.get(name)) for name in names}
    with table_writer(folder / "rejected.parquet", DROPPED) as rejected:
        drift = Drift.of(completions)
        builder = Builder(config, prompts, known, folder, rejected, metadata, drift)
        first = 0
        for batch in read_batches(completions, BATCH):
            builder.add(list(read_samples(batch, first, prompts, calls_too)))
            first += len(batch)
    stats = builder.finish(identity)
    write_atomically(folder / "stats.json", orjson.dumps(stats, option=orjson.OPT_INDENT_2))
    write_atomically(
        folder / "samples.html", builder.gallery.page(stats).encode("utf-8", "replace")
    )
    exports = write_exports(folder, config.dataset.exports)
    there = (path for path in folder.rglob("*") if path.is_file())
    # not the card, which is for its owner to write on
    sums.record(folder, (path for path in there if path.name != "README.md"))
    write_card(folder / "README.md", config, stats, audit, exports)
    return stats
