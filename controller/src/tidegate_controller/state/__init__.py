"""What outlives the process: in a file of this machine, or in etcd."""
