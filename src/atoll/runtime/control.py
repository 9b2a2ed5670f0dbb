"""The control plane of one process: a daemon thread that holds a link to every other rank.

Skeleton of the interface; see the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atoll.errors import AtollError
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.endpoint import Endpoint
from atoll.runtime.membership import Membership


class Control:
    """One per process. All methods may be called from any thread; ranks are world ranks unless said otherwise."""

    def __init__(self, membership: Membership, endpoint: Endpoint) -> None:
        raise NotImplementedError

    def start(self, deadline: float) -> None:
        """Link up with every other rank and start the thread; ``deadline`` in ``time.monotonic()`` seconds.

        Raises ``PeerLost`` or ``CollectiveTimeout`` naming the ranks that could not be reached.
        """
        raise NotImplementedError

    def register(self, communicator_id: int, ranks: Sequence[int], wake: Callable[[], None]) -> None:
        """Make a communicator known: ``ranks[i]`` is the world rank of its rank i. ``wake`` is called (in the control
        thread) when a failure of it becomes known; give it ``Wakeup.set``."""
        raise NotImplementedError

    def unregister(self, communicator_id: int) -> None:
        """The communicator is closed; nothing more is asked of or said about it."""
        raise NotImplementedError

    def enter(self, call: CallDescriptor) -> None:
        """A collective begins. Under a microsecond; then look at ``failure`` once."""
        raise NotImplementedError

    def leave(self, communicator_id: int, sequence: int) -> None:
        """It has ended. Under a microsecond."""
        raise NotImplementedError

    def failure(self, communicator_id: int) -> AtollError | None:
        """The error that has ended this communicator, for good; None while all is well. Raise a copy of it, or it."""
        raise NotImplementedError

    def waiting(self, communicator_id: int, sequence: int, waits_on: Sequence[int] = ()) -> None:
        """No progress for about 100 ms, or a header with a foreign fingerprint: compare notes with all ranks.

        ``waits_on``: the world ranks whose bytes are awaited. Returns at once; a verdict
        shows in ``failure`` and wakes.
        """
        raise NotImplementedError

    def timed_out(
        self, communicator_id: int, sequence: int, timeout_s: float, waits_on: Sequence[int] = (), progress: str = ""
    ) -> AtollError:
        """The deadline of a collective has passed: the error to raise, which is also told to all other ranks.

        Blocks for at most about a second to learn who entered and who never came. Usually ``CollectiveTimeout``; a
        ``CollectiveMismatch`` or ``PeerLost`` where that is what happened. ``progress`` is words for the story, such as
        ``step 3 of 6, chunk 2``.
        """
        raise NotImplementedError

    def disconnected(self, communicator_id: int, peer: int, reason: str) -> None:
        """A data connection with ``peer`` ended in the middle. Then wait for ``failure``: it comes within a second and
        tells whether the process died, left, or only its connection was cut."""
        raise NotImplementedError

    def abandon(self, communicator_id: int, sequence: int, reason: str) -> None:
        """This rank gives up a collective that the others are in (an exception, Ctrl-C): tell them so that they raise
        ``PeerLost`` naming this rank."""
        raise NotImplementedError

    def close(self) -> None:
        """Say goodbye, end the thread, close the links and the endpoint. Called by ``atexit`` if not before."""
        raise NotImplementedError
