"""The pretrain stage: next-token training on practice conversations, before anything is rolled out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from orchard_core.engine.protocol import Message, Renderer
from orchard_core.errors import UsageError
from orchard_core.harness.style import BASH_TOOL
from orchard_core.pipeline.capabilities import HasPractice
from orchard_core.pipeline.context import RunContext
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.pipeline.stages.supervised import fit
from orchard_core.recipe import PretrainStage
from orchard_core.train.algorithms.next_token import next_token
from orchard_core.train.loops import SftConfig
from orchard_core.trajectory.types import Sample


async def run(context: RunContext, stage: PretrainStage) -> Mapping[str, Any]:
    """Train on `stage.conversations` of them, once each; the model lies under the stage's name."""
    if not isinstance(context.domain, HasPractice):
        raise UsageError(f"domain {context.domain.name!r} makes no practice conversations; drop the stage")
    seed = derive_seed(context.recipe.seed, stage.name)
    found = context.domain.practice(context.tasks("train"), stage.options, seed)
    renderer = context.engine.renderer
    samples = [render(conversation, renderer) for conversation in islice(found, stage.conversations)]
    if not samples:
        raise UsageError("the domain made no practice conversation for these tasks and options")
    config = SftConfig(
        epochs=1, batch_samples=stage.batch_samples, seed=seed, checkpoint_every=200, keep_checkpoints=1
    )
    steps = await fit(context, stage, samples, config, lambda batch: next_token(batch, stage.prompt_weight))
    return {
        "samples": len(samples),
        "steps": steps,
        "trained_tokens": sum(len(sample) - 1 for sample in samples),
    }


def render(conversation: Sequence[Message], renderer: Renderer) -> Sample:
    """A conversation as one sequence, as a rollout of it would have recorded it.

    The mask holds the assistant's messages, but not those with the key `weight` 0 (as in the chat
    fine-tuning format of OpenAI): they are context.
    """
    first = next(i for i, message in enumerate(conversation) if message["role"] == "assistant")
    ids = list(renderer.render(conversation[:first], [BASH_TOOL]))
    mask = [False] * len(ids)
    at = first
    while at < len(conversation):
        answer = renderer.render_completion(conversation[at])
        ids += answer
        mask += [conversation[at].get("weight", 1) != 0] * len(answer)
        following = at + 1
        while following < len(conversation) and conversation[following]["role"] != "assistant":
            following += 1
        if following < len(conversation):
            between = renderer.render_suffix(conversation[at + 1 : following])
            ids += between
            mask += [False] * len(between)
        at = following
    length = len(ids)
    return Sample(
        trajectory_id="",
        task_id="",
        ids=np.array(ids, dtype=np.int32),
        mask=np.array(mask),
        logprobs=np.zeros(length, dtype=np.float32),
        calls=np.where(mask, 0, -1).astype(np.int32),
        has_logprobs=False,
        weight_version=0,
    )
