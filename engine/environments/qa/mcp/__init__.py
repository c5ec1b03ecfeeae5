"""Servers of the Model Context Protocol inside an episode's sandbox: one process there speaks with each."""
