"""The host of served models, with a real server that really samples."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.utils import timezone

from engine.spec.run import RunSpec
from engine.spec.serving import ServedFile, UsageLine
from tests.engine.trainings import RUN
from tests.webapp.models import ready_version
from tests.workers.secret_variables import OF_ENGINES, SERVICES, give_all
from webapp import queue
from webapp.accounts.models import User
from webapp.accounts.services import create_team
from webapp.catalog.models import ModelVersion
from webapp.library.services import delete_version
from webapp.runs.models import Checkpoint, Run
from webapp.serving import services
from webapp.serving.models import ServingUsage, UsageFile
from workers import serving
from workers.serving import ServingHost, served_file

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
LIMITS = services.KeyLimits()


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "engine", "make-model", str(folder)], env=env, check=True, timeout=600)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def version(
    user: User, tiny_files: dict[str, bytes], settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModelVersion:
    monkeypatch.setattr(queue, "_send_now", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    settings.PALESTRA_MODELS = tmp_path / "models"
    return ready_version(create_team("Blue", acting_user=user), "tiny", files=tiny_files)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def host(tmp_path: Path, port: int) -> Iterator[ServingHost]:
    host = ServingHost(tmp_path / "serving", port=port, host="127.0.0.1")
    yield host
    host.close()


def asked(port: int, key: str, **changed: Any) -> tuple[int, Any]:
    document = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5} | changed
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(document).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def until(holds: Callable[[], object], host: ServingHost) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        host.tick()
        time.sleep(0.1)


def test_a_key_is_answered_its_usage_is_recorded_and_revoked_it_opens_nothing(
    host: ServingHost, port: int, version: ModelVersion, user: User
) -> None:
    host.tick()
    assert host.pid is None  # nothing is served, so nothing listens
    made = services.serve_version(version, "evaluation", LIMITS, acting_user=user)
    until(lambda: asked(port, made.text)[0] == 200, host)
    status, document = asked(port, made.text, model=made.key.model_name, seed=1)
    assert status == 200
    until(lambda: ServingUsage.objects.filter(key=made.key, outcome="answered", calls__gte=2).exists(), host)
    row = ServingUsage.objects.get(key=made.key, outcome="answered")
    assert row.prompt_tokens == row.calls * document["usage"]["prompt_tokens"]
    other = services.serve_version(version, "another", LIMITS, acting_user=user)
    until(lambda: asked(port, other.text)[0] == 200, host)
    services.revoke_serving_key(made.key, acting_user=user)
    until(lambda: asked(port, made.text)[0] == 401, host)
    assert asked(port, other.text)[0] == 200
    delete_version(version, acting_user=user)
    until(lambda: host.pid is None, host)
    assert asked(port, other.text)[0] == 0


def test_a_server_that_is_killed_is_started_again_and_no_line_counts_twice(
    host: ServingHost, port: int, version: ModelVersion, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "RESTART_AFTER_S", 0.2)
    made = services.serve_version(version, "evaluation", LIMITS, acting_user=user)
    answers = 0

    def answered() -> bool:
        nonlocal answers
        found = asked(port, made.text)[0] == 200
        answers += found
        return found

    until(answered, host)
    for _ in range(2):
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        until(answered, host)
        again = ServingHost(host._folder, port=port, host="127.0.0.1")  # a host that begins anew reads on
        again.take_in()
    host.take_in()
    assert ServingUsage.objects.get(key=made.key, outcome="answered").calls == answers


@pytest.mark.soak  # above one that is killed is started again
def test_a_server_that_hangs_is_ended_and_started_again(
    host: ServingHost, port: int, version: ModelVersion, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = services.serve_version(version, "evaluation", LIMITS, acting_user=user)
    until(lambda: asked(port, made.text)[0] == 200, host)
    monkeypatch.setattr(serving, "RESTART_AFTER_S", 0.2)
    monkeypatch.setattr(serving, "SILENT_S", 2.0)
    hung = host.pid
    assert hung is not None
    for _ in range(40):  # it is not ended while it says that all is well
        host.tick()
        time.sleep(0.1)
    assert host.pid == hung
    os.kill(hung, signal.SIGSTOP)
    until(lambda: host.pid not in (None, hung), host)
    monkeypatch.setattr(serving, "SILENT_S", 60.0)
    until(lambda: asked(port, made.text)[0] == 200, host)
    assert not psutil.pid_exists(hung)


def test_the_server_ends_with_its_host(
    host: ServingHost, port: int, version: ModelVersion, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_all(monkeypatch)
    made = services.serve_version(version, "evaluation", LIMITS, acting_user=user)
    until(lambda: asked(port, made.text)[0] == 200, host)
    assert host.pid is not None
    server = psutil.Process(host.pid)
    command = server.cmdline()
    assert "--with-parent" in command
    assert made.text not in " ".join(command)
    secrets = {"PALESTRA_SECRET_KEY", "DATABASE_URL", "REDIS_URL"}
    assert not secrets & set(server.environ())
    assert not (SERVICES | OF_ENGINES) & set(server.environ())
    host.close()
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_a_checkpoint_of_a_run_is_served(
    host: ServingHost, port: int, user: User, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = RUN.replace("steps = 5\n", "steps = 1\n").replace("steps = 200", "steps = 20")
    (tmp_path / "run.toml").write_text(text)
    run = Run.objects.create(
        team=create_team("Blue", acting_user=user), number=1, name="small", total_steps=1,
        spec=RunSpec(name="small").model_dump(mode="json"), created_by=user,
    )  # fmt: skip
    settings.PALESTRA_RUNS = tmp_path / "runs"
    folder = settings.PALESTRA_RUNS / str(run.id)
    folder.parent.mkdir()
    command = [sys.executable, "-m", "engine", "train", "run.toml", "--in-process", "--run-dir", str(folder)]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    Checkpoint.objects.create(run=run, step=1, path="x", size_bytes=1, seconds=0.1, at=timezone.now())
    made = services.serve_checkpoint(run, None, "evaluation", LIMITS, acting_user=user)
    until(lambda: asked(port, made.text, messages=[{"role": "user", "content": "1+1"}])[0] == 200, host)


def test_what_is_served_holds_no_key_and_leaves_out_what_opens_nothing(version: ModelVersion, user: User) -> None:
    made = [services.serve_version(version, name, LIMITS, acting_user=user) for name in ("a", "b", "c")]
    services.revoke_serving_key(made[1].key, acting_user=user)
    made[2].key.expires_at = timezone.now()
    made[2].key.save()
    file = served_file()
    assert [key.id for key in file.keys] == [str(made[0].key.id)]
    [model] = file.models
    assert (model.folder, model.catalog) == (version.folder, version.pinned)
    assert made[0].text not in file.model_dump_json()
    assert ServedFile.model_validate_json(file.model_dump_json()) == file


def test_a_model_that_is_called_like_a_run_is_another_than_the_runs_checkpoint(
    user: User, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_send_now", lambda *_: None)
    settings.PALESTRA_MODELS = tmp_path / "models"
    team = create_team("Blue", acting_user=user)
    version = ready_version(team, "run-7", number=10)
    run = Run.objects.create(team=team, number=7, name="x", spec=RunSpec(name="x").model_dump(mode="json"))
    run.checkpoints.create(step=10, path="x", size_bytes=1, seconds=0.1, at=timezone.now())
    services.serve_version(version, "of the version", LIMITS, acting_user=user)
    for name in ("of the checkpoint", "another"):
        services.serve_checkpoint(run, 10, name, LIMITS, acting_user=user)
    file = served_file()
    folders, runs = (
        {model.name: model.folder for model in file.models},
        {model.name: model.run for model in file.models},
    )
    assert folders == {"blue/run-7@10": version.folder, "blue/runs/7@10": None}
    assert runs == {"blue/run-7@10": None, "blue/runs/7@10": str(settings.PALESTRA_RUNS / str(run.id))}
    assert [key.model for key in file.keys] == ["blue/run-7@10", "blue/runs/7@10", "blue/runs/7@10"]


def test_lines_that_cannot_be_read_and_keys_that_are_not_known_change_nothing(
    host: ServingHost, tmp_path: Path, version: ModelVersion, user: User
) -> None:
    key = services.serve_version(version, "a", LIMITS, acting_user=user).key
    lines = [
        UsageLine(at=1.0, key=name, model="m", outcome="answered", prompt_tokens=2, sampled_tokens=1).model_dump_json()
        for name in (str(key.id), "own", "00000000-0000-0000-0000-000000000000")
    ]
    file = tmp_path / "serving" / "usage" / "2026-01-02.jsonl"
    file.write_text("\n".join([*lines, "no line", lines[0], lines[0][:30]]))
    for _ in range(2):
        host.take_in()
    [row] = ServingUsage.objects.all()
    assert (row.calls, row.prompt_tokens, str(row.day)) == (2, 4, "2026-01-02")
    with file.open("a") as rest:
        rest.write(lines[0][30:] + "\n")
    host.take_in()
    row.refresh_from_db()
    assert row.calls == 3
    assert UsageFile.objects.get(name=file.name).offset == file.stat().st_size
