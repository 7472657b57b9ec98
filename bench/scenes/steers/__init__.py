"""Parts of scene `steering`: two hosts with a tunnel, flows through it, and what each stage counted."""
