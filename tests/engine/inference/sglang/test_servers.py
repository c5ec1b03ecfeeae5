"""SGLang servers next to the torch generator: the same numbers, and what becomes of turns when something happens."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from engine.cluster.in_process import InProcessWorkers
from engine.inference.interface import GenerationAborted
from engine.inference.sglang.client import ServerRefused
from engine.inference.sglang.factory import KEYS, sglang_generator
from engine.inference.sglang.generator import SglangGenerator
from engine.inference.sglang.identity import Expected, WrongServer
from engine.inference.sglang.servers import Fleet, Server
from engine.inference.torch.factory import generator_for_folder
from engine.inference.torch.generator import TorchGenerator
from engine.launch.sample_model import SHAPE, sample_texts
from engine.models.random_folder import write_random_model
from engine.models.weights import StateDict
from engine.spec.generation import Generated, GenerateRequest, Truncation
from engine.spec.model import PretrainedModel
from engine.spec.run import RunSpec
from engine.training.columns import UpdateRequest
from tests.engine.groups import grouped, requests_of
from tests.engine.inference.sglang.conftest import CONTEXT, resources, turn

pytestmark = [pytest.mark.backends, pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]
CLOSE = 1e-4
"""Nats between two implementations in float32."""


@pytest_asyncio.fixture(loop_scope="session")
async def torch_generator(folder: Path, weights: StateDict) -> AsyncIterator[TorchGenerator]:
    made = generator_for_folder(folder, context_tokens=CONTEXT, slots=8)
    await made.load_weights(weights, 0)
    yield made
    made.close()


async def forced_like(reference: TorchGenerator, request: GenerateRequest, tokens: tuple[int, ...]) -> Generated:
    return await reference.generate(turn("forced" + request.session, ids=request.new_ids, forced_ids=tokens))


async def updated(generator: SglangGenerator | TorchGenerator, weights: StateDict, version: int) -> None:
    await generator.suspend()
    await generator.load_weights(weights, version)
    await generator.resume()


async def test_log_probs_are_those_of_the_torch_generator_before_and_after_an_update(
    generator: SglangGenerator, torch_generator: TorchGenerator, other_weights: StateDict
) -> None:
    logprobs = {}
    for version, temperature in ((0, 0.0), (0, 1.0), (0, 2.0), (7, 1.0)):
        if version:
            await updated(generator, other_weights, version)
            await updated(torch_generator, other_weights, version)
        request = turn(f"v{version} {temperature}", tokens=12, temperature=temperature)
        sampled = await generator.generate(request)
        reference = await forced_like(torch_generator, request, sampled.token_ids)
        assert sampled.logprobs == pytest.approx(reference.logprobs, abs=CLOSE)
        assert sampled.policy_versions == (version,) * 12
        logprobs[version] = sampled.logprobs
    assert abs(logprobs[0][0] - logprobs[7][0]) > 0.01


async def test_greedy_turns_of_a_session_go_on_as_the_torch_generators_do(
    generator: SglangGenerator, torch_generator: TorchGenerator
) -> None:
    for request in (turn(tokens=6), turn(ids=(9, 10), tokens=6)):
        ours, theirs = await generator.generate(request), await torch_generator.generate(request)
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=CLOSE)
    for each in (generator, torch_generator):
        await each.rewind("s", 10)
    ours, theirs = await generator.generate(turn(ids=(11,))), await torch_generator.generate(turn(ids=(11,)))
    assert ours.token_ids == theirs.token_ids
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=CLOSE)


async def test_forced_tokens_have_the_log_probs_that_the_torch_generator_gives_them(
    generator: SglangGenerator, torch_generator: TorchGenerator
) -> None:
    for request in (turn(forced_ids=(20, 21, 22)), turn(ids=(30,), forced_ids=(31,))):
        ours, theirs = await generator.generate(request), await torch_generator.generate(request)
        assert ours == Generated(request.forced_ids, ours.logprobs, theirs.policy_versions, "stop")
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=CLOSE)


async def test_truncated_log_probs_are_those_of_what_is_sampled_from(
    generator: SglangGenerator, torch_generator: TorchGenerator
) -> None:
    cut = {
        "temperature": 1.5,
        "logprob_temperature": 1.5,
        "truncation": Truncation(top_k=5),
        "logprobs_truncated": True,
    }
    request = turn("cut", tokens=10, **cut)
    sampled = await generator.generate(request)
    reference = await torch_generator.generate(turn("forced", forced_ids=sampled.token_ids, **cut))
    assert sampled.logprobs == pytest.approx(reference.logprobs, abs=CLOSE)


async def test_a_turn_ends_by_its_own_stop_ids_and_not_by_the_models(
    generator: SglangGenerator, weights: StateDict, folder: Path
) -> None:
    plain = await generator.generate(turn("plain", tokens=6))
    stop = plain.token_ids[2]
    stopped = await generator.generate(turn("stopped", tokens=6, stop_ids=frozenset({stop})))
    assert stopped.token_ids == plain.token_ids[: plain.token_ids.index(stop) + 1]
    assert stopped.stopped_by == "stop"
    eos = 782  # of config.json: where it is the likeliest token, a server ends and the turn goes on
    loud = StateDict(weights | {"model.norm.weight": weights["model.norm.weight"] * 0})
    await updated(generator, loud, 1)
    everything_alike = await generator.generate(turn("flat", tokens=40, temperature=1.0))
    assert len(everything_alike.token_ids) == 40
    assert eos in range(len(weights["model.embed_tokens.weight"]))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.7, "logprob_temperature": 0.7, "truncation": Truncation(top_k=5), "logprobs_truncated": True},
    ],
    ids=["greedy", "truncated"],
)
async def test_a_streamed_turn_comes_token_by_token(generator: SglangGenerator, changes: dict[str, Any]) -> None:
    heard: list[tuple[int, float]] = []
    parts: list[int] = []

    def on_token(token: int, logprob: float) -> None:
        heard.append((token, logprob))

    streaming = asyncio.create_task(generator.stream(turn("streamed", tokens=60, **changes), on_token))
    while not streaming.done():
        await asyncio.sleep(0.001)
        if not parts or parts[-1] < len(heard):
            parts.append(len(heard))
    streamed = await streaming
    assert heard == list(zip(streamed.token_ids, streamed.logprobs, strict=True))
    assert len(parts) > 3
    assert (len(streamed.token_ids), set(streamed.policy_versions), streamed.stopped_by) == (60, {0}, "length")
    if not changes:
        whole = await generator.generate(turn("whole", tokens=60))
        assert whole.token_ids == streamed.token_ids
        assert whole.logprobs == pytest.approx(streamed.logprobs, abs=CLOSE)


async def test_a_full_context_ends_a_turn_and_leaves_no_room_for_another(generator: SglangGenerator) -> None:
    almost = tuple(range(1, CONTEXT - 1))
    last = await generator.generate(turn("full", ids=almost, tokens=10))
    assert (len(last.token_ids), last.stopped_by) == (2, "context")
    assert await generator.generate(turn("full", ids=(1,), tokens=1)) == Generated((), (), (), "context")


async def in_hand(generator: SglangGenerator, *, servers: int = 1) -> None:
    """Wait until so many servers have a turn in hand."""
    fleet = generator._fleet
    assert fleet is not None
    for _ in range(6000):
        if sum(bool(server.in_hand) for server in fleet.servers) >= servers:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"no turn came to {servers} servers within a minute")


async def test_tokens_of_one_turn_carry_the_versions_that_sampled_them(
    generator: SglangGenerator, torch_generator: TorchGenerator, other_weights: StateDict
) -> None:
    """Turns begin one after the other, so that the update meets some in their middle however fast they are."""
    pending = []
    for n in range(12):
        pending.append(asyncio.create_task(generator.generate(turn(f"flight {n}", ids=(5, n), tokens=240))))
        await asyncio.sleep(0.05)
    await updated(generator, other_weights, 3)
    answers = await asyncio.gather(*pending)
    both = [answer for answer in answers if set(answer.policy_versions) == {0, 3}]
    assert both, "the update came before or after every turn"
    await torch_generator.load_weights(other_weights, 3)
    for answer in both[:4]:  # the reference has a slot for each of them
        assert list(answer.policy_versions) == sorted(answer.policy_versions)
        assert len(answer.policy_versions) == len(answer.token_ids) == 240
        # What servers had read is read again with the new weights: later log-probs are exactly theirs.
        number = answers.index(answer)
        reference = await forced_like(torch_generator, turn(f"{number}", ids=(5, number)), answer.token_ids)
        new = answer.policy_versions.index(3)
        assert answer.logprobs[new:] == pytest.approx(reference.logprobs[new:], abs=CLOSE)


async def test_suspended_servers_sample_nothing_and_go_on_where_they_were(generator: SglangGenerator) -> None:
    undisturbed = await generator.generate(turn("calm", tokens=240))
    pending = asyncio.create_task(generator.generate(turn("paused", tokens=240)))
    await in_hand(generator)
    await generator.suspend()
    await asyncio.sleep(1.0)
    assert not pending.done()
    await generator.resume()
    assert (await pending).token_ids == undisturbed.token_ids


async def test_a_servers_key_is_on_no_command_line(generator: SglangGenerator) -> None:
    """Which every user of the machine can read; and the server asks for that key all the same."""
    assert generator._fleet is not None
    for server in generator._fleet.servers:
        assert server.process is not None
        keeper = psutil.Process(server.process.pid)
        family = [keeper, *keeper.children(recursive=True)]
        assert len(family) > 2
        assert not any(server.process.api_key in word for member in family for word in member.cmdline())
        async with httpx.AsyncClient(trust_env=False) as stranger:
            assert (await stranger.get(f"{server.client.url}/model_info")).status_code == 401


async def test_released_and_aborted_turns_end_at_once(generator: SglangGenerator) -> None:
    pending = [asyncio.create_task(generator.generate(turn(name, tokens=240))) for name in ("a", "b", "c")]
    await in_hand(generator)
    await generator.release("a")
    with pytest.raises(GenerationAborted):
        await pending[0]
    await generator.abort_all()
    for aborted in pending[1:]:
        with pytest.raises(GenerationAborted):
            await aborted
    assert (generator.stats()["sessions"], generator.stats()["waiting"]) == (0, 0)


async def test_a_session_stays_with_its_server_and_reads_only_what_is_new(generator: SglangGenerator) -> None:
    begun = generator.stats()
    prompt = tuple(range(100, 200))
    await generator.generate(turn("first", ids=prompt, tokens=4))
    await asyncio.gather(*(generator.generate(turn(f"member {n}", ids=prompt, tokens=4)) for n in range(6)))
    fleet = generator._fleet
    assert fleet is not None
    assert len({generator._router._server_of[f"member {n}"] for n in range(6)}) == 1
    servers = fleet.servers
    assert sum(server.cached_tokens for server in servers) >= 6 * 99
    assert generator.stats()["cache_hit_rate"] > begun["cache_hit_rate"]


def given_by_url(generator: SglangGenerator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The servers of ``generator`` as another one would be told of them."""
    assert generator._fleet is not None
    processes = [server.process for server in generator._fleet.servers]
    monkeypatch.setenv(KEYS, " ".join(f"{process.url}={process.api_key}" for process in processes))
    return {"urls": [process.url for process in processes], "exchange_folder": str(tmp_path)}


