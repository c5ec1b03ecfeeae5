"""The Sandbox API, as any HTTP client meets it."""

# ruff: noqa: ASYNC110  what happens at the service sets no event here: one has to look again

import asyncio
import base64

import httpx
import pytest

from sandboxes.service.capacity import Capacity, demand_mib
from sandboxes.spec import SandboxSpec
from tests.sandboxes.service.cast import create, until

SMALL = {"timeout_s": 10}


async def test_a_sandbox_from_its_making_to_its_end(alice):
    made = await alice.post("/v1/sandboxes", json={"spec": SMALL, "user": "run 7"})
    assert made.status_code == 201, made.text
    sandbox = made.json()
    path = made.headers["Location"]
    assert (sandbox["state"], sandbox["user"], sandbox["owner"], path) == (
        "open",
        "run 7",
        "alice",
        f"/v1/sandboxes/{sandbox['id']}",
    )
    cell = await alice.post(f"{path}/python", json={"code": "x = 6\nx * 7"})
    assert (cell.json()["outcome"], cell.json()["stdout"]) == ("ok", "42\n")
    stdin = base64.b64encode(b"in\n").decode()
    program = await alice.post(
        f"{path}/exec", json={"argv": ["/bin/sh", "-c", "cat; echo $K; exit 3"], "stdin": stdin, "env": {"K": "v"}}
    )
    assert (program.json()["outcome"], program.json()["exit_code"], program.json()["stdout"]) == ("error", 3, "in\nv\n")
    assert (await alice.delete(path)).json()["state"] == "closed"
    after = await alice.post(f"{path}/python", json={"code": "x"})
    assert (after.status_code, after.json()["detail"]) == (410, "it was closed")
    assert (await alice.delete(path)).status_code == 200, "closing twice is fine"


async def test_files_go_in_and_out_as_they_are(alice):
    path = await create(alice)
    content = bytes(range(256)) * 100
    put = await alice.put(f"{path}/files", params={"path": "a/ü.bin"}, content=content)
    assert put.status_code == 204
    got = await alice.get(f"{path}/files", params={"path": "/work/a/ü.bin"})
    assert (got.content, got.headers["Content-Type"]) == (content, "application/octet-stream")
    missing = await alice.get(f"{path}/files", params={"path": "nowhere"})
    assert (missing.status_code, missing.json()["errno"], missing.json()["path"]) == (409, 2, "nowhere")


async def test_snapshots_prelude_reset_label_and_inspection(alice):
    path = await create(alice)
    await alice.put(f"{path}/prelude", json={"code": "y = 5"})
    await alice.post(f"{path}/python", json={"code": "x = 1"})
    snapshot = (await alice.post(f"{path}/snapshots")).json()["id"]
    await alice.post(f"{path}/python", json={"code": "x = 2"})
    assert (await alice.post(f"{path}/snapshots/{snapshot}/restore")).status_code == 204
    assert (await alice.post(f"{path}/python", json={"code": "x, y"})).json()["stdout"] == "(1, 5)\n"
    assert (await alice.delete(f"{path}/snapshots/{snapshot}")).status_code == 204
    assert (await alice.post(f"{path}/snapshots/{snapshot}/restore")).status_code == 422
    assert (await alice.put(f"{path}/label", json={"text": "turn 3"})).status_code == 204
    inspected = (await alice.get(f"{path}/inspect")).json()
    assert inspected["execs"] == 4
    assert inspected["inside"]["processes"]
    before = (await alice.get(path)).json()["name"]
    assert (await alice.post(f"{path}/reset")).json()["name"] != before
    assert (await alice.post(f"{path}/python", json={"code": "x"})).json()["exception"] == "NameError"


async def test_a_frozen_sandbox_can_be_looked_at_and_closed_and_nothing_else(alice):
    path = await create(alice)
    running = asyncio.create_task(alice.post(f"{path}/exec", json={"argv": ["sleep", "60"], "timeout_s": 60}))
    await until(lambda: execs(alice, path))
    frozen = await alice.post(f"{path}/freeze", json={"reason": "a miner"})
    assert (frozen.json()["state"], frozen.json()["reason"]) == ("frozen", "a miner")
    assert ((await running).status_code, (await running).json()["detail"]) == (423, "a miner")
    assert (await alice.post(f"{path}/python", json={"code": "1"})).status_code == 423
    seen = (await alice.get(f"{path}/inspect")).json()
    assert any("sleep" in process["command"] for process in seen["inside"]["processes"])
    assert (await alice.delete(path)).json()["state"] == "closed"
    assert (await alice.post(f"{path}/python", json={"code": "1"})).status_code == 423


