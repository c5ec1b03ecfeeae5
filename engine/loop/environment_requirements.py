"""What a recipe and a model need of the environment, asked of the environment itself before a run starts.

Lengths are measured in the tokens of the run's own renderer, over a sample of tasks: the first of each level and
split.  What turns out to be longer later is not refused any more: an episode without room ends as ``truncated``.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from random import Random
from typing import get_args

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from engine.environments.contract import (
    Demonstrator,
    Environment,
    EnvironmentProcessLost,
    Manner,
    Oracle,
    ReferenceAnswers,
    RestorableSessions,
)
from engine.environments.imported import UnusableEnvironment
from engine.environments.mixture import MixtureEnvironment
from engine.environments.registry import environment_for
from engine.loop.judge_phase import attribution_in
from engine.models.origin import model_origin
from engine.rollout.agents.program import lacking
from engine.rollout.context import instructed
from engine.rollout.context_tools import context_tools
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.players import solution_of
from engine.rollout.renderers.contract import Renderer
from engine.rollout.renderers.registry import renderer_for
from engine.seeds import derived_seed
from engine.spec.context import Context
from engine.spec.environment import Agent
from engine.spec.exploration import Experience
from engine.spec.judge import LlmJudge
from engine.spec.message import Message, ToolSchema
from engine.spec.mixture import PlayedPart, parts_of
from engine.spec.players import turns_of_script
from engine.spec.problems import Problem
from engine.spec.recipe import Recipe
from engine.spec.requirement import needing_one_segment
from engine.spec.run import Evaluation, RunSpec
from engine.spec.supervised import Demonstrations
from engine.spec.trajectory import Split, Task
from sandboxes.interface import Sandbox, SandboxUnavailable

SCANNED_TASKS = 60
"""Tasks of a split that are looked at."""
TASKS_PER_LEVEL = 12
"""So many of them, the first of each level, are measured."""
ATTEMPTS = 3
"""How often a prompt is measured whose environment's process is lost, the first time included."""
SPLITS: tuple[Split, ...] = get_args(Split)
log = logging.getLogger(__name__)


def lacking_in_environment(spec: RunSpec) -> list[Problem]:
    """Return what the environment is not, or has no room for.  Runs the environment's code, and of sandboxes only
    the one in which an environment may list the tools of its servers."""
    try:
        environment = environment_for(spec.environment, spec.dataset)
    except UnusableEnvironment as unusable:
        return [unusable.problem]
    if not isinstance(environment, MixtureEnvironment):
        wanted: dict[Split, int] = {"train": spec.dataset.train_tasks, "heldout": spec.dataset.heldout_tasks}
        return _lacking_in_part(spec, parts_of(spec.environment)[0], environment, wanted)
    problems: list[Problem] = []
    drawn = environment.counts("heldout", max(spec.evaluation.tasks, spec.evaluation.interim_tasks))
    for part, played, tasks in zip(parts_of(spec.environment), environment.parts, drawn, strict=True):
        found = _lacking_in_part(spec, part, played, {"train": 1, "heldout": max(1, tasks)})
        problems += [_of_part(problem, part) for problem in found]
    return problems


def _lacking_in_part(
    spec: RunSpec, part: PlayedPart, environment: Environment, wanted: Mapping[Split, int]
) -> list[Problem]:
    """``wanted``: how many tasks of each split the run asks it for."""
    described, renderer = part.environment, renderer_for(spec.model, part.environment)
    missing = _missing_capabilities(
        spec.recipe, environment, append_only=renderer.append_only, has_agent=isinstance(described, Agent)
    )
    of_agent = lacking(described.agent, described.sandbox) if isinstance(described, Agent) else []
    if problems := [*missing, *of_agent, *_missing_tasks(wanted, environment, described.id, spec.recipe.context)]:
        return problems
    if problems := [*unreadable_instructions(spec.recipe.context, renderer)]:
        return problems
    context_tokens, turn = model_origin(spec.model).context_tokens, described.max_turn_tokens
    try:
        if problems := [*_players_without_turns(spec.evaluation, environment, renderer)]:
            return problems
        if "model" not in spec.evaluation.players:
            return []  # nothing is read by a model, so no length matters
        room = _longest_prompt(environment, renderer, spec.recipe.context) + turn
        if context_tokens < room:
            return [_no_room_for_a_turn(room, turn, context_tokens)]
        problems = [*_experience_without_room(spec.recipe.experience, room, context_tokens)]
        problems += _senseless_compaction(spec.recipe.context, room, context_tokens)
        if _is_scripted(spec.recipe) and isinstance(environment, Demonstrator):
            writer = DemonstrationWriter(environment, renderer, spec.recipe.reward, spec.seed, spec.recipe.context)
            problems += _demonstrations_without_room(writer, context_tokens)
        return problems
    except Exception as error:  # of the environment's own code, which may raise anything
        return [_raised(described.id, error)]


