"""Work that does not end is stopped, in any thread and process, and nothing else is."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.made.prompts import tiny_prompts
from workflow_scripts.base.errors import ConfigError
from workflow_scripts.model import template, time_limit
from workflow_scripts.model.prompts import PromptError
from workflow_scripts.model.time_limit import limited

ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


def endless() -> None:
    while True:
        pass


def stopped(work: Callable[[], object] = endless) -> bool:
    with pytest.raises(TimeoutError, match=r"0\.3 seconds"):
        limited(work, 0.3)
    return limited(lambda: 7, 0.3) == 7


def test_it_is_stopped_and_the_next_is_not() -> None:
    assert stopped()


def test_what_the_work_raises_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 / 0, 5)
    assert not time_limit._going_on


def test_in_threads_each_by_itself() -> None:
    found: list[str] = []

    def slow() -> None:
        with pytest.raises(TimeoutError):
            limited(endless, 0.3)
        found.append("stopped")

    def quick() -> None:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert limited(lambda: 3, 5) == 3
        found.append("done")

    threads = [threading.Thread(target=work) for work in (slow, quick, slow, quick)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == ["done", "done", "stopped", "stopped"]


def test_in_a_forked_process() -> None:
    """Its parent's watching thread is not there."""
    assert stopped()
    child = os.fork()
    if not child:
        try:
            limited(endless, 0.3)
        except TimeoutError:
            os._exit(17)
        os._exit(1)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 17
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the forked process went on")


def test_work_that_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives its result or the error, and no exception arrives later."""
    monkeypatch.setattr(time_limit, "LOOK_S", 0.001)
    draw, ends = random.Random(1), {"result": 0, "error": 0}
    limited(time.monotonic, 1)
    time.sleep(0.3)  # the watching thread has read LOOK_S
    for _ in range(300):
        until = time.monotonic() + draw.uniform(0.002, 0.008)

        def work(until: float = until) -> None:
            while time.monotonic() < until:
                pass

        try:
            limited(work, 0.005)
            ends["result"] += 1
        except TimeoutError:
            ends["error"] += 1
        for _ in range(100):
            pass
    assert min(ends.values()) > 10, ends


def test_a_template_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "LIMIT_S", 0.3)
    with pytest.raises(ConfigError, match=r"model.chat_template: .*longer than 0\.3 seconds"):
        tiny_prompts(template=ENDLESS)
    some = tiny_prompts(template=f"{{% if messages[0].content == 'go' %}}{ENDLESS}{{% endif %}}")
    with pytest.raises(PromptError, match=r"does not end: it ran for longer than 0\.3 seconds"):
        some.prompt_ids([{"role": "user", "content": "go"}])
    assert some.prompt_ids([{"role": "user", "content": "stay"}]) == []
