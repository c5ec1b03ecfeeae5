"""One episode of a question: calls of tools, if there are any, and an answer that is scored."""

from typing import Self

from engine.environments.contract import Observation, Rewards
from engine.environments.qa.rows import opening_of
from engine.environments.qa.scoring import Scoring
from engine.environments.qa.tools import QaTools
from engine.spec.dataset_row import DatasetRow
from engine.spec.message import AssistantMessage, Message


class QaSession:
    """Keeps no snapshots."""

    def __init__(self, system_prompt: str, row: DatasetRow, scoring: Scoring, tools: QaTools) -> None:
        self._system_prompt, self._row, self._scoring, self._tools = system_prompt, row, scoring, tools
        self._answer: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> bool | None:
        return await self._tools.__aexit__(*exception)

    async def reset(self) -> list[Message]:
        return opening_of(self._row, self._system_prompt)

    async def act(self, message: AssistantMessage) -> Observation:
        if message.answers:
            self._answer = message.content
            return Observation(done=True)
        return Observation.of([await self._tools.run(request) for request in message.requests])

    async def score(self) -> Rewards:
        return await self._scoring.rewards(self._answer, self._row)
