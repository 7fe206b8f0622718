"""Worlds: one world at a time, agents are rows. See `envs/base.py` for the protocol."""
