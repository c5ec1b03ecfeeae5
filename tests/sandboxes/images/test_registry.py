"""Names, tags and digests."""

import multiprocessing
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from sandboxes.images.reference import ImageRefused, parsed
from sandboxes.images.registry import FILE, Image, Registry
from sandboxes.spec import SandboxSpec

DAY = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = ("sha256:" + digit * 64 for digit in "12")


def image(name: str = "tools", digest: str = ONE, tags: tuple[str, ...] = (), day: int = 0) -> Image:
    return Image(
        name=name, digest=digest, tags=tags, owner="alice", size_bytes=7, created=DAY + timedelta(days=day),
        source="tools.tar", python="/usr/bin/python3",
    )  # fmt: skip


@pytest.fixture
def registry(tmp_path) -> Registry:
    return Registry(tmp_path / "images")


def test_an_image_is_found_by_name_tag_and_digest(registry):
    kept = registry.add(image(tags=("1",)))
    for reference in ("tools", "tools:1", ONE):
        assert Registry(registry.folder).resolve(reference) == kept
    assert registry.images() == [kept]


def test_a_name_alone_is_the_image_registered_last(registry):
    registry.add(image(tags=("1",), day=0))
    newer = registry.add(image(digest=TWO, day=1))
    assert registry.resolve("tools") == newer
    assert registry.resolve("tools:1").digest == ONE


def test_a_tag_moves_and_the_former_image_stays_by_its_digest(registry):
    registry.add(image(tags=("1", "stable")))
    registry.add(image(digest=TWO, tags=("stable",), day=1))
    assert registry.resolve("tools:stable").digest == TWO
    assert registry.resolve(ONE).tags == ("1",)


def test_registering_the_same_content_again_adds_the_tag(registry):
    registry.add(image(tags=("1",)))
    assert registry.add(image(tags=("2",), day=1)).tags == ("1", "2")
    assert len(registry.images()) == 1


def test_removing_says_whether_another_name_means_the_same_content(registry):
    first, second = registry.add(image()), registry.add(image(name="other"))
    assert registry.remove(first)
    assert not registry.remove(second)
    assert registry.images() == []


@pytest.mark.parametrize("reference", ["tools", "tools:2", "other:1", TWO])
def test_what_is_not_registered_is_refused_with_field_value_and_remedy(registry, reference):
    registry.add(image(tags=("1",)))
    if reference == "tools":
        registry.remove(registry.resolve("tools"))
    with pytest.raises(ImageRefused, match="no such image is registered") as refusal:
        registry.resolve(reference)
    assert (refusal.value.field, refusal.value.value) == ("image", reference)
    assert "python -m sandboxes images" in refusal.value.remedy


@pytest.mark.parametrize(
    "text",
    ["docker.io/library/python:3.12", "python@sha256:" + "0" * 64, "localhost:5000/x", "Tools", "-x", "", ":1", "a:",
     "a b", "sha256:12", "../x", "a:b:c", "x" * 64, "tools\n"],
)  # fmt: skip
def test_a_name_that_leaves_open_what_it_means_is_refused(text):
    with pytest.raises(ImageRefused):
        parsed(text)
    with pytest.raises(ValidationError):
        SandboxSpec(backend="docker", image=text)


def test_a_spec_says_what_is_wrong_with_its_image():
    for fields, problem in (
        ({"backend": "docker"}, "a sandbox of Docker needs an image"),
        ({"image": "tools"}, "only sandboxes of Docker have an image"),
        ({"backend": "docker", "image": "docker.io/x"}, "images of other registries are not used"),
    ):
        with pytest.raises(ValidationError) as refused:
            SandboxSpec(**fields)
        (error,) = refused.value.errors()
        assert problem in error["msg"]
        assert error["ctx"]["field"] == "image"
        assert error["ctx"]["remedy"]


def test_a_damaged_registry_is_refused_and_not_overwritten(registry):
    registry.add(image())
    (registry.folder / FILE).write_text("{")
    for use in (registry.images, lambda: registry.resolve("tools"), lambda: registry.add(image())):
        with pytest.raises(ImageRefused, match="damaged"):
            use()
    assert (registry.folder / FILE).read_text() == "{"


def test_nobody_else_may_read_the_registry(registry):
    registry.add(image())
    assert registry.folder.stat().st_mode & 0o777 == 0o700


def _add_many(folder, digit: str) -> None:
    for number in range(20):
        Registry(folder).add(image(name=f"n{digit}-{number}"))


def test_writers_at_the_same_time_lose_nothing(registry):
    processes = [multiprocessing.Process(target=_add_many, args=(registry.folder, digit)) for digit in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(registry.images()) == 60