@pytest.mark.parametrize("way", ["tensor", "broadcast"])
async def test_weights_within_requests_or_over_a_group_are_those_of_a_folder(
    generator: SglangGenerator,
    torch_generator: TorchGenerator,
    model: PretrainedModel,
    other_weights: StateDict,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    way: str,
) -> None:
    given = given_by_url(generator, monkeypatch, tmp_path)
    by_that = sglang_generator(model, resources(**given, weights=way), seed=0)
    for version in (3, 4):
        await updated(by_that, other_weights, version)
    sampled = await by_that.generate(turn(way, tokens=8))
    by_that.close()
    await torch_generator.load_weights(other_weights, 4)
    reference = await forced_like(torch_generator, turn("t"), sampled.token_ids)
    assert sampled.policy_versions == (4,) * 8
    assert sampled.logprobs == pytest.approx(reference.logprobs, abs=CLOSE)
    assert not list(tmp_path.iterdir())


async def test_servers_of_another_model_are_refused_and_live_on(
    generator: SglangGenerator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = given_by_url(generator, monkeypatch, tmp_path / "exchange")
    for name, vocabulary, shape, reason in (
        ("wider", 1024, SHAPE | {"hidden_size": 256}, "hidden_size = 192"),
        ("smaller", 512, SHAPE, "vocab_size"),
    ):
        write_random_model(
            tmp_path / name, family="qwen3", seed=0, texts=sample_texts(0), vocabulary=vocabulary, **shape
        )
        other = PretrainedModel(path=str(tmp_path / name), context_tokens=CONTEXT)
        refused = sglang_generator(other, resources(**given), seed=0)
        with pytest.raises(WrongServer, match=reason):
            await refused.suspend()
        refused.close()
    config = tmp_path / "smaller" / "config.json"
    unseen = Expected(json.loads(config.read_text()), 512, CONTEXT, "one")
    assert generator._fleet is not None
    with pytest.raises(WrongServer, match="more tokens"):
        await unseen._check_vocabulary(generator._fleet.servers[0].client)
    with pytest.raises(WrongServer, match='log-probs at "one"'):
        await Expected({}, 0, CONTEXT, "sampling")._check_logprobs(generator._fleet.servers[0].client)
    assert len((await generator.generate(turn("after"))).token_ids) == 8


async def test_three_steps_of_grpo_have_the_rewards_of_the_torch_generator(
    generator: SglangGenerator, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = given_by_url(generator, monkeypatch, tmp_path / "exchange")
    rewards = {}
    for name, of_run in (("torch", {"generator": "torch"}), ("sglang", {"generator": "sglang", "sglang": given})):
        spec = three_steps(folder, of_run)
        rewards[name] = await rewards_of(spec, tmp_path / name)
    assert len(rewards["torch"]) == 3 * 8
    assert rewards["sglang"] == rewards["torch"]
    assert not list((tmp_path / "exchange").iterdir())


def three_steps(folder: Path, of_run: dict[str, Any], **of_model: Any) -> RunSpec:
    """Greedy as far as a run can be: only the likeliest token is kept."""
    demonstrations = {"kind": "demonstrations", "count": 64, "wrong_fraction": 0.3}
    return RunSpec.model_validate(
        {
            "name": "three steps",
            "seed": 3,
            "environment": {"id": "python-math", "levels": [1], "max_turns": 2, "max_turn_tokens": 12},
            "model": {"kind": "pretrained", "path": str(folder), "context_tokens": 384, **of_model},
            "recipe": {"preset": "grpo", "stages": [{"data": demonstrations, "steps": 30, "batch_size": 8}]},
            "resources": {"threads": 1, "kv_slots": 16, "sandboxes": 4, **of_run},
            "schedule": {
                "steps": 3, "prompts_per_step": 4, "group_size": 2, "minibatch_trajectories": 8, "top_k": 1,
            },
        }
    )  # fmt: skip


async def rewards_of(spec: RunSpec, folder: Path) -> list[tuple[str, float, tuple[tuple[int, ...], ...]]]:
    """The id, reward and sampled ids of each rollout of three steps.

    A supervised stage comes first: what the servers are given are then not the folder's weights.
    """
    workers = InProcessWorkers(spec, security_log=folder)
    await workers.start()
    rewards = []
    try:
        await workers.supervised(0, 1, 30)
        for step in range(1, 4):
            await workers.sync_weights(step)
            groups = grouped((await workers.collect(requests_of(spec, step))).trajectories)
            await workers.credit(groups, (), step=step)
            await workers.update(UpdateRequest.of(step, groups, (), credited=True))
            rollouts = [rollout for group in groups for rollout in group.rollouts]
            assert {version for rollout in rollouts for turn in rollout.turns for version in turn.policy_versions} == {
                step
            }
            rewards += [
                (each.id, each.reward, tuple(tuple(turn.token_ids) for turn in each.turns)) for each in rollouts
            ]
    finally:
        await workers.close()
    return rewards


async def test_a_server_that_comes_up_is_paused_for_its_weights(
    generator: SglangGenerator, weights: StateDict, other_weights: StateDict
) -> None:
    """It answers a check before it puts the check's batch away, and refuses weights as long as it holds one."""
    await updated(generator, weights, 1)
    fleet = generator._fleet
    assert fleet is not None
    server, asked = fleet.servers[0], []

    async def note(request: httpx.Request) -> None:
        if request.url.path != "/model_info":  # of the watcher, which looks meanwhile
            asked.append(request.url.path)

    await fleet._exchange.take(other_weights, 2)
    server.client._http.event_hooks = {"request": [note]}
    try:
        await fleet._bring_newest(server)
    finally:
        server.client._http.event_hooks = {}
    assert asked == ["/pause_generation", "/server_info", "/update_weights_from_disk", "/continue_generation"]
    assert server.version == 2
    assert (await server.client.generate("after", (5, 6), {"max_new_tokens": 2}, behaviour_logprobs=False)).versions


async def test_a_server_goes_on_after_weights_that_it_refuses(
    generator: SglangGenerator, weights: StateDict, tmp_path: Path
) -> None:
    """One that was given by its address would else be left asleep for whoever it belongs to."""
    await updated(generator, weights, 1)
    fleet = generator._fleet
    assert fleet is not None
    client = fleet.servers[0].client
    with pytest.raises(ServerRefused):
        async with client.paused():
            await client.load_folder(str(tmp_path / "nothing"), 2)
    async with asyncio.timeout(60):
        assert (await client.generate("awake", (5, 6), {"max_new_tokens": 2}, behaviour_logprobs=False)).token_ids


@pytest.mark.timeout(420)  # a server starts twice
async def test_a_killed_server_costs_no_turn_and_comes_back_with_the_newest_weights(
    generator: SglangGenerator, torch_generator: TorchGenerator, other_weights: StateDict
) -> None:
    await updated(generator, other_weights, 5)
    await torch_generator.load_weights(other_weights, 5)
    undisturbed = {n: await torch_generator.generate(turn(f"t{n}", ids=(5, n), tokens=200)) for n in range(6)}
    generator.reports()
    fleet = generator._fleet
    assert fleet is not None
    heard: list[list[tuple[int, float]]] = [[] for _ in range(6)]

    async def one(n: int) -> Generated:
        request = turn(f"kill {n}", ids=(5, n), tokens=200)
        if n % 2:
            return await generator.generate(request)
        return await generator.stream(request, lambda token, logprob: heard[n].append((token, logprob)))

    pending = [asyncio.create_task(one(n)) for n in range(6)]
    await in_hand(generator, servers=2)
    async with asyncio.timeout(60):
        while not all(heard[::2]):  # noqa: ASYNC110 - so that streams are killed in the middle
            await asyncio.sleep(0.01)
    kill_server(fleet.servers[0])
    async with asyncio.timeout(120):
        answers = await asyncio.gather(*pending)
    for n, answer in enumerate(answers):
        assert answer.token_ids == undisturbed[n].token_ids
        assert answer.logprobs == pytest.approx(undisturbed[n].logprobs, abs=CLOSE)
        assert set(answer.policy_versions) == {5}
        assert not n % 2 or heard[n] == []
        # What was heard of a turn before its server died stands in it.
        assert n % 2 or heard[n] == list(zip(answer.token_ids, answer.logprobs, strict=True))
    assert generator.stats()["asked_again"] >= 1
    await up_again(fleet.servers[0], fleet)
    assert fleet.servers[0].version == 5
    messages = [message for _, message in generator.reports()]
    assert any("is gone" in message for message in messages)
    assert any("is up again (restart 1)" in message for message in messages)
    fleet.servers[1].is_up = False  # so that the one which came back is asked
    again = await generator.generate(turn("again", ids=(5, 0), tokens=200))
    fleet.servers[1].is_up = True
    assert again.logprobs == pytest.approx(undisturbed[0].logprobs, abs=CLOSE)


async def up_again(server: Server, fleet: Fleet) -> None:
    """Raises what ended the fleet; where nothing happens for minutes, says what the server wrote."""
    assert server.process is not None
    try:
        async with asyncio.timeout(240), fleet._changed:
            await fleet._changed.wait_for(lambda: server.is_up or fleet._failure)
    except TimeoutError:
        log = server.process.log.read_text(errors="replace")[-6000:]
        pytest.fail(f"{server} did not come back; {fleet.reports()}; it wrote:\n{log}")
    if fleet._failure is not None:
        raise fleet._failure


def kill_server(server: Server) -> None:
    """With kill -9, and nothing but the process that leads the server's others."""
    assert server.process is not None
    assert server.process.pid is not None
    leader = psutil.Process(server.process.pid).children()[0]
    os.kill(leader.pid, signal.SIGKILL)
