"""Two hosts, a network between them by rules, and frames with a deadline.

```text
 a ─ tap ─ switch 1 ─ eth0 ─ network by rules: delays, a rate, losses ─ eth0 ─ switch 2 ─ tap ─ b
                                        └─ records
```

- `hosts`: the two hosts, their contracts and keys, what they count
- `truth`: what the hosts found, beside what was done to the frames. Pure
"""
