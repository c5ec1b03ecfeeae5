"""Updating the policy."""