async def execs(client: httpx.AsyncClient, path: str) -> bool:
    inside = (await client.get(f"{path}/inspect")).json()["inside"]
    return any("sleep" in process["command"] for process in inside["processes"])


@pytest.mark.parametrize(
    ("body", "field", "remedy"),
    [
        ({"spec": {"memory_mib": 1}}, "spec.memory_mib", "at least 32"),
        ({"spec": {"backend": "cloud"}}, "spec.backend", "namespaces"),
        ({"spec": {"place": "service"}}, "spec.place", "leave it out"),
        ({"spec": {"egress": {}}}, "spec.egress", 'network = "watched"'),
        ({"spec": {}, "idle": 3}, "idle", "remove"),
        ({"idle_s": 0}, "idle_s", "greater than 0"),
    ],
)
async def test_bad_input_is_reported_with_field_value_and_remedy(alice, body, field, remedy):
    answer = await alice.post("/v1/sandboxes", json=body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json")
    problem = answer.json()["problems"][0]
    assert problem["field"] == field
    assert "value" in problem
    assert remedy in problem["remedy"]


@pytest.mark.parametrize("stdin", ["aGk", "a!Gk=", "aGk=\n", "é", "===="])
async def test_input_that_is_not_base64_is_refused(alice, stdin):
    answer = await alice.post(f"{await create(alice)}/exec", json={"argv": ["cat"], "stdin": stdin})
    (problem,) = answer.json()["problems"]
    assert (answer.status_code, problem["field"], problem["value"]) == (422, "stdin", stdin)
    assert "not base64" in problem["message"]
    assert "standard alphabet" in problem["remedy"]


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        (r'{"user": "\ud800"}', "user", r"'\ud800'"),
        (r'{"\ud800": 1}', "(body)", r"'\ud800'"),
        ('{"idle_s": NaN}', "idle_s", None),
    ],
)
async def test_what_no_text_can_say_is_reported_all_the_same(alice, body, field, value):
    answer = await alice.post("/v1/sandboxes", content=body, headers={"Content-Type": "application/json"})
    problem = answer.json()["problems"][0]
    assert (answer.status_code, problem["field"], problem["value"]) == (422, field, value)


async def test_a_body_that_is_too_long_is_not_read(serve):
    service = await serve(body_bytes=1000)
    alice = await service.client("alice")
    path = await create(alice)
    for content in (bytes(1001), chunks()):
        answer = await alice.put(f"{path}/files", params={"path": "f"}, content=content)
        assert (answer.status_code, "1000 bytes" in answer.json()["detail"]) == (413, True)
    assert (await alice.put(f"{path}/files", params={"path": "f"}, content=bytes(1000))).status_code == 204


async def chunks():
    for _ in range(11):
        yield bytes(100)


