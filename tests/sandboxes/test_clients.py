"""What people run in sandboxes gets through the gateway where the policy allows it: git, and a package installer."""

import asyncio
import hashlib
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.sandboxes.test_gateway import SITE
from tests.sandboxes.watched_scene import Internet, allowing, scene

pytestmark = pytest.mark.skipif(not Path("/usr/bin/git").exists(), reason="needs git")


@pytest.fixture
async def internet():
    internet = Internet({SITE: ["203.0.113.80"]})
    yield internet
    await internet.close()


def files(content):
    """A web server of these paths."""

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ")[1].partition(b"?")[0].decode()
                found = content(path)
                status = b"404 Not Found" if found is None else b"200 OK"
                body = found or b""
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return serve


def repository(folder):
    """A bare repository with one commit, ready for clients without a git server."""

    def git(*words, cwd=folder):
        identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
        subprocess.run(["/usr/bin/git", *identity, *words], cwd=cwd, check=True, capture_output=True)

    git("init", "-q", "-b", "main", "work")
    (folder / "work" / "solve.py").write_text("print(6 * 7)\n")
    git("add", "solve.py", cwd=folder / "work")
    git("commit", "-q", "-m", "first", cwd=folder / "work")
    git("clone", "-q", "--bare", "work", "tools.git")
    git("update-server-info", cwd=folder / "tools.git")
    return folder


async def test_git_clones_what_is_allowed_and_is_told_why_not_otherwise(internet, tmp_path):
    folder = repository(tmp_path)

    def content(path):
        file = folder / path.lstrip("/")
        return file.read_bytes() if file.is_file() else None

    await internet.serve("203.0.113.80", 80, files(content))
    async with scene(allowing(SITE), internet.upstream, processes=64) as staged:
        cloned = await staged.sandbox.exec(["/usr/bin/git", "clone", "-q", f"http://{SITE}/tools.git", "/work/tools"])
        assert cloned.outcome == "ok", cloned
        assert (await staged.sandbox.exec(["/usr/bin/python3", "/work/tools/solve.py"])).stdout == "42\n"
        refused = await staged.sandbox.exec(["/usr/bin/git", "clone", "-q", "http://203.0.113.9/x.git", "/work/x"])
    assert refused.outcome == "error"
    assert "403" in refused.stderr
    denied = [attempt for attempt in staged.attempts if not attempt.decision.allowed]
    assert {(item.attempt.address, item.decision.reason) for item in denied} == {("203.0.113.9", "no-rule")}


INSTALLER = """
import hashlib, html.parser, io, sys, urllib.error, urllib.parse, urllib.request, zipfile
class Links(html.parser.HTMLParser):
    found = None
    def handle_starttag(self, tag, attributes):
        self.found = dict(attributes).get("href") or self.found
index, links = "http://SITE/simple/answers/", Links()
links.feed(urllib.request.urlopen(index).read().decode())
url, _, wanted = urllib.parse.urljoin(index, links.found).partition("#sha256=")
wheel = urllib.request.urlopen(url).read()
assert hashlib.sha256(wheel).hexdigest() == wanted
zipfile.ZipFile(io.BytesIO(wheel)).extractall("site")
sys.path.insert(0, "site")
import answers
print(answers.ULTIMATE)
try:
    urllib.request.urlopen("http://elsewhere.example.net/simple/")
except OSError as error:
    print(error.reason)
"""


async def test_an_installer_follows_the_index_of_an_allowed_mirror_and_no_other(internet):
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        wheel.writestr("answers.py", "ULTIMATE = 42\n")
    whole = packed.getvalue()
    link = f'<a href="../../files/answers-1.0-py3-none-any.whl#sha256={hashlib.sha256(whole).hexdigest()}">answers</a>'
    pages = {"/simple/answers/": link.encode(), "/files/answers-1.0-py3-none-any.whl": whole}
    await internet.serve("203.0.113.80", 80, files(pages.get))
    async with scene(allowing(SITE), internet.upstream) as staged:
        result = await staged.sandbox.run_python(INSTALLER.replace("SITE", SITE))
    assert result.stdout.split("\n")[0] == "42", result
    assert "Name or service not known" in result.stdout
    assert [attempt.attempt.name for attempt in staged.attempts if attempt.attempt.protocol == "dns"][
        -1
    ] == "elsewhere.example.net"
    assert not staged.attempts[-1].decision.allowed
