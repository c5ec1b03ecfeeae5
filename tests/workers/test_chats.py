"""The host of conversations, with real processes that really sample."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from django.db import DatabaseError
from django.utils import timezone

from engine.spec.chat import ChatMessage, Send
from engine.spec.run import RunSpec
from tests.engine.trainings import RUN
from tests.webapp.models import ready_version
from tests.workers.secret_variables import OF_ENGINES, SERVICES, give_all
from webapp import queue
from webapp.accounts.models import User
from webapp.accounts.services import create_team
from webapp.catalog.models import ModelVersion
from webapp.conversations import log, services
from webapp.conversations.models import Conversation, State
from webapp.library.services import delete_version
from webapp.runs.models import Checkpoint, Run
from workers import chats
from workers.chats import ChatHost, ChatProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
HANGS = "{{ range(99999) | map('string') | map('center', 9999) | list | length }}" * 1000


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run with checkpoints."""
    home = tmp_path_factory.mktemp("run")
    text = RUN.replace("steps = 5\n", "steps = 1\n").replace("steps = 200", "steps = 20")
    (home / "run.toml").write_text(text)
    command = [sys.executable, "-m", "engine", "train", "run.toml", "--in-process", "--run-dir", "run"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=home, env=env, check=True, capture_output=True, timeout=600)
    return home / "run"


