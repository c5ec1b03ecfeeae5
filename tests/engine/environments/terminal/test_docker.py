"""The same tasks in containers: of an image that was imported from a tar, and of images that tasks bring along."""

import pytest

from engine.environments.terminal.checking import checked
from engine.environments.terminal.own.making import write_tasks
from engine.environments.terminal.task_needs import image_name
from engine.environments.terminal.task_set import read_tasks
from engine.launch.task_images import built
from engine.spec.environment import Terminal
from tests.engine.environments.terminal.tasks import arena_of, environment_of, shell, write_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DOCKERFILE = "FROM palestra/host:1\nRUN mkdir -p /app/bin && echo 42 > /app/in.txt && cp /bin/true /app/bin/test\n"


TEST = """\
#!/bin/sh
reward=0
[ "$(cat /work/out.txt)" = 42 ] && reward=1
echo $reward > /logs/verifier/reward.txt
"""


def settings(image: str, **changes: object) -> Terminal:
    sandbox = Terminal(tasks=".").sandbox.model_copy(update={"backend": "docker", "image": image})
    return Terminal.model_validate({"tasks": ".", "sandbox": sandbox.model_dump(), **changes})


@pytest.mark.soak  # the next ones solve tasks in containers, test_own_tasks.py one of each domain in namespaces
@pytest.mark.parametrize("every", [5, 1])
async def test_own_tasks_are_solved_in_containers_by_their_solutions_and_by_nothing_else(docker_image, tmp_path, every):
    """All forty, or of each domain one."""
    write_tasks(tmp_path / "tasks", seed=0)
    tasks = read_tasks(tmp_path / "tasks").tasks[::every]
    reports = await checked(settings(docker_image), tasks, jobs=3)
    assert {report.task: (report.status, report.rewards("oracle"), report.rewards("nop")) for report in reports} == {
        task.name: ("ok", [1.0], [0.0]) for task in tasks
    }


async def test_a_cheat_in_a_container_is_not_paid_and_raises_an_alert(docker_image, tmp_path):
    write_task(tmp_path / "tasks", test=TEST)
    sandbox = settings(docker_image).sandbox.model_dump()
    async with arena_of(environment_of(tmp_path / "tasks", sandbox=sandbox), tmp_path) as arena:
        solved = await arena.play(shell("x=in.txt; cd /work"), shell("cp $x out.txt; test -t 0 && false"))
        assert solved.outputs[1].endswith("[exit code 1]")  # this image has no `tty`
        assert solved.rewards is not None
        assert (solved.rewards.success, solved.grave) == (True, set())
        for cheat in ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt", "echo x > sitecustomize.py"):
            cheated = await arena.play(shell(f"cp in.txt out.txt; {cheat}"))
            assert cheated.rewards is not None
            assert not cheated.rewards.success
            assert cheated.grave


async def test_an_image_of_a_task_is_built_once_and_has_its_files(docker_image, tmp_path):
    write_task(tmp_path / "tasks", files={"Dockerfile": DOCKERFILE})
    [task] = read_tasks(tmp_path / "tasks").tasks
    image = built(task)
    assert built(task).digest == image.digest
    assert image.name == image_name(task)
    [report] = await checked(settings(docker_image), [task])
    assert (report.status, report.as_document()["notes"]) == ("ok", [])
