"""Queues and BFD of switches, by their databases (OVSDB, RFC 7047).

```text
 SwitchIntent ─▶ session ─▶ queues: plan ─▶ transactions ─▶ connection ─▶ ovsdb-server ─▶ ovs-vswitchd
 events ◀─────── session ◀─ rows: replica ◀──── updates ◀─── connection ◀──────┘
```
"""
