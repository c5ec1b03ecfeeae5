import re

import pytest

from engine.environments.search_qa.corpus import RESULTS, SIZE, Corpus, corpus_of
from engine.environments.search_qa.questions import f1, normalized, question_of, split_of
from engine.spec.message import AssistantMessage
from tests.engine.environments.worlds import LEVELS, calling, play, world

SENTENCES = {
    "person": (
        r"(?P<name>.+) was born in (?P<birthplace>.+) in (?P<birth_year>\d+) and works for (?P<employer>.+)\.",
        r"(?P<name>.+) works for (?P<employer>.+)\. Born: (?P<birth_year>\d+), (?P<birthplace>.+)\.",
    ),
    "city": (
        r"(?P<name>.+) is a city in (?P<country>.+), founded in (?P<founding_year>\d+)\.",
        r"Founded in (?P<founding_year>\d+), (?P<name>.+) lies in (?P<country>.+)\.",
    ),
    "country": (
        r"The capital of (?P<name>.+) is (?P<capital>.+)\. Its currency is the (?P<currency>.+)\.",
        r"(?P<name>.+) pays with the (?P<currency>.+)\. Its capital is (?P<capital>.+)\.",
    ),
    "company": (
        r"(?P<name>.+) was founded in (?P<founding_year>\d+) by (?P<founder>.+)\. Its seat is (?P<seat>.+)\.",
        r"(?P<founder>.+) founded (?P<name>.+) in (?P<founding_year>\d+)\. Its seat is (?P<seat>.+)\.",
    ),
    "book": (
        r"(?P<name>.+) is a book by (?P<author>.+), printed in (?P<printing_year>\d+)\.",
        r"Printed in (?P<printing_year>\d+), (?P<name>.+) is a book by (?P<author>.+)\.",
    ),
}


def facts_read_in(corpus: Corpus) -> dict[tuple[str, str], set[str]]:
    """(entity, relation) -> every value that some document states, by a reader of its own."""
    facts: dict[tuple[str, str], set[str]] = {}
    for document in corpus.documents:
        matches = [
            found.groupdict() for forms in SENTENCES.values() for form in forms
            if (found := re.fullmatch(form, document.text))
        ]  # fmt: skip
        assert matches
        for match in matches:
            name = match.pop("name")
            assert name == document.title
            for relation, value in match.items():
                facts.setdefault((name, relation.replace("_", " ")), set()).add(value)
    return facts


def answers_read(question: str, facts: dict[tuple[str, str], set[str]]) -> set[str]:
    """Every answer that follows from the documents."""
    if question.startswith("what is "):
        return resolved(question.removeprefix("what is ").removesuffix("?"), facts)
    _, phrases = question.removesuffix("?").split(", ", 1)
    (first,), (second,) = (resolved(phrase, facts) for phrase in phrases.split(" or "))
    year = "birth year" if question.startswith("who") else "founding year"
    ((of_first,), (of_second,)) = facts[first, year], facts[second, year]
    return {first if of_first < of_second else second} if of_first != of_second else {first, second}


def resolved(phrase: str, facts: dict[tuple[str, str], set[str]]) -> set[str]:
    relation, found, rest = phrase.removeprefix("the ").partition(" of ")
    if not phrase.startswith("the ") or not found:
        return {phrase}
    return {value for entity in resolved(rest, facts) for value in facts.get((entity, relation), set())}


@pytest.mark.parametrize("level", LEVELS)
def test_the_documents_lead_to_one_answer_and_it_is_the_tasks(level):
    read: dict[int, dict[tuple[str, str], set[str]]] = {}
    for split in ("train", "heldout"):
        for number in range(100):
            corpus, question = question_of(0, split, number, level)
            facts = read.setdefault(id(corpus), facts_read_in(corpus))
            assert answers_read(question.text, facts) == {question.answer}
            assert split_of(question) == split


def test_a_world_has_some_hundred_documents_of_distinct_titles_and_numbers():
    corpus = corpus_of(0, "train 0")
    assert len(corpus.documents) == sum(SIZE.values()) > 300
    assert len(corpus.document) == len(corpus.document_of) == len(corpus.documents)
    assert corpus_of(0, "heldout 0").facts != corpus.facts != corpus_of(1, "train 0").facts


def test_every_level_has_its_number_of_documents_and_chains_never_name_their_answer():
    documents: dict[int, set[int]] = {level: set() for level in LEVELS}
    for level in LEVELS:
        for number in range(150):
            _, question = question_of(0, "train", number, level)
            documents[level].add(len(question.entities))
            if question.text.startswith("what"):
                assert question.answer not in question.text
    assert documents == {1: {2}, 2: {2, 3}, 3: {4}}


def reading(number: int, level: int) -> tuple[list[AssistantMessage], str]:
    corpus, question = question_of(0, "train", number, level)
    return [calling("open", document=corpus.document_of[entity].id) for entity in question.entities], question.answer


