"""numalet: exclusive, NUMA-aligned CPUs and memory for the pods of one node."""

__version__ = "0.1.0"
