"""Checks instances in real sandboxes: the gold repair succeeds and doing nothing fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from orchard_core.env.handle import Provider
from orchard_swe.grading import grade_patch
from orchard_swe.instances import Instance, gold_patch


@dataclass(frozen=True, slots=True)
class Validation:
    """`problems` is empty for a valid instance."""

    instance: Instance
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


async def validate_one(instance: Instance, provider: Provider, repeats: int = 1) -> Validation:
    """Raises InfrastructureError when a sandbox fails."""
    gold = gold_patch(instance).encode()
    problems: list[str] = []
    for _ in range(repeats):
        repaired = await grade_patch(instance, gold, provider)
        untouched = await grade_patch(instance, b"", provider)
        if repaired.verdict != "success":
            problems.append(f"the gold repair fails: {repaired.reason} {dict(repaired.parts)}")
        if untouched.parts["f2p"] != 0.0:
            problems.append("a failing test passes without a repair")
        if untouched.parts["p2p"] != 1.0:
            problems.append("a passing test fails without a repair")
    return Validation(instance, tuple(problems))


async def validate(
    instances: Sequence[Instance], provider: Provider, *, repeats: int = 1, concurrency: int = 2
) -> list[Validation]:
    """Validate in parallel; results in the order given."""
    gate = asyncio.Semaphore(concurrency)

    async def one(instance: Instance) -> Validation:
        async with gate:
            return await validate_one(instance, provider, repeats)

    return list(await asyncio.gather(*map(one, instances)))
