"""NVIDIA's multi-process service around a run. A script stands in for its control program, which needs a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hgpo.errors import ConfigError
from hgpo.training.process_service import CONTROL, STOP, main, process_service

FOLDER = "CUDA_MPS_PIPE_DIRECTORY"


@pytest.fixture
def calls(tmp_path, monkeypatch) -> Path:
    """The file in which the control program notes its calls, each with the service's folder."""
    program, noted = tmp_path / CONTROL, tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "${{1:-$(cat)}} ${FOLDER}" >> {noted}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return noted


def test_the_service_lasts_as_long_as_the_block_and_leaves_the_environment_as_it_was(calls, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "/elsewhere")
    with pytest.raises(KeyboardInterrupt), process_service():
        folder = os.environ[FOLDER]
        assert calls.read_text() == f"-d {folder}\n" and Path(folder).is_dir()
        raise KeyboardInterrupt
    assert calls.read_text() == f"-d {folder}\nquit -t 20 {folder}\n" and not Path(folder).exists()
    assert FOLDER not in os.environ and os.environ["CUDA_MPS_LOG_DIRECTORY"] == "/elsewhere"


def test_the_service_knows_gpus_by_the_numbers_that_its_clients_have_for_them(calls, monkeypatch):
    (calls.parent / CONTROL).write_text(f'#!/bin/sh\necho "${{CUDA_VISIBLE_DEVICES:-all}}" >> {calls}\n')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with process_service():
        assert calls.read_text() == "all\n" and os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_two_services_are_apart(calls):
    with process_service():
        first = os.environ[FOLDER]
        with process_service():
            assert os.environ[FOLDER] != first
        assert os.environ[FOLDER] == first


def test_a_machine_without_it_and_one_where_it_does_not_start_are_told(calls, monkeypatch):
    (calls.parent / CONTROL).write_text("#!/bin/sh\necho 'no device' >&2\nexit 3\n")
    with pytest.raises(ConfigError, match="ended with code 3: no device") as error, process_service():
        pytest.fail("it did not start")
    assert "placement.mps: false" in str(error.value) and FOLDER not in os.environ
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=f"no {CONTROL} on this machine"), process_service():
        pytest.fail("there is none")


def test_a_command_on_another_node_has_the_service_and_its_code_is_handed_on(calls):
    ran = f"open({str(calls)!r}, 'a').write('ran in ' + os.environ[{FOLDER!r}] + chr(10))"
    script = f"import os, sys, time; time.sleep(0.1); {ran}; sys.exit(7)"
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, STOP)}
    try:
        assert main([sys.executable, "-c", script]) == 7
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    noted = calls.read_text().splitlines()
    assert [line.split()[0] for line in noted] == ["-d", "ran", "quit"]
    assert len({line.split()[-1] for line in noted}) == 1, "in the folder of one service"


@pytest.mark.parametrize("number", [signal.SIGTERM, STOP])
def test_a_command_that_is_asked_to_stop_takes_its_service_with_it(calls, tmp_path, number):
    wait = f"import pathlib, time; pathlib.Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-m", "hgpo.training.process_service", sys.executable, "-c", wait])
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == -signal.SIGTERM % 256
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["-d", "quit"]


def test_a_command_that_is_asked_to_stop_before_it_began_does_not_begin(calls, tmp_path):
    program = calls.parent / CONTROL
    program.write_text(f'#!/bin/sh\necho "${{1:-$(cat)}}" >> {calls}\n[ -z "$1" ] || sleep 1\n')
    touch = f"import pathlib; pathlib.Path({str(tmp_path / 'begun')!r}).touch()"
    process = subprocess.Popen([sys.executable, "-m", "hgpo.training.process_service", sys.executable, "-c", touch])
    while not calls.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(STOP)
    assert process.wait(30) == -STOP % 256 and not (tmp_path / "begun").exists()
    assert calls.read_text().split() == ["-d", "quit", "-t", "20"]
