"""How long decisions take, beside the kubelet's own times: ``python -m tests.bench``."""
