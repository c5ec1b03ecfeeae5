"""What the first bytes to a denied destination say that somebody wanted to send there."""

import base64
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from sandboxes.egress.detectors.destinations import special_kind
from sandboxes.egress.record import EgressRecord

UPLOAD_BYTES = 1
API_BYTES = 1024
"""What a question to an interface may be long."""
_SECRETS = re.compile(
    rb"BEGIN (?:RSA |OPENSSH |EC |DSA )?PRIVATE KEY|AKIA[0-9A-Z]{12}|(?i:aws_secret|aws_access|api[_-]?key"
    rb"|secret[_-]?key|password)['\" ]{0,3}[=:]|root:[x*!]?:0:0:"
    rb"|(?:PATH|HOME)['\"]?[=:][ ]?['\"]?/|gh[ps]_[A-Za-z0-9]{20}|sk-[A-Za-z0-9]{20}|machine \S{1,80} login"
    rb"|_authToken|\bhf_[A-Za-z0-9]{16}"
)
CODED_CHARACTERS = 48
"""The characters of a run in a body or a name of a browser that no word is."""
CODED_BITS = 4.4
"""Per character: base64 of data is above, of words that are written together below."""
_CODES = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
"""Runs that may be hexadecimal or base64, wherever they stand: a name in front of one is not of it."""
_PLAIN_HEADERS = re.compile(rb"(?im)^(?:authorization|proxy-authorization|cookie|x-api-key|if-none-match):[^\r\n]*")
"""Where a code is what belongs there."""
_ARCHIVES = (b"\x1f\x8b\x08", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"SQLite format", b"\x28\xb5\x2f\xfd")
"""How archives and databases begin."""
_BROWSER = re.compile(rb"(?im)^(?:user-agent|referer|from|accept-language):[^\r\n]*")


def carries(record: EgressRecord) -> str | None:
    """Return what the first bytes to a denied destination say that somebody wanted to send there."""
    if record.decision.allowed or special_kind(record.attempt) == "loopback" or not record.opening_up:
        return None
    sent = record.opening_up
    if _SECRETS.search(sent) or _SECRETS.search(_decoded(sent)):
        return "the first bytes look like credentials"
    if sent.startswith(_ARCHIVES) or sent[257:262] == b"ustar":
        return "the first bytes are those of an archive or a database"
    if any(plain.startswith(_ARCHIVES) for run in _CODES.findall(sent) for plain in _in_plain(run)):
        return "a request carries an archive in code"
    if (evidence := coded(sent)) is not None:
        return evidence
    length = re.search(rb"(?i)\r\ncontent-length:[ ]{0,9}(\d{1,12})\r\n", sent)
    uploads = re.match(rb"(?:POST|PUT|PATCH) ", sent) is not None
    if b"git-receive-pack" in sent:
        return "a repository is pushed"
    answers = re.search(rb"(?i)\r\ncontent-type: *application/(?:json|graphql)", sent) is not None
    if uploads and length is not None and int(length[1]) >= (API_BYTES if answers else UPLOAD_BYTES):
        return f"{sent.split(b' ', 1)[0].decode()} of {int(length[1])} bytes"
    if re.match(rb"PUT ", sent) or (
        uploads and re.search(rb"(?i)multipart/form-data|octet-stream|transfer-encoding: *chunked", sent)
    ):
        return "a file is uploaded"
    return None


def _decoded(sent: bytes) -> bytes:
    """Every run of letters in plain, as far as it is hexadecimal or base64."""
    runs = re.findall(rb"[A-Za-z0-9+/=_-]{24,}", sent.replace(b"\n", b""))
    return b"".join(plain for run in runs for plain in _in_plain(run))


def _in_plain(run: bytes) -> Iterator[bytes]:
    """What a run of letters stands for in each code in which it stands for something."""
    for decode in (base64.urlsafe_b64decode, base64.b64decode, bytes.fromhex):
        with suppress(ValueError):
            yield decode(run[: len(run) // 4 * 4].decode())


def coded(sent: bytes) -> str | None:
    """Text in hexadecimal or base64 where a request has names, and long runs of code where it has words."""
    if re.match(rb"[A-Z]{3,10} \S+ HTTP/", sent) is None:
        return None
    head, _, body = _PLAIN_HEADERS.sub(b"", sent).partition(b"\r\n\r\n")
    for token in re.findall(rb"[A-Za-z0-9+_=-]{24,}", head):
        if _is_text(token):
            return "a request carries text in code"
    looked_at = [*_BROWSER.findall(head), body]
    if any(_is_code(run) for part in looked_at for run in re.findall(rb"[A-Za-z0-9+/=]{%d,}" % CODED_CHARACTERS, part)):
        return "a request carries a long code where words belong"
    return None


def _is_text(token: bytes) -> bool:
    return any(
        len(plain) >= 16 and all(32 <= byte < 127 or byte in b"\r\n\t" for byte in plain) for plain in _in_plain(token)
    )


def _is_code(run: bytes) -> bool:
    kinds = [re.search(kind, run) is not None for kind in (rb"[a-z]", rb"[A-Z]", rb"[0-9]")]
    bits = -sum(n / len(run) * math.log2(n / len(run)) for n in Counter(run).values())
    return all(kinds) and bits >= CODED_BITS and not run.startswith(b"eyJ")
