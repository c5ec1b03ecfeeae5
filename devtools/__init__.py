"""The verbs of ``./dev``: start, stop, look at, test and measure Palestra on one machine.

Nothing here is imported by the product, and nothing here imports it: the supervisor starts
processes and talks to them through their command lines, sockets and tables.
"""
