"""What an answer is paid: success by the verifier, and components by name, each of which stands on the trajectory."""

from engine.environments.contract import Rewards, VerifierFailed
from engine.environments.imported import UnusableEnvironment
from engine.environments.verifiers.contract import WRONG, UnusableVerifier, Verification
from engine.environments.verifiers.extraction import result_in
from engine.environments.verifiers.registry import verifier_for
from engine.judge_endpoint import ServedJudge
from engine.spec.dataset_row import DatasetRow
from engine.spec.environment import FORMAT, LENGTH, Qa
from engine.spec.problems import Problem
from engine.spec.verifier import Verifier, partial_component
from sandboxes.interface import PoolClosed, SandboxFrozen, SandboxLost, SandboxUnavailable
from sandboxes.spec import SandboxSpec

_OF_SANDBOXES = (SandboxLost, SandboxFrozen, SandboxUnavailable, PoolClosed)


class Check:
    """One verifier, and where in an answer it finds what it reads."""

    def __init__(
        self, field: str, settings: Verifier, sandbox: SandboxSpec, served_judge: ServedJudge | None = None
    ) -> None:
        """``field`` is its path in the spec.  Raises ``UnusableEnvironment``."""
        self.field, self.settings = field, settings
        try:
            self._verifier = verifier_for(settings, sandbox, served_judge)
        except UnusableVerifier as unusable:
            problem = Problem(f"{field}.{unusable.field}", unusable.value, unusable.problem, unusable.remedy)
            raise UnusableEnvironment(problem) from unusable

    def lacking(self, row: DatasetRow) -> str | None:
        return self._verifier.lacking(row)

    def found_in(self, answer: str) -> str | None:
        return result_in(answer, self.settings.place, self.settings.marker)

    async def verified(self, found: str | None, row: DatasetRow) -> Verification:
        """Raises ``VerifierFailed``, and what sandboxes raise."""
        if found is None:
            return WRONG
        if lacking := self.lacking(row):
            raise VerifierFailed(f"row {row.id}: {lacking}")
        try:
            return await self._verifier.verified(found, row)
        except (VerifierFailed, *_OF_SANDBOXES):
            raise
        except Exception as error:
            kind = self.settings.kind
            raise VerifierFailed(f"row {row.id}: verifier {kind}: {type(error).__name__}: {error}") from error


class Scoring:
    """Serves any number of episodes."""

    def __init__(self, settings: Qa, served_judge: ServedJudge | None = None) -> None:
        """Raises ``UnusableEnvironment``."""
        self._settings = settings
        self._check = Check("environment.verifier", settings.verifier, settings.sandbox, served_judge)
        self._components = [
            Check(f"environment.components.{number}.verifier", component.verifier, settings.sandbox, served_judge)
            for number, component in enumerate(settings.components)
        ]

    @property
    def checks(self) -> list[Check]:
        return [self._check, *self._components]

    async def rewards(self, answer: str | None, row: DatasetRow) -> Rewards:
        """An episode without an answer has failed, and is paid nothing.  Raises as ``Check.verified``."""
        if answer is None:
            return Rewards(success=False)
        is_read = len(answer) <= self._settings.longest_answer_characters
        found = self._check.found_in(answer) if is_read else None
        verification = await self._check.verified(found, row)
        paid = self._of_form(answer, found)
        if (name := partial_component(self._settings.verifier)) is not None and not verification.success:
            paid[name] = verification.share or 0.0
        for component, check in zip(self._settings.components, self._components, strict=True):
            part = await check.verified(check.found_in(answer) if is_read else None, row)
            paid[component.name] = component.reward * (float(part.success) if part.share is None else part.share)
        return Rewards(verification.success, paid)

    def _of_form(self, answer: str, found: str | None) -> dict[str, float]:
        settings, paid = self._settings, dict[str, float]()
        if settings.format_reward:
            paid[FORMAT] = settings.format_reward if found is not None else 0.0
        if settings.length_penalty:
            share = min(1.0, len(answer) / settings.longest_answer_characters)
            paid[LENGTH] = -settings.length_penalty * share
        return paid