def _of_part(problem: Problem, part: PlayedPart) -> Problem:
    """The problem as one of this part: with the part's name, and with its field where the problem is about it."""
    table, dot, name = problem.field.partition(".")
    message = f"part {part.name}: {problem.message}"
    if table == "dataset":
        message += f", and {problem.value} {name.removesuffix('_tasks')} tasks are drawn from it"
        remedy = "give it more tasks, a smaller weight, or the run fewer evaluation.tasks"
        return replace(problem, field=part.field, value=part.environment.id, message=message, remedy=remedy)
    return replace(
        problem, field=f"{part.field}{dot}{name}" if table == "environment" else problem.field, message=message
    )


def _missing_capabilities(
    recipe: Recipe, environment: Environment, *, append_only: bool, has_agent: bool
) -> Iterator[Problem]:
    """``append_only``: so is the run's renderer.  ``has_agent``: an agent plays, whose program is not the engine's."""
    attribution, kind = attribution_in(recipe), type(environment).__name__
    restorable = isinstance(environment, RestorableSessions) and environment.restorable
    if recipe.purification is not None and not restorable:
        yield Problem(
            "recipe.purification",
            "set",
            f"purification sets an episode back before each correction, and the sessions of {kind} keep no snapshots",
            "make them Restorable and let the environment's `restorable` say so, or remove purification",
        )
    if not append_only:
        for path, reason in needing_one_segment(recipe):
            yield Problem(
                f"recipe.{path}",
                "set",
                f"{reason}; the chat template of this model writes earlier turns again, in another form",
                "remove it, or use a model whose template only appends",
            )
    if not isinstance(environment, Demonstrator):
        if _is_scripted(recipe):
            yield Problem(
                "recipe.stages",
                "demonstrations",
                f"{kind} has no demonstrator (a method `script`) to learn from",
                "set recipe.stages = [], or let each stage learn recordings, chat or text",
            )
        if recipe.expert_starts is not None and recipe.expert_starts.demonstrations:
            yield Problem(
                "recipe.expert_starts.demonstrations",
                True,
                f"{kind} has no demonstrator (a method `script`)",
                "set recipe.expert_starts.demonstrations = false: the policy's own successes serve then",
            )
    is_oracle = isinstance(environment, Oracle) and not has_agent
    if attribution is not None and not isinstance(attribution.judge, LlmJudge) and not is_oracle:
        yield Problem(
            "recipe.credit.judge.kind",
            attribution.judge.kind,
            f"{kind} has no rules (a method `verdicts`) to judge by",
            'use recipe.credit.judge.kind = "llm"',
        )


def _players_without_turns(evaluation: Evaluation, environment: Environment, renderer: Renderer) -> Iterator[Problem]:
    """Who is to try the environment, and has nothing to say that it could be told."""
    field, kind = "evaluation.players", type(environment).__name__
    if "oracle" in evaluation.players and not isinstance(environment, Demonstrator | ReferenceAnswers):
        message = f"{kind} knows no solution of its tasks (a method `script` or `reference_answer`)"
        yield Problem(field, "oracle", message, "leave the oracle out; a set of terminal tasks has a check of its own")
    elif "oracle" in evaluation.players:
        unsolved = [task.id for task in _sample(environment, "heldout") if solution_of(environment, task) is None]
        if unsolved:
            message = f"{len(unsolved)} of the first tasks have no answer that is known, the first one {unsolved[0]}"
            yield Problem(field, "oracle", message, "map a column to the answer, or leave the oracle out")
    for number, turn in enumerate(turns_of_script(evaluation.script), start=1):
        try:
            renderer.write(turn, environment.tools(environment.tasks("heldout")[0]))
        except ValueError as error:
            message = f"turn {number} cannot be written: {error}"
            yield Problem("evaluation.script", number, message, "call the environment's tools, or answer")


def _is_scripted(recipe: Recipe) -> bool:
    return any(isinstance(stage.data, Demonstrations) for stage in recipe.stages)


def _missing_tasks(
    wanted: Mapping[Split, int], environment: Environment, environment_id: str, context: Context | None
) -> Iterator[Problem]:
    try:
        for split in SPLITS:
            tasks = environment.tasks(split)
            if len(tasks) < wanted[split]:
                field = f"dataset.{split}_tasks"
                yield Problem(
                    field, wanted[split], f"the environment has only {len(tasks)} of them", f"use at most {len(tasks)}"
                )
                continue
            for task in _sample(environment, split):
                tools = [*environment.tools(task), *context_tools(context)]
                yield from _unusable_tools(environment_id, tools)
    except Exception as error:  # of the environment's own code, which may raise anything
        yield _raised(environment_id, error)


