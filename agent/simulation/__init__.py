"""A node without hardware: machine descriptions and a model of cgroup v2."""
