"""Decides.  Pure: standard library only; no file, socket, clock, environment, thread or logger."""