def _unusable_tools(environment_id: str, tools: Sequence[ToolSchema]) -> Iterator[Problem]:
    names = [tool.name for tool in tools]
    for tool in tools:
        try:
            Draft202012Validator.check_schema(dict(tool.parameters))
        except SchemaError as error:
            yield _misfit(environment_id, f"the parameters of tool {tool.name!r} are no JSON schema: {error.message}")
        if not tool.name or tool.name.split() != [tool.name] or names.count(tool.name) > 1:
            yield _misfit(environment_id, f"the tool {tool.name!r} needs a name of its own, without white space")


def _no_room_for_a_turn(room: int, turn: int, context_tokens: int) -> Problem:
    return Problem(
        "model.context_tokens",
        context_tokens,
        f"the longest prompt ({room - turn} tokens) and one turn ({turn}) do not fit",
        f"use at least {room}",
    )


def _experience_without_room(experience: Experience | None, room: int, context_tokens: int) -> Iterator[Problem]:
    shown = experience.longest_tokens if experience is not None and experience.share > 0 else 0
    if context_tokens < room + shown:
        yield Problem(
            "model.context_tokens",
            context_tokens,
            f"the longest experience ({shown} tokens) does not fit beside the longest prompt and one turn ({room})",
            f"use at least {room + shown}, or fewer or shorter items in recipe.experience",
        )


def _demonstrations_without_room(writer: DemonstrationWriter, context_tokens: int) -> Iterator[Problem]:
    longest = max(_demonstration_lengths(writer, _sample(writer.environment, "train")), default=0)
    if context_tokens < longest:
        yield Problem(
            "model.context_tokens",
            context_tokens,
            f"the longest demonstration of a supervised stage has {longest} tokens",
            f"use at least {longest}",
        )


def _sample(environment: Environment, split: Split) -> list[Task]:
    """The first tasks of each level among the first of the split."""
    tasks, of_level, sample = environment.tasks(split), dict[int, int](), list[Task]()
    for number in range(min(SCANNED_TASKS, len(tasks))):
        task = tasks[number]
        of_level[task.level] = of_level.get(task.level, 0) + 1
        if of_level[task.level] <= TASKS_PER_LEVEL:
            sample.append(task)
    return sample


def _senseless_compaction(context: Context | None, room: int, context_tokens: int) -> Iterator[Problem]:
    if context is not None and context.compact_tokens and not room < context.compact_tokens < context_tokens:
        yield Problem(
            "recipe.context.compact_tokens",
            context.compact_tokens,
            f"the longest prompt with one turn has {room} tokens, and the model's context {context_tokens}",
            f"use {room + 1} to {context_tokens - 1}" if room + 2 <= context_tokens else "use a longer context, or 0",
        )


def unreadable_instructions(context: Context | None, renderer: Renderer) -> Iterator[Problem]:
    """Instructions that the model's template or alphabet cannot write."""
    try:
        renderer.prompt(instructed(context, [Message("user", "")]), ())
    except ValueError as error:
        yield Problem(
            "recipe.context.system_prompt", "set", f"the model cannot be shown it: {error}", "use other words"
        )


def _longest_prompt(environment: Environment, renderer: Renderer, context: Context | None) -> int:
    """In tokens, over a sample of all splits."""
    tasks = [task for split in SPLITS for task in _sample(environment, split)]

    async def length(task: Task) -> int:
        async with environment.session(task, _NoSandboxes()) as session:
            tools = [*environment.tools(task), *context_tools(context)]
            return len(renderer.prompt(instructed(context, await session.reset()), tools))

    async def length_in_the_end(task: Task) -> int:
        """A process that is lost now and then keeps no run from its start; one that is lost every time does."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await length(task)
            except EnvironmentProcessLost as lost:
                log.warning("a prompt is measured again: %s", lost)
        return await length(task)

    async def lengths() -> list[int]:
        return [await length_in_the_end(task) for task in tasks]

    with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
        return max(thread.submit(lambda: asyncio.run(lengths())).result(), default=0)


def _demonstration_lengths(writer: DemonstrationWriter, tasks: Sequence[Task]) -> Iterator[int]:
    for task in tasks:
        for manner in get_args(Manner):
            rng = Random(derived_seed("measured", writer.seed, task.id, manner))
            segments = writer.segments(task, writer.environment.script(task, manner, rng))
            yield max(segment.token_count for segment in segments)


class _NoSandboxes:
    def acquire(self) -> AbstractAsyncContextManager[Sandbox]:
        raise SandboxUnavailable("a session takes its sandbox no earlier than the first `act`")


def _raised(environment_id: str, error: Exception) -> Problem:
    return _misfit(environment_id, f"its own code raised {type(error).__name__}: {error}")


def _misfit(environment_id: str, message: str) -> Problem:
    return Problem("environment.id", environment_id, message, "mend the environment")
