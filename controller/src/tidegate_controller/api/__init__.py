"""Hosts and operators, by HTTP.

```text
 contract, schema: openapi.json as code ─┐
 identity, buckets: who, and how much ───┼─▶ server ─▶ operations ─▶ service ─▶ Registry, Runtime
 read, write: JSON and the model ────────┘                └─▶ metrics
```
"""
