"""Servers on the loopback: the policy writes or mends them, the tests start them and speak with them."""

import json
from random import Random

from engine.environments.terminal.own.own_task import Maker, OwnTask, server_answers, text_is

_RUN = ("python3", "-I", "/work/server.py")
_WORDS = ("amber", "basil", "cedar", "delta", "ember", "fjord", "gravel", "harbor")


def line_server(rng: Random) -> OwnTask:
    port = rng.randint(20000, 40000)
    lines = rng.sample(_WORDS, 5)
    return OwnTask(
        name="servers-line-server",
        instruction=f"""
Write /work/server.py for Python's standard library: a TCP server on port {port} of 127.0.0.1. It answers every line
of a connection with the same line backwards and in capitals, and serves one connection after the other, for as long
as it runs.""",
        solution=f"""
cat > server.py <<'CODE'
import socketserver

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.strip()[::-1].upper() + b"\\n")

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

Server(("127.0.0.1", {port}), Handler).serve_forever()
CODE""",
        checks=[
            server_answers(
                _RUN,
                port,
                [
                    {"send": lines[:3], "receive": [line[::-1].upper() for line in lines[:3]]},
                    {"send": lines[3:], "receive": [line[::-1].upper() for line in lines[3:]]},
                ],
            )
        ],
        handed_in=["server.py"],
        difficulty="easy",
    )


def status_service(rng: Random) -> OwnTask:
    port, service = rng.randint(20000, 40000), rng.choice(_WORDS)
    values = [rng.randint(1, 99) for _ in range(3)]
    return OwnTask(
        name="servers-status-service",
        instruction=f"""
Write /work/server.py for Python's standard library: an HTTP server on port {port} of 127.0.0.1.
GET /health answers the JSON {{"service": "{service}", "ok": true}}. GET /square/N, with a whole number N, answers
the JSON {{"value": N * N}}. Every other path answers status 404.""",
        solution=f"""
cat > server.py <<'CODE'
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        found = re.fullmatch(r"/square/(-?[0-9]+)", self.path)
        if self.path == "/health":
            self.answer(200, {{"service": "{service}", "ok": True}})
        elif found:
            self.answer(200, {{"value": int(found[1]) ** 2}})
        else:
            self.answer(404, {{"error": "no such path"}})

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
CODE""",
        checks=[
            server_answers(
                _RUN,
                port,
                [
                    {"path": "/health", "json": {"service": service, "ok": True}},
                    *({"path": f"/square/{value}", "json": {"value": value * value}} for value in values),
                    {"path": "/nowhere", "status": 404},
                ],
            )
        ],
        handed_in=["server.py"],
    )


def key_value_store(rng: Random) -> OwnTask:
    port = rng.randint(20000, 40000)
    first, second, third = rng.sample(_WORDS, 3)
    return OwnTask(
        name="servers-key-value-store",
        instruction=f"""
Write /work/server.py for Python's standard library: an HTTP server on port {port} of 127.0.0.1 that keeps texts.
PUT /NAME keeps the body of the request under NAME and answers status 204; GET /NAME answers the text with status
200, or 404 where nothing is kept; DELETE /NAME forgets it and answers 204, or 404 where nothing is kept.""",
        solution=f"""
cat > server.py <<'CODE'
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEPT = {{}}

class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        KEPT[self.path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(204)

    def do_GET(self):
        self.answer(200, KEPT[self.path]) if self.path in KEPT else self.answer(404)

    def do_DELETE(self):
        self.answer(204 if KEPT.pop(self.path, None) is not None else 404)

ThreadingHTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
CODE""",
        checks=[
            server_answers(
                _RUN,
                port,
                [
                    {"path": f"/{first}", "status": 404},
                    {"method": "PUT", "path": f"/{first}", "body": second, "status": 204},
                    {"path": f"/{first}", "text": second},
                    {"method": "PUT", "path": f"/{first}", "body": third, "status": 204},
                    {"path": f"/{first}", "text": third},
                    {"method": "DELETE", "path": f"/{first}", "status": 204},
                    {"method": "DELETE", "path": f"/{first}", "status": 404},
                    {"path": f"/{first}", "status": 404},
                ],
            )
        ],
        handed_in=["server.py"],
        difficulty="hard",
    )


