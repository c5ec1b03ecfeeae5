"""A decoder's process: a torch generator that does what the other end of its socket asks.

    python -m engine.inference.torch.decoder_main DESCRIPTOR

It ends when that end is gone, however it went.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

from engine.channel import Channel, portable
from engine.inference.torch.decoder_messages import STARTED, Begin, Call, DecoderReply, StreamedToken
from engine.inference.torch.generator import TorchGenerator
from engine.models.folder_weights import FolderWeights


class _Served:
    """Answers calls as they come; all of them may be under way at once."""

    def __init__(self) -> None:
        self._generator: TorchGenerator | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()
        self._channel = Channel(self._received, self._gone.set)

    async def serve(self, end: socket.socket) -> None:
        await self._channel.open(end)
        await self._gone.wait()

    def _received(self, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, Begin):
                self._begin(message)
                continue
            call = asyncio.create_task(self._answered(Call(*message)))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def _begin(self, begin: Begin) -> None:
        from engine.inference.torch.factory import undivided_generator

        try:
            self._generator = undivided_generator(begin.model, begin.resources, seed=begin.seed)
        except Exception as error:  # travels to the one who asked for a decoder
            self._say(DecoderReply(STARTED, portable(error), {}))
        else:
            self._say(DecoderReply(STARTED, None, self._generator.stats()))

    async def _answered(self, call: Call) -> None:
        assert self._generator is not None  # nothing is asked before it has begun
        try:
            value = await self._called(self._generator, call)
        except Exception as error:  # travels to the one who asked
            value = portable(error)
        self._say(DecoderReply(call.number, value, self._generator.stats()))

    async def _called(self, generator: TorchGenerator, call: Call) -> Any:
        if call.method == "load_weights":
            file, version = call.arguments
            await generator.load_weights(FolderWeights.of_file(Path(file)), version)
            return None
        if call.method == "stream":
            (request,) = call.arguments
            return await generator.stream(
                request, lambda token, logp: self._say(StreamedToken(call.number, token, logp))
            )
        return await getattr(generator, call.method)(*call.arguments)

    def _say(self, message: DecoderReply | StreamedToken) -> None:
        self._channel.send(message)


def main(descriptor: int) -> None:
    asyncio.run(_Served().serve(socket.socket(fileno=descriptor)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a pass that is under way holds nobody up


if __name__ == "__main__":
    main(int(sys.argv[1]))
