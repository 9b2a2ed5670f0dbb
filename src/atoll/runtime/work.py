"""A collective that was started with ``async_op=True``: wait for it, ask for it."""

from __future__ import annotations

import time

from atoll.errors import CollectiveTimeout, SpecError
from atoll.runtime.arrays import Array
from atoll.runtime.progress import Progress
from atoll.runtime.task import Task


class Work:
    """In flight. The arrays given to the collective belong to it until ``wait`` has returned."""

    def __init__(self, progress: Progress, task: Task, result: Array | None) -> None:
        self._progress = progress
        self._task = task
        self._result = result

    def __repr__(self) -> str:
        state = "finished" if self.done() else self._task.progress()
        return f"<Work {self._task.call.describe()}: {state}>"

    def done(self) -> bool:
        """Whether it has finished, well or not; ``wait`` then returns or raises at once."""
        return self._task.finished

    @property
    def bytes_moved(self) -> int:
        """Payload bytes sent and received by this rank so far."""
        return self._task.bytes_moved()

    def wait(self, timeout: float | None = None) -> Array | None:
        """The result, once it is there. Raises what the collective raises.

        ``timeout`` in seconds bounds only this wait: when it passes, ``CollectiveTimeout`` is raised and the
        collective goes on, under the deadline that it was started with.
        """
        if timeout is not None and not timeout >= 0:
            raise SpecError(f"wait: expected a timeout of at least 0 seconds, got {timeout}")
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._progress.wait(self._task, deadline):
            raise CollectiveTimeout(
                f"{self._task.call.describe()}: not finished after waiting {timeout:g} s, still in flight: "
                f"{self._task.progress()}",
                culprits=self._task.waits_on(),
            )
        if self._task.error is not None:
            raise self._task.error.with_traceback(None)
        return self._result
