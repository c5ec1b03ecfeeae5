"""``python -m devtools.web FD``: the web, on a socket that already listens."""

import socket
import sys

import uvicorn


def main(descriptor: int) -> None:
    config = uvicorn.Config(
        "webapp.asgi:application",
        server_header=False,
        access_log=False,
        timeout_graceful_shutdown=3,
        ws_ping_interval=20.0,
        lifespan="off",
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]))
