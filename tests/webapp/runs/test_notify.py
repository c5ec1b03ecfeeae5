"""The notification: what live readers hear when the log grows."""

import asyncio
from typing import Any

import pytest
from channels.layers import channel_layers, get_channel_layer

from webapp.runs import notify as module
from webapp.runs.notify import group_of, notify_run_viewers

RUN = "7f3a0000-0000-0000-0000-000000000000"


@pytest.fixture(autouse=True)
def _rested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_resting_until", 0.0)


async def test_a_notification_reaches_who_listens(valkey_server: str) -> None:
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(group_of(RUN), channel)
    await asyncio.to_thread(notify_run_viewers, RUN)
    assert await asyncio.wait_for(layer.receive(channel), 10) == {"type": "notify"}
    await layer.flush()


def test_a_dead_channel_layer_is_tried_once_and_then_left_alone(
    settings: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [{"address": f"unix://{tmp_path}/nobody.sock", "socket_timeout": None}]
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": hosts}}
    }
    channel_layers.backends.clear()
    notify_run_viewers(RUN)
    monkeypatch.setattr(module, "_send", None)  # a second try would fail on this
    notify_run_viewers(RUN)
    channel_layers.backends.clear()
