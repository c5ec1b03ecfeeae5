"""Who may do what, and how much of it."""

import asyncio
import json
import subprocess
import sys

import httpx
import pytest

from sandboxes.service.capacity import Capacity
from sandboxes.service.quotas import Window
from sandboxes.service.serving import NotStarted, serve
from sandboxes.service.settings import Settings
from sandboxes.service.tokens import Quota, Tokens
from tests.sandboxes.service.cast import create, until


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "sandboxes", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer pst_00000000_x", "Basic abc", "Bearer ü"])
async def test_without_a_token_there_is_nothing(service, header):
    headers = {} if header is None else {"Authorization": header.encode()}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as stranger:
        for method, path in (
            ("POST", "/v1/sandboxes"),
            ("GET", "/v1/sandboxes"),
            ("GET", "/v1/sandboxes/sbx-1"),
            ("GET", "/v1/stats"),
            ("GET", "/metrics"),
            ("POST", "/gem/make"),
            ("GET", "/gem/environments"),
        ):
            answer = await stranger.request(method, path)
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), path
            assert answer.headers["Content-Type"] == "application/problem+json"


async def test_every_door_to_a_strangers_sandbox_is_404(service, alice, bob):
    path = await create(alice)
    document = (await alice.get("/openapi.json")).json()
    doors = [
        (method, door)
        for door, methods in document["paths"].items()
        for method in methods
        if door.startswith("/v1/sandboxes/{id}")
    ]
    assert len(doors) >= 17
    bodies = {
        "exec": {"argv": ["true"]}, "python": {"code": "1"}, "prelude": {"code": "1"}, "label": {"text": "x"},
        "acknowledge": {"through": 0}, "freeze": {"reason": "x"},
    }  # fmt: skip
    for method, door in doors:
        asked = door.replace("/v1/sandboxes/{id}", path).replace("{call}", "c").replace("{snapshot_id}", "1")
        answer = await bob.request(method, asked, json=bodies.get(door.rsplit("/", 1)[-1]), params={"path": "f"})
        assert answer.status_code == 404, (method, door, answer.text)
    assert (await bob.post("/gem/step", json={"instance": path.rsplit("/", 1)[-1], "action": "1"})).status_code == 404
    assert (await bob.get("/v1/sandboxes")).json() == {"sandboxes": []}
    assert (await alice.get(path)).json()["state"] == "open"


