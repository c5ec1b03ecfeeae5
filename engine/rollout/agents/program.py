"""The agent as a program in a sandbox: its files, its environment, its run, its end."""

import io
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from engine.spec.agent import AgentProgram, ExitClass
from engine.spec.problems import Problem
from sandboxes.interface import ExecResult, Outcome, Sandbox, SandboxUnavailable
from sandboxes.spec import SandboxSpec

FOLDER = "/tmp/agent"
PORT = 929
"""Below 1024, so that nothing in the sandbox can take it."""
ORIGIN = f"http://127.0.0.1:{PORT}"
UPLOAD = "/tmp/agent.tar"
UNPACK_S = 60.0
MOST_FOLDER_BYTES = 256 * 2**20
MOST_FOLDER_ENTRIES = 20_000
UNPACK = f"mkdir -p {FOLDER} && tar -xf {UPLOAD} -C {FOLDER} && rm {UPLOAD}"
START = 'cd "$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of the program."""

    outcome: Outcome
    exit_code: int | None
    seconds: float
    output: str


class AgentUnusable(Exception):
    """The agent's own folder cannot be sent."""

    def __init__(self, path: Path, message: str, remedy: str) -> None:
        self.problem = Problem("environment.agent.folder.path", str(path), message, remedy)
        super().__init__(str(self.problem))


def lacking(program: AgentProgram, sandbox: SandboxSpec) -> list[Problem]:
    """Return why the agent's files cannot be sent to such a sandbox; empty where they can."""
    try:
        size = len(archive(program))
    except AgentUnusable as unusable:
        return [unusable.problem]
    needed = -(-2 * size // 2**20)  # packed and unpacked, for a moment both are there
    if needed <= sandbox.disk_mib:
        return []
    message = f"the agent's files take {needed} MiB of /tmp while they are unpacked"
    return [Problem("environment.tasks.sandbox.disk_mib", sandbox.disk_mib, message, f"use at least {needed}")]


async def placed(program: AgentProgram, sandbox: Sandbox) -> None:
    """Its files are there.  Raises SandboxUnavailable where the sandbox does not take them, and AgentUnusable."""
    try:
        await sandbox.write_file(UPLOAD, archive(program))
    except OSError as error:
        raise SandboxUnavailable(f"the sandbox does not take the agent's files: {error}") from error
    unpacked = await sandbox.exec(["/bin/sh", "-c", UNPACK], timeout_s=UNPACK_S)
    if unpacked.outcome != "ok":
        reason = unpacked.stderr.strip()[-300:] or unpacked.outcome
        raise SandboxUnavailable(f"the sandbox does not take the agent's files (its disk_mib, or no tar): {reason}")


async def ran(program: AgentProgram, sandbox: Sandbox, task: str, key: str) -> Ended:
    """Runs it once, to its end or to that of its time.  Raises what the sandbox raises."""
    command = [argument.replace("{task}", task) for argument in program.command]
    variables = {variable.name: variable.value for variable in program.variables}
    argv = ["/bin/sh", "-c", START, program.working_folder, *command]
    result = await sandbox.exec(argv, env=variables | _model(task, key), timeout_s=program.timeout_s)
    return Ended(result.outcome, result.exit_code, result.seconds, _log(result, key, program.log_bytes))


def exit_class(ended: Ended | None, *, calls: int, over_budget: bool) -> ExitClass:
    """``ended`` None: its sandbox was frozen."""
    if ended is None:
        return "frozen"
    if over_budget or ended.outcome == "timeout":
        return "over-budget"
    if ended.outcome in ("memory", "output", "killed"):
        return "killed"
    if not calls:
        return "silent"
    return "done" if ended.outcome == "ok" else "crashed"


def archive(program: AgentProgram) -> bytes:
    """All of its files, as a tar.  Raises AgentUnusable."""
    written = _archive(program.folder.path if program.folder is not None else None)
    packed = io.BytesIO(written)
    with tarfile.open(fileobj=packed, mode="a") as tar:
        for file in program.files:
            content = file.content.encode()
            entry = tarfile.TarInfo(file.path)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@lru_cache(maxsize=4)
def _archive(folder: str | None) -> bytes:
    """Read once in the life of a worker."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        if folder is not None:
            _add(tar, Path(folder))
    return packed.getvalue()


def _add(tar: tarfile.TarFile, root: Path) -> None:
    if not root.is_dir() or root.is_symlink():
        raise AgentUnusable(root, "there is no such folder", "name a folder of this machine")
    size = 0
    for number, path in enumerate(sorted(root.rglob("*")), start=1):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise AgentUnusable(path, "it is neither a file nor a folder", "copy what it leads to")
        size += path.stat().st_size if path.is_file() else 0
        if size > MOST_FOLDER_BYTES or number > MOST_FOLDER_ENTRIES:
            message = f"it holds more than {MOST_FOLDER_BYTES} bytes or {MOST_FOLDER_ENTRIES} files"
            raise AgentUnusable(root, message, "leave something out, or use an image")
        tar.add(path, str(path.relative_to(root)), recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the owner and the time of the machine that it comes from."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _model(task: str, key: str) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{ORIGIN}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": ORIGIN,
        "ANTHROPIC_API_KEY": key,
        "PALESTRA_TASK": task,
    }


def _log(result: ExecResult, key: str, log_bytes: int) -> str:
    """The end of what it wrote, without what cannot be stored."""
    written = "\n".join(filter(None, (result.stdout, result.stderr))).replace(key, "[key]").replace("\0", "")
    return written.encode("utf-8", "replace")[max(0, len(written.encode("utf-8", "replace")) - log_bytes) :].decode(
        "utf-8", "ignore"
    )
