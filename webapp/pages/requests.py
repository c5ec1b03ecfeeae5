"""What a page's view is handed: a request to which the middlewares have added what they know.

Nothing makes these classes; they say in types what ``MIDDLEWARE`` and ``login_required`` do to Django's request.
"""

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails

from webapp.accounts.models import User


class HtmxRequest(HttpRequest):
    htmx: HtmxDetails


class PageRequest(HtmxRequest):
    """Of somebody who is signed in."""

    user: User
