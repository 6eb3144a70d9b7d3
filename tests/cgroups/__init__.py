"""What every cgroup hierarchy promises, the simulated kernel, and the layout of the kubelet."""
