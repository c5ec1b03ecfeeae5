"""What a view is handed: a request to which the middlewares have added what they know.

Nothing makes this class; it says in types what ``MIDDLEWARE`` does to Django's request.
"""

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails


class HtmxRequest(HttpRequest):
    htmx: HtmxDetails
