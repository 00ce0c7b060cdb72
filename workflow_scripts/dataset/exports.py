"""Write a finished dataset in the forms that trainers load; docs/training.md has the lines to use.

Two kinds of form. `specforge` and `speculators` carry the ids and the mask themselves, so nothing
is tokenized again. `sharegpt`, `sharegpt_inline` and `messages` carry text: the trainer renders,
tokenizes and masks it once more, so an answer that was cut before its end token is left out of
them, since a template would write an end that the model never did.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from workflow_scripts.base.files import appearing, write_atomically
from workflow_scripts.base.log import say
from workflow_scripts.dataset.frequencies import FILE, learnt_ids, write_frequencies
from workflow_scripts.model.given import NAMES, Given
from workflow_scripts.tables.columns import IDS
from workflow_scripts.tables.parquet import read_batches, side_files

BATCH = 512
FOLDER = "exports"
HELD_OUT = "validation"
DRAFTER = "drafter"  # what only a drafter's training adds: all that SpecForge and speculators do
# Text of these classes would come back closed: with </think> or an end token never generated.
CUT = {"truncated_in_thinking", "truncated_in_answer", "unclosed_thinking"}
FROM = {"user": "human", "assistant": "gpt"}  # ShareGPT's names of roles; others stay
INLINE = {**FROM, "tool": "observation"}  # LLaMA-Factory's
ARROW = pa.schema(
    {
        "input_ids": IDS,
        "loss_mask": pa.list_(pa.int8()),
        "seq_len": pa.int32(),
        "row_id": pa.string(),
        "turn": pa.int32(),
    }
)
Message = dict[str, Any]
Count = dict[str, int]


def sides(dataset: Path) -> dict[str, list[Path]]:
    """The dataset's Parquet files by side (train, validation, ...), in order.

    Raises:
        ValueError: the folder holds no training files.
    """
    found = side_files(dataset)
    if "train" not in found:
        raise ValueError(f"{dataset}: no train-*.parquet; give the dataset folder of a run")
    return found


def sharegpt(messages: list[Message], given: Given) -> dict[str, Any]:
    """`conversations` of {from, value}; reasoning in `reasoning_content`, where SpecForge,
    speculators and Axolotl look for it; tools and documents beside them, where there are any."""
    turns = []
    for message in messages:
        rest = {k: v for k, v in message.items() if k not in ("role", "content")}
        role = FROM.get(message["role"], message["role"])
        turns.append({"from": role, "value": message["content"] or "", **rest})
    return {"conversations": turns, **_beside(given)}


def sharegpt_inline(messages: list[Message], given: Given) -> dict[str, Any]:
    """LLaMA-Factory's form: the reasoning in the text, between think tags; calls and their results
    as turns of their own, calls and tools as JSON text."""
    turns = []
    for message in messages:
        role, text = str(message["role"]), message["content"] or ""
        if (reasoning := message.get("reasoning_content")) is not None:
            text = f"<think>\n{reasoning}\n</think>\n\n{text}"
        if calls := message.get("tool_calls"):
            told = [{k: call["function"].get(k) for k in ("name", "arguments")} for call in calls]
            role, text = "function_call", text + orjson.dumps(told).decode()
        else:
            role = INLINE.get(role, role)
        turns.append({"from": role, "value": text})
    beside = _beside(given)
    if given.tools is not None:
        beside["tools"] = orjson.dumps(given.tools).decode()
    return {"conversations": turns, **beside}


def plain_messages(messages: list[Message], given: Given) -> dict[str, Any]:
    """`messages` of {role, content, reasoning_content?, tool_calls?}, tools and documents beside
    them, where there are any."""
    return {"messages": messages, **_beside(given)}


def _beside(given: Given) -> dict[str, Any]:
    return {name: value for name, value in given.variables().items() if value is not None}


def write_text(files: list[Path], out: Path, form: Callable[[list[Message], Given], Any]) -> Count:
    """One line a training row: the conversation up to the turn that is to be learnt, the last. No
    columns but `id`, tools and documents: SpecForge hands any other to the chat template as a
    variable."""
    rows = cut = 0
    columns = ["row_id", "turn", "class", "messages", *NAMES]
    out.parent.mkdir(parents=True, exist_ok=True)
    with appearing(out) as f:
        for batch in batches(files, columns):
            for row in batch.to_pylist():
                if row["class"] in CUT:
                    cut += 1
                    continue
                rows += 1
                line = {"id": f"{row['row_id']}-{row['turn']}"}
                told = form(orjson.loads(row["messages"]), Given.read(row))
                f.write(orjson.dumps(line | told) + b"\n")
    return {"rows": rows, "left_out": cut}


def write_ids(files: list[Path], out: Path) -> Count:
    """SpecForge's pre-tokenized prompts: a line is {id, input_ids, loss_mask}."""
    rows = 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with appearing(out) as f:
        for batch in batches(files, ["row_id", "turn", "input_ids", "loss_mask"]):
            names = zip(batch["row_id"].to_pylist(), batch["turn"].to_pylist(), strict=True)
            lists = zip(arrays(batch["input_ids"]), arrays(batch["loss_mask"]), strict=True)
            for (row_id, turn), (ids, mask) in zip(names, lists, strict=True):
                line = {"id": f"{row_id}-{turn}", "input_ids": ids, "loss_mask": mask}
                f.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            rows += len(batch)
    return {"rows": rows}


