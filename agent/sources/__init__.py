"""Where pods come from: every source yields the same events."""
