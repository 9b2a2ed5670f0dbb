"""``python -m atoll`` is the ``atoll`` command."""

from atoll.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
