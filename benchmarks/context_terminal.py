"""A demonstrator of the project's terminal tasks about files: a look, steps of one command each, and an answer.

The tasks are those of ``python -m engine tasks make``, of many seeds: five kinds, whose instructions hardly differ from
seed to seed and whose files do.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.context_material import Demonstration, folding, shape, thinking
from engine.environments.contract import Environment
from engine.environments.terminal.own.making import write_tasks
from engine.spec.message import AssistantMessage

DOMAIN = "files"
SEEDS = 30
"""There are five tasks of each."""
COUNT = 100


@dataclass(frozen=True, slots=True)
class Way:
    """How tasks of a kind are done: thoughts and commands, and when the first steps can be forgotten."""

    known_by: str
    """What stands in the instruction of this kind alone."""
    steps: tuple[tuple[str, str], ...]
    folds_after: int
    summary: str


WAYS = (
    Way(
        "largest files below",
        (
            ("I look around.", "ls"),
            ("First all files with their sizes.", "cd tree; find . -type f -printf '%s %P\\n' | sort -nr > ../all.txt"),
            ("Now the first {number}.", "head -n {number} ../all.txt > ../largest.txt"),
            ("I look at the result.", "cat ../largest.txt"),
        ),
        2,
        "The sizes are in ../all.txt.",
    ),
    Way(
        "Move the files of",
        (
            ("I look around.", "ls inbox"),
            ("First the folders.", "mkdir -p sorted/text sorted/tables sorted/logs"),
            ("Now the texts.", "mv inbox/*.txt sorted/text"),
            ("Now the tables.", "mv inbox/*.csv sorted/tables"),
            ("Now the logs.", "mv inbox/*.log sorted/logs"),
        ),
        3,
        "The texts are moved.",
    ),
    Way(
        "all.tar.gz holds",
        (
            ("I look around.", "ls"),
            ("First I unpack.", "mkdir /tmp/all; tar -xzf all.tar.gz -C /tmp/all"),
            ("Now the scratch files go.", "find /tmp/all -name 'scratch*' -type f -delete"),
            ("Now I pack.", "cd /tmp/all; tar -czf /work/clean.tar.gz *"),
            ("I look at the result.", "tar -tzf /work/clean.tar.gz"),
        ),
        3,
        "The scratch files are gone from /tmp/all.",
    ),
    Way(
        "SHA256SUMS lists",
        (
            ("I look around.", "ls"),
            ("First I compare.", "sha256sum -c SHA256SUMS > sums 2>&1"),
            ("Now the damaged ones.", "grep 'FAILED$' sums | cut -d: -f1 | sort > damaged"),
            ("Now the missing ones.", "grep 'FAILED open' sums | cut -d: -f1 | sort > missing"),
            (
                "Now the report.",
                'python3 -c "import json; r = lambda p: open(p).read().split(); '
                "json.dump({'damaged': r('damaged'), 'missing': r('missing')}, open('report.json', 'w'))\"",
            ),
            ("I look at the result.", "cat report.json"),
        ),
        3,
        "The file damaged is written.",
    ),
    Way(
        "some files are scripts",
        (
            ("I look around.", "ls tools"),
            ("First none may be executed.", "chmod a-x tools/*"),
            ("Now the scripts.", "for f in tools/*; do head -c 2 $f | grep -q '#!' && chmod u+x $f; done"),
        ),
        2,
        "No file may be executed.",
    ),
)


class TerminalDomain:
    shape = shape(width=192, head=64)

    def write_tasks(self, folder: Path) -> None:
        """Those of the domain, of every seed, with the seed in their names."""
        folder.mkdir()
        for seed in range(SEEDS):
            made = folder.parent / "made"
            for name in write_tasks(made, seed=seed):
                if name.startswith(f"{DOMAIN}-"):
                    (made / name).rename(folder / f"{name}-{seed}")
            shutil.rmtree(made)

    def demonstrations(self, environment: Environment) -> Sequence[Demonstration]:
        tasks = environment.tasks("train")
        numbers = [number % len(tasks) for number in range(COUNT)]
        return [_demonstration(number, tasks[number].question) for number in numbers]


def _demonstration(number: int, instruction: str) -> Demonstration:
    way = next(way for way in WAYS if way.known_by in instruction)
    found = re.search(r"\d+", instruction)
    words = {"number": found.group() if found else ""}
    steps = [
        (thought.replace("{number}", words["number"]), command.replace("{number}", words["number"]))
        for thought, command in way.steps
    ]
    turns = [thinking(thought, "shell", {"command": command}) for thought, command in steps]
    turns.append(replace(AssistantMessage("done"), reasoning="It is done."))
    managed = list(turns)
    if way.folds_after + 1 < len(turns):
        managed[way.folds_after] = folding(turns[way.folds_after], way.folds_after, way.summary)
    return Demonstration(number, tuple(turns), tuple(managed))
