"""A folder of the Harbor form as a task, or all that is wrong with it.

task.toml               what it asks for (``task_file``)
instruction.md          what the policy is asked
environment/            files of the working folder, or a Dockerfile with its context
tests/test.sh           writes /logs/verifier/reward.txt or reward.json
solution/solve.sh       solves it; none: no oracle
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from engine.environments.terminal.dockerfile_plan import NAME, UNBUILT, DockerfilePlan, plan_of
from engine.environments.terminal.folder_files import (
    LIMITS,
    FolderFile,
    FolderLimits,
    FolderListing,
    content_of,
    listed,
)
from engine.environments.terminal.task_file import SCHEMAS, TaskFile
from engine.spec.problems import Problem, problems_in
from engine.spec.toml_document import BadToml, toml_document
from sandboxes.images.reference import ImageRefused
from sandboxes.tree import LONGEST_PATH_BYTES, MOST_BYTES, Tree, TreeEntry

TASK_FILE, INSTRUCTION, TESTS, SOLVE = "task.toml", "instruction.md", "tests/test.sh", "solution/solve.sh"
TEXT_BYTES = 256 * 1024
"""The longest text of ``task.toml``, ``instruction.md`` and a Dockerfile, each."""
UNSUPPORTED = {
    "steps": "tasks of several steps are not supported",
    "environment/docker-compose.yaml": "tasks of several containers are not supported",
    "environment/docker-compose.yml": "tasks of several containers are not supported",
}


@dataclass(frozen=True)
class TerminalTask:
    """One task, as it was read.  Its files stay in the folder, and are compared with ``files`` whenever they are used.

    Stateless, so any number of episodes may have it.
    """

    name: str
    folder: Path
    file: TaskFile
    instruction: str
    files: tuple[FolderFile, ...]
    folders: tuple[str, ...]
    digest: str
    plan: DockerfilePlan | None
    """What its Dockerfile amounts to; None without one."""

    @property
    def has_solution(self) -> bool:
        return SOLVE in self._by_path

    def tests(self) -> Tree:
        """What is below ``tests/``.  Raises ``OSError`` where the folder was changed."""
        return self._tree("tests")

    def solution(self) -> Tree:
        """What is below ``solution/``.  Raises ``OSError`` where the folder was changed."""
        return self._tree("solution")

    def working_files(self) -> Tree:
        """What lies in the working folder when the task begins.  Raises ``OSError`` where the folder was changed.

        Nothing where an image brings it along.
        """
        if self.needs_image:
            return Tree(())
        if self.plan is None or self.plan.copies is None:
            return self._tree("environment")
        return Tree(tuple(self._entry(f"environment/{source}", to) for source, to in sorted(self.plan.copies.items())))

    @property
    def needs_image(self) -> bool:
        """Return whether only an image of its own has what the task needs."""
        return self.file.environment.docker_image is not None or (self.plan is not None and self.plan.copies is None)

    @property
    def working_bytes(self) -> int:
        """The size of what is laid over the working folder, at most."""
        return sum(file.size_bytes for file in self.files if file.path.startswith("environment/"))

    @cached_property
    def _by_path(self) -> dict[str, FolderFile]:
        return {file.path: file for file in self.files}

    def _tree(self, folder: str) -> Tree:
        inside = f"{folder}/"
        folders = [TreeEntry(path.removeprefix(inside), None) for path in self.folders if path.startswith(inside)]
        files = [self._entry(path, path.removeprefix(inside)) for path in self._by_path if path.startswith(inside)]
        return Tree((*folders, *files))

    def _entry(self, path: str, to: str) -> TreeEntry:
        file = self._by_path[path]
        return TreeEntry(to, content_of(self.folder, file), file.executable)


def task_in(folder: Path, limits: FolderLimits = LIMITS) -> TerminalTask | list[Problem]:
    """The task, or its faults, each with the file at fault in its field.  Raises ``OSError`` where it is no folder."""
    listing = listed(folder, limits)
    reader = _Reader(folder, listing)
    file, instruction, plan = reader.task_file(), reader.text(INSTRUCTION), reader.plan()
    reader.check_layout()
    if reader.faults or file is None or instruction is None:
        return [_in(folder.name, fault) for fault in reader.faults]
    return TerminalTask(
        name=folder.name,
        folder=folder,
        file=file,
        instruction=instruction,
        files=tuple(listing.files),
        folders=tuple(listing.folders),
        digest=listing.digest,
        plan=plan,
    )


class _Reader:
    """Reads the parts of one folder; what is wrong with any of them is in ``faults``."""

    def __init__(self, folder: Path, listing: FolderListing) -> None:
        self._folder, self._listing = folder, listing
        self._files = {file.path: file for file in listing.files}
        self.faults = list(listing.faults)

    def text(self, path: str) -> str | None:
        """The text of a file that must be there; None after a fault."""
        file = self._files.get(path)
        if file is None:
            self._missing(path)
            return None
        if file.size_bytes > TEXT_BYTES:
            self._fault(path, file.size_bytes, f"more than {TEXT_BYTES} bytes", "make it shorter")
            return None
        try:
            text = content_of(self._folder, file).decode()
        except UnicodeDecodeError as error:
            self._fault(path, error.object[error.start : error.end], "this is no UTF-8", "save it as UTF-8")
            return None
        if not text.strip() or "\0" in text:
            self._fault(path, text[:20], "it is empty, or holds U+0000", "write the text into it")
            return None
        return text

    def task_file(self) -> TaskFile | None:
        text = self.text(TASK_FILE)
        if text is None:
            return None
        try:
            given = toml_document(text)
        except BadToml as bad:
            self.faults.append(bad.problem(TASK_FILE))
            return None
        if not self._has_known_schema(given):
            return None
        try:
            return TaskFile.model_validate(given)
        except ValidationError as error:
            for problem in problems_in(error, TaskFile):
                self.faults.append(
                    Problem(f"{TASK_FILE}: {problem.field}", problem.value, problem.message, problem.remedy)
                )
            return None

    def _has_known_schema(self, given: dict[str, object]) -> bool:
        """A file of another schema is not read further: what its keys mean is not known."""
        version = given.get("schema_version", given.get("version"))
        if version in SCHEMAS:
            return True
        value = "(missing)" if version is None else version
        remedy = f"write the task in one of the schemas {', '.join(SCHEMAS)}"
        self._fault(f"{TASK_FILE}: schema_version", value, "a schema that is not known", remedy)
        return False

    def plan(self) -> DockerfilePlan | None:
        path = f"environment/{NAME}"
        if path not in self._files or (text := self.text(path)) is None:
            return None
        inside = (file.removeprefix("environment/") for file in self._files if file.startswith("environment/"))
        try:
            return plan_of(text, frozenset(inside) - UNBUILT)
        except ImageRefused as refusal:
            self._fault(path, refusal.value, refusal.problem, refusal.remedy)
            return None

    def check_layout(self) -> None:
        if TESTS not in self._files:
            self._missing(TESTS)
        names = {*self._files, *self._listing.folders}
        for path, message in UNSUPPORTED.items():
            if path in names:
                self._fault(path, "(there)", message, "make it a task of one step in one sandbox")
        for folder in ("environment", "tests", "solution"):
            self._check_size(folder)
        for path in names:
            if len(path.encode()) > LONGEST_PATH_BYTES:
                self._fault(path, path, f"a path of more than {LONGEST_PATH_BYTES} bytes", "put it higher")
        folders = {path.split("/", 1)[0] for path in names if "/" in path}
        if "solution" in folders and SOLVE not in self._files:
            self._missing(SOLVE)

    def _check_size(self, folder: str) -> None:
        """More is not copied into a sandbox."""
        size_bytes = sum(file.size_bytes for path, file in self._files.items() if path.startswith(f"{folder}/"))
        if size_bytes > MOST_BYTES:
            self._fault(folder, size_bytes, f"more than {MOST_BYTES} bytes", "make it smaller, or an image of it")

    def _missing(self, path: str) -> None:
        if not any(fault.field == path for fault in self.faults):
            self._fault(path, "(missing)", "every task has it", "add it")

    def _fault(self, field: str, value: object, message: str, remedy: str) -> None:
        self.faults.append(Problem(field, value, message, remedy))


def _in(name: str, fault: Problem) -> Problem:
    return Problem(f"{name}/{fault.field}", fault.value, fault.message, fault.remedy)
