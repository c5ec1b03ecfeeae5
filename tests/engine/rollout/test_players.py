"""Who speaks in the model's place: the environment's own solution, nobody, and a script."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.environments.qa.environment import QaEnvironment
from engine.environments.registry import environment_for
from engine.environments.verifiers.extraction import placed, result_in
from engine.loop.environment_requirements import lacking_in_environment
from engine.rollout.arena import Arena
from engine.rollout.episode import run_episode
from engine.rollout.players import solution_of
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.requests import EpisodeRequest, evaluation_requests
from engine.spec.environment import Qa
from engine.spec.generation import Generated, GenerateRequest
from engine.spec.players import turns_of_script
from engine.spec.recipe import Reward
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.engine.datasets.sources import json_lines, prepared

WORLDS = ("python-math", "household", "sokoban", "webshop", "search-qa", "apps")
SCRIPT = '{"call": "python", "arguments": {"code": "print(6 * 7)"}}\n\n{"answer": "42"}'


class NoModel:
    """Nobody asks it while others play."""

    async def generate(self, request: GenerateRequest) -> Generated:
        raise AssertionError("the model was asked")

    async def rewind(self, session: str, tokens: int) -> None: ...

    async def release(self, session: str) -> None: ...


def run_of(environment: dict[str, Any], players: list[str], script: str = "", **rest: Any) -> RunSpec:
    evaluation = {"players": players, "script": script, "tasks": 6, "interim_tasks": 6}
    return RunSpec.model_validate(
        {"name": "try", "environment": environment, "recipe": {"preset": "evaluate"}, "evaluation": evaluation} | rest
    )


async def played(spec: RunSpec) -> list[Trajectory]:
    environment = environment_for(spec.environment, spec.dataset)
    turns, tokens = spec.environment.max_turns, 8  # a player's turn may be longer than a model's
    async with Pool(SandboxSpec(memory_mib=64), size=1) as pool:
        arena = Arena(
            environment, renderer_for(spec.model, spec.environment), NoModel(), pool, Reward(), turns, tokens, 16
        )
        requests = evaluation_requests(spec.evaluation, None, 0, spec.evaluation.tasks, {}, seed=0)
        return [await run_episode(request, arena) for request in requests]


@pytest.mark.parametrize("world", WORLDS)
async def test_every_world_of_ours_is_solved_by_its_solution_and_never_by_nobody(world: str) -> None:
    trajectories = await played(run_of({"id": world}, ["nop", "oracle"]))
    assert [trajectory.purpose for trajectory in trajectories] == ["eval-nop"] * 6 + ["eval-oracle"] * 6
    assert [trajectory.success for trajectory in trajectories] == [False] * 6 + [True] * 6
    assert {version for each in trajectories for turn in each.turns for version in turn.policy_versions} == {-1}
    assert not any(turn.failed_calls for trajectory in trajectories for turn in trajectory.turns)


async def test_a_script_is_played_to_its_end_and_then_answers_with_nothing() -> None:
    ended = await played(run_of({"id": "python-math", "max_turns": 5}, ["script"], SCRIPT))
    assert [[call.output.strip() for turn in each.turns for call in turn.tool_calls] for each in ended] == [["42"]] * 6
    assert {each.answer for each in ended} == {"42"}
    short = await played(run_of({"id": "python-math"}, ["script"], SCRIPT.splitlines()[0]))
    assert {(each.answer, each.stop_reason, len(each.turns)) for each in short} == {("", "answered", 2)}


async def test_what_a_player_means_is_done_though_the_vocabulary_lacks_its_characters() -> None:
    script = json.dumps({"call": "python", "arguments": {"code": "print(len('é√'), ord('é'))"}}, ensure_ascii=False)
    [ended, *_] = await played(run_of({"id": "python-math"}, ["script"], script + '\n{"answer": "naïve"}'))
    assert ended.turns[0].tool_calls[0].output.strip() == "2 233"
    assert ended.answer == "naïve"


def questions(tmp_path: Path, rows: list[dict[str, Any]]) -> str:
    wanted = {
        "mapping": {name: name for name in rows[0] if name != "s"} | {"split": "s"},
        "splitting": {"kind": "column"},
        "duplicates": {"similarity": None},
    }
    folder, report = prepared(tmp_path, {"q.jsonl": json_lines(rows)}, wanted)
    assert report.state == "ready", report
    return str(folder)


@pytest.mark.parametrize("verifier", [
    {"kind": "exact"}, {"kind": "numeric", "place": "boxed"}, {"kind": "exact", "place": "fenced"},
    {"kind": "numeric", "place": "marker", "marker": "So:"}])  # fmt: skip
async def test_rows_are_solved_by_their_own_answers_where_the_verifier_reads_them(
    tmp_path: Path, verifier: dict[str, Any]
) -> None:
    rows = [{"prompt": f"{n} * {n}?", "answer": str(n * n), "s": "heldout" if n < 8 else "train"} for n in range(16)]
    dataset = {"folder": questions(tmp_path, rows), "train_tasks": 1, "heldout_tasks": 6}
    spec = run_of({"id": "qa", "verifier": verifier}, ["oracle", "nop"], dataset=dataset)
    assert lacking_in_environment(spec) == []
    assert [trajectory.success for trajectory in await played(spec)] == [True] * 6 + [False] * 6


def test_an_environment_without_a_solution_refuses_an_oracle_before_anything_is_played(tmp_path: Path) -> None:
    tests = {"tests": "assert True"}
    rows = [{"prompt": f"Write {n}.", **tests, "s": "heldout" if n < 8 else "train"} for n in range(16)]
    dataset = {"folder": questions(tmp_path, rows), "train_tasks": 1, "heldout_tasks": 6}
    environment = {"id": "qa", "verifier": {"kind": "unit-tests"}}
    [problem] = lacking_in_environment(run_of(environment, ["oracle", "nop"], dataset=dataset))
    assert (problem.field, problem.value) == ("evaluation.players", "oracle")
    assert "no answer that is known" in problem.message
    assert lacking_in_environment(run_of(environment, ["nop"], dataset=dataset)) == []
    made = environment_for(Qa.model_validate(environment), run_of(environment, ["nop"], dataset=dataset).dataset)
    assert isinstance(made, QaEnvironment)
    assert solution_of(made, made.tasks("heldout")[0]) is None


async def test_each_part_of_a_mixture_plays_its_own_solution() -> None:
    parts = [{"name": name, "weight": 1, "environment": {"id": name}} for name in ("python-math", "sokoban")]
    spec = run_of({"id": "mixture", "parts": parts}, ["oracle"])
    environment = environment_for(spec.environment, spec.dataset)
    tasks = environment.tasks("heldout")
    for number in range(6):
        turns = solution_of(environment, tasks[number])
        assert turns
        assert turns[-1].answers is (tasks[number].part == "python-math")


@given(st.text(alphabet="ab 1.\n", min_size=1).filter(str.strip))
def test_a_placed_result_is_found_again(result: str) -> None:
    one_line = " ".join(result.split())
    assert result_in(placed(result, "whole", ""), "whole", "") == result
    assert result_in(placed(result, "boxed", ""), "boxed", "") == result
    assert result_in(placed(one_line, "marker", "Answer:"), "marker", "Answer:") == one_line
    assert (result_in(placed(one_line, "fenced", ""), "fenced", "") or "").strip() == one_line


@pytest.mark.parametrize(("script", "why"), [
    ("{", "line 1"), ('{"answer": "1"}\n\n{"call": ""}', "line 3: a turn either calls a tool or answers"),
    ('{"answer": "1", "call": "x"}', "either"), ('{"answer": "1", "arguments": {"a": 1}}', "arguments without a call"),
    ('{"cal": "x"}', "line 1: cal"), ('{"answer": "\\ud800"}', "line 1"),
    ('{"answer": "1"}\n' * 101, "101 turns")])  # fmt: skip
def test_a_script_that_cannot_be_read_names_its_line(script: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        turns_of_script(script)
    with pytest.raises(ValidationError) as refused:
        run_of({"id": "python-math"}, ["script"], script)
    assert refused.value.errors()[0]["ctx"]["field"] == "script"


@pytest.mark.parametrize(("changes", "field"), [
    ({"players": ["script"]}, "script"), ({"script": SCRIPT}, "script"), ({"players": ["nop", "nop"]}, "players"),
    ({"players": []}, None), ({"players": ["human"]}, None)])  # fmt: skip
def test_players_that_make_no_sense_are_refused(changes: dict[str, Any], field: str | None) -> None:
    with pytest.raises(ValidationError) as refused:
        RunSpec.model_validate({"name": "try", "recipe": {"preset": "evaluate"}, "evaluation": changes})
    assert refused.value.errors()[0].get("ctx", {}).get("field") == field


def test_a_run_that_trains_is_not_played_by_others() -> None:
    with pytest.raises(ValidationError, match="this recipe trains"):
        RunSpec.model_validate(
            {"name": "try", "recipe": {"preset": "grpo"}, "evaluation": {"players": ["model", "nop"]}}
        )


def test_the_model_plays_as_before_beside_others() -> None:
    alone = run_of({"id": "python-math"}, ["model"]).evaluation
    beside = run_of({"id": "python-math"}, ["oracle", "model"]).evaluation

    def asked(evaluation: Any) -> list[EpisodeRequest]:
        return [one for one in evaluation_requests(evaluation, None, 0, 6, {}, seed=4) if one.player == "model"]

    assert asked(alone) == asked(beside)
