"""The `orchard` command: core commands, and those that packages add (entry point group "orchard.cli")."""

from __future__ import annotations

import errno
import logging
import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from orchard_core.cli import recipes, running
from orchard_core.domain import available_domains
from orchard_core.errors import OrchardError

GROUP = "orchard.cli"
INTERRUPTED = 130

app = typer.Typer(
    help="Train agents inside the harness they will be deployed with.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(running.run)
app.add_typer(recipes.app, name="recipe")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("orchard-core"))
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


@app.command("domains")
def domains() -> None:
    """List the installed domains."""
    for name in available_domains():
        typer.echo(name)


def add_packages() -> None:
    """Add the sub-commands of installed packages."""
    for point in entry_points(group=GROUP):
        app.add_typer(point.load(), name=point.name)


def sentence(error: BaseException) -> str | None:
    """What to tell the user; None for a fault of ours, which deserves its traceback."""
    if isinstance(error, BaseExceptionGroup):
        told = [text for inner in error.exceptions if (text := sentence(inner)) is not None]
        return told[0] if len(told) == len(error.exceptions) else None
    if isinstance(error, OrchardError):
        return str(error)
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}; free some space or choose another folder"
    return None


def main() -> None:
    """Run the command line; errors that a user can act on are one sentence and exit status 1."""
    try:
        add_packages()
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            typer.echo("stopped; the same command continues where this one ended", err=True)
        raise
    except (OrchardError, OSError, BaseExceptionGroup) as error:
        told = sentence(error)
        if told is None:
            raise
        typer.echo(f"orchard: {told}", err=True)
        sys.exit(1)
