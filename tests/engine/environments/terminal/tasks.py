"""Task folders for tests, and how a policy plays them by hand."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from engine.cluster.sandboxes import opened_sandboxes
from engine.environments.contract import Rewards
from engine.environments.terminal.environment import TerminalEnvironment
from engine.rollout.sandbox_monitor import EpisodeMonitor
from engine.rollout.security_log import AlertEntry
from engine.spec.environment import Terminal
from engine.spec.message import AssistantMessage
from engine.spec.run import Dataset

TASK_FILE = 'schema_version = "1.4"\n'
TEST = """\
#!/bin/sh
if [ "$(cat /app/out.txt)" = 42 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
SOLVE = "#!/bin/sh\ncp /app/in.txt /app/out.txt\n"


def write_task(
    folder: Path,
    name: str = "copy",
    *,
    task_file: str = TASK_FILE,
    test: str = TEST,
    solve: str | None = SOLVE,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task that asks for 42 in out.txt, which is also in in.txt."""
    parts = {"task.toml": task_file, "instruction.md": "Put 42 into out.txt.\n", "tests/test.sh": test}
    parts |= {f"environment/{path}": text for path, text in (files or {"in.txt": "42\n"}).items()}
    if solve is not None:
        parts["solution/solve.sh"] = solve
    for path, text in parts.items():
        place = folder / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder / name


def shell(command: str) -> AssistantMessage:
    return AssistantMessage.calling("shell", {"command": command})


def environment_of(folder: Path, **changes: object) -> TerminalEnvironment:
    settings = Terminal.model_validate({"tasks": str(folder), "heldout_share": 0, **changes})
    return TerminalEnvironment(settings, Dataset(train_tasks=1, heldout_tasks=1))


class Played:
    """What came of an episode that was played by hand."""

    def __init__(self) -> None:
        self.outputs: list[str] = []
        self.rewards: Rewards | None = None
        self.alerts: list[AlertEntry] = []

    @property
    def grave(self) -> set[str]:
        """Rules that raised an alert of severity warning or critical."""
        return {alert.finding.rule for alert in self.alerts if alert.finding.severity != "info"}


class Arena:
    """Plays tasks of an environment in sandboxes that are watched, as a rollout worker does."""

    def __init__(self, environment: TerminalEnvironment, alerts: list[AlertEntry], sandboxes: object) -> None:
        self.environment, self._alerts, self._sandboxes = environment, alerts, sandboxes
        self._episodes = 0

    async def play(self, *messages: AssistantMessage, number: int = 0) -> Played:
        """A frozen sandbox ends the episode without success, as it does in a run."""
        from sandboxes.interface import SandboxFrozen

        self._alerts.clear()
        self._episodes += 1
        played, watch = Played(), self._watch()
        task = self.environment.tasks("train")[number]
        try:
            async with self.environment.session(task, watch) as session:
                await session.reset()
                for message in messages:
                    observation = await session.act(message)
                    played.outputs += [call.output for call in observation.calls]
                    await watch.settled()
                played.rewards = await session.score()
                await watch.settled()
        except SandboxFrozen:
            played.rewards = Rewards(success=False)
        await self._sandboxes.monitor.settled()  # type: ignore[attr-defined]
        played.alerts = list(self._alerts)
        return played

    def _watch(self) -> EpisodeMonitor:
        pool = self._sandboxes
        return pool.monitor.episode(pool.pool, f"train-{self._episodes}-0")  # type: ignore[attr-defined,no-any-return]


@asynccontextmanager
async def arena_of(environment: TerminalEnvironment, folder: Path, size: int = 2) -> AsyncIterator[Arena]:
    alerts: list[AlertEntry] = []
    settings = environment.settings
    async with opened_sandboxes(settings, folder / "log", size=size, on_alert=alerts.append) as sandboxes:
        yield Arena(environment, alerts, sandboxes)
