"""Guests for trying numalet on real kernels: QEMU without KVM, images made of Debian packages.

A guest boots an ELF kernel with an initramfs of busybox and a few modules (`image`), gets a machine
whose CPUs, NUMA nodes and memory a `GuestTopology` describes, sees the project at the host's own
path, runs one command and hands its output and exit status back (`guest`).
Only the standard library is used: the lab runs before anything is installed.
"""