async def test_tokens_of_one_owner_reach_the_same_sandboxes(service, alice):
    path = await create(alice)
    text = service.tokens.create("second", "alice", Quota())[1]
    answer = await alice.get(path, headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 200


async def test_a_revoked_token_is_none_at_once(service, alice):
    assert (await alice.get("/v1/sandboxes")).status_code == 200
    service.tokens.revoke("alice")
    assert (await alice.get("/v1/sandboxes")).status_code == 401


async def test_too_many_sandboxes_are_429_with_the_reason_and_when(service):
    carol = await service.client("carol", sandboxes=1)
    path = await create(carol)
    refused = await carol.post("/v1/sandboxes", json={})
    assert (refused.status_code, int(refused.headers["Retry-After"])) == (429, 1)
    assert "1 sandboxes of the 1" in refused.json()["detail"]
    await carol.delete(path)
    await create(carol)


async def test_too_many_requests_are_429(service):
    carol = await service.client("carol", requests_per_minute=2)
    path = await create(carol)
    assert (await carol.post(f"{path}/python", json={"code": "1"})).status_code == 200
    refused = await carol.post(f"{path}/python", json={"code": "1"})
    assert (refused.status_code, "requests_per_minute = 2" in refused.json()["detail"]) == (429, True)
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert (await carol.get(path)).status_code == 200, "looking is free"


async def test_too_much_execution_is_429_and_another_token_is_not_touched(service, alice):
    carol = await service.client("carol", exec_s_per_minute=0.2)
    path = await create(carol)
    assert (await carol.post(f"{path}/exec", json={"argv": ["sleep", "0.3"]})).status_code == 200
    for verb, body in (("exec", {"argv": ["true"]}), ("python", {"code": "1"})):
        refused = await carol.post(f"{path}/{verb}", json=body)
        assert (refused.status_code, "exec_s_per_minute" in refused.json()["detail"]) == (429, True)
    other = await create(alice)
    assert (await alice.post(f"{other}/python", json={"code": "1"})).status_code == 200


def test_a_window_forgets_after_a_minute(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("sandboxes.service.quotas.time.monotonic", lambda: now)
    window = Window()
    window.add(2)
    now += 20
    window.add(3)
    assert (window.used(), window.until_below(6), window.until_below(5), window.until_below(3)) == (5, 0, 40, 60)
    now += 41
    assert (window.used(), window.until_below(5)) == (3, 0)


async def test_a_gem_step_that_loses_its_sandbox_counts_as_well(service):
    carol = await service.client("carol", exec_s_per_minute=0.2)
    instance, again = [(await carol.post("/gem/make", json={"env_id": "python"})).json()["instance"] for _ in range(2)]
    for item in (instance, again):
        await carol.post("/gem/reset", json={"instance": item})
    sleeping = {"instance": instance, "action": "import time; time.sleep(25)"}
    step = asyncio.create_task(carol.post("/gem/step", json=sleeping))

    async def has_begun() -> bool:
        return (await carol.get(f"/v1/sandboxes/{instance}/inspect")).json()["execs"] > 0

    await until(has_begun)
    await asyncio.sleep(0.3)
    await carol.post("/gem/close", json={"instance": instance})
    assert (await step).status_code == 410
    refused = await carol.post("/gem/step", json={"instance": again, "action": "1"})
    assert (refused.status_code, "exec_s_per_minute" in refused.json()["detail"]) == (429, True)


@pytest.mark.parametrize("cidr", ["127.0.0.1/32", "10.1.0.0/16", "169.254.169.254/32", "::1/128"])
async def test_no_user_opens_what_lies_around_the_service(service, serve, alice, cidr):
    rule = {"name": "in", "action": "allow", "cidrs": [cidr], "ports": [80]}
    body = {"spec": {"network": "watched", "egress": {"rules": [rule]}}}
    refused = await alice.post("/v1/sandboxes", json=body)
    assert (refused.status_code, refused.json()["problems"][0]["value"]) == (422, cidr)
    assert refused.json()["problems"][0]["field"] == "spec.egress.rules.0.cidrs"
    public = {"spec": {"network": "watched", "egress": {"rules": [rule | {"cidrs": ["203.0.113.0/24"]}]}}}
    assert (await alice.post("/v1/sandboxes", json=public)).status_code == 201
    trusting = await (await serve(special_egress=True)).client("dora")
    assert (await trusting.post("/v1/sandboxes", json=body)).status_code == 201


# -- the file, and who is told what -----------------------------------------------------------------


def test_a_token_is_shown_once_and_kept_as_a_hash(tmp_path):
    file = tmp_path / "deep" / "tokens.json"
    made = command("token", "--tokens", str(file), "create", "ci", "--owner", "team", "--sandboxes", "3")
    text = made.stdout.strip()
    assert (made.returncode, text.startswith("pst_")) == (0, True)
    assert text.split("_", 2)[2] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    found = Tokens(file).find(text)
    assert (found.name, found.owner, found.quota.sandboxes) == ("ci", "team", 3)
    assert Tokens(file).find(text[:-1] + ("a" if text[-1] != "a" else "b")) is None
    listed = command("token", "--tokens", str(file), "list", "--json")
    assert [load["name"] for load in json.loads(listed.stdout)] == ["ci"]
    assert "digest" not in listed.stdout
    assert command("token", "--tokens", str(file), "revoke", "ci").returncode == 0
    assert Tokens(file).find(text) is None
    again = command("token", "--tokens", str(file), "revoke", "ci")
    assert (again.returncode, "no valid token" in again.stderr) == (2, True)


def test_a_name_is_given_once_and_bad_values_are_reported(tmp_path):
    file = str(tmp_path / "tokens.json")
    assert command("token", "--tokens", file, "create", "ci").returncode == 0
    twice = command("token", "--tokens", file, "create", "ci")
    assert (twice.returncode, "name = 'ci'" in twice.stderr) == (2, True)
    bad = command("token", "--tokens", file, "create", "x", "--sandboxes=-1")
    assert (bad.returncode, "sandboxes = -1" in bad.stderr) == (2, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_nothing_listens_beyond_loopback_without_a_token(tmp_path, host):
    settings = Settings(tmp_path / "tokens.json", Capacity.detected(), host, 0)
    with pytest.raises(NotStarted, match="token create"):
        serve(settings)
    refused = command("serve", "--host", host, "--port", "0", "--tokens", str(tmp_path / "tokens.json"))
    assert (refused.returncode, "token create" in refused.stderr) == (2, True)


async def test_no_log_has_a_token_or_what_is_in_a_sandbox(service, alice, caplog):
    caplog.set_level("DEBUG")
    path = await create(alice)
    await alice.put(f"{path}/files", params={"path": "f"}, content=b"SECRET-CONTENT")
    await alice.post(f"{path}/python", json={"code": "'SECRET-' + 'CODE'"})
    await alice.delete(path)
    ours = [record for record in caplog.records if record.name.startswith("sandboxes")]
    phrase = "".join(str(vars(record)) for record in ours)
    assert "sandbox open" in phrase
    assert "SECRET" not in phrase
    assert alice.headers["Authorization"] not in phrase


def test_a_token_of_version_0_2_keeps_its_quota(tmp_path):
    path = tmp_path / "tokens.json"
    Tokens(path).create("ci", "ci", Quota(sandboxes=3))
    path.write_text(path.read_text().replace('"sandboxes"', '"boxes"'))
    [token] = Tokens(path).listed()
    assert token.quota == Quota(sandboxes=3)


def test_a_quota_in_both_forms_is_refused():
    with pytest.raises(ValueError, match="boxes"):
        Quota.model_validate({"boxes": 4, "sandboxes": 3})
