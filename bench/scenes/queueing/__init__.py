"""Parts of the scene `queues`: what is loaded how, where it waits, and what came of it."""
