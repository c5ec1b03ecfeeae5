"""An inference server that samples nothing, behind which gateways are measured: ``python -m`` this.

It answers chat completions after a time that is drawn from the request's ``seed``, as vLLM answers them: with token ids
and log-probs where it is asked for them.  It prints its port when it listens.  What it says is made beforehand, so that
it takes as little of the processor as it can.
"""

import argparse
import asyncio
import json
from random import Random
from typing import Any

ANSWERS = 97
ANSWER = "I looked at the file, and the sum of its third column is {number}; next I write it down. {number} is right. "
TOKENS, PROMPT_TOKENS = 100, 2500
"""What an answer of ``ANSWER`` twice, and half of a conversation of twelve calls, are with a small vocabulary."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fastest", type=float, required=True, metavar="S")
    parser.add_argument("--slowest", type=float, required=True, metavar="S")
    options = parser.parse_args()
    asyncio.run(_serve(options.fastest, options.slowest))


async def _serve(fastest_s: float, slowest_s: float) -> None:
    plain, with_ids = ([_answer(number, ids=ids) for number in range(ANSWERS)] for ids in (False, True))

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await _request(reader)
                if asked is None:
                    writer.write(_http({}))
                    continue
                drawn = Random(asked["seed"])
                await asyncio.sleep(drawn.uniform(fastest_s, slowest_s))
                writer.write(drawn.choice(with_ids if asked.get("return_token_ids") else plain))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _request(reader: asyncio.StreamReader) -> Any:
    """The document that is posted; None for every other request."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b""
    return json.loads(body) if head.startswith(b"POST") else None


def _answer(number: int, *, ids: bool) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": (ANSWER.format(number=number) * 2).strip()},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS, "total_tokens": PROMPT_TOKENS + TOKENS}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "policy", "usage": usage}
    if ids:
        token = {"token": " a", "logprob": -0.5, "bytes": [32, 97], "top_logprobs": []}
        choice |= {"logprobs": {"content": [token] * TOKENS}, "token_ids": [7] * TOKENS}
        answer |= {"prompt_token_ids": [7] * PROMPT_TOKENS}
    return _http({**answer, "choices": [choice]})


def _http(document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


if __name__ == "__main__":
    main()
