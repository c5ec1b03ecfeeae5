"""``python -m engine``: train, measure and check tasks, do service jobs, talk with models, check specs and recipes."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from engine.launch.preflight import BadSpec, spec_from_file
from engine.spec.model_files import CatalogFolder
from engine.spec.run import RunSpec

BAD_SPEC = 2


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        status: int = options.run(options)
        return status
    except BadSpec as error:
        print("\n".join(error.lines), file=sys.stderr)
        return BAD_SPEC


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    train = commands.add_parser("train", help="train here, without database and web")
    train.add_argument("file", type=Path, help="the run's TOML file")
    train.add_argument(
        "--run-dir", type=Path, help="where checkpoints and events go (default: $PALESTRA_HOME/engine/<name>)"
    )
    train.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the folder")
    train.add_argument("--in-process", action="store_true", help="no Ray: everything in this process")
    train.add_argument("--json", type=Path, metavar="FILE", help="write the summary here")
    train.set_defaults(run=_train)
    job = commands.add_parser("job", help="one attempt of a run that the service launched")
    job.add_argument("launch", type=Path, help="the launch file")
    job.set_defaults(run=_job)
    difficulty = commands.add_parser(
        "difficulty", help="play each training task k times, and write how often it is solved"
    )
    difficulty.add_argument("file", type=Path, help="the run's TOML file")
    difficulty.add_argument("--rollouts", type=int, default=8, metavar="K", help="of each task (default: 8)")
    difficulty.add_argument("--out", type=Path, required=True, metavar="FILE", help="the table; it must not exist")
    difficulty.add_argument(
        "--run-dir",
        type=Path,
        help="where it goes on if it is stopped (default: $PALESTRA_HOME/engine/<name>-difficulty)",
    )
    difficulty.add_argument("--in-process", action="store_true", help="no Ray: everything in this process")
    difficulty.set_defaults(run=_difficulty)
    check = commands.add_parser("check", help="say what is wrong with a run's TOML file")
    check.add_argument("file", type=Path)
    check.set_defaults(run=_check)
    make = commands.add_parser("make-model", help="write the small pretrained model of the sample, with random weights")
    make.add_argument("folder", type=Path, help="where to; it must not exist")
    make.add_argument("--seed", type=int, default=0)
    make.set_defaults(run=_make_model)
    model_check = commands.add_parser("model-check", help="say what a model's folder holds, or why it is not used")
    model_check.add_argument("folder", type=Path)
    model_check.add_argument("--json", action="store_true", help="for programs")
    model_check.add_argument(
        "--seconds", type=_number(1), default=10**9, help="of reading weights at most (default: to their end)"
    )
    model_check.add_argument(
        "--after-bytes", type=_number(0), default=0, help="go on behind so many bytes of the weights (default: 0)"
    )
    model_check.set_defaults(run=_model_check)
    chat = commands.add_parser("chat", help="talk with a model or a checkpoint, line by line")
    which = chat.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, metavar="FOLDER", help="a model's folder")
    which.add_argument("--run", dest="which", help="a run: its folder, its id, or its name below the home")
    chat.add_argument(
        "--catalog",
        type=_catalog,
        metavar="JSON",
        help='of --model: the version whose files it holds, {"version", "team", "sha256"}; others are refused',
    )
    chat.add_argument("--step", type=_number(0), help="of the run's checkpoint (default: its newest)")
    chat.add_argument(
        "--environment", metavar="FILE", help="whose tools answer: a run's TOML file, or 'own' (default: no tools)"
    )
    chat.add_argument("--task", type=_number(0), default=0, help="the environment's held-out task (default: 0)")
    chat.add_argument("--context", type=_number(16), help="tokens of the conversation at most")
    chat.add_argument("--threads", type=_number(1), help="CPU threads (default: those of the run)")
    chat.add_argument("--seconds", type=_number(1), default=300, help="of one answer at most (default: 300)")
    chat.add_argument("--json", action="store_true", help="JSON lines in and out (engine/spec/chat.py)")
    chat.set_defaults(run=_chat)
    tasks = commands.add_parser(
        "tasks", help="check, make, convert or build terminal tasks", add_help=False, prefix_chars="\0"
    )  # it reads no option itself: engine/launch/task_commands.py does
    tasks.add_argument("arguments", nargs=argparse.REMAINDER)
    tasks.set_defaults(run=_tasks)
    environment = commands.add_parser(
        "environment", help="begin or check an environment package", add_help=False, prefix_chars="\0"
    )  # engine/launch/environment_commands.py reads its options
    environment.add_argument("arguments", nargs=argparse.REMAINDER)
    environment.set_defaults(run=_environment)
    serving = commands.add_parser(
        "serve-environments",
        help="environments for other trainers, over GEM and OpenEnv",
        add_help=False,
        prefix_chars="\0",
    )  # engine/serving/command.py reads its options
    serving.add_argument("arguments", nargs=argparse.REMAINDER)
    serving.set_defaults(run=_serve_environments)
    models = commands.add_parser(
        "serve-models",
        help="models and checkpoints behind OpenAI's and Anthropic's endpoints",
        add_help=False,
        prefix_chars="\0",
    )  # engine/serving/models/command.py reads its options
    models.add_argument("arguments", nargs=argparse.REMAINDER)
    models.set_defaults(run=_serve_models)
    schema = commands.add_parser("schema", help="print the JSON schema of a run")
    schema.set_defaults(run=_schema)
    recipes = commands.add_parser("recipes", help="list the recipes, or show one")
    recipes.add_argument("--json", action="store_true", help="for programs")
    recipes.set_defaults(run=_recipes)
    show = recipes.add_subparsers().add_parser("show", help="every knob of a recipe, with default, range and source")
    show.add_argument("name")
    show.add_argument("--json", action="store_true", help="for programs")
    show.add_argument("--run", dest="as_run", action="store_true", help="print a run's TOML file that begins with it")
    show.set_defaults(run=_recipe)
    return parser


def _train(options: argparse.Namespace) -> int:
    spec = spec_from_file(options.file)
    from engine.launch.train import train

    return train(
        spec,
        file=options.file,
        run_dir=options.run_dir,
        resume=options.resume,
        in_process=options.in_process,
        json_file=options.json,
    )


def _difficulty(options: argparse.Namespace) -> int:
    from engine.launch.difficulty import measure_difficulty

    return measure_difficulty(
        options.file,
        rollouts=options.rollouts,
        out=options.out,
        run_dir=options.run_dir,
        in_process=options.in_process,
    )


def _job(options: argparse.Namespace) -> int:
    from engine.launch.job import launch_from_file, run_job

    return run_job(launch_from_file(options.launch))


def _check(options: argparse.Namespace) -> int:
    spec = spec_from_file(options.file)
    from engine.launch.check import check

    return check(spec, file=options.file)


def _make_model(options: argparse.Namespace) -> int:
    from engine.launch.sample_model import make_sample_model

    make_sample_model(options.folder, seed=options.seed)
    print(f"model: {options.folder}")
    return 0


def _model_check(options: argparse.Namespace) -> int:
    from engine.launch.model_check import checked, in_words

    report = checked(options.folder, after_bytes=options.after_bytes, seconds=options.seconds)
    print(report.model_dump_json() if options.json else in_words(report))
    return 0 if report.problem is None else BAD_SPEC


def _catalog(text: str) -> CatalogFolder:
    try:
        return CatalogFolder.model_validate_json(text)
    except ValidationError as error:
        places = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors(include_input=False))
        raise argparse.ArgumentTypeError(f"no version of a catalog (see {places or 'its JSON'})") from error


def _number(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, at least {least}")
        return int(text)

    return number


def _chat(options: argparse.Namespace) -> int:
    from engine.launch.chat import ChatOptions, chat

    return chat(
        ChatOptions(
            model=options.model,
            catalog=options.catalog,
            run=options.which,
            step=options.step,
            environment=options.environment,
            task=options.task,
            context_tokens=options.context,
            threads=options.threads,
            most_seconds=options.seconds,
            as_json=options.json,
        )
    )


def _tasks(options: argparse.Namespace) -> int:
    from engine.launch.task_commands import parser

    chosen = parser().parse_args(options.arguments)
    status: int = chosen.run(chosen)
    return status


def _environment(options: argparse.Namespace) -> int:
    from engine.launch.environment_commands import parser

    chosen = parser().parse_args(options.arguments)
    status: int = chosen.run(chosen)
    return status


def _serve_models(options: argparse.Namespace) -> int:
    from engine.serving.models.command import parser

    chosen = parser().parse_args(options.arguments)
    status: int = chosen.run(chosen)
    return status


def _serve_environments(options: argparse.Namespace) -> int:
    from engine.serving.command import parser

    chosen = parser().parse_args(options.arguments)
    status: int = chosen.run(chosen)
    return status


def _schema(options: argparse.Namespace) -> int:
    print(json.dumps(RunSpec.model_json_schema(), indent=2))
    return 0


def _recipes(options: argparse.Namespace) -> int:
    from engine.recipes import listed

    print(listed(as_json=options.json))
    return 0


def _recipe(options: argparse.Namespace) -> int:
    from engine.recipes import as_run, shown

    print(as_run(options.name) if options.as_run else shown(options.name, as_json=options.json))
    return 0


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough, as `head` has
        code = 0
    sys.stderr.flush()
    os._exit(code)  # an update under way in the learner's thread would hold a cancelled run back for seconds
