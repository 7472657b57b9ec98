"""The lab: real kernels, drivers and network stacks, without hardware.

    test ──▶ host.Host          tidegate switch + agent in a folder of their own, and the command line
         ──▶ guest.Guest        a QEMU machine with Debian's kernel; NICs on vhost-user or on a Unix socket
         ──▶ igb, netdevsim     guests with an SR-IOV NIC, emulated or simulated (docs/places/nic/lab.md)
         ──▶ nested             a VM that owns a VF, in a guest
         ──▶ namespaces.Stack   a Linux TCP/IP stack of its own (user + network namespace)
         ──▶ underlay.Underlay  two or three hosts and the network between them; its rules: network.Network
         ──▶ fabric.Fabric      Open vSwitch bridges in line, ring or fat tree, and hosts; its flows: traffic
         ──▶ libvirt.Libvirt        a libvirtd with its own configuration, state and network
         ──▶ testpmd.Testpmd    DPDK's virtio driver as another program's front end

Everything a test starts is a `process.Process`: its output is kept in a file,
which the failure message quotes, and it ends with the test.
"""
