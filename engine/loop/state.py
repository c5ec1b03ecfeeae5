"""What a run knows about itself besides its weights; one small JSON file in every checkpoint."""

from pydantic import BaseModel, ConfigDict, Field

from engine.loop.expert_pool import ExpertPool
from engine.loop.quarantine import QuarantineState
from engine.spec.run import RunSpec


class RunState(BaseModel):
    """Counts everything that still holds: what a resumed attempt does again is not in here."""

    model_config = ConfigDict(extra="forbid")

    spec: RunSpec
    cold_started: bool = False
    """Also true of a recipe without one, once its weights are saved."""
    cold_start_steps: int = 0
    """Supervised steps that are done: all of them or none."""
    finished_steps: int = 0
    """RL steps whose update is done; also the version of the policy."""
    tasks_taken: int = 0
    """Training tasks that finished steps have taken, in turn and without an end."""
    experts: ExpertPool = Field(default_factory=ExpertPool)
    """What is known of the starts of tasks; empty unless the recipe has expert starts."""
    quarantine: QuarantineState = Field(default_factory=QuarantineState)
    """Whom reviewers have ruled on, and who waits for them."""
    evaluations: dict[int, dict[str, float]] = {}
    """Finished steps -> the ``eval/...`` values measured there."""
    trajectories: int = 0
    """Emitted so far, evaluations included."""
    sampled_tokens: int = 0
    """Of training rollouts."""
    seconds: dict[str, float] = {}
    """Time spent so far, by phase."""
    peak_rss_mib: float = 0.0

    def evaluation_due(self) -> bool:
        """Before the first step, after the last one, and every ``evaluation.every`` steps."""
        every, done = self.spec.evaluation.every, self.finished_steps
        due = done in (0, self.spec.rl_steps) or (every > 0 and done % every == 0)
        return due and done not in self.evaluations

    def evaluation_tasks(self) -> int:
        full = self.finished_steps in (0, self.spec.rl_steps)
        return self.spec.evaluation.tasks if full else self.spec.evaluation.interim_tasks

    def checkpoint_due(self) -> bool:
        done = self.finished_steps
        return done in (0, self.spec.rl_steps) or done % self.spec.schedule.checkpoint_every == 0
