"""The trainers' side of benchmarks/trainers.py, run in their environment.

Each command writes JSON to --out. `*-masks` write what the trainer makes of the text export, one
line a row: id, input_ids, loss_mask. `*-load` read the export that carries ids with the trainer's
own loader and compare it with the Parquet files. `*-speed` time a preparation; loading modules and
the tokenizer is left out.
"""

import argparse
import json
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq

LONG = 32768
TEMPLATE = "qwen3.5"  # SpecForge's name for headers that open a reasoning
Known = dict[str, tuple[list[int], list[int]]]


def known(folder: Path) -> dict[str, Known]:
    """Ids and mask of each row of the dataset, by side and then by `row_id-turn`."""
    found: dict[str, Known] = {}
    for side in ("train", "validation"):
        rows = found.setdefault(side, {})
        for file in sorted((folder / "dataset").glob(f"{side}-*.parquet")):
            for row in pq.read_table(file).to_pylist():
                rows[f"{row['row_id']}-{row['turn']}"] = row["input_ids"], row["loss_mask"]
    return found


def text_files(folder: Path) -> list[str]:
    files = (folder / "dataset/exports/sharegpt").glob("*.jsonl")
    return [str(file) for file in sorted(files) if file.stat().st_size]


def tokenizer_of(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


# ---- SpecForge ----


def specforge_masks(args: argparse.Namespace) -> dict[str, Any]:
    """What build_eagle3_dataset makes of the ShareGPT export. It drops the id and shuffles: the
    order is found by shuffling the ids with the same seed."""
    from specforge.data.preprocessing import build_eagle3_dataset

    tokenizer = tokenizer_of(args.model)
    rows = datasets.load_dataset("json", data_files=text_files(args.folder), split="train")
    made = build_eagle3_dataset(
        rows, tokenizer, args.template, max_length=LONG, num_proc=1,
        train_only_last_turn=not args.all_turns,
    )  # fmt: skip
    order = rows.shuffle(seed=42)["id"]
    assert len(order) == len(made)
    with args.masks.open("w") as f:
        for name, row in zip(order, made, strict=True):
            lists = {key: row[key].reshape(-1).tolist() for key in ("input_ids", "loss_mask")}
            f.write(json.dumps({"id": name, **lists}) + "\n")
    return {"specforge": version("specforge"), "template": args.template}


def specforge_load(args: argparse.Namespace) -> dict[str, Any]:
    """SpecForge's own preparation of a run's prompts on the export with ids, as its EAGLE-3 and
    DFlash trainers call it (specforge/training/assembly.py)."""
    from types import SimpleNamespace

    from specforge.algorithms.dflash.providers import create_registration as dflash
    from specforge.algorithms.eagle3.providers import create_registration as eagle3
    from specforge.config.schema import DataConfig
    from specforge.training.assembly import _prepare_prompts

    told: dict[str, Any] = {"specforge": version("specforge"), **shift()}
    for side, rows in known(args.folder).items():
        path = args.folder / f"dataset/exports/specforge/{side}.jsonl"
        for algorithm in (eagle3(), dflash()):
            data = DataConfig(
                prompts_path=str(path), chat_template=TEMPLATE, max_length=LONG, cache_key="x"
            )
            config = SimpleNamespace(model=SimpleNamespace(input_modality="text"), data=data)
            draft = SimpleNamespace(block_size=16)
            tasks = _prepare_prompts(config, None, algorithm=algorithm, draft_config=draft)
            loaded = [(t["payload"]["input_ids"], t["payload"]["loss_mask"]) for t in tasks]
            told[f"{algorithm.name} {side}"] = {
                "rows": len(rows), "loaded": len(loaded), "equal": loaded == list(rows.values())
            }  # fmt: skip
    return told


def shift() -> dict[str, Any]:
    """EAGLE-3 training moves ids and targets one place to the left (TargetHead.preprocess): which
    places of five with the last three supervised does the mask then choose?"""
    import torch
    from specforge.modeling.target.target_head import TargetHead

    ids = torch.arange(1, 6)[None]
    moved, _, mask = TargetHead.preprocess(
        None, ids, torch.ones(1, 5, 2), torch.tensor([[0, 0, 1, 1, 1]])
    )
    return {"eagle3_ids": moved[0].tolist(), "eagle3_mask": mask.reshape(-1).tolist()}


def specforge_speed(args: argparse.Namespace) -> dict[str, Any]:
    """prepare_prompt_tasks: load the JSON, map, filter; its rows are read lazily afterwards."""
    from specforge.data.prompt_builder import prepare_prompt_tasks

    tokenizer = tokenizer_of(args.model)
    with tempfile.TemporaryDirectory() as cache:

        def work() -> int:
            return len(
                prepare_prompt_tasks(
                    text_files(args.folder)[0], tokenizer, chat_template=TEMPLATE,
                    max_length=LONG, is_preformatted=False, train_only_last_turn=True,
                    cache_dir=cache, cache_key="x", num_proc=1,
                )
            )  # fmt: skip

        import specforge.data.preprocessing  # noqa: F401  (its import is not the work)

        return timed(work)


# ---- speculators ----


@contextmanager
def render_endpoint(model: Path) -> Iterator[str]:
    """A stand-in for vLLM's /v1/chat/completions/render: the model's template and tokenizer by
    transformers, cut on the right where that is asked."""
    tokenizer = tokenizer_of(model)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions/render" and "tools" not in asked
            ids = tokenizer.apply_chat_template(
                asked["messages"],
                add_generation_prompt=asked["add_generation_prompt"],
                tokenize=True,
                return_dict=False,
            )
            assert asked.get("truncation_side", "right") == "right"
            answer = json.dumps({"token_ids": ids[: asked.get("truncate_prompt_tokens")]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def speculators_masks(args: argparse.Namespace) -> dict[str, Any]:
    """What prepare-data's function for a batch makes of each line: its last row is that of the
    turn to learn, earlier turns have rows of their own."""
    from speculators.data_generation.preprocessing import _preprocess_batch

    rows = datasets.load_dataset("json", data_files=text_files(args.folder), split="train")
    with render_endpoint(args.model) as url, args.masks.open("w") as f:
        for row in rows:
            made = _preprocess_batch({"conversations": [row["conversations"]]}, False, url, LONG)
            line = {"id": row["id"], "input_ids": [], "loss_mask": []}
            if made["input_ids"]:
                line |= {key: made[key][-1].tolist() for key in ("input_ids", "loss_mask")}
            f.write(json.dumps(line) + "\n")
    return {"speculators": version("speculators")}


def speculators_prepare(args: argparse.Namespace) -> dict[str, Any]:
    """The prepare-data command, on the text with the stand-in endpoint and on the ids."""
    import torch
    from speculators.cli.prepare_data import prepare_data

    told: dict[str, Any] = {}
    exports = args.folder / "dataset/exports"
    with render_endpoint(args.model) as url:
        for form, endpoint in (("sharegpt", url), ("specforge", None)):
            out = args.folder / f"prepared-{form}"
            prepare_data(
                str(args.model), [str(exports / form / "train.jsonl")], str(out),
                seq_length=LONG, max_samples=None, token_freq_path=None, render_endpoint=endpoint,
                seed=0, num_preprocessing_workers=1, minimum_valid_tokens=None, overwrite=False,
                allow_empty_output=False, trust_remote_code=False, skip_token_freq=False,
            )  # fmt: skip
            made = datasets.load_from_disk(str(out)).with_format(None)
            told[form] = {"columns": made.column_names, "rows": len(made)}
            if form == "specforge":  # it shuffles: compared as a bag
                ids = zip(made["input_ids"], made["loss_mask"], strict=True)
                bag = Counter((tuple(a), tuple(b)) for a, b in ids)
                ours = known(args.folder)["train"].values()
                told[form]["equal"] = bag == Counter((tuple(a), tuple(b)) for a, b in ours)
                theirs, *counts = (
                    torch.load(folder / "token_freq.pt", weights_only=True)
                    for folder in (out, exports / "specforge", exports / "speculators")
                )
                told[form]["equal_frequencies"] = counts == [theirs, theirs]
    return told


def speculators_load(args: argparse.Namespace) -> dict[str, Any]:
    """The trainer's own data loaders on the Arrow folder, with hidden states of noise in the files
    where its cache would keep them: every batch is cut up again and compared."""
    import torch
    from safetensors.torch import save_file
    from speculators.train.data import ArrowDataset
    from speculators.train.dataloader import create_train_val_loaders

    folder = args.folder / "dataset/exports/speculators"
    rows = known(args.folder)
    counts = {side: len(of) for side, of in rows.items()}
    ratio = (counts["train"] + 0.5) / sum(counts.values())
    hidden, layers = 16, 3
    stored = ArrowDataset(LONG, folder).data
    (folder / "hidden_states").mkdir(exist_ok=True)
    for number, row in enumerate(stored):
        states = torch.randn(len(row["input_ids"]), layers + 1, hidden).bfloat16()
        parts = {"token_ids": row["input_ids"], "hidden_states": states}
        save_file(parts, str(folder / f"hidden_states/hs_{number}.safetensors"))
    loaders = create_train_val_loaders(
        data_path=str(folder), total_seq_len=4096, hidden_states_dtype=torch.bfloat16,
        vllm_endpoint="", on_missing="raise", verifier_name_or_path="", request_timeout=None,
        max_retries=0, generation_validation_retries=0, max_consecutive_generation_failures=1,
        hidden_size=hidden, num_target_layers=layers, num_workers=0, prefetch_factor=1,
        preprocess=None, train_data_ratio=ratio,
    )  # fmt: skip
    told: dict[str, Any] = {"speculators": version("speculators"), "train_data_ratio": ratio}
    for side, loader in zip(rows, loaders, strict=True):
        bag: Counter[tuple[Any, ...]] = Counter()
        batches = 0
        for batch in loader:
            batches += 1
            for document in range(int(batch["document_ids"].max()) + 1):
                at = batch["document_ids"][0] == document
                lists = (batch[key][0][at].tolist() for key in ("input_ids", "loss_mask"))
                bag[tuple(map(tuple, lists))] += 1
        ours = Counter((tuple(ids), tuple(mask)) for ids, mask in rows[side].values())
        told[side] = {"rows": counts[side], "batches": batches, "equal": bag == ours}
    return told


# ---- datasets and TRL ----


def datasets_speed(args: argparse.Namespace) -> dict[str, Any]:
    """datasets.map with tokenizers: render prompt and whole, encode both, mask what is added."""
    from tokenizers import Tokenizer

    renderer = tokenizer_of(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))

    def render(messages: Any, ask: bool) -> str:
        return renderer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)

    def make(batch: dict[str, Any]) -> dict[str, Any]:
        prompts = [render(messages[:-1], True) for messages in batch["messages"]]
        wholes = [render(messages, False) for messages in batch["messages"]]
        starts = [len(e) for e in tokenizer.encode_batch_fast(prompts, add_special_tokens=False)]
        ids = [e.ids for e in tokenizer.encode_batch_fast(wholes, add_special_tokens=False)]
        masks = [[0] * n + [1] * (len(i) - n) for n, i in zip(starts, ids, strict=True)]
        return {"input_ids": ids, "loss_mask": masks}

    file = str(args.folder / "dataset/exports/messages/train.jsonl")
    with tempfile.TemporaryDirectory() as cache:

        def work() -> int:
            rows = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
            return len(rows.map(make, batched=True, remove_columns=rows.column_names))

        return timed(work)


def timed(work: Callable[[], int]) -> dict[str, Any]:
    """Seconds, and CPU seconds of this process and of those it starts (datasets maps in a process
    of its own)."""

    def cpu() -> float:
        both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(used.ru_utime + used.ru_stime for used in both)

    start, before = time.monotonic(), cpu()
    rows = work()
    return {"rows": rows, "seconds": time.monotonic() - start, "cpu_seconds": cpu() - before}


def trl_load(args: argparse.Namespace) -> dict[str, Any]:
    """TRL's SFTTrainer on the Parquet files themselves: the labels of its batches."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    files = sorted(map(str, (args.folder / "dataset").glob("train-*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=files, split="train")
    rows = rows.select_columns(["input_ids", "loss_mask"])
    rows = rows.rename_column("loss_mask", "assistant_masks")
    with tempfile.TemporaryDirectory() as out:
        trainer = SFTTrainer(
            AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model)),
            args=SFTConfig(
                output_dir=out, max_length=LONG, per_device_train_batch_size=4, report_to="none",
                use_cpu=True, bf16=False,
            ),
            train_dataset=rows,
            processing_class=tokenizer_of(args.model),
        )  # fmt: skip
        bag: Counter[tuple[Any, ...]] = Counter()
        for batch in trainer.get_train_dataloader():
            lists = (batch[key].tolist() for key in ("input_ids", "labels", "attention_mask"))
            for ids, labels, there in zip(*lists, strict=True):
                n = sum(there)
                bag[(tuple(ids[:n]), tuple(labels[:n]))] += 1
    want = known(args.folder)["train"].values()
    masked = (
        (tuple(ids), tuple(i if m else -100 for i, m in zip(ids, mask, strict=True)))
        for ids, mask in want
    )
    return {"trl": version("trl"), "rows": len(rows), "equal": bag == Counter(masked)}


COMMANDS = {
    "specforge-masks": specforge_masks,
    "specforge-load": specforge_load,
    "specforge-speed": specforge_speed,
    "speculators-masks": speculators_masks,
    "speculators-prepare": speculators_prepare,
    "speculators-load": speculators_load,
    "datasets-speed": datasets_speed,
    "trl-load": trl_load,
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--masks", type=Path)
    parser.add_argument("--template", default=TEMPLATE, help="SpecForge's name of a template")
    parser.add_argument("--all-turns", action="store_true", help="SpecForge's default")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    datasets.disable_progress_bars()
    args.out.write_text(json.dumps(COMMANDS[args.command](args)))


if __name__ == "__main__":
    main()
