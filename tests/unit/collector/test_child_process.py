"""Running a program for so long and no longer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tocsin.collector.child_process import run_within

PYTHON = [sys.executable, "-S", "-c"]


def test_what_ends_in_time_has_its_status_and_output() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert run_within([*PYTHON, code], 20, errors=subprocess.DEVNULL) == (3, b"out\n")
    both = run_within([*PYTHON, code], 20, errors=subprocess.STDOUT)
    assert both is not None
    assert sorted(both.out.split()) == [b"err", b"out"]


def test_what_does_not_end_is_left_though_a_child_of_its_own_holds_the_pipe() -> None:
    code = "import os, time; print(os.getpid(), flush=True); os.fork(); time.sleep(5)"
    assert run_within([*PYTHON, code], 0.3, errors=subprocess.DEVNULL) is None


def test_it_gets_no_input_and_where_asked_a_session_of_its_own() -> None:
    code = "import os, sys; print(sys.stdin.read() == '', os.getsid(0) == os.getpid())"
    found = [run_within([*PYTHON, code], 20, errors=subprocess.DEVNULL, apart=apart) for apart in (False, True)]
    assert [one.out.split() for one in found if one] == [[b"True", b"False"], [b"True", b"True"]]


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        run_within(["/nowhere/x"], 1, errors=subprocess.DEVNULL)
