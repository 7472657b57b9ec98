"""The core between its edges: one asyncio loop, clock, timers."""
