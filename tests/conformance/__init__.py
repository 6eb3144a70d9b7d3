"""Replay of the kubelet's recorded answers: ``python -m tests.conformance FILE…``."""
