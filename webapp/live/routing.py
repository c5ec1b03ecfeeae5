"""Websocket paths."""

from django.urls import path

from webapp.live.consumer import RunConsumer

websocket_urlpatterns = [path("live/runs/<uuid:run_id>/", RunConsumer.as_asgi())]
