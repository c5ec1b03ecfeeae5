"""qa: questions of a team's dataset, answered with or without tools, and checked by a verifier."""

from collections.abc import Sequence

from engine.environments.contract import Sandboxes
from engine.environments.qa.mcp.client import listed_tools
from engine.environments.qa.rows import opened_rows, refuse_unusable_rows, task_of, with_rows_counted
from engine.environments.qa.scoring import Scoring
from engine.environments.qa.session import QaSession
from engine.environments.qa.tools import QaTools, opened_corpus, schemas_of
from engine.environments.tasks import SplitTasks, task_number
from engine.environments.verifiers.extraction import placed
from engine.judge_endpoint import ServedJudge
from engine.spec.environment import Qa
from engine.spec.message import ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task


class QaEnvironment:
    """Keeps the version's files open and nothing of them in memory.  One instance serves any number of episodes."""

    def __init__(self, settings: Qa, dataset: Dataset, served_judge: ServedJudge | None = None) -> None:
        """Raises ``UnusableEnvironment``: no such rows or corpus; rows, a verifier or a server that cannot be used."""
        self.settings = settings
        self._scoring = Scoring(settings, served_judge)
        self._rows = opened_rows(dataset)
        self._dataset = with_rows_counted(dataset, self._rows)
        refuse_unusable_rows(self._rows, self._scoring.checks)
        self._corpus = None if settings.search is None else opened_corpus(self._rows, settings.search)
        self._of_servers = listed_tools(settings)
        self._tools = (*schemas_of(settings), *self._of_servers)

    def tasks(self, split: Split) -> Sequence[Task]:
        return SplitTasks(self._dataset, split, self._task)

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return self._tools

    def session(self, task: Task, sandboxes: Sandboxes) -> QaSession:
        row = self._rows.row(task.split, task_number(task))
        tools = QaTools(self.settings, self._corpus, self._of_servers, sandboxes)
        return QaSession(self.settings.system_prompt, row, self._scoring, tools)

    def reference_answer(self, task: Task) -> str | None:
        """The row's own, in the place where the verifier reads it; None where that place cannot hold it."""
        answer, verifier = self._rows.row(task.split, task_number(task)).answer, self.settings.verifier
        return None if answer is None else placed(answer, verifier.place, verifier.marker)

    def _task(self, split: Split, number: int) -> Task:
        return task_of(self._rows.row(split, number), split, number)
