"""JSON lines on stderr: what happened to which sandbox, never what was in it, and no token."""

import json
import logging
import re
import sys
import time

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_TOKEN = re.compile(r"(Bearer\s+|pst_[0-9a-f]+_)[^\s\"']+", re.IGNORECASE)
_CHATTY = ("uvicorn.access", "uvicorn.error", "httpx")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **{key: value for key, value in vars(record).items() if key not in _PLAIN},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _TOKEN.sub(r"\1[redacted]", json.dumps(line, default=str))


def log_to_stderr(level: str = "INFO") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
