"""Judges the working folder of one task: ``tests/judge.py`` of each task of the project.  Standard library only.

Programs of the policy run here with the judge's own user id, so before the first of them begins the checks are in
memory only, the folder of the tests is empty, and the memory can be read by nobody.  When the last has ended every
other process is killed, what it wrote into /logs/verifier is removed, and only then is the reward written.  A
program that kills the judge leaves no reward.
"""

import contextlib
import ctypes
import http.client
import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any

Check = dict[str, Any]
WORK, LOGS = "/work", "/logs/verifier"
PROGRAM_S, SERVER_S = 10.0, 10.0
MOST_BYTES = 2**22
PR_SET_DUMPABLE = 4
PATH = "/usr/local/bin:/usr/bin:/bin"


class Failed(Exception):
    """A check does not hold; the message says how."""


def in_work(path: str) -> str:
    found = os.path.join(WORK, path)
    if not os.path.isfile(found) or os.path.islink(found):
        raise Failed(f"{path} is no file")
    if os.path.getsize(found) > MOST_BYTES:
        raise Failed(f"{path} is far too large")
    return found


def text_of(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def check_text(check: Check) -> None:
    same_text(check["path"], text_of(in_work(check["path"])), check["content"])


def same_text(where: str, found: str, expected: str) -> None:
    lines = ["\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (found, expected)]
    if lines[0] != lines[1]:
        raise Failed(f"{where} holds {found[:200]!r}")


def check_json(check: Check) -> None:
    try:
        found = json.loads(text_of(in_work(check["path"])))
    except (ValueError, RecursionError) as error:
        raise Failed(f"{check['path']} is no JSON: {error}") from None
    if not equal(found, check["value"]):
        raise Failed(f"{check['path']} holds {json.dumps(found)[:200]}")


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6)
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(equal(found[name], expected[name]) for name in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(equal, found, expected))
    return type(found) is type(expected) and found == expected


def environment() -> dict[str, str]:
    return {"PATH": PATH, "HOME": tempfile.mkdtemp(prefix="home-"), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


def folder_with(files: dict[str, str]) -> str:
    folder = tempfile.mkdtemp(prefix="given-")
    for path, content in files.items():
        place = os.path.join(folder, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8") as file:
            file.write(content)
    return folder


def check_program(check: Check) -> None:
    folder = folder_with(check["files"])
    look_for_programs(check["argv"])
    code, printed = ran(check["argv"], check["stdin"], folder)
    if code != check.get("exit_code", 0):
        raise Failed(f"{check['argv']} ended with {code}")
    if "stdout" in check:
        same_text(f"the output of {check['argv']}", printed, check["stdout"])
    for path, expected in check.get("left", {}).items():
        look_at_left(folder, path, expected)


def look_for_programs(argv: list[str]) -> None:
    for part in argv:
        if part.startswith(f"{WORK}/"):
            in_work(part[len(WORK) + 1 :])


def ran(argv: list[str], given: str, folder: str) -> tuple[int, str]:
    with tempfile.TemporaryFile() as out:
        try:
            done = subprocess.run(
                argv,
                input=given.encode(),
                stdout=out,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment(),
                timeout=PROGRAM_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{argv} did not end") from None
        except OSError as error:
            raise Failed(f"{argv} does not start: {error}") from None
        out.seek(0)
        return done.returncode, out.read(MOST_BYTES).decode("utf-8", "replace")


def look_at_left(folder: str, path: str, expected: str | None) -> None:
    place = os.path.join(folder, path)
    if expected is None:
        if os.path.lexists(place):
            raise Failed(f"{path} is still there")
    elif not os.path.isfile(place):
        raise Failed(f"{path} was not left")
    else:
        same_text(path, text_of(place), expected)


def check_rows(check: Check) -> None:
    database = sqlite3.connect(f"file:{in_work(check['path'])}?mode=ro", uri=True)
    try:
        rows = [list(row) for row in database.execute(check["query"]).fetchmany(10_000)]
    except sqlite3.Error as error:
        raise Failed(f"{check['path']}: {error}") from None
    finally:
        database.close()
    if not equal(rows, check["rows"]):
        raise Failed(f"{check['query']} gives {rows[:10]}")


def check_archive(check: Check) -> None:
    found: dict[str, str] = {}
    try:
        with tarfile.open(in_work(check["path"])) as archive:
            for member in archive:
                if member.isfile() and member.size <= MOST_BYTES and len(found) < 1000:
                    file = archive.extractfile(member)
                    content = b"" if file is None else file.read()
                    found[os.path.normpath(member.name)] = content.decode("utf-8", "replace").strip()
                elif not member.isdir():
                    raise Failed(f"{member.name} is no regular file")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Failed(f"{check['path']} is no archive: {error}") from None
    if found != {path: content.strip() for path, content in check["members"].items()}:
        raise Failed(f"{check['path']} holds {sorted(found)[:20]}")


def check_executable(check: Check) -> None:
    if bool(os.stat(in_work(check["path"])).st_mode & 0o100) != check["wanted"]:
        raise Failed(f"{check['path']} may {'not ' if check['wanted'] else ''}be executed")


def check_absent(check: Check) -> None:
    if os.path.lexists(os.path.join(WORK, check["path"])):
        raise Failed(f"{check['path']} is still there")


def check_server(check: Check) -> None:
    null = subprocess.DEVNULL
    look_for_programs(check["argv"])
    server = subprocess.Popen(
        check["argv"], stdin=null, stdout=null, stderr=null, cwd=WORK, env=environment(), start_new_session=True
    )
    try:
        wait_for(server, check["port"])
        for exchange in check["exchanges"]:
            (speak_http if "path" in exchange else speak_lines)(check["port"], exchange)
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"the server does not answer: {error!r}") from None
    finally:
        server.kill()
        server.wait()


def wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + SERVER_S
    while time.monotonic() < until:
        if server.poll() is not None:
            raise Failed(f"the server ended with {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise Failed(f"nobody listens on port {port}")


def speak_lines(port: int, exchange: Check) -> None:
    with socket.create_connection(("127.0.0.1", port), SERVER_S) as connection:
        connection.settimeout(SERVER_S)
        lines = connection.makefile("rwb")
        for sent, expected in zip(exchange["send"], exchange["receive"], strict=True):
            lines.write(sent.encode() + b"\n")
            lines.flush()
            same_text(f"the answer to {sent!r}", lines.readline(65536).decode("utf-8", "replace"), expected)


def speak_http(port: int, exchange: Check) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SERVER_S)
    body = exchange.get("body")
    connection.request(exchange.get("method", "GET"), exchange["path"], None if body is None else body.encode())
    response = connection.getresponse()
    content = response.read(MOST_BYTES).decode("utf-8", "replace")
    connection.close()
    if response.status != exchange.get("status", 200):
        raise Failed(f"{exchange['path']} answers {response.status}")
    if "json" in exchange:
        try:
            found = json.loads(content)
        except ValueError:
            raise Failed(f"{exchange['path']} answers no JSON: {content[:100]!r}") from None
        if not equal(found, exchange["json"]):
            raise Failed(f"{exchange['path']} answers {content[:200]}")
    if "text" in exchange:
        same_text(exchange["path"], content, exchange["text"])


CHECKS = {
    "text": check_text,
    "json": check_json,
    "program": check_program,
    "rows": check_rows,
    "archive": check_archive,
    "server": check_server,
    "executable": check_executable,
    "absent": check_absent,
}


def keep_to_oneself() -> None:
    """Nobody of the same user may read this process's memory, or its open files, from now on."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("the judge's memory cannot be closed")


def end_all_others() -> None:
    """Nobody outruns the kernel's own signal to all; return when they are dead."""
    until = time.monotonic() + 5
    while others():
        if time.monotonic() > until:
            sys.exit("a process cannot be ended")
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        reap()
        time.sleep(0.01)


def others() -> list[str]:
    kept = {1, os.getpid()}
    return [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in kept and is_alive(name)]


def is_alive(process: str) -> bool:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in b"ZX" or int(fields[17]) > 1  # a thread may outlive the main one


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def emptied(folder: str) -> str:
    place = os.path.realpath(folder)
    os.makedirs(place, exist_ok=True)
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    return place


def main() -> None:
    tests = os.path.dirname(os.path.realpath(__file__))
    with open(os.path.join(tests, "checks.json"), encoding="utf-8") as file:
        checks = json.load(file)
    emptied(tests)
    keep_to_oneself()
    faults = []
    for check in checks:
        try:
            CHECKS[check["kind"]](check)
        except Failed as fault:
            faults.append(str(fault))
    end_all_others()
    with open(os.path.join(emptied(LOGS), "reward.txt"), "w", encoding="ascii") as file:
        file.write("0\n" if faults else "1\n")
    print("\n".join(faults) or "all checks hold")


if __name__ == "__main__":
    main()
