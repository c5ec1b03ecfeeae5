"""An agent that works out a sum with Python: it runs the calls of the model itself, and writes down its answer.

It runs inside a sandbox and knows Chat Completions alone.
"""

import contextlib
import http.client
import io
import json
import os

TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}
ADDRESS = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")[0]
MODEL = http.client.HTTPConnection(ADDRESS)


def ask(messages):
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]})
    MODEL.request("POST", "/v1/chat/completions", body, headers)
    return json.load(MODEL.getresponse())["choices"][0]["message"]


def run(code, variables):
    """What the code prints, or the value of its expression, or the name of its error."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            try:
                print(eval(code, variables))
            except SyntaxError:
                exec(code, variables)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:24]
    return printed.getvalue().strip()[:24]


def main():
    messages, variables = [{"role": "user", "content": os.environ["PALESTRA_TASK"]}], {}
    for _ in range(4):
        message = ask(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            with open("/work/answer.txt", "w") as file:
                file.write(message["content"])
            return
        for call in message["tool_calls"]:
            try:
                output = run(json.loads(call["function"]["arguments"])["code"], variables)
            except ValueError:
                output = "Error: no JSON"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


main()
