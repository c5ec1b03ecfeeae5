"""``python -m engine.datasets VERB``: a worker's own process for files that nobody has looked at yet.

Each verb prints one JSON document.  The worker bounds its memory and its time, and it may die of what it reads.
"""

import argparse
from pathlib import Path

from engine.spec.strict import Strict


def main() -> None:
    print(_report(_options()).model_dump_json())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.datasets")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("inspect", "prepare", "difference", "lengths"):
        verb = verbs.add_parser(name)
        verb.add_argument("folder", type=Path)
        if name == "difference":
            verb.add_argument("after", type=Path)
        if name == "lengths":
            verb.add_argument("model", type=Path)
            verb.add_argument("progress", type=Path)
        if name in ("prepare", "lengths"):
            verb.add_argument("--seconds", type=float, default=1e9)
    return parser.parse_args()


def _report(options: argparse.Namespace) -> Strict:
    """Each verb imports what it needs: a tokenizer takes memory that a reader of files does not have."""
    match options.verb:
        case "inspect":
            from engine.datasets.inspection import inspect

            return inspect(options.folder)
        case "prepare":
            from engine.datasets.preparation import prepare

            return prepare(options.folder, seconds=options.seconds)
        case "difference":
            from engine.datasets.difference import difference

            return difference(options.folder, options.after)
        case _:
            from engine.datasets.lengths import measure

            return measure(options.folder, options.model, options.progress, seconds=options.seconds)


if __name__ == "__main__":
    main()