async def test_creating_twice_with_one_key_makes_one_sandbox(alice):
    body, key = {"spec": SMALL}, {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(*(alice.post("/v1/sandboxes", json=body, headers=key) for _ in range(3)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len((await alice.get("/v1/sandboxes")).json()["sandboxes"]) == 1
    other = await alice.post("/v1/sandboxes", json={"user": "somebody"}, headers=key)
    assert (other.status_code, "Idempotency-Key" in other.json()["detail"]) == (422, True)


async def test_a_call_is_cancelled_by_its_name_and_its_program_is_dead_then(alice):
    path = await create(alice)
    asked = {"argv": ["sleep", "60"], "timeout_s": 60, "call": "c1"}
    running = asyncio.create_task(alice.post(f"{path}/exec", json=asked))
    await until(lambda: execs(alice, path))
    twice = await alice.post(f"{path}/exec", json=asked)
    assert (twice.status_code, "never run twice" in twice.json()["detail"]) == (409, True)
    assert (await alice.delete(f"{path}/calls/c1")).status_code == 204
    assert not await execs(alice, path)
    assert (await running).status_code == 409
    early = await alice.delete(f"{path}/calls/c2")
    late = await alice.post(f"{path}/exec", json={"argv": ["true"], "call": "c2"})
    assert (early.status_code, late.status_code) == (204, 409)


async def test_a_sandbox_that_nobody_uses_is_closed_and_says_so(alice):
    path = await create(alice, idle_s=0.4)
    busy = await alice.post(f"{path}/exec", json={"argv": ["sleep", "1"]})
    assert busy.json()["outcome"] == "ok", "a call that lasts longer is a use"
    await until(lambda: ended(alice))
    after = await alice.post(f"{path}/python", json={"code": "1"})
    assert (after.status_code, after.json()["detail"]) == (410, "nobody asked anything of it for 0.4 s")


async def ended(client: httpx.AsyncClient) -> bool:
    return (await client.get("/v1/sandboxes")).json()["sandboxes"][0]["state"] in ("closed", "lost")


async def test_a_sandbox_that_dies_is_lost_and_makes_room(serve):
    one = SandboxSpec()
    service = await serve(capacity=Capacity(1, demand_mib(one)))
    alice = await service.client("alice")
    path = await create(alice)
    # Folders nested so deep that no path reaches the last one: it cannot be reset.
    deep = "import os\nfor _ in range(3000):\n  os.mkdir('dd'); os.chdir('dd')"
    await alice.post(f"{path}/python", json={"code": deep, "timeout_s": 10})
    lost = await alice.post(f"{path}/reset")
    assert (lost.status_code, lost.json()["type"]) == (410, "urn:palestra:sandbox:lost")
    assert (await alice.get(path)).json()["state"] == "lost"
    await create(alice)


async def test_what_is_long_over_is_forgotten(serve):
    service = await serve(remembered_s=0.0)
    alice = await service.client("alice")
    path = await create(alice)
    await alice.delete(path)
    await until(lambda: gone(alice, path))


async def gone(client: httpx.AsyncClient, path: str) -> bool:
    return (await client.get(path)).status_code == 404


async def test_the_document_describes_every_answer_and_its_problems(service):
    async with httpx.AsyncClient(trust_env=False) as stranger:
        document = (await stranger.get(f"{service.url}/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert any(status.startswith("2") for status in operation["responses"]), (method, path)
            if path != "/healthz":
                assert "application/problem+json" in operation["responses"]["default"]["content"], (method, path)


async def test_chosen_files_go_from_one_sandbox_to_another(alice):
    source, fresh = await create(alice), await create(alice)
    made = "import os; os.mkdir('out'); open('out/a', 'wb').write(b'\\xff'); os.symlink('/etc/passwd', 'link')"
    await alice.post(f"{source}/python", json={"code": made})
    tree = (await alice.post(f"{source}/tree", json={"paths": ["out"], "alone": True})).json()
    assert tree == {
        "entries": [{"path": "out", "content": None, "executable": False},
                    {"path": "out/a", "content": "/w==", "executable": False}]
    }  # fmt: skip
    assert (await alice.put(f"{fresh}/tree", json=tree)).status_code == 204
    assert (await alice.get(f"{fresh}/files", params={"path": "out/a"})).content == b"\xff"
    for body, status, reported in (
        ({"paths": ["link"]}, 409, "path = 'link': it is a symbolic link"),
        ({"paths": ["../etc"]}, 422, "path = '../etc': it may not be copied"),
        ({"paths": ["out"], "entries": 1}, 409, "limits.entries"),
    ):
        refused = await alice.post(f"{source}/tree", json=body)
        assert (refused.status_code, reported in refused.json()["detail"]) == (status, True), refused.text
    out = await alice.put(f"{fresh}/tree", json={"entries": [{"path": "../x", "content": "eA=="}]})
    assert (out.status_code, "path = '../x'" in out.json()["detail"]) == (422, True)


async def test_a_program_alone_ends_what_was_left_behind(alice):
    path = await create(alice)
    await alice.post(f"{path}/exec", json={"argv": ["/bin/sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"]})
    others = "import os; print({n for n in os.listdir('/proc') if n.isdigit()} - {'1', str(os.getpid())}); exit(4)"
    asked = {"argv": ["python3", "-I", "-c", others], "alone": True}
    result = (await alice.post(f"{path}/exec", json=asked)).json()
    assert (result["exit_code"], result["stdout"]) == (4, "set()\n")
