"""A language model as judge, behind any OpenAI-compatible ``/chat/completions``: asked, bounded, and remembered.

Answers are kept by the content of the question, and two equal questions that come at once are one call.  How a question
is put, and what its answer means, is for the caller to say: ``engine/rollout/judge_llm.py`` asks about turns,
``engine/environments/verifiers/rubric.py`` about answers.

A question is asked ``retries`` times more, with pauses that double, or last as long as a server asks
for; what the server refuses is not asked again.  Every request has its time-out, so every question
comes to an end.  The key travels in a header and appears in no message.

Who serves the model is its own business: an address, or servers of the run (``resources.judge``), which may stand
in another process and start again in the meantime.
"""

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from engine.seeds import derived_seed
from engine.spec.judge import OF_THE_RUN, ChatEndpoint
from engine.spec.server_url import key_of

if TYPE_CHECKING:
    import httpx

KEPT_ANSWERS = 20_000
"""Questions whose answers are kept, latest first."""
LONGEST_ANSWER_BYTES = 1 << 20
PAUSES_S = (0.5, 30.0)
"""The first pause before a question is asked again, and the longest."""
SECOND_TEMPERATURE = 0.7
"""The temperature of all tries but the first: at 0 the same model would give the same unreadable answer again."""

NOT_THAT_DOCUMENT = (ValueError, LookupError, TypeError, RecursionError)
"""What reading a field out of some other answer than was expected raises; the last is JSON nested too deep."""

Verdict = TypeVar("Verdict")


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    status: int
    retry_after: str
    """The header of that name."""
    body: bytes


ServedJudge = Callable[[Mapping[str, Any], float], Awaitable[ChatAnswer]]
"""Asks the servers of ``resources.judge``: a request, and the seconds that one server has for its answer.  Waits for
servers that start again.  Raises TimeoutError, and what ends the attempt."""


class NoKey(Exception):
    """The environment has no key for an endpoint, which names a variable."""

    def __init__(self, variable: str, problem: str, remedy: str) -> None:
        super().__init__(f"{variable}: {problem}; {remedy}")
        self.variable, self.problem, self.remedy = variable, problem, remedy


class JudgeFailed(Exception):
    """No verdict; the class says why."""

    def __init__(self, message: str = "", *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """The server asks not to be asked again before."""


class JudgeTimeout(JudgeFailed):
    """No whole answer within the time-out."""


class JudgeUnavailable(JudgeFailed):
    """The judge was not reachable, the connection was lost, or the server says that it cannot answer now (5xx, 408,
    429)."""


class JudgeUnparseable(JudgeFailed):
    """It answered, and not in the form that was asked for."""


class JudgeRefused(JudgeFailed):
    """The server does not take the question (4xx, or a redirection): asking again would not help."""


@dataclass(slots=True)
class JudgeCounts:
    """What judging has cost since the counts were last taken."""

    calls: int = 0
    """Requests that were sent, repeated ones included."""
    cached: int = 0
    """Questions that were answered without a request of their own."""
    failed: int = 0
    """Questions without an answer after the last try."""


class JudgeEndpoint(Generic[Verdict]):
    """Belongs to the event loop in which it is first asked."""

    def __init__(
        self, settings: ChatEndpoint, *, role: str, key: str | None, served: ServedJudge | None = None
    ) -> None:
        """``role`` is the system message of every question; ``served`` is asked where the run serves the model."""
        self._settings, self._role, self._served = settings, role, served
        self._url = f"{settings.endpoint.rstrip('/')}/chat/completions"
        # Plain: what little arrives compressed could unpack to more than there is memory, or time, for.
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._client: httpx.AsyncClient | None = None
        self._room = asyncio.Semaphore(settings.concurrency)
        self._answers: OrderedDict[str, Verdict] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Verdict]] = {}
        self.counts = JudgeCounts()

    async def verdict(self, question: str, read: Callable[[str], Verdict]) -> Verdict:
        """What ``read`` makes of the answer; it raises JudgeUnparseable where it cannot.  Raises JudgeFailed."""
        key = hashlib.sha256(question.encode()).hexdigest()
        if key in self._answers:
            self.counts.cached += 1
            self._answers.move_to_end(key)
            return self._answers[key]
        while (shared := self._asked.get(key)) is not None:
            await asyncio.wait([shared])
            if not shared.cancelled():
                self.counts.cached += 1
                return shared.result()
        return await self._answer(question, key, read)

    async def close(self) -> None:
        """Closing twice is fine."""
        if self._client is not None:
            await self._client.aclose()

    async def _answer(self, question: str, key: str, read: Callable[[str], Verdict]) -> Verdict:
        """Whoever asks the same in the meantime shares what comes of it."""
        shared: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._asked[key] = shared
        try:
            verdict = await self._asked_until_answered(question, key, read)
        except JudgeFailed as failure:
            shared.set_exception(failure)
            shared.exception()  # looked at, also if nobody shares it
            raise
        except BaseException:
            shared.cancel()
            raise
        else:
            shared.set_result(verdict)
        finally:
            if self._asked.get(key) is shared:
                del self._asked[key]
        self._answers[key] = verdict
        if len(self._answers) > KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return verdict

    async def _asked_until_answered(self, question: str, key: str, read: Callable[[str], Verdict]) -> Verdict:
        attempt = 0
        while True:
            try:
                async with self._room:
                    answer = await self._asked_once(question, again=attempt > 0)
                return read(answer)
            except JudgeRefused:
                raise
            except JudgeFailed as failure:
                if attempt == self._settings.retries:
                    raise
                pause = pause_s(key, attempt, asked_for_s=failure.retry_after_s)
            await asyncio.sleep(pause)
            attempt += 1

    async def _asked_once(self, question: str, *, again: bool) -> str:
        import httpx  # with the first question: a run without a judge has none

        self.counts.calls += 1
        try:
            answer = await self._answered(self._request(question, again=again))
        except TimeoutError:
            raise JudgeTimeout(f"no answer within {self._settings.timeout_s:g} s") from None
        except httpx.RequestError as error:
            raise JudgeUnavailable(f"{type(error).__name__} at {self._url}: {error}") from error
        except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: a name that is none in punycode
            raise JudgeRefused(f"{self._url} is no address: {error}") from error
        if answer.status == 200:
            return text_of_completion(answer.body)
        detail = f"status {answer.status} from {self._url}{refusal_in(answer.body)}"
        if answer.status >= 500 or answer.status in (408, 429):
            raise JudgeUnavailable(detail, retry_after_s=seconds_in(answer.retry_after))
        raise JudgeRefused(detail)

    async def _answered(self, document: dict[str, Any]) -> ChatAnswer:
        if not self._settings.is_of_the_run:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._post(document)
        if self._served is None:
            raise JudgeRefused(f"{OF_THE_RUN}: a run has such servers, and this is none")
        answer = await self._served(document, self._settings.timeout_s)
        if len(answer.body) > LONGEST_ANSWER_BYTES:
            raise JudgeUnparseable(f"the answer has more than {LONGEST_ANSWER_BYTES} bytes")
        return answer

    async def _post(self, document: dict[str, Any]) -> ChatAnswer:
        if self._client is None:
            import httpx

            limits = httpx.Limits(max_connections=self._settings.concurrency)
            self._client = httpx.AsyncClient(headers=self._headers, limits=limits, timeout=None)
        async with self._client.stream("POST", self._url, json=document) as response:
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > LONGEST_ANSWER_BYTES:
                    raise JudgeUnparseable(f"the answer has more than {LONGEST_ANSWER_BYTES} bytes")
        return ChatAnswer(response.status_code, response.headers.get("Retry-After", ""), bytes(body))

    def _request(self, question: str, *, again: bool) -> dict[str, Any]:
        return {
            "model": self._settings.model,
            "messages": [{"role": "system", "content": self._role}, {"role": "user", "content": question}],
            "temperature": SECOND_TEMPERATURE if again else 0.0,
            "max_tokens": self._settings.max_tokens,
        }


