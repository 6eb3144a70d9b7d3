"""This machine: reads /sys and /proc, writes cgroups and the checkpoint."""
