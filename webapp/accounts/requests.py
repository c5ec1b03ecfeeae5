"""What a page's view is handed: a request of somebody who is signed in.

Nothing makes this class; it says in types what ``login_required`` does to the request.
"""

from webapp.accounts.models import User
from webapp.pages.requests import HtmxRequest


class PageRequest(HtmxRequest):
    user: User
