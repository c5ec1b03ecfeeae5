"""An agent's program: what is sent of it, what is refused before a start, and how its end is named."""

import io
import tarfile

import pytest
from pydantic import ValidationError

from engine.loop.environment_requirements import lacking_in_environment
from engine.rollout.agents import program as programs
from engine.rollout.agents.program import Ended, archive, exit_class, lacking
from engine.spec.agent import AgentFile, AgentFolder, AgentProgram
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from tests.engine.rollout.agents.players import SPEC, program


def folder_of(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return AgentFolder(path=str(tmp_path))


def test_its_folder_and_its_files_are_sent_without_owner_and_time(tmp_path):
    folder = folder_of(tmp_path, **{"lib/a.py": "a", "b.py": "b"})
    with tarfile.open(fileobj=io.BytesIO(archive(program("new", folder=folder)))) as tar:
        entries = {entry.name: entry for entry in tar}
        assert {name for name, entry in entries.items() if entry.isfile()} == {"lib/a.py", "b.py", "agent.py"}
        assert {(entry.uid, entry.uname, entry.mtime) for entry in entries.values()} == {(0, "", 0)}
        assert tar.extractfile("agent.py").read() == b"new"


def test_links_and_folders_that_are_too_large_are_refused_with_the_path(tmp_path, monkeypatch):
    (tmp_path / "shadow").symlink_to("/etc/shadow")
    [problem] = lacking(program(folder=AgentFolder(path=str(tmp_path))), SPEC)
    assert (problem.field, problem.value) == ("environment.agent.folder.path", str(tmp_path / "shadow"))
    (tmp_path / "shadow").unlink()
    monkeypatch.setattr(programs, "MOST_FOLDER_ENTRIES", 2)
    folder = folder_of(tmp_path, a="", b="", c="")
    assert "more than" in str(lacking(program(folder=folder), SPEC)[0])
    [problem] = lacking(program(folder=AgentFolder(path=str(tmp_path / "nowhere"))), SPEC)
    assert "there is no such folder" in str(problem)


def test_files_that_do_not_fit_beside_their_archive_are_refused_with_the_size_that_would_do():
    files = [AgentFile(path=f"{number}.txt", content="x" * 200_000) for number in range(12)]
    [problem] = lacking(program(files=files), SPEC.model_copy(update={"disk_mib": 4}))
    assert (problem.field, problem.value) == ("environment.tasks.sandbox.disk_mib", 4)
    assert lacking(program(files=files), SPEC.model_copy(update={"disk_mib": 5})) == []


def spec_of(recipe=None, **environment):
    agent = {"command": ["python3", "/tmp/agent/a.py"]}
    return RunSpec.model_validate(
        {"name": "x", "recipe": recipe or {}, "environment": {"id": "agent", "agent": agent, **environment}}
    )


def test_a_run_whose_agent_has_no_folder_is_refused_before_it_starts(tmp_path):
    agent = {"command": ["true"], "folder": {"path": str(tmp_path / "nowhere")}}
    problems = lacking_in_environment(spec_of(agent=agent))
    assert [problem.field for problem in problems] == ["environment.agent.folder.path"]
    assert lacking_in_environment(spec_of(max_turn_tokens=64)) == []


@pytest.mark.parametrize(
    ("recipe", "environment", "field"),
    [
        ({"purification": {}}, {}, "recipe.purification"),
        ({"expert_starts": {"how": {"kind": "sequential", "threshold": 0.25}}}, {}, "recipe.expert_starts"),
        (
            {},
            {"tasks": {"id": "python-math", "levels": [1], "sandbox": {"network": "none"}}},
            "environment.tasks.sandbox.network",
        ),
        (
            {},
            {"tasks": {"id": "python-math", "levels": [1], "sandbox": {"network": "watched", "place": "service"}}},
            "environment.tasks.sandbox.place",
        ),
        (
            {},
            {"tasks": {"id": "python-math", "levels": [1], "sandbox": {"network": "watched", "reuse": "reset"}}},
            "environment.tasks.sandbox.reuse",
        ),
        ({}, {"tasks": {"id": "python-math", "sandbox": {"network": "watched"}}}, "environment.tasks.levels"),
    ],
)
def test_what_an_agent_cannot_have_is_refused_with_the_field_and_the_reason(recipe, environment, field):
    with pytest.raises(ValidationError) as refusal:
        spec_of(recipe, **environment)
    assert field in [problem.field for problem in problems_in(refusal.value, RunSpec)]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "./a", "a//b", "a\0b", ""])
def test_a_file_stands_below_the_agents_folder(path):
    with pytest.raises(ValidationError):
        AgentFile(path=path, content="")


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "1A", "A=B", ""])
def test_variables_that_say_where_the_model_is_are_not_the_specs_to_set(name):
    with pytest.raises(ValidationError):
        AgentProgram(command=["true"], variables=[{"name": name, "value": "x"}])


@pytest.mark.parametrize(
    ("ended", "calls", "over_budget", "expected"),
    [
        (Ended("ok", 0, 1.0, ""), 1, False, "done"),
        (Ended("error", 1, 1.0, ""), 1, False, "crashed"),
        (Ended("ok", 0, 1.0, ""), 0, False, "silent"),
        (Ended("error", 1, 1.0, ""), 0, False, "silent"),
        (Ended("timeout", None, 1.0, ""), 0, False, "over-budget"),
        (Ended("ok", 0, 1.0, ""), 1, True, "over-budget"),
        (Ended("memory", None, 1.0, ""), 0, False, "killed"),
        (Ended("output", None, 1.0, ""), 1, False, "killed"),
        (None, 3, True, "frozen"),
    ],
)
def test_an_end_has_one_class(ended, calls, over_budget, expected):
    assert exit_class(ended, calls=calls, over_budget=over_budget) == expected
