"""Where numalet decides otherwise than kubelet v1.36.2, by name.

Those always on keep a promise that the kubelet breaks, and a decision in which one may have mattered
says so in its answer.  The opt-in ones are switched on by name in the configuration.
"""

READMIT = "readmit"
"""A running pod is never admitted anew: whoever is in the state keeps what he has.  The kubelet
takes a second pool for a pod with a budget after a restart, loses the first, or refuses the pod
(kubernetes/kubernetes#140989, #140906, #141069)."""

DOUBLE_ALLOCATION = "double_allocation"
"""On machines with uneven cores or sockets the kubelet compares free counts with averages and hands
out CPUs that another pod or container owns, or that are reserved.  Such a core or socket is passed
over here.  Nor is a CPU counted twice where its NUMA node spans sockets."""

LEAKED_CPUS = "leaked_cpus"
"""A rejected pod leaves nothing behind.  The kubelet keeps the pool of a pod whose slices do not fit
into it (a specification that the API server refuses) until its state file is deleted."""

MORE_THAN_8_NODES = "more_than_8_nodes"
"""More than 8 NUMA nodes need no option.  With ``distribute-cpus-across-numa`` above 8 CPU-bearing
nodes a polynomial rule (`agent.core.distribute`) replaces the kubelet's walk over all combinations; with
``prefer-closest-numa-nodes`` and 15 nodes or more the search for the closest (`agent.core.closest`) is
bounded.  Up to 4 nodes are always the closest, and more where the search comes to an end in its bounds, as
it does on evenly built and evenly used machines of sockets and boards; otherwise they are as close as sets
grown node by node and improved by swaps of two, or closer."""

NO_PANIC = "no_panic"
"""NUMA node ids above 63, sparse ids with ``prefer-closest-numa-nodes`` (the id is used as a position
in the row of distances), and a request for a hugepage size that some node lacks crash the kubelet.
Here they are decided like any other: sets of nodes have no largest id, the position in the row is that
of the node, and a node has 0 bytes of what it lacks."""

POD_QUOTA = "pod_quota"
"""A pod with an exclusive slice gets ``cpu.max`` ``max``: its pool's cpuset bounds it already, and a
quota would throttle the slice.  On by default, in enforcement only."""

SHARED_CONTAINER_MEMORY = "shared_container_memory"
"""Opt-in.  Container scope, or topology policy none, with memory policy Static: a container of a pod
with a budget that is not exclusive asks for no memory of its own, so none is placed for it, and it
may use any NUMA node.  The kubelet tries to place the empty request: with single-numa-node or none it
always rejects the pod, with best-effort and restricted as soon as a NUMA node is in use by itself, as
it is by the exclusive container of the KEP's own container-scope example."""

INIT_INSIDE_APP = "init_inside_app"
"""Opt-in.  In a pod without a budget an ordinary init container is placed last, inside the CPUs and
the memory of those that do not run beside it, wherever they are enough: so it neither strands a CPU
nor pulls the pod to a NUMA node where its app does not fit.  The kubelet places init containers first
and alone.  A pod that only the kubelet's order can place is placed in that order."""

INIT_APART = "init_apart"
"""Opt-in.  The exclusive CPUs of an init container are neither among the exclusive CPUs of another
container of its pod nor in the pod shared pool.  The kubelet hands the CPUs of ordinary init
containers on.  Such a pod needs room for everybody at a time: without a budget it holds the sum, and a
budget has to cover the sum.  Memory is handed on as before.  Wins over `INIT_INSIDE_APP`."""

HUGEPAGE_POOL_RULE = "hugepage_pool_rule"
"""Opt-in.  A container that asks for no hugepages does not need any in the pod shared pool, so
hugepages wholly claimed by exclusive containers are no reason to reject the pod.  The kubelet wants
some of every type in the pool as soon as anybody shares it."""

OPT_IN = frozenset({SHARED_CONTAINER_MEMORY, INIT_INSIDE_APP, INIT_APART, HUGEPAGE_POOL_RULE})
