# ruff: noqa: E501 - a path is one line
"""The icons, as paths of a 16 x 16 grid drawn with a 1.5 wide stroke."""

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

_PATHS = {
    "runs": "M2 12.5 5.5 8l3 2.5L14 3.5M10.5 3.5H14V7",
    "experiments": "M6 2v4.5L2.8 12a1.3 1.3 0 0 0 1.1 2h8.2a1.3 1.3 0 0 0 1.1-2L10 6.5V2M5 2h6M4.3 10h7.4",
    "environments": "M8 1.8 13.5 5v6L8 14.2 2.5 11V5zM2.5 5 8 8.2 13.5 5M8 8.2v6",
    "models": "M8 1.8 14 4.6 8 7.4 2 4.6zM2 8l6 2.8L14 8M2 11.4l6 2.8 6-2.8",
    "package": "M8 1.5l6 3v7l-6 3-6-3v-7zM2 4.5l6 3 6-3M8 7.5v7M5 3l6 3",
    "datasets": "M2.5 4c0-1.2 2.5-2 5.5-2s5.5.8 5.5 2-2.5 2-5.5 2-5.5-.8-5.5-2zM2.5 4v8c0 1.2 2.5 2 5.5 2s5.5-.8 5.5-2V4M2.5 8c0 1.2 2.5 2 5.5 2s5.5-.8 5.5-2",
    "download": "M8 2v8M4.5 7 8 10.5 11.5 7M2.5 13.5h11",
    "chat": "M2.5 3h11v8H8l-3.5 3v-3h-2zM5.5 6h5M5.5 8.3h3",
    "team": "M6 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM1.5 13.5c.3-2.6 2-4 4.5-4s4.2 1.4 4.5 4M10.8 2.8a2.5 2.5 0 0 1 0 4.4M12.5 10c1.2.6 1.9 1.8 2 3.5",
    "theme": "M13.5 9.5A5.8 5.8 0 0 1 6.5 2.5a5.8 5.8 0 1 0 7 7z",
    "keyboard": "M1.5 4h13v8h-13zM4 6.5h.01M6.5 6.5h.01M9 6.5h.01M11.8 6.5h.01M5 9.5h6",
    "sign-out": "M6 2.5H3v11h3M10 5l3 3-3 3M13 8H6.5",
    "serve": "M8 13.5v-4M4.8 10a4.2 4.2 0 1 1 6.4 0M2.6 12.2a7.4 7.4 0 1 1 10.8 0",
    "lock": "M3.5 7h9v6.5h-9zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
    "plus": "M8 3v10M3 8h10",
    "play": "M4.5 2.8v10.4L13 8z",
    "pause": "M5 3v10M11 3v10",
    "stop": "M3.5 3.5h9v9h-9z",
    "copy": "M5.5 5.5h8v8h-8zM3 10.5H2.5v-8h8V3",
    "menu": "M2 4h12M2 8h12M2 12h12",
    "search": "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7 14 14",
    "previous": "M10 3 5 8l5 5",
    "next": "M6 3l5 5-5 5",
    "check": "M3 8.5 6.5 12 13 4.5",
    "cross": "M4 4l8 8M12 4l-8 8",
    "alert": "M8 2 14.5 13.5h-13zM8 6.5v3M8 11.5h.01",
    "repair": "M3 8a5 5 0 0 1 8.7-3.4L13.5 6.5M13.5 3v3.5H10M13 8a5 5 0 0 1-8.7 3.4L2.5 9.5M2.5 13V9.5H6",
    "bell": "M4 11V7.2a4 4 0 0 1 8 0V11l1.3 1.5H2.7zM6.7 14.2h2.6",
    "shield": "M8 1.8 13.2 4v3.8c0 3-2.1 5.3-5.2 6.4-3.1-1.1-5.2-3.4-5.2-6.4V4zM5.8 8l1.6 1.6 2.9-3.2",
    "tool": "M2.5 4.5 6 8l-3.5 3.5M8 12h5.5",
}


def icon(name: str) -> SafeString:
    """An inline drawing.  It says nothing to a screen reader: the text beside it does."""
    return format_html(
        '<svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5"'
        ' stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="{}"/></svg>',
        mark_safe(_PATHS[name]),
    )
