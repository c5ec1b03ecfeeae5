"""Palestra next to its peers, on one machine in one session.  Nothing here is a test: a test asserts no time."""
