"""Which ids of a tokenized row are a response's, as its masks, labels or start say."""

from typing import Any

from workflow_scripts.config.audit import Columns
from workflow_scripts.input.reject import Reject

# columns that say which ids are a response's, the first one found counts
KINDS = {
    **dict.fromkeys(("loss_mask", "assistant_masks", "assistant_mask", "completion_mask"), "mask"),
    "labels": "labels",
    **dict.fromkeys(("response_start", "prompt_length"), "start"),
}
IGNORED = -100  # in labels


def supervised(record: dict[str, Any], columns: Columns, ids: list[int]) -> list[bool]:
    """Which ids are a response's; columns that the configuration names are the only ones then.

    Raises:
        Reject: no column says so, or one does not fit the ids.
    """
    named = (columns.loss_mask, columns.labels, columns.response_start)
    forced = dict(zip(named, ("mask", "labels", "start"), strict=True))
    kinds = {name: kind for name, kind in forced.items() if name} or KINDS
    name = next((name for name in kinds if record.get(name) is not None), None)
    if name is None:
        message = f"nothing says which ids are the response; no column {', '.join(kinds)}"
        raise Reject("no_mask", message)
    if kinds[name] == "start":
        start = record[name]
        if type(start) is not int or not 0 <= start <= len(ids):
            raise Reject("mask_length", f"`{name}` is {start!r}; there are {len(ids)} ids")
        return [n >= start for n in range(len(ids))]
    values = one_an_id(record, name, ids)
    if kinds[name] == "labels":
        _check_labels(values, ids, name)
        return [label != IGNORED for label in values]
    numbers = {*map(type, values)} <= {int, bool, float}
    if not numbers or not all(0 <= v < float("inf") for v in {*values}):
        raise Reject("bad_mask", f"`{name}` has values that are neither 0 nor 1")
    return [v > 0 for v in values]


def one_an_id(record: dict[str, Any], name: str, ids: list[int]) -> list[Any]:
    """A column's values, one for each id.

    Raises:
        Reject: it is no list, or one of another length.
    """
    values = record[name]
    if not isinstance(values, list) or len(values) != len(ids):
        size = f"{len(values)} values" if isinstance(values, list) else "no list"
        raise Reject("mask_length", f"`{name}` has {size}; there are {len(ids)} ids")
    return values


def _check_labels(labels: list[Any], ids: list[int], name: str) -> None:
    wrong = _difference(labels, ids)
    if wrong is not None:
        message = f"`{name}[{wrong}]` is {labels[wrong]!r}, the id there is {ids[wrong]}"
        for side, some, others in (("before", labels, ids[1:]), ("after", labels[1:], ids)):
            if _difference(some, others) is None:
                message += f"; the labels are shifted by one: each stands {side} its id"
        raise Reject("labels_differ", message)


def _difference(labels: list[Any], ids: list[int]) -> int | None:
    pairs = enumerate(zip(labels, ids, strict=False))
    return next((n for n, (label, token) in pairs if label not in (IGNORED, token)), None)
