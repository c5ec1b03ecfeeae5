"""``python -m engine.environments.terminal SOURCE TARGET``: a worker's own process for tasks that nobody has read yet.

It prints one JSON document.  The worker bounds its memory and its time, and it may die of what it reads.
"""

import argparse
from pathlib import Path

from engine.environments.terminal.storing import store


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.environments.terminal")
    parser.add_argument("source", type=Path, help="a folder of tasks, a .tar of one, or a .jsonl of rows")
    parser.add_argument("target", type=Path, help="where to; what an earlier try has left there is removed")
    options = parser.parse_args()
    print(store(options.source, options.target).model_dump_json())


if __name__ == "__main__":
    main()
