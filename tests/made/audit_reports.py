"""Reports of an audit, made by hand: a bad one, a good one, one of nothing."""

from collections.abc import Sequence
from typing import Any

import yaml

Report = dict[str, Any]
EMPTY_TURN = {
    "tokens": 6,
    "ids": [248068, 271, 248069, 271, 248046, 198],
    "text": "<think>\n\n</think>\n\n<|im_end|>\n",
}


# ---- reports by hand ----------------------------------------------------------------------------


BAD = """
verdict: worthless
trivial_share: 0.87
thresholds: {suspicious: 0.05, worthless: 0.5}
reasons:
  - "870,000 of 1,000,000 responses (87.0 %) are trivial: 801,204 empty, 41,377 repeated, \
27,419 refusals"
  - 801,204 responses (80.1 %) are exactly the 6 tokens that the template makes of an empty answer
findings:
  - {name: trivial_responses, level: worthless, rows: 870000, share: 0.87,
     text: Most responses say nothing; a model trained on them learns to say nothing.,
     examples: ["data/chat-00.jsonl:17", "data/chat-00.jsonl:18"]}
  - {name: length_spike, level: worthless, rows: 801204, share: 0.801204,
     text: "This many responses have exactly 6 tokens, all of them the same text.",
     examples: ["data/chat-00.jsonl:17"]}
  - {name: bad_part, level: suspicious, rows: 30000, share: 0.03,
     text: The last fifth of data/chat-07.parquet is trivial throughout; the rest of it is not.,
     examples: ["data/chat-07.parquet:120001"]}
  - {name: personal_data, level: note, rows: 218, share: 0.000218,
     text: Some prompts hold what looks like an e-mail address or a phone number., examples: []}
lines: 1000341
blank_lines: 12
bytes: 2318114207
accepted: 1000000
rejected: 329
flagged: 870000
reject_reasons: {invalid_json: 301, no_user_turn: 28}
reject_examples:
  invalid_json: "data/chat-01.jsonl:99120: unexpected end of data: line 1 column 4097"
  no_user_turn: "data/chat-02.jsonl:7: the conversation has no user turn"
rules_applied: {second_system: 4127, repeated_user: 19}
response_classes: {empty_think: 801204, normal: 130000, repeated: 41377, refusal: 27419}
class_examples:
  empty_think:
    - {source: data/chat-00.jsonl, line: 17, response: "",
       prompt: "Write a function that merges two sorted lists.\\nUse Python."}
    - {source: data/chat-00.jsonl, line: 18, response: "", prompt: 请用一句话解释什么是光合作用。}
  repeated:
    - {source: data/chat-02.jsonl, line: 4213, response: Sure.,
       prompt: "What is the capital of Australia?"}
  refusal:
    - {source: data/small.csv, line: 5, prompt: "ما هي عاصمة فرنسا؟",
       response: "I'm sorry, but I can't help with that."}
top_repeated_responses:
  - {text: "", rows: 801204, prompts: 764118, tokens: 6}
  - {text: Sure., rows: 31240, prompts: 31187, tokens: 9}
  - {text: "I'm sorry, but I can't help with that.", rows: 26801, prompts: 26544, tokens: 17}
top_repeated_patterns:
  - {text: The answer is 0., rows: 8114, prompts: 8093, example: The answer is 17.}
response_tokens: {total: 41388211, mean: 41.388211, median: 6, p95: 311, max: 8192}
prompt_tokens: {total: 187204118, mean: 187.204118, median: 122, p95: 702, max: 41233}
context: {limit: 32768, over: 3, examples: ["data/chat-01.jsonl:9911"]}
prompts:
  {distinct: 951223, turns: 1104399, multi_turn_rows: 61702, duplicate_rows: 48777,
   top: [{text: Hello, rows: 1733}, {text: Continue., rows: 911}]}
near_duplicates: null
contamination:
  ngram: 13
  held_out: {gsm8k/test.jsonl: {rows: 1319, hits: 4}, mt_bench.jsonl: {rows: 80, hits: 0}}
  rows: 57
  examples: ["data/chat-02.jsonl:9: Janet's ducks lay 16 eggs per day. She eats three"]
scripts: {Latin: 871004, Han: 104223, Arabic: 18441, Cyrillic: 6332}
languages: {sampled: 5000, counts: {en: 4187, zh: 522, und: 198, ar: 93}}
control_tokens:
  rows: 241
  tokens: {"<|im_end|>": 233, "<|endoftext|>": 14}
  examples: ["data/chat-01.jsonl:408"]
encoding:
  rows: 83
  kinds: {replacement_character: 61, mojibake: 22, control_character: 0}
  examples: ["data/chat-02.jsonl:1114"]
personal_data: {rows: 218, kinds: {email: 177, phone: 39, ip_address: 2, payment_card: 0}}
ids: {missing: 50666, duplicate: 7}
unused_columns:
  topic: {rows: 50000, text: true, varies: true, mean_chars: 12.5, example: rivers,
          where: "data/small.csv:1"}
ignored_keys: {"messages[].weight": 41}
named_columns: {}
template: {refused: {}, left_out: {}}
estimate:
  {rows: 1000000, turns: 1104399, mean_output_tokens: 512.0, output_tokens: 565452288,
   assumption: "512 tokens a response; 1,500 tokens/s a GPU", tokens_per_s: 1500.0, gpus: 8,
   gpu_hours: 104.71, hours: 13.09, price_per_gpu_hour: 2.5, cost: 261.78}
"""
GOOD = """
verdict: ok
trivial_share: 0.0082
thresholds: {suspicious: 0.05, worthless: 0.5}
reasons: ["41 of 5,000 responses (0.8 %) are trivial, fewer than 5.0 %"]
findings: []
lines: 5000
blank_lines: 0
bytes: 18114207
accepted: 5000
rejected: 0
flagged: 41
reject_reasons: {}
reject_examples: {}
rules_applied: {}
response_classes: {normal: 4950, refusal: 41, short: 9}
class_examples:
  refusal: [{source: data/good.jsonl, line: 5, prompt: Pick a lock, response: I cannot.}]
top_repeated_responses: []
top_repeated_patterns: []
response_tokens: {total: 1911403, mean: 382.28, median: 309, p95: 1022, max: 2711}
spikes: []
prompt_tokens: {total: 612004, mean: 122.4, median: 101, p95: 390, max: 1204}
context: {limit: 32768, over: 0, examples: []}
columns: {data/good.jsonl: {messages: {list: 5000}, id: {int: 5000}}}
prompts: {distinct: 5000, turns: 5000, multi_turn_rows: 0, duplicate_rows: 0, top: []}
near_duplicates: {threshold: 0.8, clusters: 0, rows: 0, largest: []}
contamination: null
scripts: {Latin: 5000}
languages: {sampled: 5000, counts: {en: 5000}}
control_tokens: {rows: 0, tokens: {}, examples: []}
encoding: {rows: 0, kinds: {mojibake: 0}, examples: []}
personal_data: {rows: 0, kinds: {email: 0, secret_key: 0}, examples: []}
ids: {missing: 0, duplicate: 0}
unused_columns: {}
ignored_keys: {}
named_columns: {}
template: {refused: {}, left_out: {}}
estimate:
  {rows: 5000, turns: 5000, mean_output_tokens: 382.28, output_tokens: 1911403,
   assumption: as long as the normal responses, tokens_per_s: 1500.0, gpus: 1, gpu_hours: 0.354,
   hours: 0.354, price_per_gpu_hour: null, cost: null}
"""


