"""Who may use the service.  A token is ``pst_<id>_<secret>``: shown once, kept as a SHA-256, found by its id.

The secret has 256 random bits, so a fast hash is enough.  The file is read again when it has changed, so
that a revocation needs no restart (``json_file``).
"""

import hashlib
import hmac
import secrets
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandboxes.backends.remote.wire import Name
from sandboxes.service.json_file import JsonFile

PREFIX = "pst"
Role = Literal["user", "admin", "host"]
"""``user``: has sandboxes.  ``admin``: asks a host for sandboxes on behalf of others, who have quotas there and none
here.  ``host``: may register itself with an admin, and nothing else."""


class TokenFault(Exception):
    """What was asked of the file cannot be done; the message says why, and what to do instead."""


class Quota(BaseModel):
    """What one token may use; a request beyond it is answered 429."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    sandboxes: int = Field(default=100, ge=0)
    """So many at once, those in the queue included."""
    requests_per_minute: int = Field(default=60_000, ge=1)
    """Requests that change or run something."""
    exec_s_per_minute: float = Field(default=6000.0, gt=0)
    """Seconds of execution, summed over all sandboxes: 60 is one that always runs."""

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        """Version 0.2 wrote ``boxes`` into the file of tokens."""
        if not isinstance(document, dict) or "boxes" not in document or "sandboxes" in document:
            return document
        return {"sandboxes" if name == "boxes" else name: value for name, value in document.items()}


class Token(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    name: Name
    owner: Annotated[Name, Field(description="Whose sandboxes are reached with it.")]
    digest: str
    role: Role = "user"
    quota: Quota
    created_at: float
    revoked_at: float | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: list[Token] = []


class Tokens:
    """The tokens of one file; a file that is not there has none."""

    def __init__(self, path: Path, *unwritten: Token) -> None:
        """``unwritten``: tokens that live as long as this process and stand in no file."""
        self.path = path
        self._unwritten = {token.id: token for token in unwritten}
        self._file = JsonFile(path, _File)
        self._indexed: tuple[_File | None, dict[str, Token]] = (None, {})

    def listed(self) -> list[Token]:
        """Revoked ones too, oldest first."""
        return list(self._by_id().values())

    @property
    def any_is_valid(self) -> bool:
        return any(token.revoked_at is None for token in self._by_id().values())

    def find(self, text: str) -> Token | None:
        """The token that was shown as ``text``; None for a revoked one too."""
        prefix, _, rest = text.partition("_")
        id_, _, _ = rest.partition("_")
        token = self._unwritten.get(id_) or self._by_id().get(id_)
        if prefix != PREFIX or token is None or token.revoked_at is not None:
            return None
        return token if hmac.compare_digest(token.digest, _digest(text)) else None

    def create(self, name: str, owner: str, quota: Quota, role: Role = "user") -> tuple[Token, str]:
        """A new token and its text, which nobody can show again.  Raises ``TokenFault`` for a name in use."""
        made, text = minted(name, owner, quota, role)
        with self._file.changing() as file:
            if any(token.name == name and token.revoked_at is None for token in file.tokens):
                raise TokenFault(f"name = '{name}': a token has this name; choose another, or revoke that one first")
            file.tokens.append(made)
        return made, text

    def revoke(self, name: str) -> Token:
        """Make it no token from now on.  Raises ``TokenFault`` if none has the name."""
        with self._file.changing() as file:
            for place, token in enumerate(file.tokens):
                if token.name == name and token.revoked_at is None:
                    file.tokens[place] = token.model_copy(update={"revoked_at": time.time()})
                    return file.tokens[place]
        known = ", ".join(token.name for token in self.listed() if token.revoked_at is None) or "none"
        raise TokenFault(f"name = '{name}': no valid token has this name; there are: {known}")

    def _by_id(self) -> dict[str, Token]:
        file = self._file.read()
        if self._indexed[0] is not file:
            self._indexed = (file, {token.id: token for token in file.tokens})
        return self._indexed[1]


def minted(name: str, owner: str, quota: Quota, role: Role) -> tuple[Token, str]:
    """Return a token that stands nowhere yet, and its text."""
    id_ = secrets.token_hex(4)
    text = f"{PREFIX}_{id_}_{secrets.token_urlsafe(32)}"
    token = Token(
        id=id_, name=name, owner=owner, digest=_digest(text), role=role, quota=quota, created_at=time.time()
    )  # fmt: skip
    return token, text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
