"""SAAR in an episode: a failed tool call is undone and replaced by the policy's own correction.

CLEANER, section 4; how two turns are merged is ``engine/algorithms/saar.py``.  What happens at a
failed call c_t after the history h_t:

    lookahead    h_t + failed turn + its error -> a correction, run in the tool as it was at h_t
                 ... up to K times; the tool is set back before each
    success      h_t + purified turn, its log-probs computed anew there; failed call and error are gone
    K failures   h_t + the last failing turn, log-probs anew; SAAR rests for the remainder of the episode

Every attempt after the first reads h_t, the *newest* failing turn and its error.  "The correction
loop repeats" (4.1) leaves open what it repeats from.  This keeps eq. 5 as it stands, one failing turn
after h_t, tells the policy what is known of the error by now, and makes no lookahead longer than two
turns whatever K is.  A lookahead turn without a tool call is a spent attempt that ran nothing: the
next one reads the same failing turn again, under another seed.

A failed turn of several calls is not repaired: eq. 5 puts one call in the place of one.  Nor is one behind whose
context a renderer writes the history again, since then h_t is no beginning of what the correction would read.  Both put
SAAR to rest, and a correction of several calls is a spent attempt.

No log-prob of a lookahead leaves this module: whatever it returns after a failure was forced at h_t.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.algorithms import saar
from engine.environments.contract import Observation
from engine.rollout.checked_session import CheckedSession
from engine.rollout.policy_session import PolicySession
from engine.rollout.renderers.contract import Parsed, Renderer
from engine.rollout.requests import EpisodeRequest
from engine.spec import exploration
from engine.spec.generation import Generated
from engine.spec.message import ToolSchema
from engine.spec.trajectory import Change, ToolCall
from sandboxes.interface import SnapshotUnavailable


@dataclass(frozen=True, slots=True)
class Acted:
    """A turn that called tools, and what they said."""

    generated: Generated
    parsed: Parsed
    observation: Observation

    @property
    def failed_calls(self) -> list[ToolCall]:
        return [call for call in self.observation.calls if call.failed]

    @property
    def failed(self) -> bool:
        return bool(self.failed_calls)

    @property
    def as_sampled(self) -> saar.SampledTurn:
        return saar.SampledTurn(self.generated.token_ids, self.generated.logprobs, self.parsed.begins)


class Purifier:
    """SAAR on one episode.  ``changes`` tells every repair, and the failure that put it to rest."""

    def __init__(
        self,
        settings: exploration.Purification,
        request: EpisodeRequest,
        renderer: Renderer,
        tools: Sequence[ToolSchema],
        policy_session: PolicySession,
        session: CheckedSession,
        *,
        max_turn_tokens: int,
    ) -> None:
        self._settings, self._request = settings, request
        self._renderer, self._tools, self._policy_session, self._session = renderer, tools, policy_session, session
        self._max_turn_tokens = max_turn_tokens
        self._rests = False
        self._asked_s = 0.0
        """How long the generator has taken for the repair under way."""
        self.changes: list[Change] = []

    async def act(self, number: int, history: Sequence[int], generated: Generated, parsed: Parsed) -> Acted:
        """Run the call of turn ``number``, which was generated after ``history``; the turn that is to stay.

        When this raises, snapshots are left to the end of the tool's session.
        """
        if self._rests:
            return await self._acted(generated, parsed)
        if len(parsed.message.requests) > 1:
            return self._unrepaired(number, await self._acted(generated, parsed), "several-calls")
        if not self._renderer.append_only:
            return self._unrepaired(number, await self._acted(generated, parsed), "rewritten-context")
        try:
            moment = await self._session.snapshot()
        except SnapshotUnavailable as refusal:
            acted = await self._acted(generated, parsed)
            return self._unrepaired(number, acted, "no-snapshot", refusal=str(refusal))
        acted = await self._acted(generated, parsed)
        if acted.failed:
            acted = await self._repaired(number, history, acted, moment)
        await self._session.drop(moment)
        return acted

    async def _acted(self, generated: Generated, parsed: Parsed) -> Acted:
        return Acted(generated, parsed, await self._session.act(parsed.message))

    async def _repaired(self, number: int, history: Sequence[int], failed: Acted, moment: object) -> Acted:
        self._asked_s = failed.generated.seconds or 0.0
        newest, attempts = await self._corrected(number, history, failed, moment)
        if newest.failed:
            return await self._given_up(number, history, failed, newest, attempts)
        return await self._purified(number, history, failed, newest, attempts)

    async def _corrected(self, number: int, history: Sequence[int], failed: Acted, moment: object) -> tuple[Acted, int]:
        """The first attempt that worked, or else the last turn that failed; and how many attempts were made.

        The tool is left as that turn left it.  A context without room for a correction ends the loop early.
        """
        newest = failed
        for attempt in range(1, self._settings.retries + 1):
            error = self._renderer.bridge(newest.observation.messages)
            lookahead = [*history, *newest.generated.token_ids, *error]
            if not self._policy_session.has_room(lookahead):
                return newest, attempt - 1
            generated = await self._policy_session.sample(
                lookahead, seed=self._request.correction_seed(number, attempt)
            )
            self._asked_s += generated.seconds or 0.0
            parsed = self._renderer.parse(generated.token_ids, self._tools) if generated.stopped_by == "stop" else None
            if parsed is None or len(parsed.message.requests) != 1:
                continue
            await self._session.restore(moment)
            newest = await self._acted(generated, parsed)
            if not newest.failed:
                return newest, attempt
        return newest, self._settings.retries

    async def _purified(
        self, number: int, history: Sequence[int], failed: Acted, correction: Acted, attempts: int
    ) -> Acted:
        merged = self._merged(failed, correction)
        generated = await self._forced(history, merged.token_ids, failed)
        start = failed.parsed.begins if merged.repair == "shallow" else 0
        self.changes.append(
            Change(
                kind="purified",
                turn=number,
                start=start,
                stop=len(merged.token_ids),
                reason=merged.repair,
                before=self._renderer.text(merged.removed_ids),
                after=self._renderer.text(merged.token_ids[start:]),
                removed_ids=merged.removed_ids,
                details={**_details(failed, attempts), "similarity": merged.similarity},
            )
        )
        return Acted(generated, correction.parsed, correction.observation)

    async def _forced(self, history: Sequence[int], token_ids: Sequence[int], failed: Acted) -> Generated:
        """The turn that stays began with the failed one, and took what all attempts took."""
        generated = await self._policy_session.force(history, token_ids)
        asked_s = self._asked_s + (generated.seconds or 0.0)
        return replace(generated, began_at=failed.generated.began_at, seconds=asked_s)

    def _merged(self, failed: Acted, correction: Acted) -> saar.PurifiedTurn:
        """Deep also where the kept reasoning and the new call are longer than a turn may be: no policy says that."""
        likeness = saar.similarity(failed.parsed.message.call_text, correction.parsed.message.call_text)
        threshold = self._settings.similarity
        merged = saar.purified_turn(failed.as_sampled, correction.as_sampled, similarity=likeness, threshold=threshold)
        if len(merged.token_ids) <= self._max_turn_tokens:
            return merged
        return saar.purified_turn(failed.as_sampled, correction.as_sampled, similarity=likeness, threshold=float("inf"))

    async def _given_up(
        self, number: int, history: Sequence[int], failed: Acted, newest: Acted, attempts: int
    ) -> Acted:
        self._rests = True
        generated = await self._forced(history, newest.generated.token_ids, failed)
        replaced = newest is not failed
        self.changes.append(
            Change(
                kind="purification-failed",
                turn=number,
                start=0,
                stop=len(generated.token_ids),
                reason="retries" if attempts == self._settings.retries else "context",
                before=self._renderer.text(failed.generated.token_ids) if replaced else "",
                after=self._renderer.text(generated.token_ids) if replaced else "",
                removed_ids=list(failed.generated.token_ids) if replaced else [],
                details=_details(failed, attempts),
            )
        )
        return Acted(generated, newest.parsed, newest.observation)

    def _unrepaired(self, number: int, acted: Acted, reason: str, **details: str) -> Acted:
        """The turn was done without a way back; if a call of it failed, it stays."""
        if acted.failed:
            self._rests = True
            self.changes.append(
                Change(
                    kind="purification-failed",
                    turn=number,
                    start=0,
                    stop=len(acted.generated.token_ids),
                    reason=reason,
                    details={**_details(acted, 0), **details},
                )
            )
        return acted


def _details(failed: Acted, attempts: int) -> dict[str, str | int | float]:
    """What is known of the failed call that was not kept anywhere else."""
    call = failed.failed_calls[0]
    return {"attempts": attempts, "error_class": call.error_class or "other", "first_output": call.output}
