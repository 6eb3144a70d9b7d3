"""A node on which pods come and go for minutes: what the agent costs, and whether it grows."""
