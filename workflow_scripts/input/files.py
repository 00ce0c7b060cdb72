"""The input files that paths, globs and folders name."""

import glob
from pathlib import Path

import orjson

from workflow_scripts.base.errors import ConfigError

# Files of a folder that hold data, by the end of their name; their format is found by content.
# Some are none, whatever wildcard names them.
DATA = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather")
NO_DATA = {
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "README.md",
}


def input_files(patterns: list[str]) -> list[str]:
    """The files that paths, globs and folders name, each once.

    Files and folders are sorted; a folder's files come in the order that its state.json names, else
    sorted.

    Raises:
        ConfigError: a pattern matches nothing, or only folders without data.
    """
    matches: set[Path] = set()
    for pattern in patterns:
        found = [Path(match) for match in glob.glob(pattern, recursive=True)]
        if glob.has_magic(pattern):
            found = [path for path in found if path.name not in NO_DATA]
        if not found:
            raise ConfigError(f"input: {pattern} matches no file")
        if not any(path.is_file() or _folder_files(path) for path in found):
            raise ConfigError(
                f"input: {pattern} has no data file; looked for {', '.join(DATA)} (also .gz and "
                ".zst) in the folder and those in it; other files can be named one by one"
            )
        matches.update(found)
    files: dict[str, None] = {}
    for path in sorted(matches):
        if path.exists() and not (path.is_dir() or path.is_file()):
            raise ConfigError(f"input: {path} is no file (a pipe, socket or device); name it not")
        for file in _folder_files(path) if path.is_dir() else [path]:
            files[file.as_posix()] = None
    return list(files)


def _folder_files(folder: Path) -> list[Path]:
    """The data files of a folder and of those in it."""
    state = folder / "state.json"
    if state.is_file():
        return _saved_files(state)
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            found += _folder_files(path)
        elif path.is_file() and path.name not in NO_DATA:
            name = path.name.lower().removesuffix(".gz").removesuffix(".zst").removesuffix(".zstd")
            if name.endswith(DATA):
                found.append(path)
    return found


def _saved_files(state: Path) -> list[Path]:
    """The files of a folder that `save_to_disk` wrote. Others in it are caches."""
    try:
        saved = orjson.loads(state.read_bytes())
        names = [entry["filename"] for entry in saved["_data_files"]]
        chosen = saved.get("_indices_data_files")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"input: {state} does not name the files of a saved dataset") from None
    if chosen:
        raise ConfigError(
            f"input: {state.parent} holds a selection of rows; call flatten_indices() on the "
            "dataset and save it again"
        )
    files = [state.parent / str(name) for name in names]
    for path in files:
        if path.parent != state.parent:
            raise ConfigError(f"input: {state} names {path}, which is not in its folder")
        if not path.is_file():
            raise ConfigError(f"input: {state} names {path.name}, which is missing")
    return files
