"""``python -m sandboxes VERB``."""

import argparse
import sys

from sandboxes.admin import commands as admin
from sandboxes.images import commands as images
from sandboxes.service.commands import add_commands


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandboxes", description="Where untrusted code runs.")
    commands = parser.add_subparsers(required=True, metavar="VERB")
    add_commands(commands)
    admin.add_commands(commands)
    images.add_commands(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = parser_of().parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
