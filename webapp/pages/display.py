"""Template filters and tags of the whole console: how a time, a number or a curve looks."""

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

from webapp.pages.icons import icon

register = template.Library()
register.simple_tag(icon)

NOTHING = "–"
"""Stands where a value is not known (yet)."""


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """ "3 min ago", with the absolute time on hover; ``times.js`` keeps it true while the page is open."""
    if moment is None:
        return NOTHING
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(timespec="seconds"),
        moment.astimezone(UTC).strftime("%-d %b %Y, %H:%M:%S UTC"),
        _distance((timezone.now() - moment).total_seconds()),
    )


def _distance(seconds: float) -> str:
    if abs(seconds) < 5:
        return "just now"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if abs(seconds) >= size:
            text = f"{int(abs(seconds) // size)} {unit}"
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return "just now"


@register.filter
def duration(seconds: float | None) -> str:
    """3 ms, 12 s, 4m 05s, 2h 07m."""
    if seconds is None:
        return NOTHING
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


@register.filter
def number(value: float | None, digits: int = 3) -> str:
    """Whole numbers and large ones without places, others with ``digits``; 3.00e-4 where places would hide it."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING  # also for "", which a template passes for what is not there
    if isinstance(value, float) and value and not 0.001 <= abs(value) < 1e9:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if isinstance(value, int) or abs(value) >= 1000 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


@register.filter
def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}%"


@register.filter
def size(value: int | None) -> str:
    """Bytes in binary units."""
    if value is None:
        return NOTHING
    amount = float(value)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


@register.filter
def pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.filter
def initials(name: str) -> str:
    return "".join(part[0] for part in name.replace("@", " ").replace(".", " ").split()[:2]).upper()


@register.simple_tag
def sparkline(values: Sequence[float], label: str = "") -> SafeString | str:
    """A small curve of one series; its last value belongs into the text beside it."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    points = " ".join(
        f"{100 * i / (len(values) - 1):.1f},{22 - 20 * (value - low) / span:.1f}" for i, value in enumerate(values)
    )
    return format_html(
        '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polygon points="0,24 {} 100,24"/><polyline points="{}"/></svg>',
        label,
        points,
        points,
    )


@register.filter
def wordlist(text: str) -> list[str]:
    return text.split()


_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@register.filter
def papers(text: str) -> SafeString:
    """Escaped, with each arXiv number as a link and code in its own type."""
    linked = _ARXIV.sub(r'<a href="https://arxiv.org/abs/\1" rel="noreferrer">arXiv:\1</a>', escape(text))
    return mark_safe(re.sub(r"``(.+?)``", r'<code class="inline">\1</code>', linked))
