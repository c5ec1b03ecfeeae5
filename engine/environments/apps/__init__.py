"""Errands in several apps whose functions are documented, and whose databases are checked at the end."""
