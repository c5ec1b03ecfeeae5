"""Renderers and an environment for episodes of several segments, several calls a turn, and several answers."""

from contextlib import asynccontextmanager

from scripted import TOKENIZER, TOOLS

from engine.environments.contract import Observation, Rewards
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.contract import Parsed, Rewritten
from engine.spec.message import AssistantMessage, Message, ToolRequest
from engine.spec.trajectory import Task, ToolCall
from sandboxes.interface import SandboxFrozen

QUESTION = "say it"


class Forgetful(CharacterRenderer):
    """Leaves the reasoning of earlier turns out of the history, as chat templates do."""

    def __init__(self):
        super().__init__(TOKENIZER, reasoning=True)

    @property
    def append_only(self):
        return False

    def rewritten(self, conversation, turns=1):
        ids = self.prompt(conversation.opening, conversation.tools, conversation.experience)
        observed = 0
        for exchange in conversation.exchanges:
            ids += exchange.token_ids[exchange.parsed.begins :]
            observed = len(ids)
            ids += self.bridge(exchange.messages)
        span = self.experience_span((), (), conversation.experience) if conversation.experience else None
        return Rewritten(tuple(ids), observed, span)


class Babbling(Forgetful):
    """Finds a call in whatever a policy of random weights says: the first half is its reasoning."""

    @property
    def stop_ids(self):
        return frozenset(range(40, 108))

    def parse(self, token_ids, tools):
        begins = len(token_ids) // 2
        return Parsed(AssistantMessage.calling("python", {"code": str(len(token_ids))}), begins)


class Branching(CharacterRenderer):
    """Several frames of calls in a turn, which ends with <eos>; an answer as ever."""

    def __init__(self):
        super().__init__(TOKENIZER, reasoning=False)

    @property
    def stop_ids(self):
        return frozenset({TOKENIZER.answer_close, TOKENIZER.eos})

    def parse(self, token_ids, tools):
        if token_ids[-1] != TOKENIZER.eos:
            return super().parse(token_ids, tools)
        frames, frame = [], []
        for token in token_ids[:-1]:
            frame.append(token)
            if token == TOKENIZER.tool_close:
                frames.append(super().parse(frame, tools).message)
                frame = []
        requests = tuple(request for message in frames for request in message.requests)
        return Parsed(
            AssistantMessage(requests=tuple(ToolRequest(request.name, request.arguments) for request in requests)), 0
        )


def calls(*codes):
    """A turn that makes all these calls at once."""
    frames = [(TOKENIZER.tool_open, *TOKENIZER.encode(code), TOKENIZER.tool_close) for code in codes]
    return [*(token for frame in frames for token in frame), TOKENIZER.eos]


class Talk:
    """A session whose tool repeats what it is given; an answer is answered until it is the last one."""

    def __init__(self, answers):
        self._answers, self.heard = answers, []

    async def reset(self):
        return [Message("user", QUESTION)]

    async def act(self, message):
        self.heard.append(message)
        if message.answers:
            self._answers -= 1
            if self._answers:
                return Observation(messages=(Message("user", f"not {message.content}"),))
            return Observation(done=True)
        return Observation.of([self._record(request) for request in message.requests])

    def _record(self, request):
        if request.text == "freeze":
            raise SandboxFrozen("stopped by alert")
        return ToolCall.of(request, request.text, error_class="other" if request.text == "bad" else None, seconds=0.0)

    async def score(self):
        return Rewards(success=True)

    async def snapshot(self):
        return None

    async def restore(self, snapshot):
        pass

    async def drop(self, snapshot):
        pass


class Talking:
    """An environment of one task."""

    restorable = True

    def __init__(self, answers=1):
        self._answers, self.sessions = answers, []

    def tasks(self, split):
        return [Task(id="talk", split="train", level=1, question=QUESTION, answer="it")]

    def tools(self, task):
        return TOOLS

    @asynccontextmanager
    async def session(self, task, sandboxes):
        self.sessions.append(Talk(self._answers))
        yield self.sessions[-1]
