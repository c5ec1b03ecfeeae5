"""What a sandbox tried.  Everything in it was chosen by hostile code, so every text is printable and bounded.

Building an ``ConnectionAttempt`` never fails for what the sandbox sent: too long a name is cut with an ellipsis,
which no host rule can match.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sandboxes.egress.address import normalised

Protocol = Literal["tcp", "udp", "dns", "icmp", "raw", "other"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
Family = Literal["ipv4", "ipv6", "other"]
Stage = Literal["connect", "opening"]

NAME_CHARACTERS = 255
WORD_CHARACTERS = 32
LABEL_CHARACTERS = 200


def printable(text: str | bytes, limit_characters: int) -> str:
    """ASCII without control characters; what is cut off leaves an ellipsis (``...``) at the end."""
    # Cut before escaping, so that a megabyte of somebody's bytes costs nothing.
    head = text[: limit_characters + 1]
    decoded = head.decode("latin-1") if isinstance(head, bytes) else head
    shown = "".join(
        letter if " " <= letter <= "~" else letter.encode("unicode_escape").decode("ascii") for letter in decoded
    )
    if len(text) > limit_characters or len(shown) > limit_characters:
        return shown[: limit_characters - 3] + "..."
    return shown


def _bounded(limit_characters: int) -> BeforeValidator:
    def bound(given: Any) -> Any:
        return printable(given, limit_characters) if isinstance(given, str | bytes) else given

    return BeforeValidator(bound)


def host_name(given: str) -> str:
    """A name as rules compare it: lower case, no final dot.

    Twice is as once: what ends in several dots keeps them, and matches nothing.
    """
    return given.lower() if given.endswith("..") else given.lower().removesuffix(".")


Name = Annotated[str, _bounded(NAME_CHARACTERS), AfterValidator(host_name)]
Word = Annotated[str, _bounded(WORD_CHARACTERS)]
Label = Annotated[str, _bounded(LABEL_CHARACTERS)]


class Frozen(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )


class ConnectionAttempt(Frozen):
    """One try to reach something outside the sandbox."""

    sandbox: Label
    sequence: int = Field(ge=1)
    """Numbered 1, 2, 3 ... over all attempts of the sandbox, whatever their protocol, by whoever serves it."""
    at: float
    """Unix time in seconds, by the host's clock."""
    protocol: Protocol
    family: Family = "ipv4"
    """The family of the socket that the sandbox used; ``address`` may be IPv4 all the same (v4-mapped)."""
    address: Annotated[str, AfterValidator(normalised)] | None = None
    """Original destination, normalised; of a DNS query the server that it was sent to."""
    port: int | None = Field(default=None, ge=0, le=65535)
    stage: Stage = "connect"
    """``opening``: the first bytes were read, and ``sni``, ``host`` and ``method`` say what was in them."""
    name: Name | None = None
    """The name that a DNS query asks for.  Of anything else: the pinned name, for readers; ``decide`` ignores it."""
    query_type: Word | None = None
    """The type of a DNS query: A, AAAA, TXT ..."""
    sni: Name | None = None
    """From the TLS client hello."""
    host: Name | None = None
    """From the HTTP request, with or without a port."""
    method: Word | None = None
    """HTTP method, if the request could be read."""

    @property
    def target(self) -> str:
        """For sentences: ``tcp 203.0.113.7:4444``, ``dns TXT example.org``."""
        if self.protocol == "dns":
            return f"dns {self.query_type or 'query'} {self.name or '(no name)'}"
        if self.address is None:
            return f"{self.protocol} (no address)"
        if self.port is None:
            return f"{self.protocol} {self.address}"
        bracketed = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.protocol} {bracketed}:{self.port}"
