"""The benchmark of episodes in sandboxes plays real episodes, all of which are paid."""

import asyncio

import pytest

from benchmarks import rollouts
from benchmarks.environment_process import EnvironmentProcessCost
from engine.environments.terminal.own.making import write_tasks
from engine.environments.terminal.task_set import read_tasks

COST = EnvironmentProcessCost(1.0, 0.4, 0.1, 900.0, 30.0)


def test_episodes_are_played_side_by_side_and_measured(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "LOOK_EVERY_S", 0.02)
    write_tasks(tmp_path / "tasks", seed=0)
    tasks = read_tasks(tmp_path / "tasks").tasks[:2]
    measured = asyncio.run(rollouts.played(rollouts.backends(None)["namespaces"], tasks, at_once=2, episodes=4))
    assert measured.unsolved == 0
    assert measured.episodes_per_s > 0
    assert measured.memory_mib > 0
    assert measured.episode_s.n == 4
    rows = rollouts.headlines({"namespaces": [measured]}, COST, at_once=2)
    assert [row.value is None for row in rows] == [False, False, True, True, False, False, False, False]


def test_containers_are_measured_where_an_image_is_named() -> None:
    settings = rollouts.backends("host:1")
    assert [described.sandbox.backend for described in settings.values()] == ["namespaces", "docker"]
    assert settings["containers"].sandbox.image == "host:1"
