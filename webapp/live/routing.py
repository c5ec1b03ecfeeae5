"""Websocket paths."""

from django.urls import path, re_path

from webapp.live.consumer import AlertConsumer, Nowhere, RunConsumer

websocket_urlpatterns = [
    path("live/runs/<uuid:run_id>/", RunConsumer.as_asgi()),
    path("ws/alerts", AlertConsumer.as_asgi()),
    re_path("", Nowhere.as_asgi()),
]
