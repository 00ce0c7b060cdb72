"""The tables of a run: their columns, described once."""

import pyarrow as pa

IDS = pa.list_(pa.int32())


def schema(*columns: tuple[str, pa.DataType, str]) -> pa.Schema:
    return pa.schema([pa.field(n, t, metadata={"description": text}) for n, t, text in columns])


IDENTITY = (
    ("row_id", pa.string(), "identity of the row: hash of source, line and canonical content"),
    ("content_hash", pa.string(), "hash of the canonical content alone: equal for equal lines"),
    ("source", pa.string(), "input file"),
    ("line", pa.int64(), "line in it, counted from 1"),
    ("id", pa.string(), "the user's own id as JSON text, null where there is none; never a key"),
)
MESSAGES = "JSON list of {role, content, reasoning_content?, tool_calls?}"
GIVEN = (
    ("tools", pa.string(), "JSON list of the tools that the prompt offers; null: none"),
    ("documents", pa.string(), "JSON list of the documents in the prompt; null: none"),
)

AUDIT = schema(
    *IDENTITY,
    ("messages", pa.string(), f"the conversation as read, {MESSAGES}; content null: no response"),
    *GIVEN,
    (
        "prompt_hash",
        pa.string(),
        "hash of the system and user texts, tools and documents: equal for equal prompts",
    ),
    ("turns", pa.int32(), "assistant turns"),
    ("response_chars", pa.int64(), "characters of the last response, reasoning left out"),
    (
        "response_tokens",
        pa.int64(),
        "tokens of the last response as the template writes it, end token included",
    ),
    ("prompt_tokens", pa.int64(), "tokens of what stands before it, estimated"),
    ("response_class", pa.string(), "the worst class of the row's old responses"),
    ("flagged", pa.bool_(), "whether the audit calls the row's responses trivial"),
    ("rules", pa.list_(pa.string()), "declared rules that were applied"),
)
SHARD = schema(
    *IDENTITY,
    ("messages", pa.string(), f"the conversation as read, {MESSAGES}"),
    *GIVEN,
    ("response_tokens", pa.int64(), "tokens of the last old response"),
)
TURN = pa.struct(
    [
        pa.field("turn", pa.int32()),
        pa.field("prompt_ids", IDS),
        pa.field("output_ids", IDS),
        pa.field("reasoning", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("calls", pa.string()),
        pa.field("ended", pa.string()),
        pa.field("class", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("retractions", pa.int32()),
        pa.field("accept_length", pa.float64()),
        pa.field("request", pa.string()),
    ]
)
TURN_TEXT = (
    "one entry per answered turn: turn (from 0), prompt_ids, output_ids (as the engine returned "
    "them, end token included), reasoning, answer (as the model wrote it), calls (those that it "
    "makes, as JSON text), ended (why no old turn follows), class, finish_reason, attempts, "
    "retractions, accept_length, request (hash)"
)
FAILURE = (
    ("reason", pa.string(), "class of the failure"),
    ("message", pa.string(), "the failure in words, with the server's own"),
    ("attempts", pa.int32(), "attempts made for the request that failed"),
    ("server", pa.string(), "server of the last attempt"),
    ("server_age_s", pa.float64(), "seconds since that server was first seen alive"),
    ("running_requests", pa.int32(), "requests it ran at that moment"),
    ("cache_use", pa.float64(), "share of its cache in use at that moment"),
)
GENERATED = schema(
    *IDENTITY,
    ("run_hash", pa.string(), "hash of everything that determines an answer"),
    ("status", pa.string(), "`completed` or `failed`"),
    ("class", pa.string(), "class of the last answer; null where failed"),
    ("messages", pa.string(), f"the conversation with the new responses, {MESSAGES}"),
    *GIVEN,
    ("turns", pa.list_(TURN), TURN_TEXT),
    ("old_response_tokens", pa.int64(), "tokens of the last old response"),
    *FAILURE,
)
COMPLETIONS = schema(
    *IDENTITY,
    ("run_hash", pa.string(), "hash of everything that determines an answer"),
    ("origin", pa.string(), "`generated`, or `kept`: the old response, not the model's own"),
    ("class", pa.string(), "class of the last answer; `kept` for a kept response"),
    ("messages", pa.string(), f"the conversation with its responses, {MESSAGES}"),
    *GIVEN,
    ("turns", pa.list_(TURN), TURN_TEXT + "; empty where kept"),
    ("old_response_tokens", pa.int64(), "tokens of the last old response"),
)
FAILED = schema(
    *IDENTITY,
    ("run_hash", pa.string(), "hash of everything that determines an answer"),
    ("messages", pa.string(), f"the conversation as far as it came, {MESSAGES}"),
    *GIVEN,
    *FAILURE,
)
TRAIN = schema(
    ("row_id", pa.string(), "row of merged/completions.parquet"),
    ("turn", pa.int32(), "generated turn, from 0"),
    ("source", pa.string(), "input file"),
    ("line", pa.int64(), "line in it"),
    ("id", pa.string(), "the user's own id as JSON text"),
    ("run_hash", pa.string(), "hash of everything that determines an answer"),
    ("origin", pa.string(), "`generated` or `kept`"),
    ("on_policy", pa.bool_(), "whether the supervised tokens are the model's own"),
    ("input_ids", IDS, "prompt and completion, token ids"),
    ("loss_mask", pa.list_(pa.int8()), "1 for supervised ids, 0 for the prompt; as long"),
    ("length", pa.int32(), "ids in all"),
    ("prompt_length", pa.int32(), "ids of the prompt"),
    ("completion_length", pa.int32(), "supervised ids, end token included"),
    (
        "reasoning_length",
        pa.int32(),
        "ids up to the answer, the marks of the reasoning included; 0 without reasoning",
    ),
    ("class", pa.string(), "class of the answer"),
    ("calls", pa.string(), "JSON list of the calls of tools in it; null: none, or none found"),
    (
        "ended",
        pa.string(),
        "why the conversation does not go on after it although it is an answer: `calls_differ`, "
        "`no_call`, `call_not_recorded`, `calls_unparsed`; null: it does, or was over",
    ),
    ("finish_reason", pa.string(), "the engine's finish reason; null for a kept response"),
    ("retractions", pa.int32(), "times the engine put the request back for want of memory"),
    ("loop_score", pa.float32(), "score of the worst repetition in the completion, 0 without one"),
    ("prompt_cluster", pa.string(), "the same for rows whose prompts are equal or nearly equal"),
    ("messages", pa.string(), f"what the row holds as text, {MESSAGES}"),
    *GIVEN,
)
DROPPED = schema(
    ("row_id", pa.string(), "row of merged/completions.parquet"),
    ("turn", pa.int32(), "generated turn, from 0"),
    ("source", pa.string(), "input file"),
    ("line", pa.int64(), "line in it"),
    ("reason", pa.string(), "filter that dropped it"),
    ("message", pa.string(), "the filter's finding"),
    ("length", pa.int32(), "ids in all"),
    ("completion_length", pa.int32(), "supervised ids"),
    ("class", pa.string(), "class of the answer"),
)
TABLES = {
    "audit/rows.parquet": AUDIT,
    "shards/shard-*.parquet, shards/kept.parquet": SHARD,
    "generate/<run_hash>/shard-*.parquet": GENERATED,
    "merged/completions.parquet": COMPLETIONS,
    "merged/failed.parquet": FAILED,
    "dataset/train-*.parquet, dataset/validation-*.parquet, dataset/drafter-*.parquet": TRAIN,
    "dataset/rejected.parquet": DROPPED,
}
