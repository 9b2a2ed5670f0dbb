"""``atoll launch`` as its users see it: real processes, their output, their ends, and nothing left over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from atoll.cli.main import main
from atoll.errors import SpecError

ATOLL = [sys.executable, "-m", "atoll"]
PATIENCE_S = 60.0


@pytest.fixture
def script(tmp_path: Path):
    """Writes a script; each knows its ``rank`` and ``size``."""

    def write(body: str, name: str = "script.py") -> str:
        head = "import os, signal, sys, time\n"
        head += "rank, size = (int(os.environ['ATOLL_' + name]) for name in ('RANK', 'WORLD_SIZE'))\n"
        path = tmp_path / name
        path.write_text(head + body)
        return str(path)

    return write


def launch(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED")}
    environ |= options.pop("env", {})
    return subprocess.run(
        [*ATOLL, "launch", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, env=environ, **options
    )


def processes_with(marker: str) -> list[int]:
    """Processes of this host whose environment holds ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and marker.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until_gone(marker: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while processes_with(marker):
        assert time.monotonic() < deadline, f"left over: {processes_with(marker)}"


def test_every_rank_gets_its_place_and_its_arguments(script) -> None:
    path = script(
        "print(rank, size, os.environ['ATOLL_LOCAL_RANK'], os.environ['ATOLL_LOCAL_WORLD_SIZE'], sys.argv[1:])"
    )
    result = launch("-n", "3", path, "--epochs", "3", "-n", "--", "x")
    assert result.returncode == 0
    assert result.stderr == ""
    assert sorted(result.stdout.splitlines()) == [f"{r} 3 {r} 3 ['--epochs', '3', '-n', '--', 'x']" for r in range(3)]


def test_modules_and_commands(script, tmp_path: Path) -> None:
    script("print('module', rank, sys.argv[1:])", "my_module.py")
    result = launch("-n", "2", "-m", "my_module", "-x", cwd=tmp_path)
    assert sorted(result.stdout.splitlines()) == ["module 0 ['-x']", "module 1 ['-x']"]
    result = launch("-n", "2", "--", "sh", "-c", "echo $ATOLL_RANK $0 $1", "--", "-x")
    assert sorted(result.stdout.splitlines()) == ["0 -- -x", "1 -- -x"]
    assert result.returncode == 0


def test_lines_do_not_mix_and_streams_stay_apart(script) -> None:
    path = script(
        "for i in range(200):\n"
        "    sys.stdout.write(f'{rank}:'); sys.stdout.flush()\n"
        "    sys.stdout.write('x' * 300 + f':{i}\\n'); sys.stdout.flush()\n"
        "print('talk', file=sys.stderr)\n"
        "sys.stdout.write('no newline')\n"
    )
    result = launch("-n", "3", "--prefix", path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] {rank}:{'x' * 300}:{i}" for i in range(200)] + [f"[{rank}] no newline"]
    assert len(lines) == 3 * 201
    assert sorted(result.stderr.splitlines()) == ["[0] talk", "[1] talk", "[2] talk"]


def test_a_line_that_never_ends_is_passed_on(script) -> None:
    result = launch("-n", "1", script("sys.stdout.write('x' * 300_000)"))
    assert result.stdout == "x" * 300_000


def test_ranks_have_no_standard_input_and_output_comes_at_once(script) -> None:
    path = script("print(repr(sys.stdin.read()), os.environ['PYTHONUNBUFFERED'])\nos.kill(os.getpid(), signal.SIGKILL)")
    result = launch("-n", "1", path, input="something")
    assert result.stdout == "'' 1\n", "printed before it was killed"


def test_threads_are_shared_out_unless_the_user_says_otherwise(script) -> None:
    path = script("print(os.environ['OMP_NUM_THREADS'])")
    assert set(launch("-n", "4", path).stdout.split()) == {str(max(1, len(os.sched_getaffinity(0)) // 4))}
    assert set(launch("-n", "4", path, env={"OMP_NUM_THREADS": "7"}).stdout.split()) == {"7"}
    assert "OMP_NUM_THREADS" in launch("--help").stdout


def test_the_first_failure_is_named_and_its_status_is_the_jobs(script) -> None:
    path = script("if rank == 2: sys.exit(7)\ntime.sleep(600)")
    result = launch("-n", "4", "--grace", "0.1s", path)
    assert result.returncode == 7
    lines = result.stderr.splitlines()
    assert lines[0].startswith("atoll launch: rank 2 failed first: exit status 7 after ")
    assert lines[1] == "ranks 0-1 and 3: killed by SIGTERM (signal 15), ended by the launcher"


def test_a_killed_rank_is_named_with_its_signal(script) -> None:
    result = launch(
        "-n", "2", "--grace", "0.1s", script("if rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(600)")
    )
    assert result.returncode == 128 + signal.SIGSEGV
    assert "rank 1 failed first: killed by SIGSEGV (signal 11)" in result.stderr


def test_a_rank_that_ignores_the_request_to_end_is_killed(script) -> None:
    path = script(
        "ready = __file__ + '.ready'\n"
        "while rank == 1 and not os.path.exists(ready): time.sleep(0.01)\n"
        "if rank == 1: sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(ready, 'w').close()\n"
        "time.sleep(600)"
    )
    result = launch("-n", "2", "--grace", "0.3s", path)
    assert result.returncode == 1
    assert "rank 0: killed by SIGKILL (signal 9), ended by the launcher" in result.stderr


def test_others_that_end_by_themselves_are_not_called_ended_by_the_launcher(script) -> None:
    result = launch("-n", "3", "--grace", "60s", script("sys.exit(3 if rank == 1 else 0)"))
    assert result.returncode == 3
    assert "ranks 0 and 2: exit status 0" in result.stderr
    assert "ended by the launcher" not in result.stderr


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")]
)
def test_signals_are_passed_on_and_end_the_job(script, number: signal.Signals, name: str) -> None:
    path = script(
        "def end(n, _): print('told', n); sys.exit(0)\n"
        "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(n, end)\n"
        "print('ready')\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        [*ATOLL, "launch", "-n", "2", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == f"told {int(number)}\n" * 2
    assert f"stopped by {name}" in err
    assert process.returncode == 128 + number


def test_a_second_ctrl_c_kills(script) -> None:
    path = script(
        "signal.signal(signal.SIGINT, lambda n, _: print('ignored'))\nprint('ready')\nwhile True: time.sleep(600)"
    )
    process = subprocess.Popen(
        [*ATOLL, "launch", "-n", "1", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "ignored\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130


def test_nothing_is_left_when_the_launcher_is_killed(script) -> None:
    """Nor the ranks, nor what a shell has started for them, nor the guardian."""
    marker = f"ATOLL_TEST_MARKER={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = marker.partition("=")
    path = script("print('ready', flush=True)\ntime.sleep(600)")
    process = subprocess.Popen(
        [*ATOLL, "launch", "-n", "2", "--", "sh", "-c", f"'{sys.executable}' '{path}'; true"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, name: value},
    )  # fmt: skip
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    # The launcher, its guardian, two shells and two scripts.
    assert len(processes_with(marker)) == 6
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_until_gone(marker)


def test_what_a_rank_leaves_in_the_background_is_ended(script) -> None:
    marker = f"ATOLL_TEST_MARKER={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = marker.partition("=")
    result = launch("-n", "2", "--", "sh", "-c", "sleep 600 & echo started", env={name: value})
    assert result.stdout == "started\n" * 2
    assert result.returncode == 0
    wait_until_gone(marker)


def test_ranks_find_each_other(script) -> None:
    path = script(
        "import atoll, numpy as np\n"
        "world = atoll.init()\n"
        "print(world.rank, world.world_size, float(world.all_reduce(np.full(10, rank + 1.0))[0]))\n"
        "world.close()\n"
    )
    result = launch("-n", "4", path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"{rank} 4 10.0" for rank in range(4)]


def test_a_killed_rank_is_reported_by_all_others_and_by_the_launcher(script) -> None:
    path = script(
        "import atoll, numpy as np\n"
        "world = atoll.init()\n"
        "if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "try: world.all_reduce(np.ones(1000))\n"
        "except atoll.PeerLost as error: print(rank, error.culprits, flush=True); sys.exit(9)\n"
    )
    result = launch("-n", "4", path)
    assert sorted(result.stdout.splitlines()) == ["0 (2,)", "1 (2,)", "3 (2,)"]
    assert result.returncode == 128 + signal.SIGKILL
    assert "rank 2 failed first: killed by SIGKILL" in result.stderr
    assert "ranks 0-1 and 3: exit status 9" in result.stderr


def test_a_reader_that_goes_away_ends_the_job(script) -> None:
    path = script("while True: print('y' * 1000)")
    command = " ".join([*ATOLL, "launch", "-n", "2", path, "| head -n 1"])
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.stdout == "y" * 1000 + "\n"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "0", "x.py"], "expected 1 to 4096 ranks, got 0"),
        (["-n", "-3", "x.py"], "expected 1 to 4096 ranks, got -3"),
        (["-n", "5000", "x.py"], "expected 1 to 4096 ranks, got 5000"),
        (["-n", "2", "no_such_script.py"], "there is no script 'no_such_script.py'"),
        (["-n", "2", "sleep", "600"], "atoll launch ... -- sleep"),
        (["-n", "2", "--", "no-such-command"], "there is no command 'no-such-command'"),
        (["-n", "2", "-m", "no_such_module"], "there is no module 'no_such_module'"),
        (["-n", "2", "-m", "--", "ls"], "give one of them"),
        (["-n", "2"], "nothing to run"),
        (["-n", "2", "--"], "nothing to run"),
        (["-n", "2", "--grace", "soon", "x.py"], "--grace: expected a duration"),
        (["-n", "two", "x.py"], "'two' is not a valid integer"),
        (["-n", "4096", "--spares", "1", "x.py"], "--spares: expected 0 to 0, got 1"),
        (["-n", "2", "--spares", "-1", "x.py"], "--spares: expected 0 to 4094, got -1"),
        (["-n", "2", "--tolerate", "-1", "x.py"], "--tolerate: expected 0 or more, got -1"),
        (["-n", "2", "--heartbeat-timeout", "0s", "x.py"], "--heartbeat-timeout: expected more than 0 seconds"),
        (["-n", "2", "--heartbeat-timeout", "long", "x.py"], "--heartbeat-timeout: expected a duration"),
        (["x.py"], "Missing option"),
    ],
)
def test_bad_input_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    (tmp_path / "x.py").write_text("print('ran')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SpecError, click.UsageError)) as error:
        main(["launch", *arguments], standalone_mode=False)
    message = error.value.format_message() if isinstance(error.value, click.UsageError) else str(error.value)
    assert words in message
    assert "\n" not in message
    assert error.value.exit_status == 2 if isinstance(error.value, SpecError) else error.value.exit_code == 2


def test_bad_input_exits_with_2() -> None:
    result = launch("-n", "0", "x.py")
    assert result.stderr == "atoll: -n: expected 1 to 4096 ranks, got 0\n" or "no script" in result.stderr
    assert result.stdout == ""
    assert result.returncode == 2


GOES_ON = (
    "import atoll, numpy as np\n"
    "world = atoll.init()\n"
    "if world.generation == 0:\n"
    "    world.barrier()\n"
    "    if world.rank == 1: os.kill(os.getpid(), signal.HOW)\n"
    "    try:\n"
    "        while True: world.all_reduce(np.ones(9))\n"
    "    except atoll.PeerLost: world = world.grow()\n"
    "print(world.rank, world.world_size, world.all_reduce(np.ones(1))[0], flush=True)\n"
    "world.close()\n"
)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_spare_replaces_a_lost_rank_and_the_job_succeeds(script, how: str) -> None:
    path = script(GOES_ON.replace("HOW", how))
    result = launch("-n", "3", "--spares", "2", "--heartbeat-timeout", "2s", "--grace", "500ms", path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"{rank} 3 3.0" for rank in range(3)]
    # A stopped one is killed once all others have ended, however it was stopped.
    assert "rank 1 was lost after" in result.stderr
    assert "killed by SIGKILL (signal 9)); the job went on" in result.stderr


def test_as_many_failures_are_tolerated_as_was_said(script) -> None:
    path = script("sys.exit(3 if rank < 2 else 0)")
    assert launch("-n", "4", "--tolerate", "2", path).returncode == 0
    result = launch("-n", "4", "--tolerate", "1", path)
    assert result.returncode == 3
    assert "failed first: exit status 3" in result.stderr


def test_watch_shows_who_comes_late(script) -> None:
    path = script(
        "import atoll, numpy as np\n"
        "world = atoll.init()\n"
        "world.all_reduce(np.ones(9))\n"
        "for _ in range(20):\n"
        "    if rank == 1:\n"
        "        world.recv(np.zeros(1), 0)  # rank 0 has called\n"
        "        time.sleep(0.05)\n"
        "    call = world.all_reduce(np.ones(9), async_op=True)\n"
        "    if rank == 0:\n"
        "        world.send(np.ones(1), 1)\n"
        "    call.wait()\n"
        "world.barrier()\n"
        "print('done')\n"
        "world.close()\n"
    )
    result = launch("-n", "2", "--watch", path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\ndone\n"
    title, first, second = result.stderr.splitlines()
    assert title.split() == ["rank", "calls", "comes", "late", "by", "share", "doing"]
    assert first.split()[0] == "1"
    assert "SLOW" in first
    assert second.split()[0] == "0"
    assert "barrier" in first
