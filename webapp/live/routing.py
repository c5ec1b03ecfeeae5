"""Websocket paths."""

from django.urls import path

from webapp.live.consumer import AlertConsumer, RunConsumer

websocket_urlpatterns = [
    path("live/runs/<uuid:run_id>/", RunConsumer.as_asgi()),
    path("ws/alerts", AlertConsumer.as_asgi()),
]