def spread(rows: int, middle: int, wide: int) -> dict[str, int]:
    """Counts around a middle length, by a fixed rule that looks like a real one."""
    counts: dict[int, int] = {}
    for i in range(rows):
        step = (i * 7919) % 1009 / 1009 + (i * 104729) % 997 / 997 + (i * 31) % 101 / 101
        length = max(1, round(middle * wide ** (step - 1.5)))
        counts[length] = counts.get(length, 0) + 1
    return {str(length): rows for length, rows in sorted(counts.items())}


def source(rows: int, shares: Sequence[float | None], rejected: int = 0, **more: Any) -> Report:
    flagged = round(sum(share or 0 for share in shares) * rows / 10)
    counts = {"lines": rows + rejected, "blank": 0, "rejected": rejected, "accepted": rows}
    tokens = {"response_tokens": rows * 41, "prompt_tokens": rows * 187}
    return {"format": "jsonl", **counts, "flagged": flagged, **tokens, "parts": shares, **more}


def bad_report() -> Report:
    """What is left when somebody lost the responses: 87 % trivial, 80 % of them empty turns."""
    responses = {length: 45 * rows for length, rows in spread(2900, 260, 10).items()}
    prompts = {length: 300 * rows for length, rows in spread(3333, 120, 20).items()}
    flagged = [40, 17203, *[48000] * 8, *[44777] * 9, 49764]
    chat = {"messages": {"list": 266666}, "id": {"str": 266000, "null": 666}}
    table = {"prompt": {"str": 50000}, "answer": {"str": 49000, "null": 1000}}
    return {
        **yaml.safe_load(BAD),
        "response_token_counts": responses | {"6": 801204, "9": 31240, "17": 26801, "8192": 41},
        "spikes": [{**EMPTY_TURN, "rows": 801204, "share": 0.801204, "distinct": 1}],
        "empty_turn": EMPTY_TURN,
        "prompt_token_counts": prompts | {"41233": 3},
        "positions": [
            {"first": 1 + 50000 * i, "rows": 50000, "flagged": rows}
            for i, rows in enumerate(flagged)
        ],
        "sources": {
            "data/chat-00.jsonl": source(300000, [0.99] * 10),
            "data/chat-01.jsonl": source(260000, [0.97, 0.99, *[0.98] * 8], 301),
            "data/chat-02.jsonl": source(240000, [1.0, *[0.97] * 9], 28),
            "data/chat-07.parquet": source(150000, [0.21] * 8 + [1.0, 1.0], format="parquet"),
            "data/small.csv": source(50000, [0.9, None, *[0.95] * 8], format="csv"),
        },
        "columns": {f"data/chat-0{i}.jsonl": chat for i in range(3)}
        | {"data/chat-07.parquet": {"prompt": {"str": 150000}}, "data/small.csv": table},
    }


