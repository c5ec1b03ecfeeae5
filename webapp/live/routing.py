"""Websocket paths."""

from django.urls import path, re_path

from webapp.live.consumer import AlertConsumer, ConversationConsumer, Nowhere, RunConsumer

websocket_urlpatterns = [
    path("live/runs/<uuid:run_id>/", RunConsumer.as_asgi()),
    path("live/conversations/<uuid:conversation_id>/", ConversationConsumer.as_asgi()),
    path("ws/alerts", AlertConsumer.as_asgi()),
    re_path("", Nowhere.as_asgi()),
]
