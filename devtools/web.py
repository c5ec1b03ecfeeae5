"""``python -m devtools.web FD``: the web, on a socket that already listens."""

import socket
import sys

import uvicorn


def configuration() -> uvicorn.Config:
    return uvicorn.Config(
        "webapp.asgi:application",
        server_header=False,
        access_log=False,
        timeout_graceful_shutdown=3,
        ws_ping_interval=20.0,
        lifespan="off",
        # Every viewer's frames would be compressed anew: at 200 viewers that is most of what the web does.
        ws_per_message_deflate=False,
    )


def main(descriptor: int) -> None:
    uvicorn.Server(configuration()).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]))
