"""What is not text: images, sound, video and files, by column, part or mark."""

import re
from typing import Any

from workflow_scripts.input.reject import Reject

_FORMS = ("", "s", "_path", "_paths", "_url", "_urls", "_file", "_files", "_bytes", "_data")
# Columns of a record and keys of a message or part that hold what is no text.
MEDIA_COLUMNS = frozenset(
    {f"{kind}{form}" for kind in ("image", "audio", "video", "input_audio") for form in _FORMS}
    | {"img", "imgs", "img_path", "picture", "pictures", "photo", "photos"}
    | {"waveform", "pixel_values", "pixel_values_videos", "image_grid_thw"}
    | {"input_features", "input_values", "attachment", "attachments", "pdf", "pdfs"}
)
# A part's types: image_url, input_image, input_audio, file and the like.
MEDIA_TYPE = re.compile("image|audio|video|file|media|pixel", re.IGNORECASE)
# Marks where a processor puts something in: <image>, <image_1>, <|image_pad|>, <|vision_start|>,
# <|AUDIO|>, <start_of_image>, <ImageHere>, [IMG].
_NAME = r"(?:(?:begin|start|end)_of_)?(?:image|img|audio|video|vision|speech|sound)"
_END = r"(?:[ _-]?(?:\d|s|pad|here|tokens?|start|end|bos|eos|patch|placeholder|soft|embeds?)){0,9}"
_MARK = rf"(?:<\|?{_NAME}{_END}\|?>|\[IMG\])"
_RUN = rf"{_MARK}(?:[^\S\n]*{_MARK})*"
STARTS = re.compile(rf"\s*({_RUN})", re.IGNORECASE)
ALONE = re.compile(rf"^[ \t]*({_RUN})[ \t\r]*$", re.IGNORECASE | re.MULTILINE)
ENDS = re.compile(rf"({_RUN})\Z", re.IGNORECASE)
LONGEST = 200  # characters of the marks that a text can end with


def check_columns(record: dict[str, Any], where: str = "") -> None:
    """Reject a record, or a message at `where`, with a column that holds what is no text: one of
    `MEDIA_COLUMNS`, or a file as tables hold it."""
    for key, value in record.items():
        file = not where and isinstance(value, dict | list) and is_file(value)
        if (file or key in MEDIA_COLUMNS) and holds(value):
            place = f"{where}.{key}" if where else f"the column `{key}`"
            raise Reject("not_text", f"{place} holds an image, audio, video or file, not text")


def is_file(value: Any) -> bool:
    """Whether a value is a file as tables hold it, an object of bytes and path, or a list of it."""
    if isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, dict) and "bytes" in value and "path" in value


def holds(value: Any) -> bool:
    """Whether a column's value holds anything: no null, nor a list or object of nothing else."""
    if isinstance(value, list):
        return any(map(holds, value))
    if isinstance(value, dict):
        return any(map(holds, value.values()))
    return value is not None and value is not False and value != ""


def mark_in(text: str) -> str | None:
    """The mark of an image or the like in a user's text: alone on a line, or where the text starts
    or ends. One inside a sentence is spoken of, one with a closing tag is HTML."""
    if "<" not in text and "[IMG]" not in text:
        return None
    found = [STARTS.match(text), ENDS.search(text.rstrip()[-LONGEST:]), *ALONE.finditer(text)]
    marks = dict.fromkeys(match[1] for match in found if match)
    return next((mark for mark in marks if f"</{mark[1:]}" not in text), None)
