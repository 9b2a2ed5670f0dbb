"""``atoll draw``: a schedule as a space-time diagram."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from atoll.cli.schedule_source import candidates, proven, source_options
from atoll.errors import SpecError

_PIPED_WIDTH = 100


@click.command(context_settings={"max_content_width": 100})
@click.argument("target", metavar="FILE|ALGORITHM")
@source_options
@click.option("--ranks", metavar="LIST", help="Ranks to show, as 0-3,8; by default the first that fit.")
@click.option("--steps", metavar="LIST", help="Steps to show, as 0-3,8; by default the first and the last.")
@click.option("--all-steps", is_flag=True, help="Leave out no step.")
@click.option("--width", type=int, metavar="COLUMNS", help="Width of the text. [terminal, or 100 when piped]")
@click.option("--ascii", "ascii_only", is_flag=True, help="Use no characters beyond ASCII.")
@click.option("--svg", is_flag=True, help="SVG instead of text.")
@click.option("-o", "--output", metavar="PATH", help="Write to a file; a name in .svg means --svg.")
def command(
    target: str, world: int | None, collective: str | None, root: int | None, options: tuple[str, ...],
    out_of_place: bool, ranks: str | None, steps: str | None, all_steps: bool, width: int | None, ascii_only: bool,
    svg: bool, output: str | None,
) -> None:  # fmt: skip
    """Draw who sends what to whom, step by step. Only a proven schedule is drawn.

    \b
    atoll draw ring --world 4
    atoll draw halving-doubling --world 8 -o picture.svg
    atoll draw ring --world 1024 --ranks 0-5 --steps 0-2,2045
    atoll draw algorithm.xml --all-steps

    Ranks are lanes, time runs down, an arrow is a message labelled with its chunks; + means that the receiver
    reduces. What does not fit is left out, and the picture says what.
    """
    if all_steps and steps is not None:
        raise SpecError("--steps and --all-steps exclude each other")
    chosen_ranks = None if ranks is None else _numbers(ranks, "--ranks")
    chosen_steps = None if steps is None else _numbers(steps, "--steps")
    candidate = candidates(
        target, world=world, collective=collective, root=root, options=options, out_of_place=out_of_place
    )[0]
    proof = proven(candidate)
    max_steps = max(proof.schedule.num_steps, 1) if all_steps or chosen_steps is not None else 24

    if svg or (output is not None and output.lower().endswith(".svg")):
        from atoll.schedule.draw_svg import draw_svg

        room = {} if chosen_ranks is None else {"max_ranks": len(chosen_ranks)}
        text = draw_svg(proof, ranks=chosen_ranks, steps=chosen_steps, max_steps=max_steps, **room)
    else:
        from atoll.schedule.draw_text import MIN_WIDTH, draw_text

        terminal = max(shutil.get_terminal_size().columns, MIN_WIDTH) if sys.stdout.isatty() else _PIPED_WIDTH
        columns = terminal if width is None else width
        plain = ascii_only or (output is None and not _shows("│●─▶◀┼↺⋮"))
        text = draw_text(
            proof, width=columns, ranks=chosen_ranks, steps=chosen_steps, max_steps=max_steps, ascii_only=plain
        )
        text += "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"--output: {output}: cannot be written: {error.strerror or error}") from None
    click.echo(f"wrote {output}", err=True)


def _numbers(text: str, what: str) -> list[int]:
    """``0-3,8`` as numbers. Raises ``SpecError`` naming ``what``."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise SpecError(f"{what}: expected numbers and ranges such as 0-3,8, got {text!r}")
        low, high = int(first), int(last or first)
        if high < low or high - low > 1 << 20:
            raise SpecError(f"{what}: expected a range that ascends by at most 2^20, got {part.strip()!r}")
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def _shows(characters: str) -> bool:
    """Whether standard output can encode them."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
