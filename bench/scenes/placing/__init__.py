"""What the scenes about CPUs share.

- `page`: one page of docs for all of them
"""
