"""Tars and folders against a real daemon, by the command line that people use."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from sandboxes.__main__ import main
from sandboxes.backends.docker import daemon
from sandboxes.images.registry import Registry
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from tests.sandboxes.docker import root_file_system


@pytest.fixture
def images(docker_image, capsys):
    """Runs ``images ...``; what it says, and whether it went well."""

    def run(*arguments: str) -> tuple[str, bool]:
        code = main(["images", *map(str, arguments)])
        output = capsys.readouterr()
        return output.out + output.err, code == 0

    return run


def ids() -> set[str]:
    return {image["Id"] for image in daemon.client().images(all=True)}


def folder(path: Path, dockerfile: str, **files: str) -> Path:
    path.mkdir()
    (path / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


async def test_a_folder_is_built_without_network_shown_used_and_removed(images, tmp_path):
    recipe = """
    FROM palestra/host:1
    ENV SECRET=of-the-image
    COPY greeting /usr/greeting
    RUN python3 -c "import socket; print(socket.create_connection(('192.0.2.1', 80), 1))" || echo none > /usr/network
    """
    output, fine = images("build", folder(tmp_path / "f", recipe, greeting="hello"), "--name", "built", "--tag", "1",
                        "--owner", "bob")  # fmt: skip
    assert fine, output
    shown = json.loads(images("show", "built:1")[0])
    assert shown["digest"] in output
    assert (shown["owner"], shown["source"], shown["python"]) == ("bob", "folder f", "/usr/bin/python3")
    assert shown["size_bytes"] > 10**6
    assert "built" in images("list")[0]
    async with opened(SandboxSpec(backend="docker", image="built:1", timeout_s=10)) as sandbox:
        assert await sandbox.read_file("/usr/greeting") == b"hello"
        assert await sandbox.read_file("/usr/network") == b"none\n"
        assert "of-the-image" not in (await sandbox.exec(["env"])).stdout
    assert images("remove", "built:1")[1]
    assert shown["digest"] not in ids()
    assert not images("show", "built:1")[1]


def test_a_tar_of_docker_save_is_the_same_image_again(images, tmp_path):
    digest = Registry().resolve("host").digest
    saved = tmp_path / "saved.tar"
    saved.write_bytes(b"".join(daemon.client().get_image(digest)))
    output, fine = images("import", saved, "--name", "again", "--tag", "1")
    assert fine, output
    assert digest in output
    assert images("remove", "again")[1]
    assert digest in ids(), "another name still means it"


@pytest.mark.parametrize("key", ["RepoTags", "repotags", "RepoTag\u017f"], ids=["as saved", "small", "long s"])
def test_a_tar_that_would_give_a_tag_of_the_daemon_another_meaning_is_refused(images, tmp_path, key):
    """However its key is written: Docker reads keys without case."""
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).encode()
    manifest = json.dumps([{"Config": "f" * 64 + ".json", key: ["palestra/host:1"], "Layers": []}]).encode()
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        for name, content in (("f" * 64 + ".json", config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    before = daemon.client().inspect_image("palestra/host:1")["Id"]
    output, fine = images("import", tmp_path / "evil.tar", "--name", "evil")
    assert not fine
    assert "another meaning" in output
    assert daemon.client().inspect_image("palestra/host:1")["Id"] == before


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b'{"name": "a web app"}', b'["a"]', b"\xff"])
def test_a_root_file_system_may_have_any_file_named_like_dockers(images, tmp_path, content):
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    output, fine = images("import", tmp_path / "root.tar", "--name", "named")
    assert not fine
    assert "it has no /bin/sh" in output


def test_a_tar_that_is_cut_is_refused(images, tmp_path):
    with tarfile.open(tmp_path / "whole.tgz", "w:gz") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = 100_000
        tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
    (tmp_path / "cut.tgz").write_bytes((tmp_path / "whole.tgz").read_bytes()[:50_000])
    output, fine = images("import", tmp_path / "cut.tgz", "--name", "cut")
    assert not fine
    assert "this is no tar" in output


@pytest.mark.parametrize(
    ("lacking", "problem"), [("shell", "it has no /bin/sh"), ("python", "it has no python3 in its PATH")]
)
def test_an_image_without_a_shell_or_a_python_is_refused_at_import(images, tmp_path, lacking, problem):
    tar = root_file_system.write(tmp_path / "root.tar", **{lacking: False})
    before = ids()
    output, fine = images("import", tar, "--name", "lacking")
    assert not fine
    assert problem in output
    assert "apt-get install" in output
    assert ids() == before
    assert "lacking" not in images("list")[0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("RUN rm /usr/bin/python3", "no python3"),
        (
            "RUN rm /usr/bin/python3 && echo 'exit 42' > /usr/bin/python3 && chmod +x /usr/bin/python3",
            "older than 3.10",
        ),
        ("RUN rm /usr/lib/python3*/lib-dynload/*ctypes*", "lacks a module"),
        ("RUN false", "the build failed"),
    ],
)
def test_a_build_that_makes_no_sandbox_is_refused_and_leaves_no_image(images, tmp_path, line, problem):
    before = {image["Id"] for image in daemon.client().images()}
    output, fine = images("build", folder(tmp_path / "f", f"FROM palestra/host:1\n{line}\n"), "--name", "bad")
    assert not fine
    assert problem in output
    assert {image["Id"] for image in daemon.client().images()} == before


def test_an_image_with_volumes_is_refused_wherever_it_comes_from(images, tmp_path):
    """A volume is room on the machine's disk that no limit of a sandbox counts."""
    client = daemon.client()
    made = client.create_container("palestra/host:1", ["/bin/sh"])
    volumes = client.commit(made["Id"], changes="VOLUME /data")["Id"]
    (tmp_path / "saved.tar").write_bytes(b"".join(client.get_image(volumes)))
    client.remove_container(made["Id"])
    client.remove_image(volumes)
    output, fine = images("import", tmp_path / "saved.tar", "--name", "volumes")
    assert not fine
    assert "it declares volumes (/data)" in output
    assert volumes not in ids()


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("import", "nowhere.tar", "--name", "x"), "tar = 'nowhere.tar': there is no such file"),
        (("import", __file__, "--name", "x"), "this is no tar"),
        (("import", __file__, "--name", "Bad Name"), "name = 'Bad Name': this is no image name"),
        (("import", __file__, "--name", "x", "--tag", "a b"), "tag = 'a b': this is no tag"),
        (("build", "/nowhere", "--name", "x"), "folder = '/nowhere': there is no Dockerfile"),
        (("show", "unknown"), "no such image is registered"),
        (("remove", "docker.io/x"), "images of other registries are not used"),
    ],
)
def test_a_mistake_is_reported_with_its_remedy(images, arguments, output):
    text, fine = images(*arguments)
    assert not fine
    assert output in text
    assert text.startswith("error: ")
    assert ";" in text
    assert "Traceback" not in text
