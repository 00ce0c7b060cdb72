"""Reading flags out of sources: both ways in which SGLang declares them."""

import json
from pathlib import Path

import pytest

from workflow_scripts.sglang import wheels as read_sglang_flags

SERVER_ARGS = """
from sglang.srt.choices import KINDS, Backend
ONLY_HERE = ["a", "b"]
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        dynamic = ["auto"] + names()
        local = set(ONLY_HERE)
        parser.add_argument("--first", "--1st", type=str, choices=KINDS + ["z"], default=KINDS[0])
        parser.add_argument("--second", type=human_readable_int, dest="other")
        parser.add_argument("--third", choices=dynamic)
        parser.add_argument("--fourth", choices=local, nargs="+", type=float)
        parser.add_argument("--fifth", action="store_true", help="(Deprecated: use --sixth) Old.")
        parser.add_argument("--old", action=DeprecatedStoreTrueAction, new_flag="--first")
        parser.add_argument("--seventh", choices=list(Backend.TABLE.keys()))
"""
FIELDS = """
class Part:
    eighth: A[Optional[bool], "Help."] = None
    ninth: A[Optional[List[int]], Arg(help="Help.", aliases=["--nine"])] = None
    hidden: A[bool, Arg(no_cli=True)] = False
    derived: A[int, Derived("Not a flag.")]
    tenth: A[Literal["x", "y"], "Help."] = "x"
    thirteenth: A[Optional[Literal[1, 2]], "Help."] = None
    eleventh: A[Optional[bool], Arg(help="Help.", action=argparse.BooleanOptionalAction)] = None
    twelfth: A[dict, Arg(help="Help.", type_parser=json.loads, cli_name="--12th")] = None
"""
CHOICES = '''
KINDS = ["x", "y"]
class Backend:
    TABLE = {"one": 1, "two": 2}
'''  # fmt: skip


def test_reading_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_sglang_flags, "FLAGS_FILE", tmp_path / "flags.json")
    for name, text in {
        "server_args.py": SERVER_ARGS,
        "choices.py": CHOICES,
        "arg_groups/fields/part.py": FIELDS,
    }.items():
        path = tmp_path / "site/sglang/srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "site/sglang-9.8.7.dist-info").mkdir()
    assert read_sglang_flags.main([str(tmp_path / "site")]) == 0
    assert json.loads((tmp_path / "flags.json").read_text()) == {
        "9.8.7": {
            "first": {"kind": "value", "type": "str", "choices": ["x", "y", "z"],
                      "other_names": ["1st"]},
            "second": {"kind": "value", "type": "size", "other_names": ["other"]},
            "third": {"kind": "value", "type": "str"},
            "fourth": {"kind": "list", "type": "float", "nargs": "+", "choices": ["a", "b"]},
            "fifth": {"kind": "switch", "deprecated": "use --sixth"},
            "old": {"kind": "switch", "deprecated": "--first"},
            "seventh": {"kind": "value", "type": "str", "choices": ["one", "two"]},
            "eighth": {"kind": "switch"},
            "ninth": {"kind": "list", "type": "int", "nargs": "+", "other_names": ["nine"]},
            "tenth": {"kind": "value", "type": "str", "choices": ["x", "y"]},
            "thirteenth": {"kind": "value", "type": "int", "choices": [1, 2]},
            "eleventh": {"kind": "toggle"},
            "12th": {"kind": "value", "type": "json", "other_names": ["twelfth"]},
        }
    }  # fmt: skip
    with pytest.raises(SystemExit, match="neither a wheel"):
        read_sglang_flags.main([str(tmp_path)])
