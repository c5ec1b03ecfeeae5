"""The web process: pages, REST and ingest over HTTP, live runs over websockets.

``uvicorn webapp.asgi:application``
"""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.core.asgi import get_asgi_application

http = get_asgi_application()  # loads the apps, which the imports below need

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from webapp.body_limit import BodyLimit  # noqa: E402
from webapp.catalog.uploads import PART_BYTES  # noqa: E402
from webapp.live.routing import websocket_urlpatterns  # noqa: E402

MOST_BODY_BYTES = PART_BYTES + 2**20
"""A part of an upload is the longest body that anybody takes."""

application = ProtocolTypeRouter(
    {
        "http": BodyLimit(http, MOST_BODY_BYTES),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
