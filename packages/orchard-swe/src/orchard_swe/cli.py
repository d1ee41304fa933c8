"""Sub-commands of `orchard swe`: mine a package, validate instances, show them."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Annotated

import typer

from orchard_core.env.handle import Provider
from orchard_swe.domain import make_task
from orchard_swe.gitrepo import build_repository
from orchard_swe.instances import Instance, find_instance, gold_patch, load_instances, read_list, to_swebench
from orchard_swe.miner.mine import MineOptions, MineReport, mine
from orchard_swe.miner.output import read_folder, write_list
from orchard_swe.prompt import instruction
from orchard_swe.validate import validate

app = typer.Typer(help="Mine, validate and grade software-engineering tasks.")

ListOption = Annotated[
    Path | None, typer.Option("--list", help="A folder with packages.json and instances.jsonl.")
]


def _provider() -> Provider:
    from orchard_core.env.providers.bubblewrap import BubblewrapProvider

    return BubblewrapProvider()


def _instances(folder: Path | None) -> list[Instance]:
    if folder is None:
        return load_instances()
    return read_list((folder / "packages.json").read_text(), (folder / "instances.jsonl").read_text())


@app.command("mine")
def mine_command(
    package: Annotated[str, typer.Argument(help="The package's name on the index.")],
    version: Annotated[str, typer.Argument(help="A released version.")],
    out: Annotated[Path, typer.Option(help="Folder of the list; the package is added to it.")] = Path(
        "mined"
    ),
    limit: Annotated[int, typer.Option(min=1, help="Instances at most.")] = 120,
    attempts: Annotated[int, typer.Option(min=1, help="Planted faults at most.")] = 1000,
    split: Annotated[str, typer.Option(help="train or held_out.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed of the choice of faults.")] = 0,
) -> None:
    """Plant faults in a released package and keep those that its own tests notice."""
    if split not in ("train", "held_out"):
        raise typer.BadParameter("the split is train or held_out")

    async def run() -> MineReport:
        provider = _provider()
        try:
            return await mine(
                package, version, provider, MineOptions(limit=limit, attempts=attempts, seed=seed)
            )
        finally:
            await provider.close()

    report = asyncio.run(run())
    mined = [*read_folder(out), *report.with_split("held_out" if split == "held_out" else "train")]
    write_list(out, mined)
    dropped = ", ".join(f"{count} {reason}" for reason, count in report.dropped.most_common())
    typer.echo(
        f"{report.package.key}: kept {len(report.instances)}; dropped {dropped or 'none'}; written to {out}"
    )


@app.command("validate")
def validate_command(
    folder: ListOption = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Validate a random sample of so many.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each check.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Sandboxes at once.")] = 2,
) -> None:
    """Check that each gold repair succeeds and that doing nothing fails."""
    instances = _instances(folder)
    if sample is not None:
        instances = random.Random(seed).sample(instances, min(sample, len(instances)))

    async def run() -> int:
        provider = _provider()
        try:
            results = await validate(instances, provider, repeats=repeats, concurrency=concurrency)
        finally:
            await provider.close()
        bad = [result for result in results if not result.ok]
        for result in bad:
            typer.echo(f"{result.instance.id}: {'; '.join(result.problems)}")
        typer.echo(f"{len(results) - len(bad)} of {len(results)} instances are valid")
        return len(bad)

    if asyncio.run(run()):
        raise typer.Exit(1)


@app.command("show")
def show_command(
    instance_id: Annotated[str | None, typer.Argument(help="An instance's id; without it, the list.")] = None,
    folder: ListOption = None,
    gold: Annotated[bool, typer.Option("--gold", help="Show the repair too.")] = False,
    swebench: Annotated[bool, typer.Option("--swebench", help="Print the SWE-bench record as JSON.")] = False,
) -> None:
    """Show an instance's issue, or list the ids."""
    instances = _instances(folder)
    if instance_id is None:
        for each in instances:
            typer.echo(f"{each.id}  {each.package.split}  {each.kind}  {each.file}:{each.line}")
        return
    instance = find_instance(instance_id, instances)
    if swebench:
        base = build_repository(instance.faulty_files()).commit
        typer.echo(json.dumps(to_swebench(instance, instruction(instance), base)))
        return
    typer.echo(make_task(instance).instruction, nl=False)
    if gold:
        typer.echo(gold_patch(instance), nl=False)
