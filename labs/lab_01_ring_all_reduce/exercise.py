"""What a learner writes: the functions of a file, found and loaded."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

LOAD_TIMEOUT_S = 10


@dataclass(frozen=True)
class Exercise:
    """The functions of a solution; ``counter()`` makes an object with ``sent`` and ``received``."""

    ring_all_reduce: Callable[..., Any]
    exchange: Callable[..., Any]
    counter: Callable[[], Any]


class CannotLoad(Exception):
    """The file does not give the functions; the message says why."""


def load(path: Path) -> Exercise:
    """Import ``path`` without running its main part. Raises ``CannotLoad``; ``OSError`` when it cannot be read."""
    path.read_bytes()
    spec = importlib.util.spec_from_file_location("learners_exercise", path)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{path.name} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    previous = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LOAD_TIMEOUT_S)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise CannotLoad(f"Python does not understand line {error.lineno} of {path.name}: {error.msg}") from None
    except SystemExit:
        raise CannotLoad(
            f"{path.name} ends the program when it is imported: is what it runs below if __name__ == '__main__'?"
        ) from None
    except Exception as error:
        raise CannotLoad(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    names = ("ring_all_reduce", "exchange", "Counter")
    missing = [name for name in names if not callable(getattr(module, name, None))]
    if missing:
        raise CannotLoad(f"{path.name} does not define {', '.join(missing)}: start from a copy of starter.py")
    return Exercise(*(getattr(module, name) for name in names))


def _give_up(_: int, __: FrameType | None) -> None:
    raise TimeoutError(f"importing it is not done after {LOAD_TIMEOUT_S} s")
