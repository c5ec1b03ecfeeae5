"""What machines ask: are you up, and how are you doing?"""

import hmac
import ipaddress

from django.conf import settings
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django_prometheus.exports import ExportToDjangoView

from webapp.monitoring import exposition


def health(_request: HttpRequest) -> JsonResponse:
    """200 when this process can use the database; Django turns a dead database into a 500."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"status": "ok"})


def metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus: this process, and Palestra's own numbers.  For this host or whoever holds the token, else 404."""
    if not (_from_this_host(request) or _has_token(request)):
        raise Http404
    of_process = ExportToDjangoView(request)
    return HttpResponse(of_process.content + exposition(), content_type=of_process["Content-Type"])


def _from_this_host(request: HttpRequest) -> bool:
    # A reverse proxy on this host makes every visitor look local, but says so.
    if "X-Forwarded-For" in request.headers or "Forwarded" in request.headers:
        return False
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False


def _has_token(request: HttpRequest) -> bool:
    token = settings.PALESTRA_METRICS_TOKEN
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return bool(token) and hmac.compare_digest(given.encode(), token.encode())
