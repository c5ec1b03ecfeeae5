"""A teacher's trajectories as experts (IPA; ALE, 3.2.4.4): read from a file, and said again in this run's own ids.

A teacher is another model, or the same one at another time.  Of its turns the messages are taken, never the ids: this
run's renderer writes them, so that what is replayed and imitated is what this policy would have written.  Its calls are
done again in a fresh environment and compared, as any expert's are; of several trajectories of a task the least clumsy
is kept.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.environments.contract import Environment
from engine.environments.registry import environment_for
from engine.environments.tasks import SplitTasks, task_id
from engine.loop.expert_pool import as_expert, can_be_expert, clumsiness
from engine.rollout.recorded_message import UnreadableTurn, recorded_message
from engine.rollout.renderers.contract import Renderer
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.scoring import RECIPE_COMPONENTS, rewards_of
from engine.spec.message import AssistantMessage, ToolSchema
from engine.spec.pinned_file import PinnedFile
from engine.spec.problems import Problem, problems_in
from engine.spec.recipe import Reward
from engine.spec.run import RunSpec
from engine.spec.trajectory import Segment, Task, Trajectory, Turn

FIELD = "recipe.expert_starts.teacher"


class TeacherRefused(ValueError):
    """A file that no expert can be taken from; the problem says which and why."""

    def __init__(self, path: str, message: str, remedy: str) -> None:
        self.problem = Problem(FIELD, path, message, remedy)
        super().__init__(str(self.problem))


@dataclass(frozen=True, slots=True)
class Teacher:
    experts: Mapping[int, Trajectory] = field(default_factory=dict)
    """By the number of the training task."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Trajectories that are no experts, by reason."""


def teacher_of(spec: RunSpec) -> Teacher:
    """The teacher that the recipe names, nobody where it names none.  Raises TeacherRefused."""
    starts = spec.recipe.expert_starts
    if starts is None or starts.teacher is None:
        return Teacher()
    environment = environment_for(spec.environment, spec.dataset)
    tasks = environment.tasks("train")
    apprentice = _Apprentice(
        environment, renderer_for(spec.model, spec.environment), spec.recipe.reward, starts.teacher_thoughts
    )
    return _chosen(starts.teacher, tasks, _numbers(tasks, spec.dataset.train_tasks), apprentice)


def _numbers(tasks: Sequence[Task], size: int) -> Callable[[Task], int | None]:
    """A function that gives the number of a task of the same id among the first ``size``, or None."""
    if isinstance(tasks, SplitTasks):  # whose ids are their numbers: not all of them need be made
        ids = {task_id("train", number): number for number in range(size)}
    else:
        ids = {task.id: number for number, task in enumerate(tasks[:size])}
    return lambda task: ids.get(task.id)


def lacking_in_teacher(spec: RunSpec) -> list[Problem]:
    """What is wrong with the file that the recipe names, if it names one."""
    try:
        teacher_of(spec)
    except TeacherRefused as refused:
        return [refused.problem]
    return []


