"""How an image gets into the registry: from a tar or a folder to a digest, checked, or not at all."""

import hashlib
import json
import lzma
import re
import tarfile
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import NotFound
from pydantic import TypeAdapter, ValidationError

from sandboxes.backends.docker import daemon
from sandboxes.images import dockerfile
from sandboxes.images.checking import python_of
from sandboxes.images.reference import ImageRefused, checked_name, checked_tag
from sandboxes.images.registry import Image, Registry

MANIFEST = "manifest.json"
MANIFEST_BYTES = 2**20
SAVED = TypeAdapter(list[dict[str, Any]])
LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
REPOSITORY = "palestra"
A_TAR = "name a tar of a root file system, or of `docker save`"
BUILD_MEMORY_BYTES = 2 * 2**30


def import_tar(registry: Registry, path: Path, name: str, tag: str | None, owner: str) -> Image:
    """From ``docker save``, or a root file system.  Raises ``ImageRefused``, ``SandboxUnavailable``."""
    client = _ready(name, tag)
    if not path.is_file():
        raise ImageRefused("tar", path, "there is no such file", A_TAR)
    try:
        with tarfile.open(path) as tar:
            manifest = _manifest(tar)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        problem = f"this is no tar ({error})"
        raise ImageRefused("tar", path, problem, A_TAR) from None
    before = _ids(client)
    with daemon.refusals(), open(path, "rb") as file:
        if manifest is None:
            answer = client.import_image_from_data(file, changes=[])
            digest = json.loads(answer.splitlines()[-1])["status"]
        else:
            _check_tags(client, path, manifest)
            output = "".join(str(line.get("stream", "")) for line in client.load_image(file))
            digest = _loaded(client, path, output)
    with open(path, "rb") as file:
        source = f"{path.name}, {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
    return _registered(client, registry, digest, before, name, tag, owner, source)


def build(registry: Registry, folder: Path, name: str, tag: str | None, owner: str) -> Image:
    """From a folder with a Dockerfile, which is given no network.  Raises as ``import_tar`` does."""
    client = _ready(name, tag)
    recipe = folder / "Dockerfile"
    if not recipe.is_file():
        raise ImageRefused("folder", folder, "there is no Dockerfile", "name a folder with one")

    def is_registered(reference: str) -> bool:
        try:
            image = registry.resolve(reference)
            return bool(client.inspect_image(f"{REPOSITORY}/{reference}")["Id"] == image.digest)
        except (ImageRefused, NotFound):
            return False

    dockerfile.check(recipe.read_text("utf-8", "replace"), is_registered)
    before = _ids(client)
    digest, lines = "", []
    with daemon.refusals():
        answers = client.build(
            path=str(folder), network_mode="none", rm=True, forcerm=True, decode=True,
            container_limits={"memory": BUILD_MEMORY_BYTES, "memswap": BUILD_MEMORY_BYTES},
        )  # fmt: skip
        for answer in answers:
            lines.append(str(answer.get("stream", "")))
            digest = answer.get("aux", {}).get("ID", digest)
            if "error" in answer:
                problem = f"the build failed: {str(answer['error']).strip()}"
                raise ImageRefused("Dockerfile", recipe, problem, "".join(lines)[-1000:].strip() or "mend it")
    return _registered(client, registry, digest, before, name, tag, owner, f"folder {folder.resolve().name}")


def remove(registry: Registry, reference: str) -> Image:
    """From the registry, and from the daemon unless another name means it.  Sandboxes that run keep it."""
    image = registry.resolve(reference)
    if not registry.remove(image):
        client = daemon.client()
        with daemon.refusals():
            try:
                _forget(client, image.digest)
            except NotFound:
                return image
    return image


def _ready(name: str, tag: str | None) -> docker.APIClient:
    checked_name(name)
    if tag is not None:
        checked_tag(tag)
    client = daemon.client()
    with daemon.refusals():
        daemon.capabilities(client)
    return client


def _registered(
    client: docker.APIClient, registry: Registry, digest: str, before: set[str], name: str, tag: str | None,
    owner: str, source: str,
) -> Image:  # fmt: skip
    """An image that is refused is removed again, if it was not there before."""
    try:
        found: dict[str, Any] = client.inspect_image(digest)
        image = Image(
            name=name, digest=found["Id"], tags=(tag,) if tag else (), owner=owner, size_bytes=found["Size"],
            created=datetime.now(UTC), source=source, python=python_of(client, found),
        )  # fmt: skip
    except BaseException:
        if digest not in before:
            with daemon.refusals():
                _forget(client, digest)
        raise
    # A tag in the daemon keeps `docker image prune` from it, and is what a Dockerfile may name.
    with daemon.refusals():
        for own in (image.digest.removeprefix("sha256:")[:12], *image.tags):
            client.tag(image.digest, f"{REPOSITORY}/{name}", own, force=True)
    return registry.add(image)


def _forget(client: docker.APIClient, digest: str) -> None:
    """Its tags that are ours, and it itself unless somebody else has a tag on it."""
    found = client.inspect_image(digest)
    for tag in found["RepoTags"] or ():
        if tag.startswith(f"{REPOSITORY}/"):
            client.remove_image(tag)
    try:
        left = client.inspect_image(digest)
    except NotFound:
        return
    if not left["RepoTags"] and not left["RepoDigests"]:
        client.remove_image(digest)


def _ids(client: docker.APIClient) -> set[str]:
    with daemon.refusals():
        return {image["Id"] for image in client.images()}


def _manifest(tar: tarfile.TarFile) -> list[dict[str, Any]] | None:
    """The list in an archive of ``docker save``; None for a root file system, in which a file of that name may be
    anything.

    Keys without case, as Docker reads them.
    """
    try:
        member = tar.getmember(MANIFEST)
    except KeyError:
        return None
    file = tar.extractfile(member) if member.isreg() and member.size <= MANIFEST_BYTES else None
    try:
        images = SAVED.validate_json(file.read()) if file is not None else None
    except ValidationError:
        return None
    return images and [{key.casefold(): value for key, value in image.items()} for image in images]


def _check_tags(client: docker.APIClient, path: Path, manifest: list[dict[str, Any]]) -> None:
    """Loading moves the tags that the tar names: only those may be there that the daemon does not have yet."""
    if len(manifest) != 1:
        raise ImageRefused(
            "tar", path, f"it holds {len(manifest)} images", "save one image: `docker save NAME -o FILE`"
        )
    config = re.search(r"[0-9a-f]{64}", str(manifest[0].get("config", "")))
    tags = manifest[0].get("repotags") or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ImageRefused("tar", path, f"the tags in its {MANIFEST} are no list of texts", A_TAR)
    for tag in tags:
        try:
            there = client.inspect_image(tag)["Id"]
        except NotFound:
            continue
        if config is None or there != f"sha256:{config[0]}":
            problem = f"it would give {tag}, which this daemon has, another meaning"
            raise ImageRefused("tar", path, problem, "save the image by its id: `docker save ID -o FILE`")


def _loaded(client: docker.APIClient, path: Path, output: str) -> str:
    names = LOADED.findall(output)
    if not names:
        raise ImageRefused("tar", path, f"the daemon loaded no image: {output.strip()[-300:]}", "save it again")
    return str(client.inspect_image(names[0])["Id"])
