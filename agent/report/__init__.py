"""Whom we tell: metrics, health, status.  Reads published snapshots only."""
