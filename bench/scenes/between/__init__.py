"""Frames with a deadline between two hosts (`lab.two_hosts`), judged from outside.

- `rtp`: RTP streams in captures at both ends: lost, late, jitter. Pure
- `skew`: a CPU for each host, and another clock for the second one
- `truth`: what the hosts found, beside what was done to the frames. Pure
"""