def has_addresses(held: str) -> bool:
    """Whether what a variable holds is ``URL=KEY``, and not a key alone, which would go to any address."""
    return re.match("https?://", held.strip(), re.IGNORECASE) is not None


def key_for(settings: ChatEndpoint, environ: Mapping[str, str]) -> str | None:
    """The key that is sent; None where the endpoint names no variable.  Raises NoKey, which shows nothing of a key.

    A key alone goes to whatever address the user of the command line names; the service takes none of these.
    """
    if (variable := settings.api_key_variable) is None:
        return None
    held = environ.get(variable, "").strip()
    key = key_of(settings.endpoint, held) if has_addresses(held) else held
    otherwise = "or remove api_key_variable if the endpoint takes no key"
    if not held:
        problem = "the engine's environment holds no key there: it has no such variable, or an empty one"
        raise NoKey(variable, problem, f"set it where the engine starts, on each of its nodes, {otherwise}")
    if not key:
        problem = f"the engine's environment holds no key of {settings.endpoint} there, but those of other addresses"
        raise NoKey(variable, problem, f"add {settings.endpoint}=KEY to it where the engine starts, {otherwise}")
    if not (key.isascii() and key.isprintable()):  # it would fail as a header, in a message that shows it
        problem = "the engine's environment holds no key there that a header can carry"
        raise NoKey(variable, problem, f"set it to one line of printable ASCII characters, {otherwise}")
    return key


def quoted(text: str, longest: int) -> str:
    """What somebody else wrote, as a JSON string that is cut: none of it can pose as a part of the question."""
    return json.dumps(text if len(text) <= longest else f"{text[:longest]} (cut)")


def text_of_completion(body: bytes) -> str:
    """Raises JudgeUnparseable where that is not a completion."""
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
    except NOT_THAT_DOCUMENT as error:
        raise JudgeUnparseable(f"{len(body)} bytes that are no chat completion") from error
    if not isinstance(text, str):
        raise JudgeUnparseable("a completion without text")
    return text


def refusal_in(body: bytes) -> str:
    """Return what an OpenAI-compatible server says of its refusal, in its own field for that, and nothing else.

    The address is chosen by whoever wrote the spec; what some other service answers there is not theirs to read.
    """
    try:
        message = json.loads(body)["error"]["message"]
    except NOT_THAT_DOCUMENT:
        return ""
    return f": {message[:200]!r}" if isinstance(message, str) else ""


def seconds_in(retry_after: str) -> float:
    """The seconds of a header ``Retry-After`` that names seconds; 0 for any other."""
    return float(retry_after) if re.fullmatch("[0-9]{1,9}", retry_after) else 0.0


def pause_s(key: str, attempt: int, *, asked_for_s: float = 0.0) -> float:
    """Before try ``attempt`` + 2: twice as long each time, spread by a quarter so that not all come back at once.

    A server may ask for more, up to the longest pause.  The spread is a hash of the question: it decides about
    time only, never about a verdict.
    """
    first, longest = PAUSES_S
    spread = 0.75 + 0.5 * (derived_seed(key, attempt) / 2**63)
    doubled: float = first * 2**attempt
    return max(min(longest, doubled) * spread, min(longest, asked_for_s))