def write_sides(
    files: dict[str, list[Path]], write: Callable[[list[Path], Path], Count], out: Path
) -> dict[str, Count]:
    """A JSON Lines file a side. Held-out rows of which none can be written are no file: `datasets`
    loads none without rows."""
    told: dict[str, Count] = {}
    for side, of in files.items():
        path = out / f"{side}.jsonl"
        told[side] = write(of, path)
        if side == HELD_OUT and not told[side]["rows"]:
            path.unlink()
    return told


def arrays(column: pa.ListArray) -> Iterator[np.ndarray[Any, Any]]:
    """The lists of a column as numpy arrays."""
    values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    for start, end in pairwise(offsets):
        yield values[start:end]


def write_arrow(parts: list[Path], out: Path) -> list[int]:
    """A folder for `datasets.load_from_disk`: Arrow streams, one a Parquet file, and what names
    them. The `torch` format is what makes rows tensors, which speculators expects.

    The fingerprint is taken from the files: datasets caches what is computed from a set by it.

    Returns:
        The rows of each part.
    """
    out.mkdir(parents=True, exist_ok=True)
    content, names, rows = hashlib.blake2b(digest_size=8), list[str](), [0] * len(parts)
    for number, part in enumerate(parts):
        names.append(f"data-{number:05d}-of-{len(parts):05d}.arrow")
        with appearing(out / names[-1]) as f, pa.ipc.new_stream(f, ARROW) as stream:
            for batch in batches([part], ["input_ids", "loss_mask", "length", "row_id", "turn"]):
                stream.write_batch(pa.record_batch(batch.columns, schema=ARROW))
                rows[number] += len(batch)
        with part.open("rb") as f:
            content.update(hashlib.file_digest(f, "blake2b").digest())
    features = {field.name: feature(field.type) for field in ARROW}
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": content.hexdigest(),
        "_format_type": "torch",
        "_format_kwargs": {},
        "_output_all_columns": False,
        **dict.fromkeys(("_format_columns", "_split")),
    }
    for name, content_of in (("dataset_info", info), ("state", state)):
        text = orjson.dumps(content_of, option=orjson.OPT_INDENT_2)
        write_atomically(out / f"{name}.json", text)
    return rows


def feature(kind: pa.DataType) -> dict[str, Any]:
    """A column's type in the words of `datasets` (from version 4 on)."""
    if pa.types.is_list(kind):
        return {"feature": feature(kind.value_type), "_type": "List"}
    return {"dtype": str(kind), "_type": "Value"}


def batches(files: Sequence[Path], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for file in files:
        for batch in read_batches(file, BATCH):
            yield batch.select(columns)


def speculators(learnt: list[Path], held_out: list[Path], out: Path) -> dict[str, Any]:
    """One folder. Its trainer splits it by a ratio, the first rows for training, so the held-out
    rows follow the others."""
    rows = write_arrow([*learnt, *held_out], out)
    cut, total = sum(rows[: len(learnt)]), sum(rows)
    told: dict[str, Any] = {"rows": cut, HELD_OUT: total - cut}
    return told | ({"train_data_ratio": ratio_of(cut, total)} if cut < total else {})


def ratio_of(cut: int, rows: int) -> float:
    """The ratio that splits `rows` after `cut`: int(rows * ratio) == cut. Half a row more keeps
    rounding away from the cut."""
    return (cut + 0.5) / rows


TEXT = {"sharegpt": sharegpt, "sharegpt_inline": sharegpt_inline, "messages": plain_messages}
FORMS = [*TEXT, "specforge", "speculators"]


def write_exports(dataset: Path, names: Sequence[str]) -> dict[str, Any]:
    """Write the forms `names` of a finished dataset folder under its `exports/`.

    Memory: one batch of rows. Files appear only when they are whole.
    Returns:
        For each form and side what was written: `rows`, and `left_out` where text cannot say it.

    Raises:
        ValueError: a name that is no form, or a folder without training files.
    """
    unknown = sorted(set(names) - set(FORMS))
    if unknown:
        raise ValueError(f"unknown export {', '.join(unknown)}; there are {', '.join(FORMS)}")
    found = sides(dataset)
    text = {side: files for side, files in found.items() if side != DRAFTER}
    learnt, held_out = found["train"] + found.get(DRAFTER, []), found.get(HELD_OUT, [])
    told: dict[str, Any] = {}
    counts: Counter[int] = Counter()  # of learnt ids, the same for all forms that hold ids
    for name in names:
        out = dataset / FOLDER / name
        if name in TEXT:
            write = partial(write_text, form=TEXT[name])
            told[name] = write_sides(text, write, out)
            continue
        if name == "specforge":
            told[name] = write_sides(text | {"train": learnt}, write_ids, out)
        else:
            told[name] = {"train": speculators(learnt, held_out, out)}
        if not counts:
            for batch in batches(learnt, ["input_ids", "loss_mask"]):
                counts.update(learnt_ids(batch))
        write_frequencies(out / FILE, counts)
    return told


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dataset", type=Path, required=True, help="dataset folder of a run")
    parser.add_argument("--formats", nargs="+", choices=FORMS, default=FORMS)
    args = parser.parse_args(argv)
    told = write_exports(args.dataset, args.formats)
    for name, by_side in told.items():
        for side, counts in by_side.items():
            say(f"exports/{name} {side}: " + ", ".join(f"{v} {k}" for k, v in counts.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
