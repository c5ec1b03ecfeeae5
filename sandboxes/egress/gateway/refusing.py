"""How a refusal is said to the program in the sandbox, in the protocol that it speaks; silent protocols get a reset."""

from sandboxes.egress.gateway.opening import Kind

ACCESS_DENIED, INTERNAL_ERROR = 49, 80
"""TLS alert descriptions."""


def refusal(kind: Kind, reason: str) -> bytes:
    """``reason``: one printable line.  For HTTP it is the answer's body and a field of its own."""
    if kind == "tls":
        return _alert(ACCESS_DENIED)
    return _http("403 Forbidden", "X-Egress-Denied", reason) if kind == "http" else b""


def unreachable(kind: Kind, reason: str) -> bytes:
    """For what was allowed, where nobody answered."""
    if kind == "tls":
        return _alert(INTERNAL_ERROR)
    return _http("502 Bad Gateway", "X-Egress-Failed", reason) if kind == "http" else b""


def _alert(description: int) -> bytes:
    """A fatal alert in a record of TLS 1.2, which every version reads before its keys are agreed."""
    return bytes([21, 3, 3, 0, 2, 2, description])


def _http(status: str, field: str, reason: str) -> bytes:
    body = (reason + "\n").encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {status}\r\n{field}: {reason}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii", "replace") + body
