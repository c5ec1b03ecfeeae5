"""What the page and the API say of a run's processes and servers, from its last heartbeat."""

import time
from typing import Any, get_args

import pytest
from django.test import Client

from engine.spec.usage import Health, Role, ServerRole
from tests.webapp.runs.conftest import Engine
from webapp.accounts.models import User
from webapp.runs.models import Run
from webapp.runs.usage import HEALTH, ROLES, SERVER_ROLES, newest_usage, tables_of

pytestmark = pytest.mark.django_db(transaction=True)
GPU = {"name": "0 NVIDIA H200", "busy": 0.5, "memory_bytes": 2**30, "total_bytes": 2**37}


def process(name: str, role: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "pid": 7, "cores": 0.5, "memory_bytes": 2**30, "gpus": []} | changes


def server(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "role": "policy", "number": number, "url": f"http://127.0.0.1:{number}", "health": "up", "reason": "",
        "running": 3, "queued": 2, "in_hand": 5, "tokens_per_s": 41.5, "cache_hit_rate": 0.25, "restarts": 1,
        "version": 6,
    } | changes  # fmt: skip


def measured(run: Run, step: int, *processes: dict[str, Any], servers: Any = ()) -> Any:
    """The answer to a heartbeat with these; the run is as the service has it then."""
    usage = {"at": time.time(), "step": step, "processes": list(processes), "servers": list(servers)}
    engine = Engine(run, next_seq=run.last_seq + 1)
    answer = engine.post(heartbeat=engine.heartbeat(usage=usage))
    run.refresh_from_db()
    return answer


def part(run: Run, reader: User) -> str:
    client: Any = Client()
    client.force_login(reader)
    return " ".join(client.get(f"/runs/{run.id}/parts/usage").content.decode().split())


def test_every_role_and_every_health_that_an_engine_may_report_has_a_name() -> None:
    assert set(ROLES) == set(get_args(Role))
    assert set(HEALTH) == set(get_args(Health))
    assert set(SERVER_ROLES) == set(get_args(ServerRole))


def test_a_run_that_has_measured_nothing_says_so(launching_run: Run, bob: User) -> None:
    assert newest_usage(launching_run) is None
    assert "Nothing was measured yet" in part(launching_run, bob)
    assert "samples without servers" in part(launching_run, bob)


def test_the_newest_measurement_is_shown_by_role(launching_run: Run, bob: User) -> None:
    workers = [process(f"rollout-{number}", "rollout", cores=0.75) for number in (0, 1)]
    measured(launching_run, 1, process("loop", "loop", cores=9.0))
    measured(launching_run, 2, *workers, process("learner", "learner", gpus=[GPU]))
    newest = newest_usage(launching_run)
    assert newest is not None
    assert [(role.role, role.cores, role.memory_bytes) for role in tables_of(newest).roles] == [
        ("learner", 0.5, 2**30),
        ("rollout", 1.5, 2**31),
    ]
    shown = part(launching_run, bob)
    assert "after step 2" in shown
    assert ">1.50<" in shown
    assert "2.0 GiB" in shown
    assert ">50.0%<" in shown
    assert "9.00" not in shown


def test_a_heartbeat_without_a_measurement_is_one_of_an_attempt_that_has_made_none(launching_run: Run) -> None:
    measured(launching_run, 1, process("loop", "loop"))
    engine = Engine(launching_run)
    engine.post(heartbeat=engine.heartbeat())
    launching_run.refresh_from_db()
    assert newest_usage(launching_run) is None


def test_each_server_has_a_row_with_its_health_its_queue_and_its_weights(launching_run: Run, bob: User) -> None:
    down = server(1, health="down", running=None, queued=None, reason="<b>no answer</b> to 3 looks", version=5)
    measured(launching_run, 6, servers=[server(0), down])
    shown = part(launching_run, bob)
    first, second = shown.split("<tbody>")[-1].split("</tr>")[:2]
    for words in ("http://127.0.0.1:0", ">Up<", ">3<", ">2<", ">5<", ">41.5<", ">25.0%<", ">1<"):
        assert words in first
    assert "older" not in first
    for words in ("Down, will be restarted", "&lt;b&gt;no answer&lt;/b&gt; to 3 looks", ">–<", "older"):
        assert words in second


def test_a_server_of_the_judge_is_told_apart_and_its_weights_are_its_own(launching_run: Run, bob: User) -> None:
    measured(launching_run, 6, servers=[server(0, version=3), server(0, role="judge", version=0, url="http://j:1")])
    of_policy, of_judge = part(launching_run, bob).split("<tbody>")[-1].split("</tr>")[:2]
    assert "<td>Policy</td>" in of_policy
    assert "older" not in of_policy
    assert "http://j:1" in of_judge
    assert "<td>Judge</td>" in of_judge
    assert "its own" in of_judge
    assert "older" not in of_judge


def test_a_run_that_is_judged_by_servers_waits_for_them_to_be_told(launching_run: Run, bob: User) -> None:
    launching_run.spec["resources"]["judge"] = {"path": "a-judge"}
    launching_run.save(update_fields=["spec"])
    assert "No server has been started yet" in part(launching_run, bob)


def test_usage_over_rest_and_for_strangers_none(launching_run: Run, api_of: Any, bob: User, charlie: User) -> None:
    url = f"/runs/{launching_run.id}/usage"
    assert api_of(bob).get(url).json() == {"newest": None}
    measured(launching_run, 3, process("loop", "loop"), servers=[server(0)])
    newest = api_of(bob).get(url).json()["newest"]
    assert (newest["processes"], newest["servers"]) == ([process("loop", "loop")], [server(0)])
    assert api_of(charlie).get(url).status_code == 404


@pytest.mark.parametrize(
    ("changes", "field"), [({"role": "cook"}, "role"), ({"cores": -1.0}, "cores"), ({"memory_bytes": 0.5}, "memory")]
)
def test_a_process_that_is_none_is_refused_by_its_field(launching_run: Run, changes: Any, field: str) -> None:
    answer = measured(launching_run, 1, process("loop", "loop") | changes)
    assert answer.status_code == 422
    assert field in answer.content.decode()
    assert newest_usage(launching_run) is None
