"""Lines for the log: nobody need read them, and none moves the cursor."""

import re
import subprocess
import sys

import pytest

from tests.made.paths import ROOT
from workflow_scripts.base.log import clean, duration, say

SAY = """
import sys
from workflow_scripts.base.log import say
say("first")
sys.stdin.readline()
for i in range(3):
    say("nobody reads this")
print("put in order")
"""


def test_a_line_has_the_time_of_day(capsys: pytest.CaptureFixture[str]) -> None:
    say("so it is")
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"\[\d\d:\d\d:\d\d\] so it is\n", err)


def test_who_reads_the_log_may_be_gone() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SAY]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stderr.readline().endswith("] first\n")
        process.stderr.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.read() == "put in order\n"
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("  two\r\n lines\t\v", "two lines"),
        ("\x1b[31mred\x1b[0m \x9b2J", "?[31mred?[0m ?2J"),
        ("left\u202eright\x00\x7f", "left?right??"),
        ("naïve 日本 🙂", "naïve 日本 🙂"),
        (None, "None"),
        ({"a": 1.5}, "{'a': 1.5}"),
        ("", ""),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_clean_text_is_one_line(value: object, text: str) -> None:
    assert clean(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.9, "0:59"), (60, "1:00"), (3599, "59:59"), (3723.4, "1:02:03")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_servers_words_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences are spelled; line ends, tabs, joiners and other scripts stay."""
    say("HTTP 500: \x1b[2J\x1b]0;mine\x07 a\tb\nsecond می‌خواهم \u202eabc \x9b2J")
    told = capsys.readouterr().err
    assert told[10:] == (
        " HTTP 500: \\x1b[2J\\x1b]0;mine\\x07 a\tb\nsecond می‌خواهم \\u202eabc \\x9b2J\n"
    )
