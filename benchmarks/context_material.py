"""What the comparison of contexts begins with: a small model's folder, and demonstrations in every arm's context.

Each demonstration is an episode that ``run_episode`` plays, with a demonstrator in the model's place and under the
context of one of the plan's arms, so that every turn of it is learned behind just what that arm has before it.  The
first arm has two shares of them and each other one, and all arms begin with what was learned from all.  Every
turn is learned once.  Equal plans make equal bytes.
"""

import asyncio
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.learning_plan import Plan
from engine.cluster.rollout_members import rollout_worker_over
from engine.cluster.sandboxes import opened_parts
from engine.environments.contract import Environment
from engine.environments.registry import environment_for
from engine.models.random_folder import write_random_model
from engine.models.tokenizer_training import TEMPLATES
from engine.rollout.context_tools import context_tools
from engine.rollout.players import PlayedTurns
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.requests import EpisodeRequest
from engine.spec.context import Context
from engine.spec.message import AssistantMessage, ToolRequest, ToolSchema
from engine.spec.run import RunSpec
from engine.spec.trajectory import Segment, Trajectory

MODEL, FILE, TASKS = "contexts", "demonstrations.jsonl", "tasks"
VOCABULARY = 1024
REPEATED = 20
"""How often the tokenizer is shown what every prompt holds, so that its words become tokens."""


def shape(width: int, head: int) -> dict[str, Any]:
    """A network of two layers and four heads."""
    return {
        "hidden_size": width,
        "intermediate_size": width * 8 // 3,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "tie_word_embeddings": True,
    }


class MaterialFailed(Exception):
    """A demonstration did not come to what it shows; the message says which."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One task, as a demonstrator goes about it."""

    task: int
    turns: tuple[AssistantMessage, ...]
    managed: tuple[AssistantMessage, ...]
    """The same, by one that has the tools of its context."""
    succeeds: bool = True

    def under(self, context: Context) -> tuple[AssistantMessage, ...]:
        return self.managed if context.template == "self-managing" else self.turns


class Domain(Protocol):
    """What a demonstrator does in one environment."""

    shape: dict[str, Any]
    """The network's: what has to be copied needs more of it than what can be known by heart."""

    def write_tasks(self, folder: Path) -> None:
        """The tasks, where the environment takes a folder of them."""
        ...

    def demonstrations(self, environment: Environment) -> Sequence[Demonstration]: ...


def made_material(plan: Plan, domain: Domain, folder: Path) -> Path:
    """The folder, which is made once, as a whole or not at all."""
    if folder.exists():
        return folder
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    domain.write_tasks(partial / TASKS)
    specs = [placed(plan.spec(arm, 0), partial) for arm in plan.arms]
    environment = environment_for(specs[0].environment, specs[0].dataset)
    demonstrations = domain.demonstrations(environment)
    contexts = [spec.recipe.context or Context() for spec in specs]
    texts = list(_texts(environment, demonstrations, contexts))
    write_random_model(
        partial / "models" / MODEL, family="qwen3", seed=0, texts=texts, vocabulary=VOCABULARY, **domain.shape
    )  # fmt: skip
    turns = [specs[0], *specs]
    shares = [demonstrations[number :: len(turns)] for number in range(len(turns))]
    played = [asyncio.run(_played(spec, share, partial)) for spec, share in zip(turns, shares, strict=True)]
    lines = [
        document.model_dump_json() for of_arm in played for trajectory in of_arm for document in _documents(trajectory)
    ]
    (partial / FILE).write_text("".join(f"{line}\n" for line in lines))
    shutil.rmtree(partial / "security", ignore_errors=True)
    partial.rename(folder)
    return folder


def placed(spec: RunSpec, folder: Path) -> RunSpec:
    """The spec with the places of what lies in ``folder``."""
    changes: dict[str, Any] = {"model": spec.model.model_copy(update={"path": str(folder / "models" / MODEL)})}
    if spec.environment.id == "terminal":
        changes["environment"] = spec.environment.model_copy(update={"tasks": str(folder / TASKS)})
    return spec.model_copy(update=changes)


async def _played(spec: RunSpec, demonstrations: Sequence[Demonstration], folder: Path) -> list[Trajectory]:
    """Raises MaterialFailed where one did not end as it should."""
    context = spec.recipe.context or Context()
    requests = [
        EpisodeRequest(
            purpose="demonstration", prompt=number, member=0, version=-1, split="train", task=demonstration.task,
            temperature=0.0, seed=0, player="script", script=demonstration.under(context),
        )
        for number, demonstration in enumerate(demonstrations)
    ]  # fmt: skip
    environment = environment_for(spec.environment, spec.dataset)
    task = environment.tasks("train")[0]
    nobody = PlayedTurns(renderer_for(spec.model, spec.environment), environment.tools(task), ())
    async with opened_parts(spec.environment, folder / "security", size=spec.resources.sandboxes) as pools:
        collected = await rollout_worker_over(spec, nobody, pools).collect(requests)
    if lost := collected.discarded.total():
        raise MaterialFailed(f"{lost} demonstrations came to nothing: {dict(collected.discarded)}")
    for trajectory, demonstration in zip(collected.trajectories, demonstrations, strict=True):
        if trajectory.success != demonstration.succeeds:
            raise MaterialFailed(f"the demonstration of {trajectory.task.id} ended by {trajectory.stop_reason}")
    return [trajectory.with_turns([turn.untimed for turn in trajectory.turns]) for trajectory in collected.trajectories]


def _documents(trajectory: Trajectory) -> Iterator[Trajectory]:
    """Each segment by itself, whole, so that a batch mixes turns of many episodes."""
    ids = list[list[int]]()
    for segment in trajectory.segments:
        shared = [] if segment.prefix is None else ids[segment.prefix.segment][: segment.prefix.tokens]
        ids.append([*shared, *(token for turn in segment.turns for token in (*turn.context_ids, *turn.token_ids))])
        first, *others = segment.turns
        first = first.model_copy(update={"context_ids": [*shared, *first.context_ids]})
        yield trajectory.model_copy(update={"segments": [Segment(turns=[first, *others])]})


def _texts(
    environment: Environment, demonstrations: Iterable[Demonstration], contexts: Iterable[Context]
) -> Iterator[str]:
    """What the policy reads and writes, piece by piece."""
    template = (TEMPLATES / "qwen3.jinja").read_text().replace("\\n", "\n")
    tasks = environment.tasks("train")
    tools = {tool.name: tool for context in contexts for tool in context_tools(context)}
    described = [_described(tool) for tool in (*environment.tools(tasks[0]), *tools.values())]
    for _ in range(REPEATED):
        yield from (template, *described)
    for demonstration in demonstrations:
        yield tasks[demonstration.task].question
        for message in demonstration.managed:
            yield from (message.reasoning, message.content)
            yield from (json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in message.requests)


def _described(tool: ToolSchema) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return json.dumps({"type": "function", "function": function})


def thinking(thought: str, name: str, arguments: dict[str, Any]) -> AssistantMessage:
    """A turn with a thought and one call."""
    return replace(AssistantMessage.calling(name, arguments), reasoning=thought)


def folding(message: AssistantMessage, last: int, summary: str) -> AssistantMessage:
    """The turn, which also folds all turns up to ``last``."""
    arguments = {"first": 1, "last": last, "summary": summary}
    fold = ToolRequest("context_fold", arguments, id="call-2")
    return replace(message, requests=(*message.requests, fold))
