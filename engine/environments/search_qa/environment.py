"""search-qa: questions whose answer follows from several documents, which are searched, opened and read.

The documents are in corpus, the questions in questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from engine.environments.contract import JudgeVerdict, Manner
from engine.environments.search_qa.corpus import RESULTS, Corpus
from engine.environments.search_qa.questions import Question, f1, normalized, question_of
from engine.environments.tool_schemas import short_text, tool
from engine.environments.tool_world import GIVES_UP_AT_ONCE, ActionResult, ToolEnvironment, ToolSimulation
from engine.spec.environment import SearchQa
from engine.spec.message import AssistantMessage, ToolRequest, ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task, ToolCall

TOOLS = (
    tool(
        "search",
        f"Searches the documents and shows {RESULTS} of their titles, each with the number of its document.",
        {"query": short_text()},
        {"page": {"type": "integer", "minimum": 1}},
    ),
    tool("open", "Shows a document by its number.", {"document": {"type": "integer"}}),
)
LONGEST_ANSWER = 200
"""Characters; a longer answer is wrong, and nothing compares it."""
F1, EVIDENCE = "f1", "evidence"
"""What an episode may be paid beside its success."""


@dataclass(frozen=True, slots=True)
class ReaderState:
    opened: frozenset[int] = frozenset()
    """The documents that were read."""


class SearchQaEnvironment(ToolEnvironment[ReaderState]):
    def __init__(self, environment: SearchQa, dataset: Dataset) -> None:
        super().__init__(environment.levels, dataset)
        self._settings = environment

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return TOOLS

    def simulation(self, split: Split, number: int, level: int) -> "SearchQaSimulation":
        return SearchQaSimulation(*_question(self._dataset.seed, split, number, level), self._settings)


# Groups of rollouts ask one question many times.
_question = lru_cache(maxsize=4096)(question_of)


class SearchQaSimulation(ToolSimulation[ReaderState]):
    def __init__(self, corpus: Corpus, question: Question, settings: SearchQa) -> None:
        self.corpus, self._question, self._settings = corpus, question, settings
        self.evidence = frozenset(corpus.document_of[entity].id for entity in question.entities)

    @property
    def question(self) -> str:
        return self._question.text

    @property
    def answer(self) -> str:
        return self._question.answer

    @property
    def first(self) -> ReaderState:
        return ReaderState()

    def called(self, state: ReaderState, request: ToolRequest) -> ActionResult[ReaderState]:
        if request.name == "search":
            return self._searched(state, request.arguments["query"], int(request.arguments.get("page", 1)))
        document = self.corpus.document.get(int(request.arguments["document"]))
        if document is None:
            return ActionResult(state, "no such document", "index")
        after = replace(state, opened=state.opened | {document.id})
        return ActionResult(after, f"{document.title}\n{document.text}")

    def _searched(self, state: ReaderState, query: str, page: int) -> ActionResult[ReaderState]:
        found = self.corpus.found(query)
        if not found:
            return ActionResult(state, "nothing found", "value")
        pages = -(-len(found) // RESULTS)
        if page > pages:
            return ActionResult(state, f"the last page is {pages}", "index")
        here = found[(page - 1) * RESULTS : page * RESULTS]
        return ActionResult(state, "\n".join(f"{document.id} {document.title}" for document in here))

    def answered(self, state: ReaderState, answer: str) -> ActionResult[ReaderState]:
        """Right is what says the same in the same words, once all was read that it follows from."""
        answer, settings = answer if len(answer) <= LONGEST_ANSWER else "", self._settings
        read = len(state.opened & self.evidence) / len(self.evidence)
        success = read == 1 and normalized(answer) == normalized(self.answer)
        components = {EVIDENCE: settings.evidence_reward * read} if settings.evidence_reward else {}
        if settings.partial_credit and read == 1 and not success:
            components[F1] = f1(answer, self.answer)
        return ActionResult(state, "", done=True, success=success, components=components)

    def messages(self, manner: Manner, rng: Random) -> list[AssistantMessage]:
        match manner:
            case "guess":
                return self._hasty(rng)
            case "solve":
                return self._reading()
            case "repair":
                return self._with_a_slip(rng)

    def judged(self, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """Good: to find, and to open, a document that is needed next, each once; and the right answer."""
        judged, credited, state = list[JudgeVerdict](), set[int](), self.first
        for of_turn in self.replayed(calls):
            good = False
            for before, request, result in of_turn:
                found = self._found_of_need(request, result) - credited
                good |= bool(found or result.state.opened & self.evidence - before.opened)
                credited, state = credited | found, result.state
            judged.append("good" if good else "bad")
        if judged and answer is not None and not calls[-1] and self.answered(state, answer).success:
            judged[-1] = "good"
        return judged

    def _found_of_need(self, request: ToolRequest, result: ActionResult[ReaderState]) -> set[int]:
        """The uppermost of the listed documents that are needed and whose names can be known by now; or none."""
        if request.name != "search" or not result.legal:
            return set()
        listed = [int(line.split(" ")[0]) for line in result.output.splitlines()]
        due = self._due(result.state)
        return {next((number for number in listed if number in due), -1)} - {-1}

    def _due(self, state: ReaderState) -> set[int]:
        """The next unread document of each way."""
        ways = [[self.corpus.document_of[entity].id for entity in way] for way in self._question.ways]
        unread = [[number for number in way if number not in state.opened] for way in ways]
        return {way[0] for way in unread if way}

    def _reading(self) -> list[AssistantMessage]:
        """A search for every entity on the way, its document, and the answer."""
        calls = list[AssistantMessage]()
        for entity in self._question.entities:
            calls.append(AssistantMessage.calling("search", {"query": entity}))
            calls.append(AssistantMessage.calling("open", {"document": self.corpus.document_of[entity].id}))
        return [*calls, AssistantMessage(self.answer)]

    def _hasty(self, rng: Random) -> list[AssistantMessage]:
        """A name of the question as the answer; at times that of the first document that comes up."""
        if rng.random() < GIVES_UP_AT_ONCE:
            return [AssistantMessage(rng.choice(self._question.ways)[0])]
        query = self._question.entities[0]
        return [
            AssistantMessage.calling("search", {"query": query}),
            AssistantMessage(self.corpus.found(query)[0].title),
        ]

    def _with_a_slip(self, rng: Random) -> list[AssistantMessage]:
        """The way to the answer with a number in it that no document has."""
        way = self._reading()
        place = rng.randrange(len(way))
        numbers = [number for number in range(100, 1000) if number not in self.corpus.document]
        return [*way[:place], AssistantMessage.calling("open", {"document": rng.choice(numbers)}), *way[place:]]
