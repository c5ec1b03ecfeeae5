"""``python -m engine check``: what is wrong with a run's TOML file, or what the run does."""

from pathlib import Path

from engine.launch.pinned_dataset import with_pinned_dataset
from engine.launch.preflight import BadSpec, with_pinned_model
from engine.launch.run_files import FileFolder, check_stage_files, with_pinned_files
from engine.loop.model_requirements import memory_in_words
from engine.loop.requirements import lacking
from engine.spec.run import RunSpec


def check(spec: RunSpec, *, file: Path) -> int:
    """The exit code.  ``spec`` is what ``file`` says.  Raises BadSpec."""
    spec = with_pinned_model(spec, None, named_in=file, anywhere=True)
    spec = with_pinned_dataset(spec, named_in=file, anywhere=True)
    spec = with_pinned_files(spec, None, FileFolder(file.parent, anywhere=True))
    if problems := lacking(spec):
        raise BadSpec([f"{file}: {problem}" for problem in problems])
    check_stage_files(spec, file.parent)
    print(f"{file}: fine. {spec.name}: {_what_it_does(spec)}")
    if (memory := memory_in_words(spec.model, spec.recipe, spec.resources)) is not None:
        print(memory)
    return 0


def _supervised(spec: RunSpec) -> str:
    stages, steps = len(spec.recipe.stages), spec.recipe.supervised_steps
    if steps is None:
        return f"{stages} supervised stage{'' if stages == 1 else 's'}"
    return f"{steps} supervised steps"


def _what_it_does(spec: RunSpec) -> str:
    schedule, evaluation = spec.schedule, spec.evaluation
    if not spec.recipe.trains:
        played = [f"by the player {player}" for player in evaluation.players if player != "model"]
        if "model" in evaluation.players:
            played.insert(0, f"once greedily and {evaluation.samples} x sampled")
        return f"no training; {evaluation.tasks} held-out tasks, {', '.join(played)}"
    if not spec.rl_steps:
        return _supervised(spec)
    supervised = f"{_supervised(spec)}, then " if spec.recipe.stages else ""
    rollouts = f"{schedule.prompts_per_step} x {schedule.group_size} rollouts"
    return f"{supervised}{spec.rl_steps} steps of {rollouts}"
