"""What a run knows about itself besides its weights; one small JSON file in every checkpoint."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from engine.loop.buffer import BufferState
from engine.loop.expert_pool import ExpertPool
from engine.loop.quarantine import QuarantineState
from engine.rollout.requests import EpisodeRequest
from engine.spec import files_of_0_2
from engine.spec.evaluation_report import EvaluationReport
from engine.spec.run import RunSpec
from engine.spec.trajectory import Purpose


class RunState(BaseModel):
    """Counts everything that still holds: what a resumed attempt does again is not in here."""

    model_config = ConfigDict(extra="forbid")

    spec: RunSpec
    """It says whose checkpoint this is; a launch compares it with the spec that is to go on from it."""
    cold_started: bool = False
    """All supervised stages are done; true also of a recipe without one, once its weights are saved."""
    cold_start_steps: int = 0
    """Supervised steps that are done, of all stages together."""
    finished_stages: int = 0
    """Supervised stages that are done."""
    stage_steps: int = 0
    """Steps that are done of the stage after them."""
    stage_files: dict[str, str] = {}
    """The SHA-256 of each file that a stage learns from, by its name in the spec: it is the same in all attempts."""
    finished_steps: int = 0
    """RL steps whose update is done; also the version of the policy."""
    tasks: list[int] | None = None
    """The numbers of the training tasks that the difficulty filter has kept; None: all, or nothing is filtered yet."""
    tasks_taken: int = 0
    """Training tasks that finished steps have taken, in turn and without an end."""
    prompts: dict[Purpose, int] = {}
    """Prompts of each purpose that finished steps and evaluations have had: the running number of the next one."""
    buffer: BufferState = Field(default_factory=BufferState)
    """Groups that are in play or ready, of a run in which generation and training overlap.  There ``tasks_taken`` and
    ``prompts`` count what is planned."""
    experts: ExpertPool = Field(default_factory=ExpertPool)
    """What is known of the starts of tasks; empty unless the recipe has expert starts."""
    quarantine: QuarantineState = Field(default_factory=QuarantineState)
    """It holds what reviewers have decided, and what waits for them."""
    evaluations: dict[int, dict[str, float]] = {}
    """Finished steps -> the ``eval/...`` values measured there."""
    evaluation_report: EvaluationReport | None = None
    """The last evaluation as a table, where each task was tried more than once or nothing is trained."""
    trajectories: int = 0
    """Emitted so far, evaluations included."""
    sampled_tokens: int = 0
    """It counts tokens of training rollouts."""
    seconds: dict[str, float] = {}
    """Time spent so far, by phase."""
    peak_rss_mib: float = 0.0

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any, info: ValidationInfo) -> Any:
        """Only what is read from a file can be of an earlier version."""
        return files_of_0_2.run_state(document, get_args(Purpose)) if info.mode == "json" else document

    def go_on_from(self, saved: "RunState") -> None:
        """Become what a checkpoint says; whoever holds this state sees it.

        The spec stays: it is the same but for what it runs on, which a restart may change.
        """
        for name in type(self).model_fields.keys() - {"spec"}:
            setattr(self, name, getattr(saved, name))

    def count_evaluation(self, requests: Iterable[EpisodeRequest]) -> None:
        for purpose, prompts in Counter(purpose for purpose, _ in {(r.purpose, r.prompt) for r in requests}).items():
            self.prompts[purpose] = self.prompts.get(purpose, 0) + prompts
