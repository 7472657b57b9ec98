"""Frames with a deadline between two hosts (`lab.two_hosts`), judged from outside.

- `truth`: what the hosts found, beside what was done to the frames. Pure
"""
