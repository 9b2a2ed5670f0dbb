"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Examples are not timed: how long one takes says more about the machine than about the code.
settings.register_profile("atoll", deadline=None)
settings.load_profile("atoll")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of real inputs, named by ``ATOLL_CASES``; a test that needs it is skipped without it."""
    folder = Path(os.environ.get("ATOLL_CASES", str(REPOSITORY.parent / "shared" / "cases")))
    if not folder.is_dir():
        pytest.skip(f"no real inputs: ATOLL_CASES or {folder} is not a folder")
    return folder