class _LeftOut(Exception):
    """A trajectory that is no expert; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Apprentice:
    """Says a teacher's turns again."""

    environment: Environment
    renderer: Renderer
    reward: Reward
    with_thoughts: bool

    def expert(self, taught: Trajectory) -> Trajectory:
        """The trajectory as this run's policy would have written it.  Raises _LeftOut."""
        tools = self.environment.tools(taught.task)
        turns = [self._turn(turn, tools, taught.answer) for turn in taught.turns]
        own = {name: value for name, value in taught.rewards.items() if name not in RECIPE_COMPONENTS}
        rewards = rewards_of(self.reward, success=True, turns=turns, step=0, components=own)
        rewritten = {
            "id": f"teacher-{taught.task.id}",
            "purpose": "demonstration",
            "prompt": 0,
            "member": 0,
            "sampled_at_version": -1,
            "segments": [Segment(turns=turns)] if turns else [],
            "reward": sum(rewards.values()),
            "rewards": rewards,
            "first_attempt_errors": None,
        }
        return as_expert(taught.model_copy(update=rewritten))

    def _turn(self, turn: Turn, tools: Sequence[ToolSchema], answer: str | None) -> Turn:
        ids = self._ids(self._message(turn, tools, answer), tools)
        fresh = {
            "context_ids": [],
            "token_ids": ids,
            "pieces": self.renderer.pieces(ids),
            "logprobs": [0.0] * len(ids),
            "policy_versions": [-1] * len(ids),
            "experience_span": None,
        }
        return turn.model_copy(update=fresh)

    def _message(self, turn: Turn, tools: Sequence[ToolSchema], answer: str | None) -> AssistantMessage:
        if not turn.tool_calls:
            return AssistantMessage(answer or "")
        try:
            return recorded_message(turn, tools, with_thoughts=self.with_thoughts)
        except UnreadableTurn as error:
            raise _LeftOut(str(error)) from error

    def _ids(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> list[int]:
        """Raises _LeftOut for what this policy cannot write so that it means the same."""
        try:
            ids = self.renderer.write(message, tools)
        except ValueError as error:
            raise _LeftOut("a turn that this model cannot write") from error
        if _meaning(self.renderer.parse(ids, tools).message) != _meaning(message):
            raise _LeftOut("a turn that this model cannot write")
        return ids


def _meaning(message: AssistantMessage) -> tuple[Any, ...]:
    calls = [(request.name, dict(request.arguments), request.malformed) for request in message.requests]
    return message.content.strip(), message.reasoning.strip(), calls, message.malformed


def _chosen(
    named: PinnedFile, tasks: Sequence[Task], number_of: Callable[[Task], int | None], apprentice: _Apprentice
) -> Teacher:
    file, experts, left_out = named.file, dict[int, Trajectory](), Counter[str]()
    for line, taught in _trajectories(named):
        try:
            number = _number(taught, number_of)
            if tasks[number] != taught.task:
                problem = f"line {line}: {taught.task.id} is another task in this run's environment"
                raise TeacherRefused(file, problem, "use a teacher of the same environment, levels and dataset.seed")
            expert = apprentice.expert(taught)
            if not can_be_expert(expert):
                raise _LeftOut("no turn to start behind")
        except _LeftOut as reason:
            left_out[str(reason)] += 1
            continue
        if number not in experts or clumsiness(expert) < clumsiness(experts[number]):
            experts[number] = expert
    if not experts:
        found = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items())) or "no trajectory at all"
        raise TeacherRefused(file, f"no expert is in it: {found}", "give successes on training tasks of this run")
    return Teacher(experts, left_out)


def _number(taught: Trajectory, number_of: Callable[[Task], int | None]) -> int:
    """The number of its training task.  Raises _LeftOut."""
    if not taught.success:
        raise _LeftOut("failed")
    if taught.alerts:
        raise _LeftOut("raised an alert")
    if not taught.can_be_learned:
        raise _LeftOut("not stored whole")
    if taught.task.split != "train":
        raise _LeftOut("on a held-out task")
    if (number := number_of(taught.task)) is None:
        raise _LeftOut("on a task that is not trained on")
    return number


def _trajectories(named: PinnedFile) -> Iterator[tuple[int, Trajectory]]:
    """With their lines: trajectories, or a run's events, of which those are taken that store one.

    At its end what was read is compared with the digest that the run names.
    """
    file, digest = named.file, hashlib.sha256()
    try:
        with Path(file).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                digest.update(line)
                if line.strip() and (document := _document(line, file, number)) is not None:
                    yield number, _parsed(document, file, number)
    except OSError as error:
        raise TeacherRefused(file, f"it cannot be read: {error.strerror}", "give the path of a file") from error
    if named.sha256 not in (None, digest.hexdigest()):
        problem = f"its content is not what the run names (SHA-256 {named.sha256})"
        raise TeacherRefused(file, problem, "put that file back")


def _document(line: bytes, file: str, number: int) -> Any:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TeacherRefused(file, f"line {number}: not JSON: {error}", _ONE_A_LINE) from error
    if not isinstance(document, dict):
        raise TeacherRefused(file, f"line {number}: no JSON object", _ONE_A_LINE)
    if "kind" not in document:
        return document
    return document.get("trajectory") if document["kind"] == "trajectory" else None


def _parsed(document: Any, file: str, number: int) -> Trajectory:
    try:
        return Trajectory.model_validate_json(json.dumps(document))
    except ValidationError as error:
        problem = f"line {number}: {problems_in(error, Trajectory)[0]}"
        raise TeacherRefused(file, problem, _ONE_A_LINE) from None


_ONE_A_LINE = "give a trajectory, or an event of a run, as one JSON document a line"
