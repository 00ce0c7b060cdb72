"""Build the training data: one row a generated turn, from the engine's own ids.

input_ids are the prompt's ids as they were sent and the completion's as they came back; loss_mask
is 1 on exactly the completion. A kept response has no ids of an engine: it is tokenized from text
as the chat template writes it, and marked off-policy.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from workflow_scripts.answers import split
from workflow_scripts.config import Dataset, Filters, read_run
from workflow_scripts.conversation import prompt_hash
from workflow_scripts.progress import say, write_atomically
from workflow_scripts.prompts import Message, PromptError, Prompts, is_asked
from workflow_scripts.tables import DROPPED, IDS, TRAIN, TableWriter, read_batches, table_writer

BATCH = 512


@dataclass(slots=True)
class Sample:
    """One turn on its way to a training row; ids as int32 arrays."""

    fields: dict[str, Any]
    prompt_ids: np.ndarray[Any, Any]
    output_ids: np.ndarray[Any, Any]
    held_out: bool
    fault: str | None = None

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)


# A filter answers None to keep a sample, or the finding that drops it.
def drop_reason(sample: Sample, settings: Dataset) -> tuple[str, str] | None:
    """The first filter that drops the sample, as (reason, finding); None keeps it."""
    kind, generated = sample.fields["class"], len(sample.output_ids)
    if sample.fault:
        return "template_refused", sample.fault
    if not generated:
        return "no_supervised_token", "nothing to learn from"
    if kind in Filters.model_fields and getattr(settings.filters, kind) == "drop":
        return kind, f"the answer is {kind.replace('_', ' ')}"
    if generated < settings.filters.min_completion_tokens:
        return "too_short", f"{generated} tokens"
    if sample.length > settings.max_length:
        return "too_long", f"{sample.length} tokens, dataset.max_length is {settings.max_length}"
    return None


def samples(row: dict[str, Any], prompts: Prompts, held_out: float) -> Iterator[Sample]:
    """The samples of a merged row."""
    messages = orjson.loads(row["messages"])
    side = int(prompt_hash(messages)[:8], 16) / 2**32 < held_out
    names = ("row_id", "source", "line", "id", "run_hash", "origin")
    common = {name: row[name] for name in names}
    answers = [i for i, message in enumerate(messages) if is_asked(message)]
    if row["origin"] == "kept":
        for turn, at in enumerate(answers):
            given = messages[: at + 1]
            fields = {**common, "turn": turn, "class": "kept", "finish_reason": None}
            try:
                yield _sample(prompts, fields, given, *kept_ids(prompts, given), side)
            except PromptError as error:
                refused = _sample(prompts, fields, given, [], [], side)
                refused.fault = str(error)
                yield refused
        return
    for turn, at in zip(row["turns"], answers, strict=True):
        fields = {
            **common,
            "turn": turn["turn"],
            "class": turn["class"],
            "finish_reason": turn["finish_reason"],
        }
        given = messages[: at + 1]
        yield _sample(prompts, fields, given, turn["prompt_ids"], turn["output_ids"], side)


def _sample(
    prompts: Prompts,
    fields: dict[str, Any],
    messages: list[Message],
    prompt_ids: list[int],
    output_ids: list[int],
    side: bool,
) -> Sample:
    parts = split(prompts, prompt_ids, output_ids)
    fields["on_policy"] = fields["origin"] == "generated"
    fields["reasoning_length"] = parts.answer_start
    fields["messages"] = orjson.dumps(messages).decode()
    ids = [np.asarray(part, dtype=np.int32) for part in (prompt_ids, output_ids)]
    return Sample(fields, ids[0], ids[1], side)


def kept_ids(prompts: Prompts, messages: list[Message]) -> tuple[list[int], list[int]]:
    """Prompt and completion ids of a conversation that ends with a kept response.

    The completion is what the template adds to the prompt, up to its first end token. Where the
    template writes a response without the reasoning that the prompt opens, the prompt ends with the
    line before it.

    Raises:
        PromptError: the template refuses it, or does not write a response after its prompt.
    """
    history = prompts.render(messages[:-1], answer_next=False)
    asked = prompts.render(messages[:-1])
    whole = prompts.render(messages, answer_next=False)
    cut = len(asked) if whole.startswith(asked) else 0
    if not cut and whole.startswith(history):
        same = next((i for i, (a, b) in enumerate(zip(asked, whole, strict=False)) if a != b), 0)
        cut = asked.rfind("\n", len(history), same) + 1
    if not cut:
        raise PromptError("the template writes the response in another form than its prompt")
    prompt_ids, output_ids = prompts.encode([whole[:cut], whole[cut:]])
    for index, token in enumerate(output_ids):
        if token in prompts.end_ids:
            return prompt_ids, output_ids[: index + 1]
    return prompt_ids, output_ids


def train_table(batch: list[Sample]) -> pa.Table:
    """Samples as rows of the training table; ids and masks are built without Python integers."""
    lengths = np.array([s.length for s in batch], dtype=np.int32)
    prompt_lengths = np.array([len(s.prompt_ids) for s in batch], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    ids = np.concatenate([part for s in batch for part in (s.prompt_ids, s.output_ids)])
    mask = np.ones(len(ids), dtype=np.int8)
    for start, length in zip(offsets, prompt_lengths, strict=False):
        mask[start : start + length] = 0
    columns: dict[str, Any] = {
        name: [s.fields[name] for s in batch] for name in TRAIN.names if name in batch[0].fields
    }
    columns |= {
        "input_ids": pa.ListArray.from_arrays(offsets, pa.array(ids), type=IDS),
        "loss_mask": pa.ListArray.from_arrays(
            offsets, pa.array(mask), type=TRAIN.field("loss_mask").type
        ),
        "length": lengths,
        "prompt_length": prompt_lengths,
        "completion_length": lengths - prompt_lengths,
    }
    arrays = [pa.array(columns[f.name], type=f.type) for f in TRAIN]
    return pa.Table.from_arrays(arrays, schema=TRAIN)


class Side:
    """One side of the split, in files of at most `rows_per_file` rows."""

    def __init__(self, folder: Path, name: str, rows_per_file: int):
        self.folder, self.name, self.rows_per_file = folder, name, rows_per_file
        self.rows = 0
        self.tokens = 0
        self.supervised = 0
        self.lengths: Counter[int] = Counter()
        self._files = 0
        self._batch: list[Sample] = []
        self._writer: TableWriter | None = None
        self._context: Any = None

    def add(self, sample: Sample) -> None:
        self.tokens += sample.length
        self.supervised += len(sample.output_ids)
        self.lengths[len(sample.output_ids)] += 1
        self._batch.append(sample)
        if len(self._batch) >= min(BATCH, self.rows_per_file - self.rows % self.rows_per_file):
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            self._open()
        assert self._writer is not None
        if self._batch:
            self._writer.add_table(train_table(self._batch))
            self.rows += len(self._batch)
            self._batch = []
        if self.rows and self.rows % self.rows_per_file == 0:
            self._close()

    def _open(self) -> None:
        path = self.folder / f"{self.name}-{self._files:05d}.parquet"
        self._context = table_writer(path, TRAIN, BATCH)
        self._writer = self._context.__enter__()
        self._files += 1

    def _close(self) -> None:
        self._context.__exit__(None, None, None)
        self._writer = None

    def finish(self) -> None:
        if self._batch or self._files == 0:  # an empty side is a file without rows
            self._flush()
        if self._writer is not None:
            self._close()


def build(
    completions: Path, folder: Path, settings: Dataset, prompts: Prompts, identity: dict[str, Any]
) -> dict[str, Any]:
    """Write the training data and its statistics.

    Returns:
        What stats.json holds.
    """
    train = Side(folder, "train", settings.rows_per_file)
    held_out = Side(folder, "validation", settings.rows_per_file)
    dropped: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    with table_writer(folder / "rejected.parquet", DROPPED) as rejected:
        for batch in read_batches(completions, BATCH):
            for row in batch.to_pylist():
                for sample in samples(row, prompts, settings.validation_fraction):
                    classes[sample.fields["class"]] += 1
                    reason = drop_reason(sample, settings)
                    if reason is None:
                        (held_out if sample.held_out else train).add(sample)
                        continue
                    dropped[reason[0]] += 1
                    fields = {name: sample.fields.get(name) for name in DROPPED.names}
                    rejected.add(
                        [
                            fields
                            | {
                                "reason": reason[0],
                                "message": reason[1],
                                "length": sample.length,
                                "completion_length": len(sample.output_ids),
                            }
                        ]
                    )
    train.finish()
    held_out.finish()
    lengths = train.lengths + held_out.lengths
    stats = {
        "rows": {"train": train.rows, "validation": held_out.rows, "dropped": dropped.total()},
        "tokens": train.tokens + held_out.tokens,
        "supervised_tokens": train.supervised + held_out.supervised,
        "drop_reasons": dict(dropped.most_common()),
        "classes": dict(classes.most_common()),
        "completion_token_counts": {str(k): lengths[k] for k in sorted(lengths)},
        "run": identity,
    }
    write_atomically(folder / "stats.json", orjson.dumps(stats, option=orjson.OPT_INDENT_2))
    return stats


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's run.json")
    parser.add_argument("--completions", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder for the dataset")
    args = parser.parse_args(argv)
    config, identity = read_run(args.run)
    args.output.mkdir(parents=True, exist_ok=True)
    prompts = Prompts.from_config(config)
    stats = build(args.completions, args.output, config.dataset, prompts, identity)
    rows = stats["rows"]
    say(
        f"dataset: {rows['train']} train and {rows['validation']} validation rows, "
        f"{stats['supervised_tokens']} supervised tokens; {rows['dropped']} dropped"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
