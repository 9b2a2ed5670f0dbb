"""The command line as a whole: help at once, mistakes in one line."""

import subprocess
import sys

import pytest

from atoll.cli.main import COMMANDS


def atoll(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atoll", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


def test_help_lists_every_command_and_imports_none() -> None:
    probe = (
        "import sys; from atoll.cli.main import main; "
        "main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    listing, modules = done.stdout.rsplit("\n", 2)[:2]
    for name, (module, text) in COMMANDS.items():
        assert name in listing
        assert text.split()[0] in listing
        assert f"'{module}'" not in modules
    assert "'numpy'" not in modules
    assert "'rich'" not in modules


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_without_loading_numpy(name: str) -> None:
    probe = (
        "import sys; from atoll.cli.main import main; "
        f"main([{name!r}, '--help'], standalone_mode=False); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert "Usage:" in done.stdout
    assert len(done.stdout.splitlines()) >= 8
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["benhc"], "atoll: unknown command 'benhc': did you mean 'bench'?"),
        (["launch"], "atoll launch: Missing option '-n' / '--world'. See atoll launch --help"),
        (["bench", "--world", "x"], "atoll bench: Invalid value for '--world'"),
        (["bench", "--bogus"], "atoll bench: No such option"),
        (["draw"], "atoll draw: Missing argument"),
        (["-x"], "atoll: No such option"),
        (["bench", "--world", "0"], "atoll: --world: expected"),
        (["prove", "no/such/file.xml"], "atoll: "),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    done = atoll(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1
