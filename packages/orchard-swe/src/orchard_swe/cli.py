"""Sub-commands of `orchard swe`."""

import typer

app = typer.Typer(help="Mine, validate and grade software-engineering tasks.")
