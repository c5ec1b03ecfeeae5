"""The policy: its vocabulary and its network."""
