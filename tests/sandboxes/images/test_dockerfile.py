"""What a Dockerfile may name that lies outside of its folder."""

import pytest

from sandboxes.images.dockerfile import check, instructions
from sandboxes.images.reference import ImageRefused

PINNED = "debian@sha256:" + "a" * 64


def registered(reference: str) -> bool:
    return reference == "host:1"


@pytest.mark.parametrize(
    "text",
    [
        "FROM scratch\nCOPY . /",
        f"FROM {PINNED}\nRUN apt-get install -y python3",
        "FROM palestra/host:1",
        f"# a comment\n\nFROM --platform=linux/amd64 {PINNED} AS one\nFROM one\nCOPY --from=one /a /b",
        "FROM scratch\nFROM scratch\nCOPY --from=0 /a /c",
        "FROM scratch\nADD files.tar /",
        'FROM scratch\nADD --chown=1 ["a file.tar", "/x"]',
        "FROM scratch\nARG ROOT=/x\nADD files.tar more.tar $ROOT",
        "FROM scratch\nRUN echo http://example.org",
    ],
)
def test_a_dockerfile_of_pinned_parts_is_built(text):
    check(text, registered)


@pytest.mark.parametrize(
    "text",
    [
        "FROM debian:12",
        "FROM debian",
        "FROM palestra/host:2",
        "from debian:12",
        "ARG BASE=debian\nFROM $BASE",
        "FROM \\\n  debian:12",
        "FROM \\\n# a comment between\n  debian:12",
        "FROM debian:12 AS debian",
        "FROM scratch\nCOPY --from=alpine:3 /bin /bin",
        "FROM scratch\nADD https://example.org/x /x",
        "FROM scratch\nADD --chown=1 http://example.org/x /x",
        "FROM scratch\nADD git@example.org:x.git /x",
        "FROM scratch\nADD \\\n  ftp://example.org/x /x",
        "FROM scratch\nENV U=https://example.org/x\nADD $U /x",
        "FROM scratch\nENV U=https://example.org/x\nADD --chown=1 ${U} files.tar /x",
        'FROM scratch\nENV U=https://example.org/x\nADD ["$U", "/x"]',
        'FROM scratch\nENV U=https://example.org/x\nADD ["$U","/x"]',
        'FROM scratch\nADD ["git@example.org:x.git", "/x"]',
        'FROM scratch\nADD ["http:\\u002f/example.org/x", "/x"]',
        "FROM scratch\nADD http:/\\/example.org/y /y",
        'FROM scratch\nADD http:"//"example.org/y /y',
        "FROM scratch\nADD http:'//'example.org/y /y",
        "FROM scratch\nVOLUME /data",
        "FROM scratch\nONBUILD ADD https://example.org/x /x",
        "# escape=`\nFROM scratch",
        "# syntax = example.org/frontend\nFROM scratch",
        f"FROM {PINNED}x",
    ],
)
def test_a_dockerfile_that_may_mean_something_else_tomorrow_is_refused(text):
    with pytest.raises(ImageRefused) as refusal:
        check(text, registered)
    assert refusal.value.field == "Dockerfile"
    assert refusal.value.remedy


def test_lines_are_joined_as_docker_joins_them():
    assert instructions("RUN a \\\n  # no\n\n  b\\  \n c\nRUN d") == ["RUN a   b c", "RUN d"]
