"""``./dev VERB``: reads the command line and calls the verb."""

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from devtools import benching, testing, up, verbs
from devtools.errors import Unfit
from devtools.lock import write_locks

Verb = Callable[[argparse.Namespace], int]
PASSING_ON = ("exec", "serve", "test", "bench")
SUMMARY = "Palestra on this machine.  ./dev up starts it; ./dev help lists the rest."


class Parser(argparse.ArgumentParser):
    """Its options are written out: verbs look for their words, and pass them on."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise Unfit(f"{message}\n{self.format_usage().strip()}")


def main(words: list[str]) -> int:
    parser, verb_names = _parser()
    word = words[0] if words else "help"
    try:
        if word in ("help", "-h", "--help"):
            parser.print_help()
            return 0
        if word not in verb_names:
            raise Unfit(f"there is no verb '{word}'; there are: {', '.join(verb_names)}")
        # These pass on what follows them, options included.
        own, passed_on = (words[:1], words[1:]) if word in PASSING_ON else (words, [])
        options = parser.parse_args(own)
        options.passed_on = passed_on
        status: int = options.verb(options)
        return status
    except Unfit as error:
        print(f"dev: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> tuple[Parser, list[str]]:
    parser = Parser(prog="./dev", description=SUMMARY)
    verb_parsers = parser.add_subparsers(title="verbs", metavar="")

    def add(name: str, verb: Verb, summary: str) -> argparse.ArgumentParser:
        one = verb_parsers.add_parser(name, help=summary, description=summary)
        one.set_defaults(verb=verb)
        return one

    up.add_arguments(add("up", up.up, "start everything, or go on where it stopped"))
    add("down", verbs.down, "stop everything in order")
    add("status", verbs.status, "services and runs").add_argument("--json", action="store_true")
    add("reset", verbs.reset, "remove the home: database, runs, checkpoints").add_argument("--yes", action="store_true")
    logs = add("logs", verbs.logs, "the log of a service; without a name: which there are")
    logs.add_argument("name", nargs="?")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", "--lines", type=int, default=100)
    add("exec", verbs.run_command, "CMD: a command in the project's environment")
    add("serve", verbs.serve, "--model FOLDER | --run NAME: a model behind OpenAI's and Anthropic's endpoints")
    add(
        "test",
        testing.test,
        "[quick|soak|verl|protocols|backends ...] [pytest's arguments]: lint, types, contracts, tests",
    )
    add("bench", benching.bench, "[NAME] [--json FILE]: run a benchmark; without a name: which there are")
    add("lock", _lock, "write the lock files from pyproject.toml and what is installed")
    return parser, list(verb_parsers.choices)


def _lock(_options: argparse.Namespace) -> int:
    for path in write_locks():
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
