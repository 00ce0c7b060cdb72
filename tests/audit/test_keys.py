"""Keys of records that no rule uses, by hand."""

from workflow_scripts.audit.keys import Keys, holds_text

MINE = frozenset({"messages"})


def seen(*records: dict[str, object]) -> Keys:
    keys = Keys()
    for number, record in enumerate(records):
        ignored = frozenset({"messages[].weight"} if number else ())
        keys.see(dict(record), tuple(record), MINE, ignored, f"a.jsonl:{number + 1}")
    return keys


def test_unused_columns() -> None:
    keys = seen(
        {"messages": [], "topic": None, "kind": "a", "score": 3},
        {"messages": [], "topic": "ab", "kind": "a", "score": 4},
        {"messages": [], "topic": "abcd", "kind": "a", "tags": [{"name": "x"}]},
    )
    named = ("rows", "text", "varies", "mean_chars", "example", "where")
    assert {name: tuple(told[n] for n in named) for name, told in keys.as_dict().items()} == {
        "kind": (3, True, False, 1.0, "a", "a.jsonl:1"),
        "score": (2, False, True, 1.0, "3", "a.jsonl:1"),
        "tags": (1, True, False, 14.0, '[{"name":"x"}]', "a.jsonl:3"),
        "topic": (2, True, True, 3.0, "ab", "a.jsonl:2"),
    }
    assert keys.ignored == {"messages[].weight": 2}


def test_parts_add_up_and_keep_their_own() -> None:
    """Of three parts, each of which saw one value, the whole knows that they differ."""
    parts = [seen({"messages": [], "x": value}) for value in ("a", "a", "bcd")]
    whole, other = Keys(), Keys()
    for part in parts:
        whole.add(part)
        other.add(part)
    assert whole.unused["x"].varies and whole.unused["x"].rows == 3
    assert whole.as_dict() == other.as_dict()
    assert whole.as_dict()["x"]["mean_chars"] == round(5 / 3, 1)
    assert not parts[0].unused["x"].varies and parts[0].unused["x"].rows == 1


def test_texts_inside_values() -> None:
    assert holds_text({"a": [{"b": "c"}]}) and not holds_text({"a": [1, None, " "]})
    deep: object = "text"
    for _ in range(9):
        deep = [deep]
    assert not holds_text(deep)
