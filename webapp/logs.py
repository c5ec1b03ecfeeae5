"""JSON lines on stderr for every logger of the process, with secrets blacked out."""

import logging.config
import re
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_SECRET_NAME = re.compile(r"password|secret|token|authorization|cookie|api_?key", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"(Bearer\s+|p(?:al|st)_[a-z0-9]+_|://[^/\s:@]*:(?=[^\s/@]+@))[^\s\"'@]+", re.IGNORECASE)


def redact(_logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
    """Values whose name or shape says that they are secret never reach a log, however deep they lie."""
    return {
        str(key): "[redacted]" if _SECRET_NAME.search(str(key)) else _redacted(value) for key, value in event.items()
    }


def _redacted(value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case dict():
            return redact(None, "", value)
        case list() | tuple() | set() | frozenset():
            return [_redacted(item) for item in value]
        case _:  # what is no text yet is logged as its text
            return _SECRET_TEXT.sub(r"\1[redacted]", str(value))


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


# Heartbeats and ticks: each is routine, and together they would drown everything else.
_CHATTY = ("uvicorn.access", "httpx", "celery.beat", "celery.worker.strategy", "celery.app.trace")


def logging_config(level: str) -> None:
    """Send the standard library's loggers and structlog's through one formatter."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": [*_SHARED, structlog.stdlib.PositionalArgumentsFormatter()],
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            redact,
            structlog.processors.JSONRenderer(),
        ],
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": formatter},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"handlers": ["stderr"], "level": level},
            "loggers": {name: {"level": "WARNING"} for name in _CHATTY},
        }
    )
