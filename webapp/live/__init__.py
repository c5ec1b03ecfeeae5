"""Runs as they happen: a snapshot when the page loads, then frames over a websocket (docs/events.md, "Reading")."""
