"""A server that is told to end while it loads ends, whatever it was loading does."""

import os
import signal
import subprocess
import sys

import pytest

from kvtape.replay import signals

STUCK = """
import os, signal, sys, threading
from kvtape.__main__ import app
from kvtape.replay import loading, signals

def load(*_):
    worker = threading.Thread(target=threading.Event().wait)
    worker.start()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        worker.join()
    {after}

loading.load, signals.GRACE_SECONDS = load, 0.5
sys.argv = ["kvtape", "serve", "fake", "--port", "0"]
app()
"""
COMPILES = """
import os, signal, sys, threading, time
from kvtape.devices.cuda.compiling import side_by_side
from kvtape.replay.signals import Signals

def tell():
    time.sleep(1.0)
    os.kill(0 if number == signal.SIGINT else os.getpid(), number)

os.setpgrp()
number = int(sys.argv[1])
with Signals() as told:
    try:
        with told.at_once():
            threading.Thread(target=tell, daemon=True).start()
            side_by_side(lambda item: time.sleep(100), [1, 2, 3], 2)
    except KeyboardInterrupt:
        print("told to end")
"""


def output(program: str, *arguments: str, **more: str) -> tuple[int, str, str]:
    """The exit code of a program, and what it said."""
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, **more}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "after", ["finally: worker.join()", "except KeyboardInterrupt: worker.join()"]
)
def test_a_load_that_does_not_end_by_itself_holds_nobody_up(after: str) -> None:
    """A signal can come between a lock and the promise to let go of it, or be swallowed."""
    assert output(STUCK.format(after=after)) == (0, "", signals.LEFT.decode())


@pytest.mark.parametrize("number", ["2", "15"])
def test_processes_that_compile_end_without_a_word(number: str) -> None:
    """They were forked while a signal was to end the load; a terminal tells them, too."""
    found = output(COMPILES, number, NUMBA_ENABLE_CUDASIM="1")
    assert found == (0, "told to end\n", "")


NESTED = """
import signal
from kvtape.replay.signals import unwinding

with unwinding():
    try:
        with unwinding():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGTERM)
        print("whole", flush=True)
"""


def test_what_unwinds_is_not_cut_short_by_being_told_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "whole\n")