def good_report() -> Report:
    """A set that is worth what it cost."""
    return {
        **yaml.safe_load(GOOD),
        "response_token_counts": spread(4950, 310, 5) | {"4": 9, "17": 41},
        "empty_turn": EMPTY_TURN,
        "prompt_token_counts": spread(5000, 100, 6),
        "positions": [{"first": 1 + 250 * i, "rows": 250, "flagged": i % 5} for i in range(20)],
        "sources": {"data/good.jsonl": source(5000, [0.01, 0.0, 0.012, *[0.009] * 7])},
    }


def nothing_report() -> Report:
    """Every line was rejected."""
    report = good_report()
    for name, value in report.items():
        if isinstance(value, int | list):
            report[name] = type(value)()
        elif name in ("estimate", "prompts", "response_tokens", "prompt_tokens"):
            report[name] = value | {k: 0 for k, v in value.items() if isinstance(v, int | float)}
        elif "class" in name or "counts" in name or name in ("columns", "scripts"):
            report[name] = {}
    return report | {
        "verdict": "worthless",
        "lines": 11,
        "rejected": 11,
        "reject_reasons": {"invalid_json": 11},
        "reject_examples": {"invalid_json": "a.jsonl:1: not JSON"},
        "sources": {"a.jsonl": source(0, [None] * 10, 11)},
        "languages": {"sampled": 0, "counts": {}},
    }
