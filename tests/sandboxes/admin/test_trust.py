"""Who may do what at an admin and at its hosts, and which secrets nobody sees."""

import httpx
import pytest

from sandboxes.admin.hosts_file import HostEntry
from sandboxes.service.refusals import NotAllowed
from tests.sandboxes.service.cast import create, until


async def test_a_strangers_sandbox_is_not_there(alice, bob):
    path = await create(alice)
    for answer in (
        await bob.get(path),
        await bob.delete(path),
        await bob.post(f"{path}/python", json={"code": "1"}),
        await bob.get(f"{path}/files", params={"path": "f"}),
    ):
        assert answer.status_code == 404
    assert (await bob.get("/v1/sandboxes")).json()["sandboxes"] == []
    assert (await alice.post(f"{path}/python", json={"code": "1"})).json()["stdout"] == "1\n"


@pytest.mark.parametrize(
    "verb", ["..%2f..%2fhost", "%2e%2e/%2e%2e/host", "calls/..%2f..", "sandboxes", "files/../../x", ""]
)
async def test_nobody_reaches_another_endpoint_of_a_host_by_the_admins_token(alice, fleet, verb):
    path = await create(alice)
    before = fleet.hosts["a"].sandboxes.usage
    for method in ("GET", "POST", "PUT", "DELETE"):
        target = httpx.URL(alice.base_url, raw_path=f"{path}/{verb}".encode())
        answer = await alice.request(method, target)
        assert answer.status_code in (404, 405, 307), (verb, method, answer.text)
        assert "instance" not in answer.text
    assert before is fleet.hosts["a"].sandboxes.usage


async def test_no_answer_has_the_token_or_the_address_of_a_host(fleet, alice):
    path = await create(alice)
    fleet.file.drain("a", True)
    answers = [
        await alice.get(where)
        for where in ("/v1/stats", "/metrics", "/v1/sandboxes", path, f"{path}/inspect", "/openapi.json", "/healthz")
    ]
    text = "".join(answer.text + str(answer.headers) for answer in answers)
    for entry in fleet.file.entries().values():
        assert entry.token not in text
        assert entry.url not in text
    assert fleet.file.path.stat().st_mode & 0o777 == 0o600
    assert entry.token not in repr(entry)


async def test_tokens_are_valid_where_they_were_made_and_for_what(fleet, alice):
    host = fleet.hosts["a"]
    users = {"Authorization": alice.headers["Authorization"]}
    admins = {"Authorization": f"Bearer {fleet.file.entries()['a'].token}"}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert (await client.get(f"{host.url}/v1/sandboxes", headers=users)).status_code == 401
        assert (await client.get(f"{fleet.admin.url}/v1/sandboxes", headers=admins)).status_code == 401
        assert (await client.get(f"{fleet.admin.url}/v1/stats")).status_code == 401
        plain = {"Authorization": f"Bearer {host.token('plain')}"}
        assert (await client.get(f"{host.url}/v1/host", headers=plain)).status_code == 403
        body = {"on_behalf": {"id": "sbx-" + "0" * 16, "owner": "alice", "token": "t", "fingerprint": "f"}}
        forged = await client.post(f"{host.url}/v1/sandboxes", headers=plain, json=body)
        assert (forged.status_code, forged.json()["problems"][0]["field"]) == (422, "on_behalf")
    assert (await alice.post("/v1/sandboxes", json=body)).status_code == 422


async def test_quotas_are_the_admins(fleet):
    few = await fleet.client("few", sandboxes=1, exec_s_per_minute=0.2)
    path = await create(few)
    second = await few.post("/v1/sandboxes", json={})
    assert (second.status_code, "sandboxes" in second.json()["detail"]) == (429, True)
    await few.post(f"{path}/python", json={"code": "import time; time.sleep(0.3)"})
    over = await few.post(f"{path}/exec", json={"argv": ["true"]})
    assert (over.status_code, "exec_s_per_minute" in over.json()["detail"]) == (429, True)
    assert (await few.delete(path)).status_code == 200
    await create(few)


async def test_a_host_registers_itself_and_nobody_takes_its_name(fleet, alice):
    join, other = await fleet.client("join", "host"), await fleet.client("other", "host")
    entry = fleet.file.entries()["b"]
    fleet.file.remove("b")
    body = {"url": entry.url, "token": entry.token}
    for _ in range(2):
        assert (await join.put("/v1/hosts/b2", json=body)).status_code == 204
    await fleet.until_host(alice, "b2", state="up")
    assert "b" not in (await fleet.stats(alice))["hosts"]
    for thief, name in ((other, "b2"), (join, "a")):
        taken = await thief.put(f"/v1/hosts/{name}", json=body | {"token": "pst_x"})
        assert (taken.status_code, "another host has this name" in taken.json()["detail"]) == (403, True)
    assert (await alice.put("/v1/hosts/c", json=body)).status_code == 403
    assert (await join.post("/v1/sandboxes", json={})).status_code == 403
    wrong = await join.put("/v1/hosts/c", json=body | {"url": "http://u:p@h:1/"})
    assert (wrong.status_code, wrong.json()["problems"][0]["field"]) == (422, "url")


async def test_draining_outlives_a_registration(fleet):
    registered = HostEntry(name="c", url="http://h:1", token="t", registered_by="j")
    fleet.file.register(registered)
    fleet.file.drain("c", True)
    fleet.file.register(registered.model_copy(update={"token": "new"}))
    assert fleet.file.entries()["c"].model_dump() == registered.model_dump() | {"token": "new", "draining": True}
    with pytest.raises(NotAllowed):
        fleet.file.register(registered.model_copy(update={"registered_by": "k"}))


async def test_a_host_that_does_not_take_the_admins_token_gets_nobody(fleet, alice):
    fleet.hosts["a"].tokens.revoke("admin")
    await fleet.until_host(alice, "a", state="down")
    stats = await fleet.stats(alice)
    assert "401" in stats["hosts"]["a"]["fault"]
    for _ in range(4):
        await create(alice)
    assert len(fleet.hosts["b"].sandboxes.living()) == 4

    async def queued() -> bool:
        return (await fleet.stats(alice))["queue"] == 1

    assert (await alice.post("/v1/sandboxes", json={"wait_s": 0})).status_code == 202
    await until(queued)
