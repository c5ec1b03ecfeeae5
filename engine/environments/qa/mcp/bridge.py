"""A server of the Model Context Protocol, kept alive inside a sandbox between calls.  Standard library only.

    python3 -I -S -B -c CODE NAME START_S PROGRAM [ARGUMENT ...]      prints {"tools"} or {"fault"} and stays

Calls come over the abstract socket NAME in the form of ``terminal/shell_call.py``.  The server is hostile: each line of
it is bounded, each exchange has its deadline, what it asks for is refused, and a line that is no JSON-RPC ends it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

LONGEST_LINE_BYTES = 2**20
MOST_TOOLS = 64
MOST_PAGES = 16
READ_BYTES = 65536
LENGTH = struct.Struct("!I")
VERSION = "2025-06-18"


class Fault(Exception):
    """The server does not speak the protocol, or does not speak at all."""


class Refused(Exception):
    """The server answered a request with an error."""


class Server:
    def __init__(self, command: list[str]) -> None:
        try:
            self.process = subprocess.Popen(
                command, cwd="/work", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Fault(f"it cannot be started: {error.strerror}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.writes, self.reads = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.writes, False)
        self.unread = b""
        self.requests = 0

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def request(self, method: str, parameters: dict[str, Any], until_s: float) -> dict[str, Any]:
        """The result.  Raises TimeoutError, Refused and Fault."""
        self.requests += 1
        own = self.requests
        self.send({"id": own, "method": method, "params": parameters}, until_s)
        while True:
            message = self.received(until_s)
            if "method" in message:
                self.answer(message, until_s)
            elif message.get("id") == own and type(message["id"]) is int:
                return result_of(message)

    def notify(self, method: str, parameters: dict[str, Any], until_s: float) -> None:
        self.send({"method": method, "params": parameters}, until_s)

    def answer(self, message: dict[str, Any], until_s: float) -> None:
        """It may ask whether we are there, and for nothing else; notifications want no answer."""
        if "id" not in message:
            return
        if message["method"] == "ping":
            self.send({"id": message["id"], "result": {}}, until_s)
        else:
            self.send({"id": message["id"], "error": {"code": -32601, "message": "refused"}}, until_s)

    def send(self, message: dict[str, Any], until_s: float) -> None:
        rest = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        while rest:
            if not select.select([], [self.writes], [], max(0.0, until_s - time.monotonic()))[1]:
                raise TimeoutError
            try:
                rest = rest[os.write(self.writes, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Fault("it has ended") from error

    def received(self, until_s: float) -> dict[str, Any]:
        """The next message."""
        while b"\n" not in self.unread:
            if len(self.unread) > LONGEST_LINE_BYTES:
                raise Fault(f"it printed a line of more than {LONGEST_LINE_BYTES} bytes")
            if not select.select([self.reads], [], [], max(0.0, until_s - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(self.reads, READ_BYTES)
            if not part:
                raise Fault("it has ended")
            self.unread += part
        line, _, self.unread = self.unread.partition(b"\n")
        if time.monotonic() > until_s:  # a flood of lines must not keep a call alive
            raise TimeoutError
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Fault("it printed a line that is no JSON") from error
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Fault("it printed a line that is no JSON-RPC 2.0")
        return message


def result_of(message: dict[str, Any]) -> dict[str, Any]:
    if "error" in message:
        error = message["error"]
        raise Refused(str(error.get("message", "")) if isinstance(error, dict) else "")
    result = message.get("result")
    if not isinstance(result, dict):
        raise Fault("it answered without a result")
    return result


def listed(server: Server, until_s: float) -> list[Any]:
    """Its tools, after the greeting."""
    about = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "palestra", "version": "1"}}
    server.request("initialize", about, until_s)
    server.notify("notifications/initialized", {}, until_s)
    tools, cursor = list[Any](), None
    for _ in range(MOST_PAGES):
        page = server.request("tools/list", {} if cursor is None else {"cursor": cursor}, until_s)
        found, cursor = page.get("tools"), page.get("nextCursor")
        tools += [described(tool) for tool in found] if isinstance(found, list) else []
        if len(tools) > MOST_TOOLS:
            raise Fault(f"it has more than {MOST_TOOLS} tools")
        if cursor is None:
            return tools
    raise Fault(f"its list of tools has more than {MOST_PAGES} pages")


def described(tool: Any) -> Any:
    """What is asked of a tool; the rest only takes room."""
    return {name: tool.get(name) for name in ("name", "description", "inputSchema")} if isinstance(tool, dict) else tool


def called(server: Server, call: dict[str, Any], timeout_s: float) -> tuple[str, str]:
    """Status and text of a call."""
    until_s = time.monotonic() + timeout_s
    try:
        result = server.request("tools/call", call, until_s)
    except TimeoutError:
        return "timeout", ""
    except Refused as refusal:
        return "error", str(refusal)
    return "error" if result.get("isError") is True else "ok", text_of(result.get("content"))


def text_of(content: Any) -> str:
    if not isinstance(content, list):
        raise Fault("it answered a call without content")
    parts = [part if isinstance(part, dict) else {} for part in content]
    texts = [str(part["text"]) if part.get("type") == "text" and "text" in part else "[left out]" for part in parts]
    return "\n".join(texts)


def exactly(connection: socket.socket, number: int) -> bytes:
    received = b""
    while len(received) < number:
        chunk = connection.recv(number - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return received


def answer(connection: socket.socket, server: Server) -> bool:
    """Return whether the server can go on."""
    timeout_s, kept_bytes = struct.unpack("!dI", exactly(connection, 12))
    call = json.loads(exactly(connection, LENGTH.unpack(exactly(connection, 4))[0]))
    try:
        status, text = called(server, call, timeout_s)
    except Fault as fault:
        status, text = "fault", str(fault)
    head = json.dumps({"status": status}).encode()
    body = text.encode("utf-8", "replace")[:kept_bytes]
    with contextlib.suppress(OSError):  # whoever asked has gone
        connection.sendall(LENGTH.pack(len(head)) + head + body)
    return status != "fault"


def serve(listener: socket.socket, report: int, start_s: float, command: list[str]) -> None:
    try:
        server = Server(command)
        tools = listed(server, time.monotonic() + start_s)
    except (Fault, Refused, TimeoutError) as error:
        reason = f"it did not list its tools within {start_s:g} s" if isinstance(error, TimeoutError) else str(error)
        os.write(report, json.dumps({"fault": reason}).encode())
        return
    document = json.dumps({"tools": tools}).encode()
    while document:
        document = document[os.write(report, document) :]
    os.close(report)
    goes_on = True
    while goes_on:
        connection, _ = listener.accept()
        with connection:
            try:
                goes_on = answer(connection, server)
            except (EOFError, ValueError, OSError):
                continue
    server.end()


def main(name: str, start_s: float, command: list[str]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(4)
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.close(reads)
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        serve(listener, writes, start_s, command)
        os._exit(0)
    os.close(writes)
    while part := os.read(reads, READ_BYTES):
        sys.stdout.buffer.write(part)
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
