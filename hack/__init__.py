"""Tools for working on numalet."""
