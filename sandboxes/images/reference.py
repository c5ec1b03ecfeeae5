"""How an image is named in a spec: ``name``, ``name:tag`` or ``sha256:...``.  Pure."""

import re
from dataclasses import dataclass

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
HINT = 'as in "math-tools", "math-tools:2" or "sha256:" and 64 hexadecimal digits'
REMEDY = "import or build it with `python -m sandboxes images`, and use the name that you gave it there"


class ImageRefused(ValueError):
    """An image that cannot be used, or a name that is none: the field, its value, what is wrong, and what to do."""

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        super().__init__(f"{field} = {str(value)!r}: {problem}; {remedy}")
        self.field, self.value, self.problem, self.remedy = field, value, problem, remedy


@dataclass(frozen=True, slots=True)
class Reference:
    """One of the two is given: a digest, or a name and perhaps a tag."""

    digest: str | None = None
    name: str | None = None
    tag: str | None = None


def parsed(text: str) -> Reference:
    """Raises ``ImageRefused``: anything else would leave it to some registry elsewhere what the image is."""
    if DIGEST.fullmatch(text):
        return Reference(digest=text)
    if "/" in text or "@" in text:
        raise ImageRefused(
            "image", text, "images of other registries are not used, they change under their name", REMEDY
        )
    name, colon, tag = text.partition(":")
    if not NAME.fullmatch(name) or name == "sha256" or (colon and not TAG.fullmatch(tag)):
        raise ImageRefused("image", text, "this is no image name", f"write it {HINT}")
    return Reference(name=name, tag=tag if colon else None)


def checked_name(name: str) -> str:
    if not NAME.fullmatch(name) or name == "sha256":
        allowed = "small letters, digits and . _ - inside, 63 at most, and not sha256"
        raise ImageRefused("name", name, "this is no image name", f"use {allowed}")
    return name


def checked_tag(tag: str) -> str:
    if not TAG.fullmatch(tag):
        raise ImageRefused("tag", tag, "this is no tag", "use letters, digits and . _ -, 63 at most")
    return tag
