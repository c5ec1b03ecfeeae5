"""``python -m engine.environments.process SOURCE TARGET``: a worker's process for a package that nobody has read yet.

It prints one JSON document.  The worker bounds its memory and its time, and it may die of what it reads.
"""

import argparse
from pathlib import Path

from engine.environments.process.storing import store


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.environments.process")
    parser.add_argument("source", type=Path, help="a package's folder, a .tar of one, or a wheel")
    parser.add_argument("target", type=Path, help="where to; what an earlier try has left there is removed")
    options = parser.parse_args()
    print(store(options.source, options.target).model_dump_json())


if __name__ == "__main__":
    main()
