"""A process of the policy that answers in the place of a server of ours."""

from sandboxes.interface import Sandbox

CODE = """\
import os, socket, struct, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
if os.fork():
    os._exit(0)
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for descriptor in (0, 1, 2):
    os.dup2(null, descriptor)
connection, _ = listener.accept()
connection.recv(65536)
head = sys.argv[2].encode()
connection.sendall(struct.pack("!I", len(head)) + head)
"""


async def answer_once(sandbox: Sandbox, name: str, head: str) -> None:
    """Answer the next call of the server ``name`` with ``head``; return when that listens."""
    result = await sandbox.exec(["python3", "-I", "-S", "-c", CODE, name, head])
    assert result.outcome == "ok", result.stderr