def stuck_counter(rng: Random) -> OwnTask:
    port, step = rng.randint(20000, 40000), rng.randint(2, 9)
    code = f'''\
"""Counts: /next answers the next number as JSON, {step} more than the one before; the first is {step}."""
import json
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    count = 0

    def do_GET(self):
        self.count += {step}
        body = json.dumps({{"count": self.count}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + 1))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("127.0.0.1", {port + 1}), Handler).serve_forever()
'''
    return OwnTask(
        name="servers-stuck-counter",
        instruction=f"""
/work/server.py should count on port {port} of 127.0.0.1, as the text at its head says. It listens on another port,
its answers never seem to end, and it answers {step} again and again. Mend it.""",
        files={"server.py": code},
        solution=f"""
python3 - <<'CODE'
text = open("server.py").read()
for old, new in (
    ("self.count +=", "Handler.count +="), ("str(len(body) + 1)", "str(len(body))"), ("{port + 1}", "{port}"),
):
    assert old in text
    text = text.replace(old, new)
open("server.py", "w").write(text)
CODE""",
        checks=[server_answers(_RUN, port, [{"path": "/next", "json": {"count": step * n}} for n in range(1, 5)])],
        handed_in=["server.py"],
    )


def asked_service(rng: Random) -> OwnTask:
    port = rng.randint(20000, 40000)
    secrets = {word: rng.randint(1000, 9999) for word in rng.sample(_WORDS, 6)}
    salt = rng.randint(11, 99)
    code = f'''\
"""A service that is asked for numbers: a line with a name, then a line with the answer to the sum that it sets."""
import json
import socketserver

NUMBERS = {json.dumps(secrets)}


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        name = self.rfile.readline().decode().strip()
        if name == "names":
            self.wfile.write((" ".join(sorted(NUMBERS)) + "\\n").encode())
            return
        left = len(name) * {salt}
        self.wfile.write(f"{{left}} + {{len(name)}} = ?\\n".encode())
        right = self.rfile.readline().decode().strip() == str(left + len(name))
        self.wfile.write((str(NUMBERS.get(name, "unknown")) if right else "wrong").encode() + b"\\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True


Server(("127.0.0.1", {port}), Handler).serve_forever()
'''
    return OwnTask(
        name="servers-asked-service",
        instruction=f"""
Start the service /work/service.py, which listens on port {port} of 127.0.0.1. A connection that sends the line
`names` gets the names that it knows, with spaces between them. A connection that sends a name gets a sum, and, for
the line with its result, the number of that name. Write the sum of the numbers of all names to /work/sum.txt.""",
        files={"service.py": code},
        solution=f"""
python3 service.py & service=$!
python3 - <<'CODE'
import socket, time

def speak(first):
    for _ in range(100):
        try:
            connection = socket.create_connection(("127.0.0.1", {port}))
            break
        except OSError:
            time.sleep(0.1)
    lines = connection.makefile("rw")
    lines.write(first + "\\n")
    lines.flush()
    answer = lines.readline()
    if first == "names":
        return answer.split()
    left, _, right, _, _ = answer.split()
    lines.write("%d\\n" % (int(left) + int(right)))
    lines.flush()
    return int(lines.readline())

open("sum.txt", "w").write("%d\\n" % sum(speak(name) for name in speak("names")))
CODE
kill $service""",
        checks=[text_is("sum.txt", str(sum(secrets.values())))],
        handed_in=["sum.txt"],
    )


MAKERS: tuple[Maker, ...] = (line_server, status_service, key_value_store, stuck_counter, asked_service)