async def test_a_right_answer_pays_once_all_its_documents_were_opened():
    environment = world("search-qa", 2, evidence_reward=0.5)
    task = environment.tasks("train")[0]
    way, answer = reading(0, 2)
    final = [AssistantMessage(f"The {answer.upper()}. ")]
    full = (await play(environment, task, [*way, *final])).rewards
    assert (full.success, dict(full.components)) == (True, {"evidence": 0.5})
    half = (await play(environment, task, [way[0], *final])).rewards
    assert (half.success, dict(half.components)) == (False, {"evidence": 0.25})
    twice = (await play(environment, task, [way[0], way[0], *final])).rewards
    assert dict(twice.components) == {"evidence": 0.25}
    unread = (await play(environment, task, final)).rewards
    assert (unread.success, dict(unread.components)) == (False, {"evidence": 0.0})
    unanswered = (await play(environment, task, way)).rewards
    assert (unanswered.success, dict(unanswered.components)) == (False, {})


async def test_listing_candidates_is_no_success_and_f1_pays_readers_alone():
    environment = world("search-qa", 2, partial_credit=True)
    task = environment.tasks("train")[0]
    assert task.question == "who was born first, Faye Tormir or Gus Kanston?"
    way, _ = reading(0, 2)
    both = [AssistantMessage("Faye Tormir or Gus Kanston")]
    read = (await play(environment, task, [*way, *both])).rewards
    assert (read.success, dict(read.components)) == (False, {"f1": pytest.approx(4 / 7)})
    assert dict((await play(environment, task, both)).rewards.components) == {}
    flooded = [AssistantMessage("Gus Kanston " * 10_000)]
    assert dict((await play(environment, task, [*way, *flooded])).rewards.components) == {"f1": 0.0}


async def test_the_title_of_the_first_document_and_either_candidate_are_never_paid():
    for level in LEVELS:
        environment = world("search-qa", level)
        for number, task in enumerate(environment.tasks("train")[:60]):
            corpus, question = question_of(0, "train", number, level)
            search = calling("search", query=task.question)
            for answer in (corpus.found(task.question)[0].title, question.answer):
                assert not (await play(environment, task, [search, AssistantMessage(answer)])).rewards.success


async def test_a_search_shows_titles_page_by_page_and_refuses_what_it_cannot_do():
    environment = world("search-qa", 1)
    task = environment.tasks("train")[0]
    played = await play(
        environment,
        task,
        [
            calling("search", query="city"),
            calling("search", query="city", page=2),
            calling("search", query="city", page=10**6),
            calling("search", query="city", page=0),
            calling("search", query=""),
            calling("search", query="zzz"),
            calling("search", query="x" * 10_000),
            calling("open", document=7),
            calling("open", document="100"),
            calling("open", document=10**100),
        ],
    )
    assert played.errors == [
        None, None, "index", "arguments", "value", "value", "arguments", "index", "arguments", "index",
    ]  # fmt: skip
    pages = [output.splitlines() for output in played.outputs[:2]]
    assert [len(page) for page in pages] == [RESULTS, RESULTS]
    assert not set(pages[0]) & set(pages[1])
    assert all(re.fullmatch(r"\d{3} [A-Z][A-Za-z ]+", line) for page in pages for line in page)


def test_answers_are_compared_as_squad_does():
    assert normalized("The  Silver-River!") == ["silver", "river"]
    assert normalized("1493.") == ["1493"]
    assert f1("silver river", "Silver River") == 1.0
    assert f1("the river", "Silver River") == pytest.approx(2 / 3)
    assert f1("", "Silver River") == f1("a", "the") == 0.0


async def test_verdicts_credit_each_needed_document_once_and_a_right_answer():
    environment = world("search-qa", 1)
    task = environment.tasks("train")[0]
    corpus, question = question_of(0, "train", 0, 1)
    first, second = question.entities
    needed = {corpus.document_of[entity] for entity in question.entities}
    elsewhere = next(
        document for document in corpus.documents if not needed & {*corpus.found(document.title)[:RESULTS]}
    )
    way = [
        (calling("search", query=elsewhere.title), "bad"),
        (calling("search", query=first), "good"),
        (calling("search", query=f"{first} "), "bad"),
        (calling("open", document=elsewhere.id), "bad"),
        (calling("open", document=corpus.document_of[first].id), "good"),
        (calling("open", document=corpus.document_of[first].id), "bad"),
        (calling("search", query=second), "good"),
        (calling("open", document=corpus.document_of[second].id), "good"),
    ]
    played = await play(environment, task, [message for message, _ in way])
    calls = [(call,) for call in played.calls]
    expected = [verdict for _, verdict in way]
    assert environment.verdicts(task, [*calls, ()], question.answer) == [*expected, "good"]
    assert environment.verdicts(task, [*calls, ()], "Nowhere") == [*expected, "bad"]
    assert environment.verdicts(task, [()], question.answer) == ["bad"]
