"""The option --html: what a command found as a page for a browser."""

from pathlib import Path

import click

from workbench.refusal import Refusal


def _writable(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """The file; refused before the run, whose results would be lost."""
    if path is None:
        return None
    if path.suffix not in (".html", ".htm"):  # a kernel's source is not written over
        raise Refusal(f"--html writes a page, FILE.html; got {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--html {path}: {error.strerror}") from None
    return path


html_option = click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_writable,
    help="Write a self-contained page to FILE.html",
)
