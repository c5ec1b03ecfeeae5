"""The three dialects, as an agent that calls a tool speaks them: verbatim answers extend a segment."""

import json

import pytest

from engine.spec.message import AssistantMessage, ToolRequest
from tests.engine.rollout.agents.endpoints import endpoint, scripted
from tests.engine.rollout.agents.test_capture import qwen3

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"code": {"type": "string"}, "n": {"type": "integer"}}}
BOTH = ToolRequest("python", {"code": "1 < 2", "n": 3}), ToolRequest("python", {"code": "é"})
TURNS = AssistantMessage("I look.", BOTH), AssistantMessage("It is true.")


class ChatAgent:
    path = CHAT

    def __init__(self):
        self.messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it?"}]

    def asks(self):
        tool = {"type": "function", "function": {"name": "python", "parameters": SCHEMA}}
        return {"model": "m", "messages": self.messages, "tools": [tool]}

    def takes(self, document):
        [choice] = document["choices"]
        self.messages.append(choice["message"])
        calls = choice["message"].get("tool_calls", [])
        self.messages += [{"role": "tool", "tool_call_id": call["id"], "content": "yes"} for call in calls]
        return choice["message"]["content"], [json.loads(call["function"]["arguments"]) for call in calls]

    @staticmethod
    def joined(events):
        """The answer that the chunks of a stream come to."""
        deltas = [event["choices"][0] for event in events if event["choices"]]
        content = "".join(choice["delta"].get("content", "") for choice in deltas)
        calls = [call for choice in deltas for call in choice["delta"].get("tool_calls", [])]
        message = {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})
        return {"choices": [{"message": message, "finish_reason": deltas[-1]["finish_reason"]}]}


class MessagesAgent:
    path = MESSAGES

    def __init__(self):
        self.messages = [{"role": "user", "content": [{"type": "text", "text": "Is it?"}]}]

    def asks(self):
        tool = {"name": "python", "input_schema": SCHEMA}
        return {"model": "m", "max_tokens": 200, "system": "Be brief.", "messages": self.messages, "tools": [tool]}

    def takes(self, document):
        self.messages.append({"role": "assistant", "content": document["content"]})
        calls = [block for block in document["content"] if block["type"] == "tool_use"]
        if calls:
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "yes"} for call in calls]
            self.messages.append({"role": "user", "content": results})
        text = "".join(block["text"] for block in document["content"] if block["type"] == "text")
        return text, [call["input"] for call in calls]

    @staticmethod
    def joined(events):
        blocks = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"]))
            elif event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
                blocks[-1]["text"] += event["delta"]["text"]
            elif event["type"] == "content_block_delta":
                blocks[-1]["input"] = json.loads(event["delta"]["partial_json"])
        assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
        return {"content": blocks}


class ResponsesAgent:
    path = RESPONSES

    def __init__(self):
        self.items = [{"role": "user", "content": "Is it?"}]

    def asks(self):
        tool = {"type": "function", "name": "python", "parameters": SCHEMA}
        return {"model": "m", "instructions": "Be brief.", "input": self.items, "tools": [tool]}

    def takes(self, document):
        self.items += document["output"]
        calls = [item for item in document["output"] if item["type"] == "function_call"]
        self.items += [{"type": "function_call_output", "call_id": call["call_id"], "output": "yes"} for call in calls]
        texts = [part["text"] for item in document["output"] if item["type"] == "message" for part in item["content"]]
        return "".join(texts), [json.loads(call["arguments"]) for call in calls]

    @staticmethod
    def joined(events):
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.completed"]
        return events[-1]["response"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", [ChatAgent, MessagesAgent, ResponsesAgent])
async def test_an_answer_that_is_sent_back_as_it_came_goes_on_in_its_segment(kind, stream):
    renderer = qwen3()
    agent = kind()
    async with endpoint(scripted(renderer, *TURNS), turn_tokens=400) as open_to:
        answers = []
        for _ in TURNS:
            status, document = await open_to.post(agent.path, agent.asks() | {"stream": stream})
            assert status == 200
            answers.append(agent.takes(agent.joined(document) if stream else document))
        assert answers == [
            ("I look.", [{"code": "1 < 2", "n": 3}, {"code": "é"}]),
            ("It is true.", []),
        ]
        [segment] = open_to.model.segments()
    assert [turn.token_ids for turn in segment.turns] == [renderer.write(turn, ()) for turn in TURNS]
    assert [call.output for call in segment.turns[0].tool_calls] == ["yes", "yes"]
    assert "Be brief." in segment.turns[0].context_text
    assert [turn.answered for turn in segment.turns] == [False, True]


async def test_all_dialects_read_the_same_conversation_as_the_same_ids():
    renderer, contexts = qwen3(), []
    for kind in (ChatAgent, MessagesAgent, ResponsesAgent):
        agent = kind()
        async with endpoint(scripted(renderer, *TURNS), turn_tokens=400) as open_to:
            for _ in TURNS:
                agent.takes((await open_to.post(agent.path, agent.asks()))[1])
            contexts.append([call.context.token_ids for call in open_to.model.calls])
    assert contexts[0] == contexts[1] == contexts[2]


async def test_a_turn_that_is_cut_says_so_and_can_be_gone_on_from():
    renderer = qwen3()
    for kind, expected in ((ChatAgent, "length"), (MessagesAgent, "max_tokens"), (ResponsesAgent, "incomplete")):
        agent, limit = kind(), {CHAT: "max_tokens", MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}[kind.path]
        async with endpoint(scripted(renderer, TURNS[1]), turn_tokens=400) as open_to:
            _, document = await open_to.post(agent.path, agent.asks() | {limit: 2})
            assert expected in json.dumps(document)
            agent.takes(document)
            read = agent.items if kind is ResponsesAgent else agent.messages
            read.append({"role": "user", "content": "go on"})
            assert (await open_to.post(agent.path, agent.asks()))[0] == 200
            [segment] = open_to.model.segments()
            assert [len(turn.token_ids) for turn in segment.turns] == [2, len(renderer.write(TURNS[1], ()))]
            assert segment.turns[1].context_ids[0] == renderer.end_id


async def test_choices_seeds_log_probs_and_usage():
    renderer = qwen3()
    async with endpoint(scripted(renderer, TURNS[1]), turn_tokens=400) as open_to:
        asked = ChatAgent().asks() | {"n": 3, "logprobs": True, "seed": 5}
        _, document = await open_to.post(CHAT, asked)
        assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
        first = open_to.model.calls[0]
        tokens = document["choices"][0]["logprobs"]["content"]
        assert [token["logprob"] for token in tokens] == list(first.generated.logprobs)
        assert document["usage"] == {
            "prompt_tokens": len(first.context.token_ids),
            "completion_tokens": 3 * len(first.generated.token_ids),
            "total_tokens": len(first.context.token_ids) + 3 * len(first.generated.token_ids),
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        }
        assert len(open_to.model.segments()) == 3


async def test_a_seed_of_the_agents_decides_the_draws_and_differs_between_choices():
    policy = scripted(qwen3(), TURNS[1])
    seeds, generate = [], policy.generate

    async def noted(asked):
        seeds.append(asked.seed)
        return await generate(asked)

    policy.generate = noted
    async with endpoint(policy, turn_tokens=400) as open_to:
        for seed in (5, 5, 6, None, None):
            await open_to.post(CHAT, ChatAgent().asks() | {"seed": seed})
        await open_to.post(CHAT, ChatAgent().asks() | {"seed": 5, "n": 2})
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(seeds)) == 5
    assert seeds[5] == seeds[0] != seeds[6]
