"""Real Linux network stacks, and what connects them: for the scenes that need TCP or applications.

```text
 namespace a ─eth0─┐                          ┌─eth0─ namespace b
   actor           ├─ Tidegate │ kernel bridge ┤        actor
 namespace c ─eth0─┘   │ OVS-DPDK              └─eth0─ namespace d
```

- `fabric`: the contenders; each gives every namespace an `eth0`
- `actor`: the programs that run inside a namespace
- `bulk`: TCP that sends as fast as it is let
- `counters`: what interfaces, threads and CPUs count
"""