@pytest.fixture
def run(user: User, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """With a checkpoint of which only the row is there."""
    monkeypatch.setattr(log, "notify_group", lambda _group: None)
    run = Run.objects.create(
        team=create_team("Blue", acting_user=user), number=1, name="small", total_steps=1,
        spec=RunSpec(name="small").model_dump(mode="json"), created_by=user,
    )  # fmt: skip
    settings.PALESTRA_RUNS = tmp_path
    Checkpoint.objects.create(run=run, step=1, path="x", size_bytes=1, seconds=0.1, at=timezone.now())
    return run


@pytest.fixture
def talked_run(run: Run, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / str(run.id)).symlink_to(trained)
    return run


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a folder that can really be talked with."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "engine", "make-model", str(folder)], env=env, check=True, timeout=600)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def version(
    user: User, tiny_files: dict[str, bytes], settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModelVersion:
    monkeypatch.setattr(log, "notify_group", lambda _group: None)
    monkeypatch.setattr(queue, "_send_now", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    settings.PALESTRA_MODELS = tmp_path / "models"
    return ready_version(create_team("Blue", acting_user=user), "tiny", files=tiny_files)


@pytest.fixture
def host() -> Iterator[ChatHost]:
    host = ChatHost()
    host.begin()
    yield host
    host.close()
    for process in host.processes.values():
        process._reader.join(20)


class Talk:
    def __init__(self, host: ChatHost, of: Run | ModelVersion, user: User, *, tools: bool = False) -> None:
        self.host, self.user = host, user
        if isinstance(of, Run):
            self.row = services.begin_conversation(of, None, with_tools=tools, acting_user=user)
        else:
            self.row = services.begin_with_version(of, acting_user=user)

    def says(self, text: str, **sampling: Any) -> None:
        message = Send.model_validate({"messages": [{"role": "user", "content": text}], "sampling": sampling})
        services.send(self.row, message, acting_user=self.user)

    def kinds(self) -> list[str]:
        return list(self.row.entries.order_by("seq").values_list("kind", flat=True))

    def last(self, kind: str) -> dict[str, Any]:
        return dict(self.row.entries.filter(kind=kind).order_by("-seq").values_list("body", flat=True)[0])

    def until(self, holds: Callable[["Talk"], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(self):
            assert time.monotonic() < deadline, (self.kinds()[-8:], self.state)
            self.host.tick()
            time.sleep(0.05)

    def answered(self, times: int = 1) -> None:
        self.until(lambda talk: talk.kinds().count("finished") == times and talk.state == State.READY)

    @property
    def state(self) -> str:
        self.row.refresh_from_db()
        return self.row.state

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.host.processes[self.row.id].process.pid)


def test_a_message_starts_a_process_which_answers_this_one_and_the_next(
    host: ChatHost, talked_run: Run, user: User
) -> None:
    talk = Talk(host, talked_run, user, tools=True)
    talk.says("1+1=", temperature=0)
    talk.answered()
    assert talk.last("ready")["tools"][0]["name"] == "python"
    first = talk.process.pid
    talk.says("2+2=", temperature=0)
    talk.answered(2)
    assert talk.process.pid == first
    assert talk.kinds().count("ready") == 2  # loaded, and begun


def test_a_killed_process_is_told_and_asked_again_it_answers_as_it_would_have(
    host: ChatHost, talked_run: Run, user: User
) -> None:
    talk = Talk(host, talked_run, user)
    talk.says("1+1=", seed=7)
    talk.answered()
    before = talk.last("said")["message"]["token_ids"]
    talk.process.send_signal(signal.SIGKILL)
    talk.until(lambda talk: talk.state == State.FAILED)
    assert "SIGKILL" in talk.last("ended")["reason"]
    services.retry(talk.row)
    talk.answered(2)
    assert talk.last("said")["message"]["token_ids"] == before
    history, asked = log.unanswered(talk.row.entries.order_by("seq").values_list("kind", "body"))
    assert ([message.role for message in history], asked) == (["user", "assistant"], None)


@pytest.mark.soak  # above one that was killed is asked again and answers as it would have
def test_a_process_that_begins_anew_samples_on_from_the_same_tokens(
    host: ChatHost, talked_run: Run, user: User
) -> None:
    answers = []
    for is_interrupted in (False, True):
        talk = Talk(host, talked_run, user)
        talk.says("1+1=", seed=3)
        talk.answered()
        if is_interrupted:
            host.processes[talk.row.id].end("a test")
            talk.until(lambda talk: talk.state == State.RESTING)
        talk.says("and?", seed=3)
        talk.answered(2)
        answers.append(talk.last("said")["message"]["token_ids"])
        host.processes[talk.row.id].end("a test")
        talk.until(lambda talk: talk.state == State.RESTING)
    assert answers[0] == answers[1]


def test_a_stop_ends_an_answer_also_one_that_has_just_been_asked_for(
    host: ChatHost, talked_run: Run, user: User
) -> None:
    talk = Talk(host, talked_run, user)
    talk.says("count", most_tokens=60)
    services.stop(talk.row)
    talk.answered()
    talk.says("again")
    talk.answered(2)


def test_a_team_has_so_many_processes_and_the_oldest_idle_one_makes_room(
    host: ChatHost, talked_run: Run, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "MOST_PER_TEAM", 1)
    first, second = (Talk(host, talked_run, user) for _ in range(2))
    first.says("1+1=")
    first.answered()
    second.says("2+2=")
    second.answered()
    assert first.state == State.RESTING
    assert first.last("ended") == {"reason": "another conversation needed its place", "asked": True}
    assert list(host.processes) == [second.row.id]


def test_while_all_are_busy_a_message_waits_and_can_be_taken_back(
    host: ChatHost, talked_run: Run, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "MOST_IN_ALL", 0)
    talk = Talk(host, talked_run, user)
    talk.says("1+1=")
    talk.until(lambda talk: talk.state == State.WAITING)
    services.stop(talk.row)
    talk.until(lambda talk: talk.state == State.RESTING)
    assert host.processes == {}


def test_a_process_that_nobody_uses_ends(
    host: ChatHost, talked_run: Run, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(host, talked_run, user)
    talk.says("1+1=")
    talk.answered()
    process = talk.process
    monkeypatch.setattr(chats, "IDLE_S", 0.0)
    talk.until(lambda talk: talk.state == State.RESTING)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_deleted_conversation_ends_its_process(host: ChatHost, talked_run: Run, user: User) -> None:
    talk = Talk(host, talked_run, user)
    talk.says("1+1=")
    talk.answered()
    key = talk.row.id
    services.delete_conversation(talk.row, acting_user=user)
    deadline = time.monotonic() + PATIENCE_S
    while key in host.processes:
        assert time.monotonic() < deadline
        host.tick()
        time.sleep(0.05)


@pytest.fixture
def loads_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes neither read what they are told nor say anything."""
    monkeypatch.setattr(chats, "_command", lambda _: ["sleep", "600"])


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("loads_for_ever")
def test_a_process_that_reads_nothing_holds_up_nobody(host: ChatHost, run: Run, user: User) -> None:
    deaf, stopped, next_one = (Talk(host, run, user) for _ in range(3))
    for talk in (deaf, stopped):
        talk.says("x" * 200_000)  # more than the pipe holds
        host.tick()
        assert talk.state == State.LOADING
    stopped.process.suspend()
    services.stop(deaf.row)
    next_one.says("1+1=")
    host.tick()
    assert next_one.state == State.WAITING
    for talk in (deaf, stopped):
        services.delete_conversation(talk.row, acting_user=user)
    next_one.until(lambda talk: list(host.processes) == [talk.row.id])


@pytest.fixture
def hanging(
    user: User, tiny_files: dict[str, bytes], settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModelVersion:
    """Its template works for ever where somebody says BOOM; harmless as far as the preflight sees."""
    monkeypatch.setattr(log, "notify_group", lambda _group: None)
    monkeypatch.setattr(queue, "_send_now", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    settings.PALESTRA_MODELS = tmp_path / "models"
    bomb = "{% for message in messages %}{% if message.content == 'BOOM' %}" + HANGS + "{% endif %}{% endfor %}"
    template = bomb.encode() + tiny_files["chat_template.jinja"]
    return ready_version(
        create_team("Blue", acting_user=user), "tiny", files=tiny_files | {"chat_template.jinja": template}
    )


def hung(host: ChatHost, version: ModelVersion, user: User) -> Talk:
    """A conversation that has answered, and then hangs."""
    talk = Talk(host, version, user)
    talk.says("1+1=", most_tokens=4)
    talk.answered()
    talk.says("BOOM")
    talk.until(lambda talk: talk.state == State.ANSWERING)
    return talk


def killed_and_free(talk: Talk, process: psutil.Process) -> str:
    """Why its process was ended, of which nothing is left."""
    talk.until(lambda talk: talk.state == State.FAILED and talk.row.id not in talk.host.processes)
    assert not process.is_running()
    ended = talk.last("ended")
    assert ended["asked"] is False
    return str(ended["reason"])


@pytest.mark.soak  # the next one is killed by a stop
def test_a_process_whose_template_works_for_ever_is_killed_after_its_silence_with_the_remedy(
    host: ChatHost, hanging: ModelVersion, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "IDLE_S", 0.0)
    talk = hung(host, hanging, user)
    process = talk.process
    for _ in range(10):
        host.tick()
        time.sleep(0.05)
    assert talk.process == process  # neither idle nor over its time
    monkeypatch.setattr(chats, "SILENT_S", 0.5)
    reason = killed_and_free(talk, process)
    assert "had not said anything for 0 minutes" in reason
    assert "begin a new conversation with other words" in reason
    monkeypatch.setattr(chats, "SILENT_S", 600.0)
    monkeypatch.setattr(chats, "IDLE_S", 600.0)
    services.begin_anew(talk.row)
    talk.says("1+1=", most_tokens=4)
    talk.answered(2)


def test_a_stop_kills_what_does_not_stop(
    host: ChatHost, hanging: ModelVersion, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "STOP_S", 1.0)
    talk = hung(host, hanging, user)
    process = talk.process
    services.stop(talk.row)
    assert "did not stop within 1 seconds and was ended: try again" in killed_and_free(talk, process)


def test_who_hangs_on_the_first_message_answers_and_can_be_stopped(
    host: ChatHost, hanging: ModelVersion, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "STOP_S", 1.0)
    monkeypatch.setattr(chats, "IDLE_S", 0.0)
    talk = Talk(host, hanging, user)
    talk.says("BOOM")
    talk.until(lambda talk: talk.kinds().count("ready") == 2)
    talk.until(lambda talk: talk.state == State.ANSWERING)
    process = talk.process
    services.begin_anew(talk.row)
    assert "did not stop within 1 seconds" in killed_and_free(talk, process)


@pytest.mark.soak  # above those that hang are killed by a stop
def test_a_process_that_was_suspended_is_killed_whether_it_loads_answers_or_rests(
    host: ChatHost, talked_run: Run, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(host, talked_run, user)
    talk.says("1+1=")
    host.tick()
    process = talk.process
    process.suspend()
    services.stop(talk.row)
    with monkeypatch.context() as impatient:
        impatient.setattr(chats, "STOP_WHILE_LOADING_S", 0.5)
        assert "did not stop within" in killed_and_free(talk, process)
    services.retry(talk.row)
    host.tick()
    process = talk.process
    process.suspend()
    with monkeypatch.context() as impatient:
        impatient.setattr(chats, "SILENT_WHILE_LOADING_S", 0.5)
        assert "had not said anything" in killed_and_free(talk, process)
    services.retry(talk.row)
    talk.answered()
    process = talk.process
    process.suspend()
    talk.says("2+2=")
    with monkeypatch.context() as impatient:
        impatient.setattr(chats, "SILENT_S", 0.5)
        assert "had not said anything" in killed_and_free(talk, process)
    talk.says("3+3=")
    talk.answered(2)
    process = talk.process
    process.suspend()
    monkeypatch.setattr(chats, "IDLE_S", 0.0)
    talk.until(lambda talk: talk.state == State.RESTING)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("loads_for_ever")
def test_a_person_of_two_teams_leaves_places_to_a_third_team(host: ChatHost, run: Run, user: User) -> None:
    other = User.objects.create_user("bob@example.org", "correct horse battery")
    makers = {"Red": user, "Victims": other}
    runs = {name: _run_of(name, maker) for name, maker in makers.items()}
    greedy = [Talk(host, of, user) for of in (run, run, runs["Red"], runs["Red"])]
    for talk in greedy:
        talk.says("BOOM")
        host.tick()
    assert [talk.state for talk in greedy] == [State.LOADING] * 2 + [State.WAITING] * 2
    last = Talk(host, runs["Victims"], other)
    last.says("1+1=")
    host.tick()
    assert last.state == State.LOADING


def _run_of(team: str, maker: User) -> Run:
    made = Run.objects.create(
        team=create_team(team, acting_user=maker), number=1, name="small", total_steps=1,
        spec=RunSpec(name="small").model_dump(mode="json"), created_by=maker,
    )  # fmt: skip
    Checkpoint.objects.create(run=made, step=1, path="x", size_bytes=1, seconds=0.1, at=timezone.now())
    return made


def outgrown(talk: Talk, *, kind: str = "send") -> None:
    """Its log holds more than a process can be told, and ends with a message that waits."""
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    exchange = [("send", {"messages": [user]}), ("reading", {}), ("said", {"message": answer}), ("finished", {})]
    last = [("send", {"messages": [user]})] if kind == "send" else [*exchange, (kind, {})]
    seq = log.append(talk.row.id, [*exchange * 501, *last])
    Conversation.objects.filter(id=talk.row.id).update(asked_seq=seq, handled_seq=seq - 1)


@pytest.mark.usefixtures("loads_for_ever")
def test_a_conversation_that_cannot_be_answered_fails_alone(
    host: ChatHost, run: Run, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, startless, other = (Talk(host, run, user) for _ in range(3))
    command = chats._command
    monkeypatch.setattr(chats, "_command", lambda row: ["/no/such/program"] if row == startless.row else command(row))
    outgrown(long)
    startless.says("1+1=")
    other.says("1+1=")
    host.tick()
    assert (long.state, startless.state, other.state) == (State.FAILED, State.FAILED, State.LOADING)
    assert "at most 1000 items" in long.last("ended")["reason"]
    assert long.last("ended")["reason"].endswith("begin a new conversation")
    assert startless.last("ended") == {
        "reason": "the process that samples cannot be started: No such file or directory", "asked": False,
    }  # fmt: skip
    for talk in (long, startless):
        assert talk.row.handled_seq == talk.row.asked_seq
    assert list(host.processes) == [other.row.id]


@pytest.mark.usefixtures("loads_for_ever")
def test_a_process_that_cannot_be_asked_again_ends_with_the_reason(host: ChatHost, run: Run, user: User) -> None:
    talk = Talk(host, run, user)
    talk.says("1+1=")
    host.tick()
    outgrown(talk, kind="retry")
    talk.until(lambda talk: talk.state == State.FAILED)
    assert talk.last("ended")["asked"] is False
    assert "begin a new conversation" in talk.last("ended")["reason"]
    host.tick()
    assert host.processes == {}


@pytest.fixture
def deleted_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """Keys of conversations that are deleted when the host next writes to their log."""
    keys: set[Any] = set()
    append = chats.append

    def late(key: Any, *arguments: Any, **fields: Any) -> int:
        if key in keys:
            Conversation.objects.filter(id=key).delete()
        return append(key, *arguments, **fields)

    monkeypatch.setattr(chats, "append", late)
    return keys


@pytest.mark.usefixtures("loads_for_ever")
@pytest.mark.parametrize("places", [0, 4])
def test_a_conversation_that_is_deleted_while_its_message_is_read_holds_up_no_other(
    host: ChatHost, run: Run, user: User, deleted_before_it_is_written: set[Any], monkeypatch: pytest.MonkeyPatch,
    places: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(chats, "MOST_IN_ALL", places)
    gone, other = (Talk(host, run, user) for _ in range(2))
    for talk in (gone, other):
        talk.says("1+1=")
    deleted_before_it_is_written.add(gone.row.id)
    host.tick()
    assert other.state == (State.LOADING if places else State.WAITING)
    assert gone.row.id not in host.processes


@pytest.mark.usefixtures("loads_for_ever")
def test_a_conversation_that_is_deleted_while_its_end_is_written_holds_up_no_other(
    host: ChatHost, run: Run, user: User, deleted_before_it_is_written: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, orphan, other = (Talk(host, run, user) for _ in range(3))
    monkeypatch.setattr(ChatProcess, "_write_lines", unreachable)  # the host has to write its end
    host.processes[ended.row.id] = ChatProcess(ended.row)
    host.processes[ended.row.id]._reader.join(20)
    for talk in (orphan, other):
        Conversation.objects.filter(id=talk.row.id).update(state=State.ANSWERING)
    deleted_before_it_is_written |= {ended.row.id, orphan.row.id}
    host.tick()
    assert host.processes == {}
    host.begin()
    assert other.state == State.FAILED


def test_a_checkpoint_that_is_gone_is_told_with_its_remedy(host: ChatHost, talked_run: Run, user: User) -> None:
    talk = Talk(host, talked_run, user)
    Conversation.objects.filter(id=talk.row.id).update(step=77)
    talk.says("1+1=")
    talk.until(lambda talk: talk.state == State.FAILED)
    assert "model.step = 77: the run has no checkpoint of this step; use one of: 0, 1" in talk.last("ended")["reason"]


def test_a_host_that_begins_says_of_whom_the_last_one_held_that_their_processes_are_gone(
    talked_run: Run, user: User
) -> None:
    talk = Talk(ChatHost(), talked_run, user)
    Conversation.objects.filter(id=talk.row.id).update(state=State.ANSWERING)
    ChatHost().begin()
    assert (talk.state, talk.last("ended")["asked"]) == (State.FAILED, False)


def test_a_version_of_a_model_answers_from_its_own_folder_until_it_is_deleted(
    host: ChatHost, version: ModelVersion, user: User
) -> None:
    talk = Talk(host, version, user)
    talk.says("1+1=", most_tokens=4)
    talk.answered()
    assert str(version.folder) in talk.process.cmdline()
    assert talk.last("finished")["usage"]["sampled_tokens"] in range(1, 5)
    delete_version(version, acting_user=user)
    talk.until(lambda talk: talk.state == State.RESTING)
    assert talk.last("ended") == {"reason": "tiny@1 was deleted", "asked": True}
    host.tick()
    assert host.processes == {}


def test_a_message_that_came_before_its_version_was_deleted_is_told_so(
    host: ChatHost, version: ModelVersion, user: User
) -> None:
    talk = Talk(host, version, user)
    talk.says("1+1=")
    services.stop(talk.row)
    delete_version(version, acting_user=user)
    talk.until(lambda talk: talk.state == State.FAILED and talk.row.handled_seq == talk.row.asked_seq == 2)
    assert talk.kinds() == ["send", "stop", "ended"]
    assert talk.last("ended") == {"reason": "tiny@1 was deleted", "asked": False}
    assert host.processes == {}


def test_a_version_whose_files_are_gone_is_told(host: ChatHost, version: ModelVersion, user: User) -> None:
    talk = Talk(host, version, user)
    shutil.rmtree(version.folder)
    talk.says("1+1=")
    talk.until(lambda talk: talk.state == State.FAILED)
    reason = talk.last("ended")["reason"]
    assert "model.catalog = 'tiny@1': palestra-manifest.json cannot be read: No such file or directory" in reason


def test_a_version_whose_files_were_changed_is_not_talked_with(
    host: ChatHost, version: ModelVersion, user: User
) -> None:
    talk = Talk(host, version, user)
    file = version.folder / "chat_template.jinja"
    file.write_text(file.read_text().replace("user", "suer", 1))
    talk.says("1+1=")
    talk.until(lambda talk: talk.state == State.FAILED)
    reason = talk.last("ended")["reason"]
    assert "model.catalog = 'tiny@1': chat_template.jinja has another content than when it was stored" in reason


def unreachable(*_: Any) -> None:
    raise DatabaseError("gone")


class StopsAfter(Event):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def wait(self, timeout: float | None = None) -> bool:
        self.times -= 1
        return self.times < 0


def test_a_host_shows_that_it_looks_after_conversations_and_not_while_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = tmp_path / "alive"

    with monkeypatch.context() as without_database:
        without_database.setattr(ChatHost, "tick", unreachable)
        chats.serve(StopsAfter(1), alive=alive)
    assert not alive.exists()
    chats.serve(StopsAfter(1), alive=alive)
    assert alive.exists()


def test_the_process_gets_no_secret(
    host: ChatHost, talked_run: Run, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_all(monkeypatch)
    talk = Talk(host, talked_run, user)
    talk.says("1+1=")
    talk.until(lambda talk: talk.row.id in talk.host.processes)
    assert not {"PALESTRA_SECRET_KEY", "DATABASE_URL", "REDIS_URL"} & talk.process.environ().keys()
    assert not (SERVICES | OF_ENGINES) & talk.process.environ().keys()


def test_a_history_with_a_message_of_every_role_is_one_that_can_be_sent() -> None:
    message = {"role": "assistant", "content": "x", "token_ids": [5], "calls": [{"name": "p", "arguments": {}}]}
    entries = [("send", {"messages": [{"role": "user", "content": "a"}]}), ("said", {"message": message}),
               ("result", {"output": "o" * 20_000, "call": "c", "tool": "p"}), ("finished", {})]  # fmt: skip
    history, _ = log.unanswered(entries)
    assert [ChatMessage.model_validate(one.model_dump()).role for one in history] == ["user", "assistant", "tool"]
