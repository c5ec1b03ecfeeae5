"""The answer with a version's files: streamed, and from any byte on for whoever asks for a range."""

import re

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from webapp.catalog.version_models import StoredVersion
from webapp.refusals import Refused
from webapp.streams import streamed

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def download_of(request: HttpRequest, version: StoredVersion) -> HttpResponse | StreamingHttpResponse:
    """Raises Refused for a version that is not ready, or whose files are not here."""
    if not version.is_ready:
        raise Refused(f"the version is {version.state}; only a ready one has files")
    name = f"{version.family.name}-{version.number}"
    try:
        archive = version.archive(name)
    except OSError as error:
        raise Refused(f"the files of {version} are not on this machine; import it again") from error
    headers = {
        "ETag": f'"{version.sha256}-{version.number}"',
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{name}.tar"',
    }
    first, last, status = 0, archive.size - 1, 200
    if (asked := request.headers.get("Range")) and request.headers.get("If-Range", headers["ETag"]) == headers["ETag"]:
        wanted = _range_in(asked, archive.size)
        if wanted is None:
            return HttpResponse(status=416, headers=headers | {"Content-Range": f"bytes */{archive.size}"})
        (first, last), status = wanted, 206
        headers["Content-Range"] = f"bytes {first}-{last}/{archive.size}"
    headers["Content-Length"] = str(last - first + 1)
    chunks = streamed(archive.read(first, last))
    return StreamingHttpResponse(chunks, status=status, content_type="application/x-tar", headers=headers)


def _range_in(text: str, size: int) -> tuple[int, int] | None:
    """First and last byte; None where no byte of the archive is asked for, or not one range."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    if not found[1]:
        length = min(int(found[2]), size)
        return (size - length, size - 1) if length else None
    first, last = int(found[1]), min(int(found[2] or size), size - 1)
    return (first, last) if first <= last else None
