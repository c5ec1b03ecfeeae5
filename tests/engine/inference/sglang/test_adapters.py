"""Servers that are given adapters alone, next to torch with the adapter added in."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from engine.inference.sglang.client import ServerRefused, SglangClient
from engine.inference.sglang.factory import sglang_generator
from engine.inference.sglang.generator import SglangGenerator
from engine.inference.sglang.identity import WrongServer
from engine.inference.torch.factory import generator_for_folder
from engine.inference.torch.generator import TorchGenerator
from engine.models.origin import ModelOrigin
from engine.models.pretrained import PretrainedNetwork
from engine.models.weights import LoraAdapter, StateDict
from engine.spec.generation import Generated
from engine.spec.model import PretrainedModel
from tests.engine.inference.sglang.conftest import CONTEXT, FLAGS, resources, turn
from tests.engine.inference.sglang.test_servers import (
    CLOSE,
    forced_like,
    given_by_url,
    in_hand,
    kill_server,
    rewards_of,
    three_steps,
    up_again,
)

pytestmark = [pytest.mark.backends, pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]
LORA = {"rank": 8, "alpha": 16}


class Policy:
    """A network with an adapter: its versions as servers get them, and as torch does."""

    def __init__(self, model: PretrainedModel, folder: Path) -> None:
        self.network = PretrainedNetwork.loaded(ModelOrigin(model, folder), seed=0, device=torch.device("cpu"))

    @torch.no_grad()
    def version(self, seed: int) -> tuple[LoraAdapter, StateDict]:
        torch.manual_seed(seed)
        for name, parameter in self.network.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(std=0.05)
        return self.network.exported_adapter(), StateDict(self.network.exported())


@pytest.fixture(scope="session")
def adapted(folder: Path) -> PretrainedModel:
    return PretrainedModel.model_validate({"path": str(folder), "context_tokens": CONTEXT, "lora": LORA})


@pytest.fixture(scope="session")
def policy(adapted: PretrainedModel, folder: Path) -> Policy:
    return Policy(adapted, folder)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def adapted_fleet(adapted: PretrainedModel, server_python: str) -> AsyncIterator[SglangGenerator]:
    settings = resources(servers=2, flags=FLAGS, health_every_s=0.5, start_timeout_s=240)
    made = sglang_generator(adapted, settings, seed=0)
    yield made
    made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def generator(adapted_fleet: SglangGenerator) -> AsyncIterator[SglangGenerator]:
    yield adapted_fleet
    await adapted_fleet.abort_all()


@pytest_asyncio.fixture(loop_scope="session")
async def reference(folder: Path) -> AsyncIterator[TorchGenerator]:
    made = generator_for_folder(folder, context_tokens=CONTEXT, slots=8)
    yield made
    made.close()


async def updated(generator: Any, weights: LoraAdapter | StateDict, version: int) -> None:
    await generator.suspend()
    await generator.load_weights(weights, version)
    await generator.resume()


def clients(generator: SglangGenerator) -> Iterator[SglangClient]:
    assert generator._fleet is not None
    return (server.client for server in generator._fleet.servers)


async def loaded_in(client: SglangClient) -> set[str]:
    """The adapters of a server, by its own list of what can be asked for."""
    models = await client._call("GET", "/v1/models")
    return {model["id"] for model in models["data"] if model.get("parent") is not None}


async def test_log_probs_are_those_of_torch_with_the_adapter_before_and_after_a_reload(
    generator: SglangGenerator, reference: TorchGenerator, policy: Policy
) -> None:
    first_logprobs = set()
    for version in (1, 2):
        adapter, merged = policy.version(seed=version)
        await updated(generator, adapter, version)
        await updated(reference, merged, version)
        for temperature in (0.0, 1.0):
            request = turn(f"v{version} {temperature}", tokens=12, temperature=temperature)
            sampled = await generator.generate(request)
            expected = await forced_like(reference, request, sampled.token_ids)
            assert sampled.logprobs == pytest.approx(expected.logprobs, abs=CLOSE)
            assert sampled.policy_versions == (version,) * 12
        forced = await generator.generate(turn(f"forced {version}", forced_ids=(20, 21, 22)))
        expected = await reference.generate(turn(f"forced {version}", forced_ids=(20, 21, 22)))
        assert forced.logprobs == pytest.approx(expected.logprobs, abs=CLOSE)
        assert forced.policy_versions == (version,) * 3
        first_logprobs.add(round(forced.logprobs[0], 3))
        for client in clients(generator):
            assert await loaded_in(client) == {client.adapter.name if client.adapter else None}, "the older one is gone"
    assert len(first_logprobs) == 2


async def test_what_was_read_with_an_older_adapter_is_read_again(generator: SglangGenerator, policy: Policy) -> None:
    prompt = tuple(range(100, 200))

    async def cached(name: str) -> int:
        assert generator._fleet is not None
        before = sum(server.cached_tokens for server in generator._fleet.servers)
        await generator.generate(turn(name, ids=prompt, tokens=1))
        return sum(server.cached_tokens for server in generator._fleet.servers) - before

    for version in (3, 4):
        await updated(generator, policy.version(seed=version)[0], version)
        assert await cached(f"new {version}") == 0
        assert await cached(f"again {version}") == 99


async def test_tokens_of_one_turn_carry_the_adapters_that_sampled_them(
    generator: SglangGenerator, reference: TorchGenerator, policy: Policy
) -> None:
    await updated(generator, policy.version(seed=0)[0], 0)
    adapter, merged = policy.version(seed=5)
    heard: list[tuple[int, float]] = []

    async def one(n: int) -> Generated:
        request = turn(f"flight {n}", ids=(5, n), tokens=240)
        if n % 2:
            return await generator.generate(request)
        return await generator.stream(request, lambda token, logprob: heard.append((token, logprob)) if not n else None)

    pending = []
    for n in range(12):
        pending.append(asyncio.create_task(one(n)))
        await asyncio.sleep(0.05)
    await updated(generator, adapter, 5)
    answers = await asyncio.gather(*pending)
    assert heard == list(zip(answers[0].token_ids, answers[0].logprobs, strict=True))
    both = [n for n, answer in enumerate(answers) if set(answer.policy_versions) == {0, 5}]
    assert both, "the update came before or after every turn"
    await updated(reference, merged, 5)
    for n in both[:4]:
        answer = answers[n]
        assert list(answer.policy_versions) == sorted(answer.policy_versions)
        assert len(answer.policy_versions) == len(answer.token_ids) == 240
        expected = await forced_like(reference, turn(f"{n}", ids=(5, n)), answer.token_ids)
        new = answer.policy_versions.index(5)
        assert answer.logprobs[new:] == pytest.approx(expected.logprobs[new:], abs=CLOSE)


async def test_turns_that_are_held_go_on_where_they_were_and_are_never_given_up(
    generator: SglangGenerator, policy: Policy
) -> None:
    """More often than a server may abort one without a token; those that wait in it have none."""
    await updated(generator, policy.version(seed=0)[0], 0)
    undisturbed = await generator.generate(turn("calm", tokens=200))
    pending = [asyncio.create_task(generator.generate(turn(f"held {n}", tokens=200))) for n in range(40)]
    for _ in range(5):
        await in_hand(generator)
        await generator.suspend()
        assert not any(client._under_way for client in clients(generator))
        await generator.resume()
    answers = await asyncio.gather(*pending)
    assert {answer.token_ids for answer in answers} == {undisturbed.token_ids}


async def test_an_adapter_within_requests_is_that_of_a_folder_and_nobody_else_is_paused(
    generator: SglangGenerator,
    reference: TorchGenerator,
    adapted: PretrainedModel,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    await updated(generator, policy.version(seed=0)[0], 0)
    given = given_by_url(generator, monkeypatch, tmp_path)
    by_tensor = sglang_generator(adapted, resources(**given, weights="tensor"), seed=0)
    adapter, merged = policy.version(seed=6)
    for version in (6, 7):
        await updated(by_tensor, adapter, version)
    sampled = await by_tensor.generate(turn("tensor"))
    await reference.load_weights(merged, 7)
    expected = await forced_like(reference, turn("t"), sampled.token_ids)
    assert sampled.policy_versions == (7,) * 8
    assert sampled.logprobs == pytest.approx(expected.logprobs, abs=CLOSE)
    await by_tensor.suspend()
    assert len((await generator.generate(turn("of the other run"))).token_ids) == 8
    assert [len(await loaded_in(client)) for client in clients(generator)] == [2, 2]
    by_tensor.close()
    assert [len(await loaded_in(client)) for client in clients(generator)] == [1, 1]
    assert not list(tmp_path.iterdir())


async def test_servers_that_cannot_take_the_adapter_are_named(
    generator: SglangGenerator,
    adapted: PretrainedModel,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    adapter, _ = policy.version(seed=0)
    await updated(generator, adapter, 0)
    given = given_by_url(generator, monkeypatch, tmp_path)
    larger = adapted.model_copy(update={"lora": adapted.lora and adapted.lora.model_copy(update={"rank": 16})})
    refused = sglang_generator(larger, resources(**given), seed=0)
    with pytest.raises(WrongServer, match=r"adapters of rank 8.*--max-lora-rank 16.*merged"):
        await refused.suspend()
    refused.close()
    unknown = LoraAdapter({**adapter.config, "target_modules": ["lm_head"]}, adapter.factors)
    with pytest.raises(ServerRefused, match=rf"({'|'.join(given['urls'])})/load_lora_adapter answered 400.*rank 8"):
        await updated(generator, unknown, 1)
    await generator.resume()
    with pytest.raises(TypeError, match="StateDict is no adapter"):
        await generator.load_weights(StateDict({}), 1)
    assert set((await generator.generate(turn("after"))).policy_versions) == {0}


async def test_servers_without_lora_and_with_other_weights_are_refused(
    fleet: SglangGenerator,
    weights: StateDict,
    other_weights: StateDict,
    adapted: PretrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    await updated(fleet, other_weights, 7)
    given = given_by_url(fleet, monkeypatch, tmp_path)
    refused = sglang_generator(adapted, resources(**given), seed=0)
    with pytest.raises(WrongServer, match="takes none.*--enable-lora"):
        await refused.suspend()
    refused.close()
    await updated(fleet, weights, 0)


@pytest.mark.soak  # test_servers.py kills one between two whole weights
@pytest.mark.timeout(900)
async def test_a_server_killed_between_reloads_costs_no_turn_and_comes_back_with_the_newest_adapter(
    generator: SglangGenerator, reference: TorchGenerator, policy: Policy
) -> None:
    adapter, merged = policy.version(seed=8)
    await updated(generator, policy.version(seed=0)[0], 7)
    await updated(generator, adapter, 8)
    await updated(reference, merged, 8)
    undisturbed = [await reference.generate(turn(f"t{n}", ids=(5, n), tokens=200)) for n in range(6)]
    fleet = generator._fleet
    assert fleet is not None
    generator.reports()
    pending = [asyncio.create_task(generator.generate(turn(f"k{n}", ids=(5, n), tokens=200))) for n in range(6)]
    await in_hand(generator, servers=2)
    kill_server(fleet.servers[0])
    async with asyncio.timeout(120):
        answers = await asyncio.gather(*pending)
    for answer, expected in zip(answers, undisturbed, strict=True):
        assert answer.token_ids == expected.token_ids
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=CLOSE)
    newer, merged = policy.version(seed=9)
    await updated(generator, newer, 9)  # while it is on its way
    await updated(reference, merged, 9)
    await up_again(fleet.servers[0], fleet)
    assert fleet.servers[0].version == 9
    fleet.servers[1].is_up = False  # so that the one which came back is asked
    again = await generator.generate(turn("again", tokens=20))
    fleet.servers[1].is_up = True
    expected = await forced_like(reference, turn("again"), again.token_ids)
    assert again.logprobs == pytest.approx(expected.logprobs, abs=CLOSE)
    assert set(again.policy_versions) == {9}


@pytest.mark.soak  # test_servers.py has three steps with whole weights, and above log-probs are compared
@pytest.mark.timeout(900)
async def test_three_steps_of_grpo_with_lora_have_the_rewards_of_the_torch_generator(
    generator: SglangGenerator, policy: Policy, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await updated(generator, policy.version(seed=0)[0], 0)
    given = given_by_url(generator, monkeypatch, tmp_path / "exchange")
    rewards = {}
    for name, of_run in (("torch", {"generator": "torch"}), ("sglang", {"generator": "sglang", "sglang": given})):
        spec = three_steps(folder, of_run, lora=LORA)
        rewards[name] = await rewards_of(spec, tmp_path / name)
    assert len(rewards["torch"]) == 3 * 8
    assert rewards["sglang"] == rewards["torch"]
    assert not list((tmp_path / "exchange").iterdir())
